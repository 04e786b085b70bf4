"""``batch_size = "max"`` in a sweep file: what it is a case of, and what cannot be beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from spec_samples import cases, issues_of, load, write

from dlperf_hpc.engines.plan import make_manifest
from dlperf_hpc.engines.site import Site
from dlperf_hpc.model.case import Case
from dlperf_hpc.records.manifest import read_manifest, write_manifest

MAX = 'batch_size = "max"'
PROGRAM = """
[program.mine]
launch = "torchrun"
run = ["train.py", "{batch_size}"]
"""


def test_a_case_without_a_number_has_a_name_and_keeps_it(tmp_path: Path) -> None:
    numbers = '[matrix]\nbatch_size = [4, "max"]\n'
    four, case = cases(tmp_path, case="", tables=numbers)
    assert case.id == "ddp/bert-tiny/bzmax/1n1g/bert-tiny_bmax_fp32" and case.sought
    assert case.to_dict()["batch_size"] == "max" and "largest" not in case.to_dict()
    found = replace(case, batch_size=48)
    assert found.id == case.id and not found.sought
    for each in (four, case, found):
        assert Case.from_dict(json.loads(json.dumps(each.to_dict()))) == each
    assert "largest" not in four.to_dict() and not four.largest


def test_a_rule_names_it_and_no_range_holds_it(tmp_path: Path) -> None:
    numbers = '[matrix]\nbatch_size = [4, "max"]\n'
    for condition, left in (("'max'", [4]), ('"<= 9"', [0]), ('"> 0"', [0]), ('"> 4"', [4, 0])):
        rule = f"[[exclude]]\nbatch_size = {condition}\n"
        kept = cases(tmp_path, case="", tables=numbers + rule)
        assert [case.batch_size for case in kept] == left
    (case,) = cases(tmp_path, case="", tables=f'{numbers}[[exclude]]\nbatch_size = ["> 1", "<= 1"]')
    assert case.sought


def test_what_needs_a_number_is_refused(tmp_path: Path) -> None:
    (issue,) = issues_of(write(tmp_path, case=f"{MAX}\nglobal_batch = 64"))
    assert issue.startswith("global_batch: is given, but batch_size") and "accumulation" in issue
    for framework in ("horovod-torch", "horovod-tensorflow"):
        (issue,) = issues_of(write(tmp_path, case=MAX), framework=framework)
        assert issue.startswith('batch_size: "max" starts new processes') and "MPI" in issue
    more = ("", 'require = ["batch_size <= 8"]\n', 'replicas = "devices // batch_size"\n')
    for line in more:
        path = write(tmp_path, case=MAX, tables=PROGRAM + line)
        found = issues_of(path, framework="mine")
        assert any("batch_size" in issue for issue in found), found
    (issue,) = issues_of(write(tmp_path, case='batch_size = "most"'))
    assert issue.startswith('case.batch_size: "most" is invalid: write a whole number')
    (issue,) = issues_of(
        write(tmp_path, case="batch_size = 1", tables="[[exclude]]\nnodes = 'max'")
    )
    assert "is no range" in issue


def test_a_manifest_keeps_it_and_later_repeats_have_an_array_of_their_own(tmp_path: Path) -> None:
    top = 'topologies = ["1n1g"]\nrepeats = 4\nrepeats_per_job = 2'
    sweep = load(write(tmp_path, top=top, case="", tables='[matrix]\nbatch_size = [4, "max"]\n'))
    manifest = make_manifest(sweep, Site(), "slurm")
    write_manifest(tmp_path, manifest)
    arrays = read_manifest(tmp_path).arrays
    told = {a.name: [(run.case.sought, run.repeat) for run in a.tasks] for a in arrays}
    assert told == {
        "1n1g.sample": [(False, 1), (False, 2), (True, 1), (True, 2), (False, 3), (False, 4)],
        "1n1g.sample.later": [(True, 3), (True, 4)],
    }
    assert read_manifest(tmp_path).sought == [sweep.cases[1].id]
    assert len(make_manifest(sweep, Site(), "local").arrays) == 1
