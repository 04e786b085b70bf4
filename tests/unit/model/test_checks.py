"""A sweep's files are read as our writer makes them: whatever else they hold is one message."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from record_samples import a_sweep, ended, many, paths, token_of
from report_samples import case
from sweeping import local_environment

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import full_results, quick_results
from dlperf_hpc.records.ledger import add_array, read_ledger
from dlperf_hpc.records.manifest import (
    FinalState,
    Submission,
    add_final_states,
    add_submission,
    read_final_states,
    read_submissions,
)
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import failure_hosts, launch_of, read_failures

RUNS = many([case("1n1g"), case("1n2g", tags=("acc4",), options=(("note", "a b"),))], 2)
PIPED: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, "check": False}
DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 2.5, 2**70, float("inf"), [], {}, [[]], [0], {"a": 1}),
    *("", "..", "../../x", "/etc/passwd", "a/b", "-rf", "a\nb", "a\x1b[2J", "\ud800", "x" * 70_000),
)
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sweep with a file of every kind."""
    made = a_sweep(tmp_path, RUNS, engine="slurm")
    first = made.arrays[0]
    later = {"name": "1n1g.sample.r1", "token": "dlperf-0f", "exclude": "n[1-2],n7"}
    add_array(tmp_path, type(first)(**{**vars(first), **later, "tasks": first.tasks[:1]}))
    add_submission(tmp_path, Submission(first.name, first.token, job_id="17"))
    add_final_states(tmp_path, [FinalState(RUNS[0].id, Status.TIMEOUT, "x", job="17_0")])
    ended(tmp_path, RUNS[0], Status.FAILED, "why")
    return tmp_path


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within JSON."""
    inner = list(value.items()) if isinstance(value, dict) else []
    inner += enumerate(value) if isinstance(value, list) else []
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def with_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(data)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


def everything(root: Path) -> None:
    """All that verbs read; what comes of it can be a path, printed, and asked of a scheduler."""
    ledger = read_ledger(root)
    for collection in (quick_results(ledger), full_results(root)):
        for result in collection.results:
            assert SAFE.fullmatch(result.run.id), result.run.id
    for array in ledger.arrays:
        assert SAFE.fullmatch(array.name) and "/" not in array.name
        assert re.fullmatch(r"dlperf-[0-9a-f]+", array.token) and array.size > 0
        assert array.time_limit_s > 0 and not array.exclude.startswith("-")
        array.run_of(array.size - 1)
    for row in ledger.submissions:
        assert not row.job_id or row.job_id.isdigit()
        f"{row}".encode()
    ledger.tasks(), ledger.last_words(), ledger.unanswered(), ledger.kept_back()
    float(ledger.manifest.site.get("poll_s", 30.0))


FILES: dict[str, Callable[[Any], str]] = {
    layout.MANIFEST: json.dumps,
    f"{layout.ARRAYS}/1n1g.sample.r1.json": json.dumps,
    layout.SUBMISSIONS: lambda data: json.dumps(data) + "\n",
    layout.FINAL_STATES: lambda data: json.dumps(data) + "\n",
}


@pytest.mark.parametrize("name", FILES)
def test_whatever_a_value_is_it_is_read_or_the_file_is_named(root: Path, name: str) -> None:
    path = root / name
    data = json.loads(path.read_text())
    everything(root)
    refused = 0
    for index, where in enumerate(places(data)):
        # A manifest has hundreds of values: each gets every other one of these.
        for value in HOSTILE[index % 2 :: 2] if name == layout.MANIFEST else HOSTILE:
            path.write_text(FILES[name](with_value(data, where, value)))
            try:
                everything(root)
            except LedgerError as error:
                refused += 1
                assert str(path) in str(error) or str(root / layout.ARRAYS) in str(error)
                assert str(error).isprintable(), error
    assert refused > 50


@pytest.mark.parametrize(
    ("name", "where", "value", "told"),
    [
        (layout.MANIFEST, ("sweep",), "../x", r"sweep is '../x'"),
        (layout.MANIFEST, ("arrays", 0, "token"), ["a"], r"arrays\[0\]\.token is \['a'\]"),
        (layout.MANIFEST, ("arrays", 0, "token"), "mine", r"arrays\[0\]\.token is 'mine'"),
        (layout.MANIFEST, ("arrays", 0, "name"), "sample-x/y", r"arrays\[0\]\.name is"),
        (layout.MANIFEST, ("arrays", 0, "name"), "1n1g.other", "no array of sweep 'sample'"),
        (layout.MANIFEST, ("arrays", 0, "environment"), "evil", "in environment 'default'"),
        (layout.MANIFEST, ("arrays", 0, "topology"), "1n2g", "array 1n1g.sample is not"),
        (layout.MANIFEST, ("arrays", 0, "time_limit_s"), "600", r"time_limit_s is '600'"),
        (layout.MANIFEST, ("arrays", 0, "repeats_per_job"), 0, r"repeats_per_job is 0"),
        (layout.MANIFEST, ("arrays", 0, "repeats_per_job"), True, r"repeats_per_job is True"),
        (layout.MANIFEST, ("arrays", 0, "repeats_per_job"), 3, "tasks are 2, and repeats_per_job"),
        (layout.MANIFEST, ("arrays", 0, "exclude"), "-w n1", r"exclude is '-w n1'"),
        (layout.MANIFEST, ("arrays", 0, "tasks", 0), [-1, 1], r"there is no run \[-1, 1\]"),
        (layout.MANIFEST, ("arrays", 0, "tasks", 0), [0, 99], r"there is no run \[0, 99\]"),
        (layout.MANIFEST, ("arrays", 1, "token"), token_of("1n1g"), "two of them have one token"),
        (layout.MANIFEST, ("cases", 0, "framework"), "..", r"cases\[0\]\.framework is '\.\.'"),
        (layout.MANIFEST, ("cases", 0, "tags"), ["a/../b"], r"cases\[0\]\.tags is"),
        (layout.MANIFEST, ("cases", 0, "optimizer", "lr"), "x", r"optimizer\.lr is 'x'"),
        (layout.MANIFEST, ("cases", 0, "data_path"), "\ud800", r"data_path is '\\ud800'"),
        (layout.MANIFEST, ("measure", "warmup"), -1, r"measure\.warmup is -1"),
        (layout.MANIFEST, ("site", "poll_s"), "soon", r"site\.poll_s is 'soon'"),
        (layout.MANIFEST, ("site", "poll_s"), 10**400, r"site\.poll_s is 1000"),
        (f"{layout.ARRAYS}/1n1g.sample.r1.json", ("name",), "1n1g.sample", "is not the file's"),
        (f"{layout.ARRAYS}/1n1g.sample.r1.json", ("tasks", 0), "no/run", "no run 'no/run'"),
        (layout.SUBMISSIONS, ("job_id",), "17; rm", r"job_id is '17; rm'"),
        (layout.SUBMISSIONS, ("token",), ["a"], r"token is \['a'\]"),
        (layout.FINAL_STATES, ("run",), "$(touch x)\n", r"run is"),
        (layout.FINAL_STATES, ("job",), "-1", r"job is '-1'"),
        (layout.FINAL_STATES, ("status",), ["ok"], r"status is \['ok'\]"),
    ],
)
def test_the_key_is_named(
    root: Path, name: str, where: tuple[Any, ...], value: Any, told: str
) -> None:
    path = root / name
    data = with_value(json.loads(path.read_text()), where, value)
    path.write_text(FILES[name](data))
    with pytest.raises(LedgerError, match=rf"{re.escape(path.name)}(:1)?: damaged: .*{told}"):
        read_ledger(root)


@pytest.mark.parametrize("text", [DEEP, '{"a": ' + DEEP + "}", '{"sweep": NaN}'])
def test_nesting_and_what_is_no_number_are_one_message(root: Path, text: str) -> None:
    for name in FILES:
        path = root / name
        before = path.read_text()
        path.write_text(text + "\n")
        with pytest.raises(LedgerError, match=rf"{path.name}(:1)?: damaged: .*(nested|NaN)"):
            read_ledger(root)
        path.write_text(before)


def test_a_record_of_any_content_ends_nothing(root: Path) -> None:
    run = paths(root, RUNS[0])
    data = json.loads(run.record.read_text())
    for where in [(key,) for key in data]:
        for value in HOSTILE:
            run.record.write_text(json.dumps(with_value(data, where, value)))
            everything(root)
    for text in (DEEP, "3", "[]", '{"schema": "dlperf-record/1", "status": {}}', ""):
        run.record.write_text(text)
        assert read_record(run.record) is None
        everything(root)
        launch_of(run)


def test_what_a_rank_left_of_any_content_ends_nothing(root: Path) -> None:
    attempt = ended(root, RUNS[1], Status.FAILED, "why")
    run = attempt.paths
    run.attempts.mkdir(exist_ok=True)
    row = {
        **{"launch": attempt.launch, "attempt": 1, "rank": 3, "host": "n1", "status": "failed"},
        **{"reason": "x", "time": "t", "consequence": False},
    }
    left = run.failure(1, 3)
    left.write_text(json.dumps(row))
    assert [failure.rank for failure in read_failures(attempt)] == [3]
    assert failure_hosts(run, 1) == ["n1"]
    for where in places(row):
        for value in HOSTILE:
            left.write_text(json.dumps(with_value(row, where, value)))
            read_failures(attempt), failure_hosts(run, 1)
    left.write_text(DEEP)
    assert read_failures(attempt) == [] and failure_hosts(run, 1) == []


@pytest.mark.processes
@pytest.mark.parametrize("module", ["train", "engines.epilogue"])
def test_what_runs_on_a_node_says_it_in_one_message(root: Path, module: str) -> None:
    def run(array: str) -> str:
        argv = [sys.executable, "-m", f"dlperf_hpc.{module}", str(root), array, "1"]
        env = {**local_environment(), "SLURM_ARRAY_TASK_ID": "7", "SLURM_JOB_ID": "1"}
        done = subprocess.run(argv[: 6 - (module == "train")], env=env, **PIPED)
        assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    assert "array 1n1g.sample has no run 0 of index 7" in run("1n1g.sample")
    (root / layout.MANIFEST).write_text(DEEP)
    assert "manifest.json: damaged: it is nested too deeply" in run("1n1g.sample")


def test_a_schedulers_words_of_any_bytes_are_kept_and_printed(tmp_path: Path) -> None:
    words = "caf\udce9 \x1b[2J"
    add_submission(tmp_path, Submission("a", "dlperf-0", error=words))
    add_final_states(tmp_path, [FinalState("r", Status.FAILED, words)])
    (row,), states = read_submissions(tmp_path), read_final_states(tmp_path)
    assert row.error == states["r"].reason == "caf\\udce9 \x1b[2J"


def test_an_array_that_could_not_be_read_again_is_not_written(root: Path) -> None:
    array = read_ledger(root).arrays[0]
    for key, value in (("exclude", "n1 --uid=0"), ("time_limit_s", 0), ("name", "sample-../x")):
        with pytest.raises(LedgerError, match="cannot be an array"):
            add_array(root, type(array)(**{**vars(array), key: value}))
    assert len(list((root / layout.ARRAYS).iterdir())) == 1
