"""Files of the ranks of one run are one run: by their names, and by what is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlperf_hpc.logs.crossfiles import rank_name
from dlperf_hpc.logs.gather import Gathered, gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache

STEP_MS = 500.0


def log(
    hour: int = 10, last: int = 130, batch: int = 64, offset: float = 0.0, stamped: bool = True
) -> str:
    """A rank's lines, as Megatron-LM prints them; ranks differ by parts of a second, and after the
    figures that are read."""
    lines = []
    for n in range(1, last + 1):
        minute, second = divmod(n * STEP_MS / 1000 + offset, 60)
        stamp = f" [2026-01-05 {hour:02d}:{int(minute):02d}:{second:09.6f}]" if stamped else ""
        lines.append(
            f"{stamp} iteration {n:8d}/     500 | consumed samples: {batch * n:12d} | elapsed time"
            f" per iteration (ms): {STEP_MS:.1f} | learning rate: 1.500E-04 | global batch size:"
            f" {batch:5d} | lm loss: 2.6E+00 | loss scale: {1 + offset} |"
        )
    return "\n".join(lines) + "\n"


def read(root: Path) -> Gathered:
    return gather([root], rule(), {"nodes": 1, "gpus_per_node": 8}, ScanCache(None))


def written(root: Path, names: list[str], **changes: object) -> None:
    for rank, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log(offset=rank / 100, **changes))  # type: ignore[arg-type]


NAMES = {
    "paddle": [f"log/workerlog.{rank}" for rank in range(8)],
    "openmpi": [f"out/1/rank.{rank}/stdout" for rank in range(8)],
    "horovodrun": [f"out/rank.{rank:02d}/stderr" for rank in range(8)],
    "torchrun": [f"logs/none_ab12/attempt_0/{rank}/stdout.log" for rank in range(8)],
    "submitit": [f"3274571_10_{rank}_log.out" for rank in range(8)],
    "token": [f"bert_rank{rank}.log" for rank in range(8)],
    "word": [f"run.local_rank_{rank}.txt" for rank in range(8)],
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_the_files_of_all_ranks_are_one_run(tmp_path: Path, names: list[str]) -> None:
    written(tmp_path, names)
    found = read(tmp_path)
    (result,) = found.results
    assert result.samples_per_s == pytest.approx(128.0, rel=1e-3)
    (told,) = [warning for warning in result.warnings if "one per rank" in warning]
    assert "one run of 8 files" in told and "that of rank 0 counts" in told
    assert result.run.repeat == 1 and not found.unread


def test_without_stamps_only_a_launcher_s_own_names_do(tmp_path: Path) -> None:
    written(tmp_path / "sure", NAMES["paddle"], stamped=False)
    written(tmp_path / "likely", NAMES["token"], stamped=False)
    assert len(read(tmp_path / "sure").results) == 1
    assert len(read(tmp_path / "likely").results) == 8


def test_rank_of_lora_is_no_process(tmp_path: Path) -> None:
    """Names that differ in a rank, hours apart: runs of their own."""
    for at, size in enumerate((8, 16, 32)):
        (tmp_path / f"lora_rank_{size}.log").write_text(log(hour=10 + at))
    results = read(tmp_path).results
    assert len(results) == 3
    assert not any("one per rank" in w for result in results for w in result.warnings)


@pytest.mark.parametrize("changes", [{"hour": 12}, {"batch": 32}, {"last": 100}])
def test_other_minutes_settings_or_iterations_are_another_run(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    written(tmp_path, NAMES["paddle"][:2])
    (tmp_path / "log" / "workerlog.2").write_text(log(**changes))  # type: ignore[arg-type]
    results = read(tmp_path).results
    assert len(results) == 2
    assert sorted(any("one per rank" in w for w in r.warnings) for r in results) == [False, True]


def test_folders_of_two_runs_are_two_repeats(tmp_path: Path) -> None:
    written(tmp_path / "one", NAMES["paddle"])
    written(tmp_path / "two", NAMES["paddle"], hour=12)
    results = read(tmp_path).results
    assert sorted(result.run.repeat for result in results) == [1, 2]


def test_a_rank_that_broke_counts(tmp_path: Path) -> None:
    written(tmp_path, NAMES["paddle"])
    with open(tmp_path / "log" / "workerlog.3", "a") as file:
        file.write("Traceback (most recent call last):\n")
    (result,) = read(tmp_path).results
    assert result.status.value == "failed"
    assert any("that of rank 3 counts" in warning for warning in result.warnings)


def test_restarts_of_torchrun_are_attempts_of_one_run(tmp_path: Path) -> None:
    for attempt, hour in ((0, 10), (1, 11)):
        names = [f"logs/id/attempt_{attempt}/{rank}/stdout.log" for rank in range(4)]
        written(tmp_path, names, hour=hour)
    results = read(tmp_path).results
    assert sorted((result.run.repeat, result.attempt) for result in results) == [(1, 1), (1, 2)]


def test_a_rank_s_file_that_states_no_settings_belongs_to_the_run(tmp_path: Path) -> None:
    world = "using world size: 8, data-parallel-size: 8, tensor-model-parallel size: 1\n"
    (tmp_path / "workerlog.0").write_text(world + log())
    (tmp_path / "workerlog.1").write_text(log(offset=0.01))
    found = gather([tmp_path], rule(), {}, ScanCache(None))
    assert len(found.results) == 1 and not found.unread


def test_what_a_name_says_of_a_rank() -> None:
    assert rank_name("/logs/a/bert_b32_fp32_1.log") is None
    assert rank_name("/logs/frank_3.log") is None
    named = rank_name("/logs/bert_b32_fp32_rank_3.log")
    assert named is not None
    assert (named.rank, named.bare, named.sure) == (3, "/logs/bert_b32_fp32.log", False)
    sure = rank_name("/logs/out/rank.3/stdout")
    assert sure is not None and (sure.rank, sure.sure) == (3, True)
