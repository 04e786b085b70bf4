"""Cases that are run together: which runs a job has, in which order, for how long, and what cannot
be run together."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from spec_samples import issues_of, load, write

from dlperf_hpc.engines.base import run_program
from dlperf_hpc.engines.budget import Usage, choose
from dlperf_hpc.engines.local import queued_task
from dlperf_hpc.engines.plan import make_manifest, node_hours, open_sweep, plan_arrays, rerun_arrays
from dlperf_hpc.engines.site import Site, load_site
from dlperf_hpc.engines.slurm.script import batch_script
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.manifest import Array, by_environment
from dlperf_hpc.sweepfile.load import Sweep

TOP = 'topologies = ["1n1g", "2n2g"]\nrepeats = {}\ntogether = "precision"\ntime_limit = "10:00"'
TWO = '[matrix]\nprecision = ["fp32", "bf16"]\nbatch_size = [8, 16]'


def swept(directory: Path, repeats: int, tables: str = TWO, more: str = "") -> Sweep:
    return load(write(directory, top=f"{TOP.format(repeats)}\n{more}", case="", tables=tables))


def jobs(array: Array) -> list[str]:
    """Each job of an array in letters: the place of a precision in the file, as A, B or C."""
    letters = {"fp32": "A", "bf16": "B", "tf32": "C"}
    size = array.repeats_per_job
    runs: Sequence[str] = [letters[run.case.precision] for run in array.tasks]
    return ["".join(runs[start : start + size]) for start in range(0, len(runs), size)]


@pytest.mark.parametrize(
    ("repeats", "order"), [(1, "AB"), (2, "ABBA"), (3, "ABBAAB"), (4, "ABBAABBA")]
)
@pytest.mark.parametrize("one_queue", [False, True])
def test_a_job_has_all_repeats_in_abba_order(
    tmp_path: Path, repeats: int, order: str, one_queue: bool
) -> None:
    arrays = plan_arrays(swept(tmp_path, repeats), one_queue)
    assert [job for array in arrays for job in jobs(array)] == [order] * 4
    for array in arrays:
        for start in range(0, len(array.tasks), array.repeats_per_job):
            job = array.tasks[start : start + array.repeats_per_job]
            assert len({(run.case.batch_size, run.case.topology) for run in job}) == 1
            # Neighbours are the same repeat, so that each pair has its two runs side by side.
            assert [run.repeat for run in job] == sorted([*range(1, repeats + 1)] * 2)


def test_three_cases_and_several_jobs(tmp_path: Path) -> None:
    three = 'batch_size = 8\n[matrix]\nprecision = ["fp32", "bf16", "tf32"]'
    (array, _) = plan_arrays(swept(tmp_path, 6, three, "repeats_per_job = 3"), False)
    assert jobs(array) == ["ABCCBAABC", "CBAABCCBA"]
    assert (array.size, array.repeats_in_job, array.job_limit_s) == (2, 3, 9 * 600)
    assert node_hours(array) == pytest.approx(18 * 10 / 60)


def test_what_a_zip_advances_together_is_one_axis(tmp_path: Path) -> None:
    rows = '[[zip]]\nprecision = ["fp32", "bf16"]\nbatch_size = [8, 16]\n'
    (array, _) = plan_arrays(swept(tmp_path, 2, rows), False)
    assert jobs(array) == ["ABBA"]
    assert [run.case.batch_size for run in array.tasks] == [8, 16, 16, 8]


def test_a_case_without_a_partner_has_a_job_of_its_own(tmp_path: Path) -> None:
    tables = f'{TWO}\n[[exclude]]\nprecision = "bf16"\nbatch_size = 16'
    sweep = swept(tmp_path, 2, tables)
    assert any("bz16" in note and "no other case" in note for note in sweep.notes)
    arrays = plan_arrays(sweep, False)
    assert [(array.name, jobs(array)) for array in arrays] == [
        ("1n1g.sample.x4", ["ABBA"]),
        ("2n2g.sample.x4", ["ABBA"]),
        ("1n1g.sample.x2", ["AA"]),
        ("2n2g.sample.x2", ["AA"]),
    ]


@pytest.mark.parametrize(
    ("top", "tables", "message"),
    [
        ('together = "topology"', TWO, "together: 'topology': .* cannot share one allocation"),
        ('together = "gpus_per_node"', TWO, "cannot share one allocation"),
        ('together = "mode"', TWO, "together: no list .* several values of 'mode': there is no"),
        ('together = "precison"', TWO, "did you mean 'precision'"),
        (
            'together = "precision"',
            'batch_size = "max"\n[matrix]\nprecision = ["fp32", "bf16"]',
            'together: .* batch_size = "max": runs wait for the size to be found',
        ),
        (
            'together = "precision"\nrepeats = { until = "1%" }',
            TWO,
            "together: repeats of one job share their nodes",
        ),
    ],
)
def test_what_cannot_be_run_together_is_refused(
    tmp_path: Path, top: str, tables: str, message: str
) -> None:
    path = write(tmp_path, top=f'topologies = ["1n1g"]\n{top}', case="", tables=tables)
    found = issues_of(path)
    assert len(found) == 1 or "until" in top, found

    assert any(re.search(message, each) for each in found), found


def test_the_script_of_a_job_and_its_budget(tmp_path: Path) -> None:
    sweep = swept(tmp_path, 4)
    arrays = plan_arrays(sweep, False)
    lines = batch_script(tmp_path / "root", arrays[0], Site()).splitlines()
    assert "for DLPERF_TURN in 0 1 2 3 4 5 6 7; do" in lines
    assert "#SBATCH --time=80" in lines and "#SBATCH --array=0-1%2" in lines
    ids = {run.id for array in arrays for run in array.tasks}
    # 4 jobs of 8 runs: 16 runs x 1 node x 10 min, and as many on 2 nodes.
    assert choose(arrays, ids, Usage(), 8.0).runs == ids
    rest = choose(arrays, ids, Usage(), 7.9)
    assert rest.hours == pytest.approx(16 / 6)  # jobs stay whole: 2n2g goes
    assert rest.runs == {run.id for run in arrays[0].tasks}


FRAMEWORKS = """
topologies = ["1n1g", "2n2g"]
repeats = 4
repeats_per_job = 1
together = "framework"
[case]
model = "bert-tiny"
batch_size = 8
seq_len = 16
[[zip]]
framework = ["ddp", "deepspeed"]
environment = ["default", "ds"]
"""
SITE = """
[environment.ds]
venv = "/opt/ds"
mpi = "pmix"
env = { A = "b c" }
"""


def in_two_environments(directory: Path) -> Site:
    """The site of a sweep, sample.toml, that compares two frameworks."""
    for name, text in {"sample.toml": FRAMEWORKS, "site.toml": SITE}.items():
        (directory / name).write_text(text)
    return load_site(f"{directory}/site.toml")


def test_frameworks_of_several_environments_take_turns_in_one_job(tmp_path: Path) -> None:
    """Each turn runs in the environment of its case, with its MPI plug-in."""
    site = in_two_environments(tmp_path)
    manifest = make_manifest(load(tmp_path / "sample.toml"), site, "slurm")
    turns = {array.name: (array.environments, array.size) for array in manifest.arrays}
    assert turns == {
        "1n1g.sample-ds": (("default", "ds"), 2),
        "1n1g.sample-ds.2": (("ds", "default"), 2),
        "2n2g.sample-ds": (("default", "ds"), 2),
        "2n2g.sample-ds.2": (("ds", "default"), 2),
    }
    (tmp_path / "root").mkdir()
    open_sweep(tmp_path / "root", manifest, "")
    array = read_ledger(tmp_path / "root").arrays[2]
    assert array == manifest.arrays[2]
    parts = {name: [len(part.tasks) for part in those] for name, those in
             by_environment([array]).items()}  # fmt: skip
    program = run_program(tmp_path / "root", array)
    runs = queued_task(tmp_path / "root", array, site, program, "7_0").runs()
    assert [run.env.get("A") for run in runs] == ["b c", None]
    assert ["/opt/ds/bin/python" in run.argv for run in runs] == [True, False]
    assert parts == {"ds": [2], "default": [2]}


@pytest.mark.processes
def test_each_turn_has_the_environment_of_its_case(tmp_path: Path) -> None:
    """A shell runs the script, with an srun that prints what it is given."""
    site = in_two_environments(tmp_path)
    array = make_manifest(load(tmp_path / "sample.toml"), site, "slurm").arrays[2]
    script = batch_script(tmp_path / "root", array, site).replace("engines.epilogue", "pools")
    srun = 'srun() { printf "%s|" "turn=$A" "$VIRTUAL_ENV" "$@"; echo; }'
    argv, plain = ["bash", "-c", f"{srun}\n{script}"], {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=plain, capture_output=True, text=True, check=True)
    first, second = (row.split("|") for row in done.stdout.splitlines() if row[:5] == "turn=")
    assert first[:2] == ["turn=b c", "/opt/ds"] and second[:2] == ["turn=", ""]
    after = first.index("--mpi=pmix"), second.index("--mpi=pmi2")
    assert [first[after[0] + 1], second[after[1] + 1]] == ["/opt/ds/bin/python", sys.executable]


def test_a_rerun_and_what_is_added_later_have_jobs_of_their_own(tmp_path: Path) -> None:
    def planned(repeats: int) -> None:
        manifest = make_manifest(swept(tmp_path, repeats), Site(), "slurm")
        open_sweep(tmp_path / "root", manifest, "")

    (tmp_path / "root").mkdir()
    planned(2)
    ledger = read_ledger(tmp_path / "root")
    (again,) = rerun_arrays(ledger, ledger.manifest.arrays[0].tasks[1:2])
    assert (again.repeats_per_job, jobs(again)) == (1, ["B"])
    planned(4)
    added = read_ledger(tmp_path / "root").manifest.arrays[2:]
    assert [jobs(array) for array in added] == [["ABBA", "ABBA"]] * 2
    assert {run.repeat for array in added for run in array.tasks} == {3, 4}
