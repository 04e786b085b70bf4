"""A sweep's directory as results: every run a row, and each from the best that is left of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_samples import (
    a_run,
    a_sweep,
    begun,
    ended,
    ended_ok,
    many,
    opened,
    paths,
    token_of,
    without_end,
)
from report_samples import case

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.collect import Collection, full_results, quick_results
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.manifest import FinalState, Submission, add_final_states, add_submission
from dlperf_hpc.records.store import begin_log, finish

RUN = a_run()
TIMEOUT = FinalState(RUN.id, Status.TIMEOUT, "Slurm: TIMEOUT on n1")


def quick(root: Path) -> Collection:
    """How every run stands, without a log being read whole."""
    return quick_results(read_ledger(root))


BOTH: list[Callable[[Path], Collection]] = [quick, full_results]
both = pytest.mark.parametrize("read", BOTH)


def only(collection: Collection) -> RunResult:
    (result,) = collection.results
    assert result.run == RUN
    return result


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a sweep of one run that has not started."""
    a_sweep(tmp_path / "sweep", [RUN])
    return tmp_path / "sweep"


def record_of(root: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(paths(root, RUN).record.read_text())
    return record


# --- every source --------------------------------------------------------------------------------


@both
def test_nothing(root: Path, read: Callable[[Path], Collection]) -> None:
    result = only(read(root))
    assert (result.status, result.source) == (Status.PENDING, "manifest")


@both
def test_a_log_that_says_ok(root: Path, read: Callable[[Path], Collection]) -> None:
    ended_ok(root, RUN)
    result = only(read(root))
    assert (result.status, result.source, result.warnings) == (Status.OK, "log", ())
    assert (result.samples_per_s is not None) == (read is full_results)


@both
def test_a_log_that_says_failed(root: Path, read: Callable[[Path], Collection]) -> None:
    ended(root, RUN, Status.OUT_OF_MEMORY, "CUDA out of memory")
    add_final_states(root, [TIMEOUT])
    result = only(read(root))
    told = (result.status, result.reason, result.source)
    assert told == (Status.OUT_OF_MEMORY, "CUDA out of memory", "log")


@both
def test_a_record_without_its_log(root: Path, read: Callable[[Path], Collection]) -> None:
    ended(root, RUN, Status.FAILED, "why").paths.log.unlink()
    add_final_states(root, [TIMEOUT])
    result = only(read(root))
    assert (result.status, result.reason, result.source) == (Status.FAILED, "why", "record")


@both
def test_a_record_alone_proves_no_number(root: Path, read: Callable[[Path], Collection]) -> None:
    ended_ok(root, RUN)
    paths(root, RUN).log.unlink()
    result = only(read(root))
    assert (result.status, result.samples_per_s) == (Status.PARTIAL, None)
    assert "no log to prove it" in result.reason


def cut_in_its_middle(log: Path) -> None:
    data = log.read_bytes()
    log.write_bytes(data[: len(data) // 2])


def without_its_summary(log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if " summary " not in line[:60]))


def without_its_beginning(log: Path) -> None:
    log.write_bytes(log.read_bytes()[400:])


def with_a_cut_summary(log: Path) -> None:
    """As a full disk leaves it, where the end was added later."""
    head, _, rest = log.read_text().partition(" step_ms_p5=")
    log.write_text(f"{head}\n{rest.partition(chr(10))[2]}")


LOSSES: list[Callable[[Path], object]] = [
    Path.unlink,
    lambda log: log.write_bytes(b""),
    lambda log: log.write_text("epoch 1 loss 2.0\n"),
    cut_in_its_middle,
    without_its_summary,
    without_its_beginning,
    with_a_cut_summary,
]


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("with_record", [True, False])
def test_a_lost_log_is_judged_alike_by_all(
    root: Path, lose: Callable[[Path], object], with_record: bool
) -> None:
    """Its record says ok: ``status``, ``report`` and the task that runs it again agree that nothing
    proves it; ``rerun`` takes what is partial, and what was there is kept."""
    ended_ok(root, RUN)
    where = paths(root, RUN)
    lose(where.log)
    left = where.log.read_bytes() if where.log.exists() else None
    if not with_record:
        where.record.unlink()
    seen, told = only(quick(root)), only(full_results(root))
    assert Status.OK not in (seen.status, told.status) and told.samples_per_s is None
    if with_record:
        assert seen.status is told.status is Status.PARTIAL
        assert seen.reason == told.reason
    again = opened(root, RUN, "200_0.0")
    if with_record:
        assert again.number == 2
        assert where.earlier(where.record, 1).exists()
    kept = [path.read_bytes() for path in where.attempts.glob("*.log")]
    assert kept == ([] if left is None else [left])
    ended_ok(root, RUN, "200_0.0")
    assert only(quick(root)).status is only(full_results(root)).status is Status.OK


@both
def test_a_lost_log_that_was_submitted_again(
    root: Path, read: Callable[[Path], Collection]
) -> None:
    """What is left is of the earlier task: the run waits."""
    ended_ok(root, RUN)
    paths(root, RUN).log.unlink()
    for job in ("100", "200"):
        add_submission(root, Submission("1n2g.sample", token_of("1n2g"), job_id=job))
    assert only(read(root)).status is Status.PENDING


@both
def test_a_verdict_alone(root: Path, read: Callable[[Path], Collection]) -> None:
    add_final_states(root, [TIMEOUT])
    result = only(read(root))
    told = (result.status, result.reason, result.source)
    assert told == (Status.TIMEOUT, TIMEOUT.reason, "scheduler")


def test_a_cut_log_alone(root: Path) -> None:
    begun(root, RUN)
    result = only(full_results(root))
    assert (result.status, result.source) == (Status.UNKNOWN, "log")
    assert only(quick(root)).status is Status.RUNNING


def test_a_log_that_is_silent_for_longer_than_it_may_run(root: Path) -> None:
    log = begun(root, RUN).paths.log
    hour_ago = log.stat().st_mtime - 3600
    os.utime(log, (hour_ago, hour_ago))
    result = only(quick(root))
    assert result.status is Status.UNKNOWN and "silent for 60 min" in result.reason


@both
def test_a_cut_log_and_a_verdict(root: Path, read: Callable[[Path], Collection]) -> None:
    begun(root, RUN)
    add_final_states(root, [TIMEOUT])
    result = only(read(root))
    told = (result.status, result.reason, result.source)
    assert told == (Status.TIMEOUT, TIMEOUT.reason, "scheduler")


@both
def test_a_log_without_its_last_line_and_a_record(
    root: Path, read: Callable[[Path], Collection]
) -> None:
    ended_ok(root, RUN)
    without_end(paths(root, RUN).log)
    add_final_states(root, [TIMEOUT])
    result = only(read(root))
    assert (result.status, result.source) == (Status.OK, "record")
    assert (result.samples_per_s is not None) == (read is full_results)


def test_a_record_that_says_ok_and_a_log_cut_before_its_summary(root: Path) -> None:
    ended_ok(root, RUN)
    log = paths(root, RUN).log
    log.write_text(log.read_text().partition(" summary ")[0])
    result = only(full_results(root))
    assert (result.status, result.samples_per_s) == (Status.PARTIAL, None)
    assert "no whole summary" in result.reason


@both
def test_an_end_of_a_newer_version(root: Path, read: Callable[[Path], Collection]) -> None:
    log = ended(root, RUN, Status.FAILED, "x").paths.log
    paths(root, RUN).record.unlink()
    log.write_text(log.read_text().replace("status=failed", "status=splendid"))
    assert only(read(root)).status is Status.UNKNOWN


# --- disagreement and damage ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"), [("elapsed_s", 1.0), ("samples", 1), ("loss_last", 0.5), ("steady", None)]
)
def test_a_record_that_disagrees_with_its_log(root: Path, key: str, value: float) -> None:
    before = ended_ok(root, RUN)
    record = record_of(root)
    record["window"][key] = value
    paths(root, RUN).record.write_text(json.dumps(record))
    result = only(full_results(root))
    assert result.samples_per_s == before.samples_per_s
    assert len(result.warnings) == 1
    assert f"the log says {key} " in result.warnings[0] and str(value) in result.warnings[0]


def test_a_record_with_another_end_than_its_log(root: Path) -> None:
    ended_ok(root, RUN)
    paths(root, RUN).record.write_text(json.dumps({**record_of(root), "status": "failed"}))
    (warning,) = only(full_results(root)).warnings
    assert warning.startswith("the log says status ok, the record failed")


def test_a_record_of_another_attempt_is_no_disagreement(root: Path) -> None:
    ended_ok(root, RUN)
    record = {**record_of(root), "attempt": 7, "status": "failed", "window": {"elapsed_s": 1}}
    paths(root, RUN).record.write_text(json.dumps(record))
    assert only(full_results(root)).warnings == ()


@pytest.mark.parametrize("text", ["", "{}", "\x00", '{"schema": "dlperf-record/1"}'])
def test_a_damaged_record_beside_a_good_log(root: Path, text: str) -> None:
    before = ended_ok(root, RUN)
    paths(root, RUN).record.write_text(text)
    result = only(full_results(root))
    assert (result.samples_per_s, result.status) == (before.samples_per_s, Status.OK)


@pytest.mark.parametrize("window", [None, [], "x", {}, {"elapsed_s": None}])
def test_a_record_with_an_odd_window(root: Path, window: Any) -> None:
    ended_ok(root, RUN)
    paths(root, RUN).record.write_text(json.dumps({**record_of(root), "window": window}))
    assert only(full_results(root)).status is Status.OK


def test_a_foreign_log_in_a_runs_place(root: Path) -> None:
    log = paths(root, RUN).log
    log.parent.mkdir(parents=True)
    log.write_text("epoch 1 loss 2.0\n")
    collection = full_results(root)
    result = only(collection)
    assert result.status is Status.UNKNOWN and "not a log of this tool" in result.reason
    assert collection.unreadable == result.warnings == (result.reason,)


def test_the_log_of_another_run_in_a_runs_place(root: Path) -> None:
    other = a_run(repeat=2)
    ended_ok(root, other)
    paths(root, other).log.rename(paths(root, RUN).log)
    collection = full_results(root)
    assert only(collection).samples_per_s is None
    assert f"is the log of {other.id}" in collection.unreadable[0]


@both
def test_a_log_that_cannot_be_read(root: Path, read: Callable[[Path], Collection]) -> None:
    paths(root, RUN).log.mkdir(parents=True)
    result = only(read(root))
    assert result.status is Status.UNKNOWN
    assert "cannot be read: Is a directory" in result.reason
    assert result.warnings == (result.reason,)


# --- directories ---------------------------------------------------------------------------------


def test_earlier_attempts_are_not_counted(root: Path) -> None:
    ended(root, RUN, Status.FAILED, "first", launch="1_0.0")
    result = ended_ok(root, RUN, launch="2_0.0")
    assert result.attempt == 2
    assert len(list(root.rglob("*.log"))) == 2
    assert full_results(root).results == (result,)


def test_a_rerun_that_was_killed_is_not_its_first_attempt(root: Path) -> None:
    ended(root, RUN, Status.FAILED, "first", launch="1_0.0")
    begin_log(opened(root, RUN, launch="2_0.0"))
    assert only(quick(root)).status is Status.RUNNING
    assert only(full_results(root)).status is Status.UNKNOWN


def test_the_first_ok_attempt_is_the_result(root: Path) -> None:
    first = ended_ok(root, RUN)
    attempt = paths(root, RUN)
    copy = attempt.attempts / f"{attempt.log.stem}.attempt2.log"
    copy.parent.mkdir()
    copy.write_text(attempt.log.read_text())
    assert only(full_results(root)) == first


def sweep_of_four(root: Path) -> dict[str, float | None]:
    """Two topologies twice, one run of them dead; samples/s by run."""
    runs = many([case("1n1g"), case("1n2g")], 2)
    a_sweep(root, runs)
    for i, run in enumerate(runs[:3]):
        ended_ok(root, run, seconds=0.05 + 0.01 * i)
    ended(root, runs[3], Status.FAILED, "why")
    return {r.run.id: r.samples_per_s for r in full_results(root).results}


def test_logs_alone_give_the_same_numbers(tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    before = sweep_of_four(root)
    for path in [*root.rglob("*.json"), *root.rglob("*.jsonl")]:
        path.unlink()
    found = gather([root], rule(), {}, ScanCache(None))
    assert {r.run.id: r.samples_per_s for r in found.results} == before
    assert [r.status for r in found.results].count(Status.FAILED) == 1
    for read in BOTH:
        with pytest.raises(LedgerError, match="not a sweep's directory"):
            read(root)


@both
def test_a_directory_that_was_moved(tmp_path: Path, read: Callable[[Path], Collection]) -> None:
    sweep_of_four(tmp_path / "here")
    before = read(tmp_path / "here").results
    shutil.move(tmp_path / "here", tmp_path / "there")
    after = read(tmp_path / "there")
    assert [(r.run, r.status, r.window) for r in after.results] == [
        (r.run, r.status, r.window) for r in before
    ]
    assert all(not r.log or Path(r.log).is_file() for r in after.results)
    assert not (tmp_path / "here").exists()


@both
def test_directories_with_nothing_in_them(
    tmp_path: Path, read: Callable[[Path], Collection]
) -> None:
    (tmp_path / "foreign.log").write_text("hello\n")
    for root in (tmp_path, tmp_path / "nowhere", tmp_path / "foreign.log"):
        with pytest.raises(LedgerError, match=f"^{root}: "):
            read(root)


def test_a_run_stands_where_its_last_attempt_does(root: Path) -> None:
    attempt = begun(root, RUN)
    assert finish(attempt, Status.FAILED, "x")
    assert only(quick(root)).status is Status.FAILED
    begun(root, RUN, launch="2_0.0")
    assert only(quick(root)).status is Status.RUNNING


@both
def test_what_an_earlier_task_left_is_not_the_runs_state(
    root: Path, read: Callable[[Path], Collection]
) -> None:
    """Submitted again, a run waits, whatever its first attempt came to; unless that ended ok."""
    ended(root, RUN, Status.FAILED, "first", launch="1_0.0")
    (array,) = read_ledger(root).arrays
    add_submission(root, Submission(array.name, array.token, job_id="1"))
    assert only(read(root)).status is Status.FAILED
    add_submission(root, Submission(array.name, array.token, job_id="2"))
    assert only(read(root)).status is Status.PENDING
    ended(root, RUN, Status.TIMEOUT, "second", launch="2_0.0")
    assert only(read(root)).reason == "second"
    add_submission(root, Submission(array.name, array.token, job_id="3"))
    ended_ok(root, RUN, launch="2_0.1")
    assert only(read(root)).status is Status.OK
