"""Collectives by size: what is expected of a link, what is said of a figure, the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweeping import Workplace, local_environment

from dlperf_hpc.doctor.job import Trial, targets_of_site
from dlperf_hpc.doctor.measurements import (
    collective_checks,
    collective_rows,
    collective_table,
    expectation,
)
from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.site import Site
from dlperf_hpc.model.case import Topology
from dlperf_hpc.train.probe import node
from dlperf_hpc.train.probe.bandwidth import bus_factor, sizes_of

NCCL = "torch.distributed, nccl"


def a_row(size: int, bus: float, **more: Any) -> dict[str, Any]:
    row = {"bytes": size, "us": 100.0, "algorithm_gb_per_s": bus, "bus_gb_per_s": bus}
    return {**row, "slowest_rank": 1, "iterations": 3, "right": True, **more}


def a_node(host: str, name: str, nvlinks: int, ports: list[float]) -> dict[str, Any]:
    device = {"uuid": f"GPU-{host}", "name": name, "nvlinks": nvlinks}
    told = [{"name": f"mlx5_{i}/1", "gb_per_s": rate} for i, rate in enumerate(ports)]
    return {"node": {"host": host, "gpus": {"devices": [device]}, "ports": told}}


def a_trial(tmp_path: Path, nodes: int, parts: list[dict[str, Any]], **first: Any) -> Trial:
    (target,) = targets_of_site(Site(), Topology(nodes, 2 // nodes))
    trial = Trial(target, get_engine("slurm"), Site(), tmp_path)
    trial.parts = {rank: dict(part) for rank, part in enumerate(parts)}
    trial.parts[0].update(first)
    return trial


def test_bandwidths_are_counted_as_nccl_tests_do() -> None:
    """Its PERFORMANCE.md: 2 (n - 1) / n of an all-reduce, (n - 1) / n of the others; the size is
    what all ranks hold together."""
    assert bus_factor("all-reduce", 4) == 1.5 and bus_factor("all-gather", 4) == 0.75
    assert sizes_of("all-reduce", 1 << 20, 4) == (1 << 18, 1 << 18, 1 << 20)
    assert sizes_of("reduce-scatter", 1 << 20, 4) == (1 << 18, 1 << 16, 1 << 20)
    assert sizes_of("all-gather", 1 << 20, 4) == (1 << 16, 1 << 18, 1 << 20)
    assert sizes_of("all-gather", 8, 4) == (1, 4, 16), "no rank goes without an element"


H200, V100 = "NVIDIA H200", "Tesla V100-SXM2-32GB"


@pytest.mark.parametrize(
    ("parts", "nodes", "link", "rate"),
    [
        ([a_node("n1", H200, 18, [])] * 2, 1, "18 NVLinks", 450.0),
        ([a_node("n1", V100, 6, [])] * 2, 1, "6 NVLinks", 150.0),
        ([a_node("n1", H200, 0, [])] * 2, 1, "no active NVLink", None),
        ([a_node("n1", "Some GPU", 4, [])] * 2, 1, "of Some GPU is not known", None),
        ([a_node("n1", H200, 18, []), a_node("n1", V100, 6, [])], 1, "not alike", None),
        # A rank uses one port; the node with least decides.
        ([a_node("n1", H200, 18, [50, 50]), a_node("n2", H200, 18, [25, 50])], 2, "ports", 50.0),
        ([a_node("n1", H200, 18, [50]), a_node("n2", H200, 18, [])], 2, "no InfiniBand", None),
    ],
)
def test_what_a_link_carries(
    parts: list[dict[str, Any]], nodes: int, link: str, rate: float | None
) -> None:
    words, found = expectation(parts, nodes)
    assert link in words and found == rate


@pytest.mark.parametrize(
    ("by", "nvlinks", "rows", "grade", "words"),
    [
        (NCCL, 18, [a_row(1 << 20, 9.0), a_row(1 << 26, 300.0)], "ok", "450 GB/s"),
        (NCCL, 18, [a_row(1 << 26, 200.0)], "FAIL", "below half"),
        (NCCL, 0, [a_row(1 << 26, 2.0)], "ok", "no expectation: the GPUs have no active NVLink"),
        (NCCL, 18, [a_row(1 << 20, 2.0)], "ok", "1 MiB in 100 us"),  # too small to judge a link
        ("MPI, host memory", 18, [a_row(1 << 26, 2.0)], "ok", "slowest rank 1 on n1"),
        (NCCL, 18, [a_row(8, 2.0, right=False)], "FAIL", "a wrong result at 8 B"),
    ],
)
def test_what_is_said_of_a_figure(
    tmp_path: Path, by: str, nvlinks: int, rows: list[Any], grade: str, words: str
) -> None:
    told = {"by": by, "kind": "all-reduce", "rows": rows}
    trial = a_trial(tmp_path, 1, [a_node("n1", H200, nvlinks, [])] * 2, collectives0=told)
    (result,) = collective_checks(trial)
    assert (result.grade, result.check) == (grade, "all-reduce") and words in result.seen
    assert not result.to_do or grade == "FAIL"


def test_what_was_not_measured_is_told(tmp_path: Path) -> None:
    parts = [a_node("n1", H200, 18, []), a_node("n2", H200, 18, [])]
    cut: dict[str, Any] = {"by": NCCL, "kind": "all-gather", "rows": [a_row(8, 0.1)]}
    cut |= {"left_out": "the budget is spent", "from": 1 << 25}
    none = {"by": "torch.distributed", "kind": "", "rows": [], "left_out": "no torch: x"}
    trial = a_trial(tmp_path, 2, parts, collectives0=cut, collectives1=none)
    first, second = collective_checks(trial)
    assert first.grade == "ok" and "not measured from 32 MiB on: the budget" in first.seen
    assert second.grade == "skipped" and "no torch: x" in second.seen
    # Ranks that ended in the midst of it have told nothing.
    (result,) = collective_checks(a_trial(tmp_path, 2, parts))
    assert result.grade == "FAIL" and "no rank told a figure" in result.seen


def test_the_table(tmp_path: Path) -> None:
    rows = [a_row(8, 0.001), a_row(1 << 30, 1.25)]
    told = {"by": NCCL, "kind": "all-reduce", "rows": rows}
    other = {"by": NCCL, "kind": "all-gather", "rows": rows[:1]}
    trial = a_trial(tmp_path, 1, [a_node("n1", H200, 0, [])], collectives0=told, collectives1=other)
    lines = collective_table(collective_rows(trial)).splitlines()
    assert lines[0] == "torch.distributed, nccl; 1 node, 2 ranks; environment default"
    assert lines[1].split() == ["all-reduce", "all-gather"]
    assert lines[3].split() == ["8", "B", "100", "0.001", "100", "0.001"]
    assert lines[4].split() == ["1", "GiB", "100", "1.25"]
    assert max(map(len, lines)) <= 80


def test_ports_that_are_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux shows them below /sys/class/infiniband."""
    for name, state, rate in (
        ("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)"),
        ("mlx5_1", "1: DOWN", "10 Gb/sec (4X SDR)"),
        ("mlx5_2", "4: ACTIVE", "unknown"),
    ):
        folder = tmp_path / name / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "rate").write_text(f"{rate}\n")
    monkeypatch.setattr(node, "_INFINIBAND", f"{tmp_path}/*/ports/*")
    assert node.ports() == [{"name": "mlx5_0/1", "gb_per_s": 50.0}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "10"], "is for --gpu and --collectives"),
        (["--collectives", "--budget", "301"], "takes at most 300 s"),
        (["--collectives", "--pairs", "2"], "not allowed with"),
        (["--collectives", "--nodelist", "n1"], "is for --pairs and --all-nodes"),
    ],
)
def test_usage(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = Workplace(tmp_path, local_environment()).verb("doctor", *arguments)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
