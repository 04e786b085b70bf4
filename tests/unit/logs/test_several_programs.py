"""A file may hold several programs, one behind the other: each is read, or named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlperf_hpc.logs.gather import Gathered, gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache

WORLD = "using world size: 16, data-parallel-size: 16, tensor-model-parallel size: 1"
MEGATRON = [
    f" [2026-01-05 10:{n // 60:02d}:{n % 60:02d}.250000] iteration {n:8d}/     500 | consumed"
    f" samples: {64 * n:12d} | elapsed time per iteration (ms): 1000.0 | learning rate: 1.5E-04 |"
    f" global batch size:    64 | lm loss: {10 / n:.6E} |"
    for n in range(1, 131)
]
FAILURE = "torch.OutOfMemoryError: CUDA out of memory."


def event(key: str, time_s: float, value: object = None, **metadata: object) -> str:
    told = {"time_ms": 1_700_000_000_000 + int(1000 * time_s), "key": key, "value": value}
    return f":::MLLOG {json.dumps({**told, 'metadata': metadata})}"


MLPERF = [
    event("global_batch_size", 0, 8),
    event("number_of_nodes", 0, 1),
    event("accelerators_per_node", 0, 8),
    event("run_start", 0),
    *[
        event(
            key, 100 * (n + (key == "block_stop")), samples_count=384 * (n + (key == "block_stop"))
        )
        for n in range(4)
        for key in ("block_start", "block_stop")
    ],
]


def read(tmp_path: Path, lines: list[str]) -> Gathered:
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines) + "\n")
    return gather([log], rule(), {}, ScanCache(None))


@pytest.mark.parametrize("first", ["mlperf", "megatron"])
def test_each_of_two_programs_is_read(tmp_path: Path, first: str) -> None:
    parts = [MLPERF, [WORLD, *MEGATRON]]
    lines = [*parts[0], *parts[1]] if first == "mlperf" else [*parts[1], *parts[0]]
    found = read(tmp_path, lines)
    by = {r.external.format: r for r in found.results if r.external is not None}
    assert by["mlperf"].samples_per_s == pytest.approx(3.84)
    assert by["megatron"].samples_per_s == pytest.approx(64.0)
    assert [str(by[name].run.case.topology) for name in ("mlperf", "megatron")] == ["1n8g", "2n8g"]
    assert {result.attempt for result in found.results} == {1}
    for result in found.results:
        assert any("one of 2 programs in this file" in warning for warning in result.warnings)
        assert not any("over those by" in warning for warning in result.warnings)


def test_a_part_whose_settings_are_not_its_own_is_named(tmp_path: Path) -> None:
    """MLPerf's nodes and batch are not Megatron's."""
    found = read(tmp_path, [*MLPERF, *MEGATRON])
    (result,) = found.results
    assert result.external is not None and result.external.format == "mlperf"
    (told,) = found.unread
    assert "lines 13 to 142 are of one of 2 programs" in told and "--nodes" in told


def test_what_broke_stands_behind_its_own_program(tmp_path: Path) -> None:
    found = read(tmp_path, [WORLD, *MEGATRON[:60], FAILURE, *MLPERF])
    status = {r.run.case.framework: r.status.value for r in found.results}
    assert status == {"megatron": "out_of_memory", "mlperf": "ok"}


def test_lines_of_two_formats_among_each_other_are_one_program(tmp_path: Path) -> None:
    woven = [line for pair in zip(MEGATRON, [*MLPERF, *[""] * 130]) for line in pair if line]
    found = read(tmp_path, woven)
    assert len(found.results) == 1 and not found.unread
