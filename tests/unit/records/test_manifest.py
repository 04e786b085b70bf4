"""The sweep's ledger: manifest, submissions, verdicts; and what is said of a damaged one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_samples import a_run, a_sweep, manifest, many, token_of
from report_samples import case

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import (
    add_array,
    bound_array,
    bound_to,
    find_array,
    read_ledger,
)
from dlperf_hpc.records.manifest import (
    Array,
    FinalState,
    Submission,
    add_final_states,
    add_submission,
    as_read,
    check_name,
    read_final_states,
    read_manifest,
    read_submissions,
    write_manifest,
)

RUNS = [
    *many([case("1n1g"), case("2n8g", tags=("xla", "zero1"), accumulation=4)], 3),
    a_run("2n8g", repeat=1, batch_size=64, processes_per_node=1),
]


def mended(root: Path, **changes: Any) -> None:
    """The manifest with some of its keys replaced."""
    path = root / layout.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_round_trip(tmp_path: Path) -> None:
    made = a_sweep(tmp_path, RUNS)
    read = read_manifest(tmp_path)
    assert read == made
    assert sorted(run.id for run in read.runs) == sorted(run.id for run in RUNS)
    assert len(json.loads((tmp_path / layout.MANIFEST).read_text())["cases"]) == 3


def test_a_task_finds_its_run(tmp_path: Path) -> None:
    a_sweep(tmp_path, RUNS)
    array = find_array(tmp_path, read_manifest(tmp_path), "2n8g.sample")
    assert [run.repeat for run in array.tasks] == [1, 2, 3, 1]
    assert array.tasks[3].case.processes_per_node == 1
    with pytest.raises(LedgerError, match=r"no array '9n9g\.sample'"):
        find_array(tmp_path, read_manifest(tmp_path), "9n9g.sample")


def test_a_sweep_is_never_written_over(tmp_path: Path) -> None:
    a_sweep(tmp_path, RUNS)
    before = (tmp_path / layout.MANIFEST).read_bytes()
    with pytest.raises(LedgerError, match="already holds a sweep"):
        write_manifest(tmp_path, manifest(RUNS[:1]))
    assert (tmp_path / layout.MANIFEST).read_bytes() == before


def test_no_manifest(tmp_path: Path) -> None:
    for root, says in ((tmp_path, "not a sweep's directory"), (tmp_path / "nowhere", "no such")):
        with pytest.raises(LedgerError, match=f"{says}.*; give the directory that"):
            read_manifest(root)


@pytest.mark.parametrize("text", ["", "{", '{"schema": "dlperf-manifest/1"', "\udcff", "}"])
def test_a_manifest_that_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / layout.MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(LedgerError, match=r"manifest\.json: damaged: .*from the logs alone"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", '{"schema": "dlperf-manifest/2"}'])
def test_a_manifest_of_another_schema(tmp_path: Path, text: str) -> None:
    (tmp_path / layout.MANIFEST).write_text(text)
    with pytest.raises(
        LedgerError, match=r"reads 'dlperf-manifest/1': use the version .*logs alone"
    ):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"cases": []},
        {"cases": [1, 2, 3]},
        {"cases": None},
        {"arrays": [{"name": "a"}]},
        {"arrays": {"a": 1}},
        {"measure": {"warmup": 1, "unheard_of": 2}},
        {"limits": 5},
        {"arrays": [{"name": "a", "token": "t", "topology": "all", "environment": "e"}]},
    ],
)
def test_a_damaged_manifest(tmp_path: Path, changes: dict[str, Any]) -> None:
    a_sweep(tmp_path, RUNS)
    mended(tmp_path, **changes)
    with pytest.raises(LedgerError, match=r"manifest\.json: damaged: .*from the logs alone"):
        read_manifest(tmp_path)


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / layout.MANIFEST).mkdir()
    with pytest.raises(LedgerError, match="cannot be read: Is a directory"):
        read_manifest(tmp_path)


# --- what was written down later -----------------------------------------------------------------


def test_submissions_in_order(tmp_path: Path) -> None:
    assert read_submissions(tmp_path) == []
    add_submission(tmp_path, Submission("a", "dlperf-a", job_id="17", time="t1"))
    add_submission(tmp_path, Submission("b", "dlperf-b", error="no such partition\nat all"))
    first, second = read_submissions(tmp_path)
    assert first == Submission("a", "dlperf-a", job_id="17", time="t1")
    assert (second.array, second.job_id, second.error) == ("b", "", "no such partition\nat all")
    assert second.time.endswith("Z")


def test_the_latest_verdict_counts(tmp_path: Path) -> None:
    assert read_final_states(tmp_path) == {}
    for status, reason in ((Status.PREEMPTED, "first"), (Status.TIMEOUT, "second")):
        add_final_states(tmp_path, [FinalState("r1", status, reason, time="t")])
    add_final_states(tmp_path, [FinalState("r2", Status.CANCELLED, "\x1b é", time="t")])
    assert read_final_states(tmp_path) == {
        "r1": FinalState("r1", Status.TIMEOUT, "second", "t"),
        "r2": FinalState("r2", Status.CANCELLED, "\x1b é", "t"),
    }


def test_a_line_torn_anywhere_costs_itself_alone(tmp_path: Path) -> None:
    """A kill or a full disk in the middle of a line; then somebody writes the next."""
    add_submission(tmp_path, Submission("a", "dlperf-a", job_id="17"))
    add_final_states(tmp_path, [FinalState("r1", Status.TIMEOUT, "one")])
    for name in (layout.SUBMISSIONS, layout.FINAL_STATES):
        path = tmp_path / name
        whole = path.read_bytes()
        for length in range(1, len(whole) - 1):
            path.write_bytes(whole + whole[:length])
            assert len(read_submissions(tmp_path)) == len(read_final_states(tmp_path)) == 1
            if name == layout.SUBMISSIONS:
                add_submission(tmp_path, Submission("b", "dlperf-b", job_id="18"))
                assert [s.job_id for s in read_submissions(tmp_path)] == ["17", "18"]
            else:
                add_final_states(tmp_path, [FinalState("r2", Status.OK, "")])
                assert list(read_final_states(tmp_path)) == ["r1", "r2"]
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "row", ["3", "[]", '{"run": "r"}', '{"run": "r", "status": "splendid", "reason": ""}', "null"]
)
def test_a_line_that_is_no_verdict_is_named(tmp_path: Path, row: str) -> None:
    add_final_states(tmp_path, [FinalState("r1", Status.TIMEOUT, "one")])
    with open(tmp_path / layout.FINAL_STATES, "a") as file:
        file.write(row + "\n")
    with pytest.raises(LedgerError, match=r"verdicts\.jsonl:2: damaged: .*remove that line"):
        read_final_states(tmp_path)


def test_keys_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    row = {"array": "a", "token": "dlperf-0", "job_id": "1", "colour": "red"}
    (tmp_path / layout.SUBMISSIONS).write_text(json.dumps(row) + "\n")
    assert read_submissions(tmp_path) == [Submission("a", "dlperf-0", job_id="1")]
    final_state = {"run": "r", "status": "timeout", "reason": "x", "colour": "red"}
    (tmp_path / layout.FINAL_STATES).write_text(json.dumps(final_state) + "\n")
    assert read_final_states(tmp_path) == {"r": FinalState("r", Status.TIMEOUT, "x")}


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    for name in (layout.SUBMISSIONS, layout.FINAL_STATES):
        (tmp_path / name).mkdir()
    with pytest.raises(LedgerError, match=r"submissions\.jsonl: cannot be written: Is a directory"):
        add_submission(tmp_path, Submission("a", "dlperf-0"))
    with pytest.raises(LedgerError, match=r"verdicts\.jsonl: cannot be written: Is a directory"):
        add_final_states(tmp_path, [FinalState("r1", Status.TIMEOUT, "x")])
    with pytest.raises(LedgerError, match=r"manifest\.json: cannot be written: No such file"):
        write_manifest(tmp_path / "nowhere", manifest(RUNS))


# --- what a job is bound to: docs/attacks.md has the directories of others


CHANGED = [
    ("limits", {"iteration_s": 7.0}),
    ("measure", {"warmup": 5, "iterations": 7}),
    ("cases", [{}, {"batch_size": 9}, {"batch_size": 9}]),
    ("arrays", [{}, {"time_limit_s": 5}]),
    ("sweep", "other"),
]


def changed(values: Any, changes: Any) -> Any:
    """A value of the manifest with some of what is in it replaced."""
    if isinstance(changes, list):
        return [{**old, **new} for old, new in zip(values, changes)]
    return {**values, **changes} if isinstance(changes, dict) else changes


@pytest.mark.parametrize(("key", "changes"), CHANGED, ids=[key for key, _ in CHANGED])
def test_a_job_runs_no_other_plan(tmp_path: Path, key: str, changes: Any) -> None:
    a_sweep(tmp_path, RUNS)
    made = read_manifest(tmp_path)
    env = {layout.BOUND: bound_to(tmp_path, made, made.arrays[1])}
    name = made.arrays[1].name
    assert bound_array(tmp_path, name, env) == (made, made.arrays[1])
    before = json.loads((tmp_path / layout.MANIFEST).read_text())
    mended(tmp_path, **{key: changed(before[key], changes)})
    with pytest.raises(LedgerError, match=r"not what it was|damaged") as refusal:
        bound_array(tmp_path, name, env)
    assert key == "sweep" or "the job runs nothing of it" in str(refusal.value)
    # What is no part of it, and whatever an earlier version submitted.
    mended(tmp_path, **{**before, "created": "later", "tool_version": "9"})
    assert bound_array(tmp_path, name, env)[1] == made.arrays[1]
    assert bound_array(tmp_path, made.arrays[0].name, {})[1] == made.arrays[0]
    with pytest.raises(LedgerError, match="not what it was"):
        bound_array(tmp_path, made.arrays[0].name, env)


def test_a_job_of_a_rerun_is_bound_to_its_own_array(tmp_path: Path) -> None:
    made = as_read(a_sweep(tmp_path, RUNS))
    array = rerun("2n8g.sample.r1", 2, 0)
    env = {layout.BOUND: bound_to(tmp_path, made, array)}
    add_array(tmp_path, array)
    assert bound_array(tmp_path, array.name, env)[1] == array
    path = tmp_path / layout.ARRAYS / f"{array.name}.json"
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "tasks": row["tasks"][::-1]}))
    with pytest.raises(LedgerError, match="not what it was"):
        bound_array(tmp_path, array.name, env)


# --- arrays of reruns, and which task a run belongs to -------------------------------------------


def rerun(name: str, *indices: int) -> Array:
    """An array, made later, of some of the sweep's runs on 2n8g."""
    planned = manifest(RUNS).arrays[1]
    tasks = tuple(planned.tasks[index] for index in indices)
    return replace(planned, name=name, token=token_of(name), tasks=tasks, exclude="n[1-2]")


