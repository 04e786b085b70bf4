"""Attempts on disk: one record, one end, and nothing ever overwritten or lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import SWEEP, a_run, begun, ended, ended_ok, opened, paths, timed, without_end

from dlperf_hpc import files
from dlperf_hpc.errors import LedgerError, LogError
from dlperf_hpc.model.case import Case, Measure
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import store
from dlperf_hpc.records.lines import read_line
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import (
    Attempt,
    Failure,
    begin_log,
    complete_log,
    finish,
    leave_failure,
    log_event,
    open_attempt,
    read_failures,
)
from dlperf_hpc.train.measurement import summarise

FORK = multiprocessing.get_context("fork")
RUN = a_run()
WINDOW = summarise(timed(), RUN.case, Measure(warmup=5, iterations=6))


def failure(rank: int, reason: str = "it broke", **changes: Any) -> Failure:
    values: dict[str, Any] = {"status": Status.FAILED, "time": f"2026-11-21T14:00:0{rank % 10}Z"}
    return Failure(rank=rank, host="n1", reason=reason, **{**values, **changes})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def ends(log: Path) -> list[str]:
    lines = (read_line(raw) for raw in log.read_text().splitlines())
    return [line.values["status"] for line in lines if line and line.event == "end"]


def together(work: Callable[[int, Any], None], count: int) -> None:
    """Run ``work(rank, barrier)`` in so many processes; all of them must end well."""
    barrier = FORK.Barrier(count)
    started = [FORK.Process(target=work, args=(rank, barrier)) for rank in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0] * count


# --- attempts, one after another -----------------------------------------------------------------


def test_the_first_attempt(tmp_path: Path) -> None:
    attempt = opened(tmp_path, RUN)
    assert (attempt.number, attempt.sweep, attempt.launch) == (1, SWEEP, "100_0.0")
    assert attempt.paths.log == tmp_path / f"{RUN.id}.log"
    assert not attempt.paths.log.exists() and not attempt.paths.attempts.exists()


def test_all_ranks_of_a_launch_are_one_attempt(tmp_path: Path) -> None:
    first = opened(tmp_path, RUN)
    assert opened(tmp_path, RUN) == first
    begin_log(first)
    assert opened(tmp_path, RUN) == first
    leave_failure(first, failure(1))
    assert opened(tmp_path, RUN) == first
    assert finish(first, Status.FAILED, "x")
    assert opened(tmp_path, RUN) == first
    assert names(first.paths.attempts) == [f"{first.paths.log.stem}.attempt1.rank1.json"]


def test_after_a_failure_the_next_attempt(tmp_path: Path) -> None:
    old = ended(tmp_path, RUN, Status.FAILED, "x")
    log, record = old.paths.log.read_text(), old.paths.record.read_text()
    new = opened(tmp_path, RUN, "200_0.0")
    assert new.number == 2
    assert not new.paths.log.exists() and not new.paths.record.exists()
    assert new.paths.earlier(new.paths.log, 1).read_text() == log
    assert new.paths.earlier(new.paths.record, 1).read_text() == record
    assert opened(tmp_path, RUN, "200_0.0") == new


def test_after_ok_none(tmp_path: Path) -> None:
    ended_ok(tmp_path, RUN)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for launch in ("100_0.0", "200_0.0"):
        assert open_attempt(SWEEP, RUN, tmp_path, launch) is None
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_killed_without_a_record_then_again(tmp_path: Path) -> None:
    old = begun(tmp_path, RUN)
    text = old.paths.log.read_text()
    new = opened(tmp_path, RUN, "100_0.1")
    assert new.number == 2 and names(new.paths.attempts) == [f"{old.paths.log.stem}.attempt1.log"]
    assert (new.paths.attempts / f"{old.paths.log.stem}.attempt1.log").read_text() == text


def test_killed_before_its_log_its_ranks_accounts_stay(tmp_path: Path) -> None:
    old = opened(tmp_path, RUN)
    leave_failure(old, failure(0, "first", consequence=True))
    new = opened(tmp_path, RUN, "200_0.0")
    assert new.number == 2
    leave_failure(new, failure(0, "second"))
    assert opened(tmp_path, RUN, "200_0.0").number == 2
    assert [f.reason for f in read_failures(old)] == ["first"]
    assert [f.reason for f in read_failures(new)] == ["second"]


def test_a_foreign_file_in_the_way_is_kept(tmp_path: Path) -> None:
    where = paths(tmp_path, RUN)
    where.log.parent.mkdir(parents=True)
    where.log.write_text("somebody's\n")
    where.record.write_text("not JSON")
    attempt = opened(tmp_path, RUN)
    assert attempt.number == 1
    assert where.earlier(where.log, 0).read_text() == "somebody's\n"
    assert where.earlier(where.record, 0).read_text() == "not JSON"
    assert finish(attempt, Status.FAILED, "x")


def test_an_earlier_attempt_is_never_overwritten(tmp_path: Path) -> None:
    """An attempt copied back by hand, so that its number is taken already."""
    old = ended(tmp_path, RUN, Status.FAILED, "first")
    record = old.paths.record.read_bytes()
    opened(tmp_path, RUN, "200_0.0")
    old.paths.record.write_bytes(record)
    new = opened(tmp_path, RUN, "300_0.0")
    assert new.number == 3
    assert new.paths.earlier(old.paths.record, 1).read_bytes() == record
    assert new.paths.earlier(old.paths.record, 2).read_bytes() == record


def test_the_record_holds_what_the_log_says(tmp_path: Path) -> None:
    result = ended_ok(tmp_path, RUN)
    record = read_record(paths(tmp_path, RUN).record)
    assert record is not None and result.window is not None
    assert record["window"] == vars(result.window)
    assert (record["status"], record["attempt"], record["run"]) == ("ok", 1, RUN.id)
    assert Case.from_dict(record["case"]) == RUN.case
    assert record["detail"]["rank_step_ms"][1][0] == pytest.approx(1e3 * 0.055 / 3, abs=1e-3)
    assert "pytest" in record["packages"]


def test_only_the_first_end_counts(tmp_path: Path) -> None:
    attempt = begun(tmp_path, RUN)
    assert finish(attempt, Status.FAILED, "first")
    assert not finish(attempt, Status.OK, "second")
    assert ends(attempt.paths.log) == ["failed"]
    record = read_record(attempt.paths.record)
    assert record is not None and record["reason"] == "first"


@pytest.mark.parametrize("status", [Status.OK, Status.FAILED])
def test_an_end_that_was_not_written_any_more(tmp_path: Path, status: Status) -> None:
    """The writer of the record was killed before its last line: the epilogue adds it, once."""
    if status is Status.OK:
        ended_ok(tmp_path, RUN)
    else:
        ended(tmp_path, RUN, status, "why")
    where = paths(tmp_path, RUN)
    before = result_of_log(where.log)
    without_end(where.log)
    complete_log(where)
    complete_log(where)
    after = result_of_log(where.log)
    assert ends(where.log) == [status.value]
    assert replace(after, ended="") == replace(before, ended="")


def test_no_end_is_added_to_the_log_of_another_launch(tmp_path: Path) -> None:
    old = ended(tmp_path, RUN, Status.FAILED, "x")
    record = old.paths.record.read_bytes()
    new = begun(tmp_path, RUN, "200_0.0")
    new.paths.record.write_bytes(record)
    complete_log(new.paths)
    assert ends(new.paths.log) == []


def test_accounts_are_sorted_by_cause_then_time(tmp_path: Path) -> None:
    attempt = opened(tmp_path, RUN)
    leave_failure(attempt, failure(2, "signalled", time="1", consequence=True))
    leave_failure(attempt, failure(1, "later", time="3"))
    leave_failure(attempt, failure(0, "cause", time="2", status=Status.OUT_OF_MEMORY))
    leave_failure(attempt, failure(0, "again", time="0"))
    told = read_failures(attempt)
    assert [f.reason for f in told] == ["cause", "later", "signalled"]
    assert told[0] == failure(0, "cause", time="2", status=Status.OUT_OF_MEMORY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 5000,
        '{"schema": "dlperf-record/2", "status": "ok", "attempt": 1}',
    ]
    + ['{"schema": "dlperf-record/1", "status": "fine", "attempt": 1}']
    + ['{"schema": "dlperf-record/1", "status": "ok"}', "\udcff"],
)
def test_what_is_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert read_record(path) is None
    assert read_record(tmp_path / "none.json") is None


def test_a_record_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be read: Is a directory"):
        read_record(tmp_path)


# --- any order of launches and ends --------------------------------------------------------------

STEPS = st.sampled_from(["launch", "begin", "event", "account", "fail", "ok", "complete"])


def contents(root: Path) -> Counter[str]:
    """How often each text stands at the start of some file: a log may grow, but not change."""
    return Counter(path.read_text() for path in root.rglob("*") if path.is_file())


def kept(before: Counter[str], after: Counter[str]) -> bool:
    return all(
        count <= sum(n for text, n in after.items() if text.startswith(old))
        for old, count in before.items()
    )


@settings(max_examples=60)
@given(st.lists(STEPS, min_size=1, max_size=14))
def test_nothing_is_ever_overwritten_or_lost(steps: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, launch, attempt, numbers = Path(folder), 0, None, []
        for i, step in enumerate(["launch", *steps]):
            before = contents(root)
            if step == "launch":
                launch += 1
                attempt = open_attempt(SWEEP, RUN, root, f"{launch}_0.0")
                numbers += [attempt.number] if attempt else []
            elif attempt is not None:
                _do(step, attempt, i)
            assert kept(before, contents(root)), step
        record = read_record(paths(root, RUN).record)
        over = record is not None and record["status"] == "ok"
        assert (open_attempt(SWEEP, RUN, root, "new") is None) == over
        assert numbers == sorted(numbers)
        for log in root.rglob("*.log"):
            assert len(ends(log)) <= 1
        assert not list(root.rglob(".*"))


def _do(step: str, attempt: Any, i: int) -> None:
    if step == "begin":
        begin_log(attempt)
    elif step == "event" and attempt.paths.log.exists():
        log_event(attempt, "phase", {"name": f"p{i}"})
    elif step == "account":
        leave_failure(attempt, failure(i))
    elif step in ("ok", "fail"):
        begin_log(attempt)
        if step == "ok":
            log_event(attempt, "summary", vars(WINDOW))
        finish(attempt, Status.OK if step == "ok" else Status.FAILED, f"reason {i}")
    elif step == "complete":
        complete_log(attempt.paths)


# --- many at once --------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("with_earlier", [False, True])
@pytest.mark.parametrize("wait", [True, False])
def test_ranks_that_fail_together(tmp_path: Path, with_earlier: bool, wait: bool) -> None:
    """One record, one end, every account; also if some have ended before others have begun."""
    for go in range(6):
        root = tmp_path / str(go)
        if with_earlier:
            ended(root, RUN, Status.FAILED, "earlier", launch="before")
            kept_log = paths(root, RUN).log.read_text()

        def fail(rank: int, barrier: Any, root: Path = root) -> None:
            barrier.wait()
            attempt = opened(root, RUN)
            if wait:
                barrier.wait()
            leave_failure(attempt, failure(rank, f"rank {rank}"))
            finish(attempt, Status.FAILED, f"rank {rank}")

        together(fail, 6)
        where, number = paths(root, RUN), 1 + with_earlier
        stem = where.log.stem
        record = read_record(where.record)
        assert record is not None and record["attempt"] == number
        assert ends(where.log) == ["failed"]
        assert result_of_log(where.log).reason == record["reason"]
        accounts = [f"{stem}.attempt{number}.rank{rank}.json" for rank in range(6)]
        earlier = [f"{stem}.attempt1.json", f"{stem}.attempt1.log"] * with_earlier
        assert names(where.attempts) == sorted(accounts + earlier)
        if with_earlier:
            assert where.earlier(where.log, 1).read_text() == kept_log


@pytest.mark.processes
def test_one_writer_wins_and_no_reader_sees_half(tmp_path: Path) -> None:
    target, won = tmp_path / "once.json", tmp_path / "won"
    won.mkdir()

    def write(rank: int, barrier: Any) -> None:
        barrier.wait()
        for i in range(20):
            path = target.with_name(f"once{i}.json")
            if files.write_once(path, files.dump_json({"rank": rank, "pad": "x" * 50_000})):
                (won / f"{i}.{rank}").touch()
            assert len(json.loads(path.read_text())["pad"]) == 50_000

    together(write, 4)
    assert len(names(won)) == 20
    for name in names(won):
        i, rank = name.split(".")
        assert json.loads((tmp_path / f"once{i}.json").read_text())["rank"] == int(rank)
    assert len(list(tmp_path.iterdir())) == 21


@pytest.mark.processes
def test_replacing_shows_old_or_new(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_atomically(path, files.dump_json(["x"] * 20_000))

    def replace_it(rank: int, barrier: Any) -> None:
        barrier.wait()
        for _ in range(20):
            if rank % 2:
                files.write_atomically(path, files.dump_json([str(rank)] * 20_000))
            values = json.loads(path.read_text())
            assert len(values) == 20_000 and len(set(values)) == 1

    together(replace_it, 4)
    assert names(tmp_path) == ["a.json"]


@pytest.mark.processes
def test_lines_of_many_writers_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    def add(rank: int, barrier: Any) -> None:
        barrier.wait()
        for i in range(100):
            files.append_line(path, json.dumps({"rank": rank, "i": i, "pad": "x" * 500}))

    together(add, 4)
    rows = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert sorted((row["rank"], row["i"]) for row in rows) == [
        (rank, i) for rank in range(4) for i in range(100)
    ]


def test_after_a_torn_line_a_new_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("whole\nto")
    files.append_line(path, "next")
    files.append_line(path, "last \udcff\n")
    assert path.read_text() == "whole\nto\nnext\nlast \\udcff\n"


# --- where nothing can be written ----------------------------------------------------------------


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A directory that may be read and not written; for root, by becoming somebody else."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths(root, RUN).log.parent.mkdir(parents=True)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555)
        yield root
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)


@pytest.mark.processes
def test_a_directory_that_cannot_be_written(sealed: Path) -> None:
    def refuse(_rank: int, _barrier: Any) -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        for run in (RUN, a_run("2n8g")):
            with pytest.raises(LedgerError, match=r"cannot be written: .*--logs") as raised:
                open_attempt(SWEEP, run, sealed, "100_0.0")
            assert str(paths(sealed, run).log.parent) in str(raised.value)

    together(refuse, 1)


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "torch").write_text("x")
    with pytest.raises(LedgerError, match="cannot be written"):
        open_attempt(SWEEP, RUN, tmp_path, "100_0.0")


def test_a_record_without_its_detail(tmp_path: Path) -> None:
    """As far as its window; a record that is not written as ours are is read whole."""
    ended_ok(tmp_path, RUN)
    path = paths(tmp_path, RUN).record
    whole, head = read_record(path), read_record(path, detail=False)
    assert whole is not None and head is not None
    left_out = {"detail", "packages", "window_opened"}
    assert head == {key: value for key, value in whole.items() if key not in left_out}
    assert left_out < whole.keys() and head["window"]
    path.write_text(json.dumps(whole))
    assert read_record(path, detail=False) == whole
    path.write_text(json.dumps(whole, indent=1)[:-40])
    assert read_record(path, detail=False) is None
    evil = {**whole, "reason": ',\n "detail": {'}
    path.write_text(json.dumps({"reason": evil["reason"], **evil}, indent=1) + "\n")
    assert (read_record(path, detail=False) or {})["reason"] == evil["reason"]


def test_a_rank_that_begins_meanwhile_is_of_the_same_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 begins the log, and has its own directory, just after rank 0 has looked for a log."""
    maker, looked = store._maker, Counter[Path]()

    def slowly(path: Path) -> tuple[str, int] | None:
        made = maker(path)
        looked[path] += 1
        if path.suffix == ".log" and looked[path] == 2:  # 1: is there one to be moved aside?
            other = Attempt(SWEEP, RUN, paths(tmp_path, RUN), 1, "7")
            begin_log(other)
            files.make_directories(other.paths.supervised(1))
        return made

    monkeypatch.setattr(store, "_maker", slowly)
    attempt = open_attempt(SWEEP, RUN, tmp_path, "7")
    assert attempt is not None and attempt.number == 1
