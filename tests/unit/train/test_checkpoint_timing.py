"""A checkpoint's cost: what is timed and counted, what is left of it, and that no failure of it
costs the run its window."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from record_samples import CHECKPOINT, a_run, a_sweep, begun, ended_ok, paths
from report_samples import case

from dlperf_hpc.analysis.speedup import summarise
from dlperf_hpc.files import dump_json
from dlperf_hpc.model.result import Checkpoint, RunResult
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.manifest import read_manifest
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import log_event
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.table import rows
from dlperf_hpc.train.checkpoints import Resumable, files_of_rank, measure_checkpoint, rank_file
from dlperf_hpc.train.ranks import World

COLUMNS = ("save_s", "load_s", "mb_per_rank", "save_mb_s", "load_mb_s")


class OneRank:
    """MPI's world of one process."""

    def Barrier(self) -> None: ...

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def bcast(self, value: Any, root: int) -> Any:
        return value


class Bytes(Resumable):
    """A session whose state is some bytes, in steps of two micro-batches."""

    def __init__(self, fail: Callable[[], None] = lambda: None) -> None:
        self.case = case(accumulation=2)
        self.world = World(0, ("n1",), OneRank())
        self.state = os.urandom(3_000_000)
        self.loaded = b""
        self._feed = None
        self._micro_steps = 3
        self._fail = fail

    def iterate(self) -> None:
        self._micro_steps += 1

    def counts(self) -> tuple[int, int]:
        return self._micro_steps // 2, 0

    def synchronize(self) -> None: ...

    def write_state(self, directory: Path) -> None:
        rank_file(directory, 0, "bin").write_bytes(self.state)
        self._fail()

    def read_state(self, directory: Path) -> None:
        self.loaded = rank_file(directory, 0, "bin").read_bytes()


def measured(
    session: Any, directory: Path, left_s: float = 1e3, keep: bool = False
) -> tuple[Checkpoint | None, str]:
    return measure_checkpoint(session, session.world, directory, 2, left_s, lambda: None, keep)


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- what is timed -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
def test_a_checkpoint_is_saved_loaded_and_removed(tmp_path: Path, keep: bool) -> None:
    session, directory = Bytes(), tmp_path / "attempts" / "run.checkpoint"
    found, reason = measured(session, directory, keep=keep)
    assert reason == "" and session.loaded == session.state
    assert found is not None and found.save_s > 0 and found.load_s is not None
    assert found.ranks == 1 and found.load_s > 0
    assert session._micro_steps == 4  # it had to end an accumulation first
    left = list(directory.parent.iterdir())
    assert left == ([directory] if keep else [])
    if keep:
        files = [path for path in directory.rglob("*") if path.is_file()]
        assert found.bytes == sum(path.stat().st_size for path in files) > len(session.state)


def test_nothing_is_begun_near_the_time_limit(tmp_path: Path) -> None:
    session = Bytes()
    assert measured(session, tmp_path / "c", left_s=59.0) == (None, "the time limit is near")
    assert session._micro_steps == 3 and not list(tmp_path.iterdir())


def test_a_full_disk_is_a_reason_and_leaves_nothing(tmp_path: Path) -> None:
    found, reason = measured(Bytes(full), tmp_path / "c")
    assert found is None and "No space left on device" in reason and "rank 0" in reason
    assert not list(tmp_path.iterdir())


def test_what_could_not_be_loaded_was_saved_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Bytes()
    monkeypatch.setattr(session, "read_state", lambda _: full())
    found, reason = measured(session, tmp_path / "c")
    assert found is not None and found.load_s is None and found.load_mb_s is None
    assert found.save_s > 0 and "No space left" in reason
    assert not list(tmp_path.iterdir())


def test_the_ranks_of_a_node_share_its_files(tmp_path: Path) -> None:
    """Each node goes through all of them, each of its ranks through some."""
    for number in range(7):
        (tmp_path / f"{number}").write_text("")
    hosts = ("n1", "n1", "n1", "n2", "n2")
    every = sorted(tmp_path.iterdir())
    for ranks in (range(3), range(3, 5)):
        shares = [path for rank in ranks for path in files_of_rank(World(rank, hosts), tmp_path)]
        assert sorted(shares) == every


# --- the figures ---------------------------------------------------------------------------------


def test_figures_of_a_checkpoint() -> None:
    found = Checkpoint(save_s=2.0, load_s=0.5, bytes=4_000_000_000, ranks=8)
    assert (found.mb_per_rank, found.save_mb_s, found.load_mb_s) == (500.0, 2000.0, 8000.0)
    assert Checkpoint.from_dict(asdict(found)) == found
    without = {key: value for key, value in asdict(found).items() if key != "load_s"}
    assert Checkpoint.from_dict(without) == replace(found, load_s=None)


@pytest.mark.parametrize(
    "changes", [{"save_s": 0.0}, {"save_s": "1"}, {"bytes": 0}, {"bytes": None}, {"ranks": 1.5}]
)
def test_a_figure_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Checkpoint.from_dict({**asdict(CHECKPOINT), **changes})


def test_from_the_log_into_record_and_tables(tmp_path: Path) -> None:
    results = []
    for repeat, save_s in enumerate((2.0, 4.0, 3.0), 1):
        run = a_run(repeat=repeat)
        result = ended_ok(tmp_path, run, checkpoint=True)
        assert result.checkpoint == CHECKPOINT and result.warnings == ()
        record = read_record(paths(tmp_path, run).record)
        assert record is not None and record["checkpoint"] == asdict(CHECKPOINT)
        results.append(replace(result, checkpoint=replace(CHECKPOINT, save_s=save_s)))
    megabytes = CHECKPOINT.bytes / 1e6
    (first, _, _) = rows(RUN_COLUMNS, results)
    assert [first[f"checkpoint_{name}"] for name in COLUMNS] == pytest.approx(
        [2.0, 0.7, megabytes / 2, megabytes / 2.0, megabytes / 0.7]
    )
    (of_case,) = rows(CASE_COLUMNS, summarise(results))
    assert of_case["checkpoint_save_s"] == 3.0
    assert of_case["checkpoint_save_mb_s"] == pytest.approx(megabytes / 3.0)


def failed(tmp_path: Path, told: dict[str, Any]) -> RunResult:
    attempt = begun(tmp_path, a_run())
    log_event(attempt, "checkpoint", told)
    return result_of_log(attempt.paths.log)


def test_a_reason_is_a_warning_and_leaves_the_cells_empty(tmp_path: Path) -> None:
    result = failed(tmp_path, {"reason": "no room"})
    assert result.checkpoint is None and result.warnings == ("checkpoint: no room",)
    (row,) = rows(RUN_COLUMNS, [result])
    assert [row[f"checkpoint_{name}"] for name in COLUMNS] == [None] * 5


def test_a_damaged_line_gives_no_figure(tmp_path: Path) -> None:
    result = failed(tmp_path, {**asdict(CHECKPOINT), "bytes": -1})
    assert result.checkpoint is None and "checkpoint line is not complete" in result.warnings[0]


def test_a_manifest_of_before_asks_for_none(tmp_path: Path) -> None:
    a_sweep(tmp_path, [a_run()])
    path = tmp_path / "manifest.json"
    data = json.loads(path.read_text())
    del data["measure"]["checkpoint"], data["measure"]["keep_checkpoint"]
    path.write_text(dump_json(data))
    assert read_manifest(tmp_path).measure.checkpoint is False