def test_an_array_made_later_is_found_again(tmp_path: Path) -> None:
    made = a_sweep(tmp_path, RUNS)
    array = rerun("2n8g.sample.r1", 2, 0)
    add_array(tmp_path, array)
    assert find_array(tmp_path, made, array.name) == array
    assert read_ledger(tmp_path).arrays == (*made.arrays, array)
    with pytest.raises(LedgerError, match="is there already"):
        add_array(tmp_path, replace(array, token="dlperf-1"))


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "dlperf-array/1", "tasks": ["no/run"]}'])
def test_a_damaged_array_is_named(tmp_path: Path, text: str) -> None:
    a_sweep(tmp_path, RUNS)
    add_array(tmp_path, rerun("2n8g.sample.r1", 0))
    (tmp_path / layout.ARRAYS / "2n8g.sample.r1.json").write_text(text)
    with pytest.raises(LedgerError, match=r"2n8g\.sample\.r1\.json: damaged"):
        read_ledger(tmp_path)


def test_a_run_belongs_to_the_task_submitted_last(tmp_path: Path) -> None:
    """However many rows tell of it: asked, kept back by a limit, refused, taken."""
    made = a_sweep(tmp_path, RUNS, engine="slurm")
    planned, later = made.arrays[1], rerun("2n8g.sample.r1", 3, 1)
    add_array(tmp_path, later)
    first, third = planned.tasks[0].id, planned.tasks[3].id

    def told(array: Array, **words: str) -> None:
        add_submission(tmp_path, Submission(array.name, array.token, **words))

    assert read_ledger(tmp_path).tasks() == {} and read_ledger(tmp_path).unanswered() == []
    told(planned)
    assert read_ledger(tmp_path).unanswered() == [planned]
    told(planned, job_id="17")
    told(later)
    told(later, limit="QOSMaxSubmitJobPerUserLimit")
    ledger = read_ledger(tmp_path)
    assert ledger.unanswered() == [] and ledger.kept_back() == [later]
    assert {run: task.name for run, task in ledger.tasks().items()}[third] == "17_3"
    told(later)
    told(later, job_id="18")
    ledger = read_ledger(tmp_path)
    assert ledger.kept_back() == [] and ledger.outcome(later).job_id == "18"  # type: ignore[union-attr]
    names = {run: task.name for run, task in ledger.tasks().items()}
    assert (names[first], names[third]) == ("17_0", "18_0")


