"""docs/log-format.md names all that is written, and its example is a log that can be read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from places import ROOT
from record_samples import a_run, a_sweep, ended_ok, opened, paths

from dlperf_hpc.model.case import Case, Limits, Measure, Optimizer
from dlperf_hpc.model.result import Status, Window
from dlperf_hpc.records import layout, lines
from dlperf_hpc.records.layout import MANIFEST_SCHEMA, RECORD_SCHEMA
from dlperf_hpc.records.lines import flatten, read_line
from dlperf_hpc.records.logfile import FORMAT, read_log, result_of_log
from dlperf_hpc.records.manifest import FinalState, Submission
from dlperf_hpc.records.store import Failure, leave_failure
from dlperf_hpc.train import joblog
from dlperf_hpc.train.ranks import World

TEXT = (ROOT / "docs" / "log-format.md").read_text(encoding="utf-8")
NAMED = {name for span in re.findall(r"`([^`\n]+)`", TEXT) for name in re.split(r"[ ,]+", span)}
HEADED = {
    name for head in re.findall(r"^### (.+)$", TEXT, re.MULTILINE) for name in head.split(", ")
}
EXAMPLE = TEXT.partition("```text\n")[2].partition("```")[0]


def table_of(heading: str) -> str:
    """The section under a heading, up to the next of any level."""
    return re.split(r"^#+ ", TEXT.partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def events_in_code() -> set[str]:
    found = set()
    for path in (ROOT / "dlperf_hpc").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        written = re.findall(
            r'(?:log_event\([\w.]+,|write_line\()\s*("\w+"|[A-Z][A-Z_]+\b)', source
        )
        found |= {getattr(lines, name) if name.isupper() else name.strip('"') for name in written}
    return found


def test_every_event_has_its_section() -> None:
    events = events_in_code()
    assert {"begin", "case", "phase", "summary", "end"} <= events
    assert events == HEADED


def test_every_event_is_in_the_example() -> None:
    seen = {line.event for raw in EXAMPLE.splitlines() if (line := read_line(raw))}
    # Those of GPUs, and the example ran on CPUs; a timed loop's and a user's program's, and it is a
    # sweep's run of a back end, whose batch size was given and whose all-reduces were not probed.
    others = {"allreduce_probe", "gpu", "nccl", "note", "program", "program_end", "search"}
    assert seen == events_in_code() - others


def test_every_figure_of_the_window_is_explained() -> None:
    section = table_of("### summary")
    for field in fields(Window):
        assert f"`{field.name}`" in section, field.name


def test_every_status_is_explained() -> None:
    section = table_of("## Statuses")
    for status in Status:
        assert f"| `{status.value}` |" in section, status
    assert section.count("\n| `") == len(Status)


@pytest.mark.parametrize(
    "kind",
    [Case, Optimizer, Measure, Limits, Failure, Submission, FinalState],
    ids=lambda k: k.__name__,
)
def test_every_field_is_named(kind: type) -> None:
    for field in fields(kind):
        assert NAMED & {field.name, f"{field.name}.*"}, field.name


def test_every_key_of_what_is_written_is_named(tmp_path: Path) -> None:
    run = a_run()
    a_sweep(tmp_path, [run])
    leave_failure(opened(tmp_path, run), Failure(0, "n1", Status.FAILED, "x", "t"))
    ended_ok(tmp_path, run)
    where = paths(tmp_path, run)
    documents = [where.record, where.failure(1, 0), tmp_path / layout.MANIFEST]
    keys = {key for path in documents for key in json.loads(path.read_text())}
    lines = (read_line(raw) for raw in where.log.read_text().splitlines())
    keys |= {key for line in lines if line for key in line.values}
    record = json.loads(where.record.read_text())
    keys = keys - {"detail"} | set(flatten({"detail": record["detail"]}))
    keys |= set(json.loads((tmp_path / layout.MANIFEST).read_text())["arrays"][0])
    unnamed = {key for key in keys if not NAMED & {key, re.sub(r"\..*", ".*", key)}}
    assert not unnamed


def test_provenance_is_named() -> None:
    # In a process of its own: it initialises MPI.
    program = "from dlperf_hpc.train.joblog import provenance; print(*provenance())"
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    keys = set(done.stdout.split()) - {"env", "nccl_conf"}
    assert {"tool", "mpi", "cpu"} <= keys
    keys |= set(joblog.rank_facts(World(0, ("n1",))))
    keys |= {"cpus_numa", "memory_numa", "gpu_pci", "gpu_cpus", "gpu_numa", "bound"}
    assert keys <= NAMED


def test_versions_are_those_of_the_code() -> None:
    assert f"version of this format: {FORMAT}." in TEXT
    assert {RECORD_SCHEMA, MANIFEST_SCHEMA} <= NAMED


def test_every_file_is_in_the_drawing() -> None:
    drawing = TEXT.partition("```\n")[2].partition("```")[0]
    for name in (layout.MANIFEST, layout.SPEC_COPY, layout.SUBMISSIONS, layout.FINAL_STATES):
        assert f"── {name} " in drawing
    for name in (layout.JOBS, layout.REPORT, layout.ATTEMPTS):
        assert f"── {name}/" in drawing


def test_the_example_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "example.log"
    path.write_text(EXAMPLE)
    result = result_of_log(path)
    assert (result.status, result.warnings) == (Status.OK, ())
    assert result.run.id == "ddp/bert-tiny/bz8/1n2g/bert-tiny_b8_fp32_1"
    assert result.window is not None
    summary = read_log(path).tables["summary"]
    assert summary["samples_per_s"] == pytest.approx(result.samples_per_s, abs=1e-3)
    assert summary["rank_spread"] == pytest.approx(result.window.rank_spread, abs=1e-6)
    assert result.window.samples == result.window.iterations * (result.window.global_batch or 0)
    assert len(result.facts["ranks"]) == result.window.ranks == result.run.case.ranks