def test_last_words_are_of_the_last_task(tmp_path: Path) -> None:
    made = a_sweep(tmp_path, RUNS, engine="slurm")
    planned, later = made.arrays[1], rerun("2n8g.sample.r1", 0)
    add_submission(tmp_path, Submission(planned.name, planned.token, job_id="17"))
    for index in (0, 1):
        run = planned.tasks[index].id
        add_final_states(tmp_path, [FinalState(run, Status.NODE_FAILED, "x", job=f"17_{index}")])
    add_array(tmp_path, later)
    assert len(read_ledger(tmp_path).last_words()) == 2
    add_submission(tmp_path, Submission(later.name, later.token, job_id="18"))
    assert list(read_ledger(tmp_path).last_words()) == [planned.tasks[1].id]


@pytest.mark.parametrize(
    "name",
    [
        *("2n8g.bert", "2n8g.bert-tf", "2n8g.bert.r1", "2n8g.bert.g2-tf-3", "2n8g.bert.p1"),
        *("bert-2n8g", "bert-2n8g-tf", "bert.r1-2n8g", "bert.g2-2n8g-tf-3"),  # of earlier versions
    ],
)
def test_names_of_arrays_today_and_earlier(name: str) -> None:
    check_name(name, "bert")
    for other in ("ber", "bert2", "r1", "2n8g"):
        if not name.startswith(f"{other}."):
            with pytest.raises(ValueError, match="no array of sweep"):
                check_name(name, other)
