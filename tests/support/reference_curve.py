"""Equal weights for all back ends, and what DDP makes of them: what the others are held to."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frameworks import run_checks

from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.train import workloads as weights
from dlperf_hpc.train.registry import registry

HERE = Path(__file__).parent


@functools.cache
def initial_weights(directory: Path) -> Path:
    """A file of bert-tiny's weights, written once per directory."""
    path = directory / "bert-tiny.npz"
    options = (("dropout", 0.0), ("initial_weights", ""), ("layer_norm", "post"))
    case = Case("ddp", "bert-tiny", Topology(1, 1), "fp32", 2, 16, options=options)
    model = registry().workloads["bert-tiny"].build("torch", case)
    weights.save(model, path)
    return path


@functools.cache
def ddp_curve(directory: Path) -> list[dict[str, Any]]:
    """What ``session_checks.curve`` finds with DDP, by rank."""
    return session_checks("torch", "session_checks.py", "ddp", directory)["curve"]


def session_checks(
    environment: str, script: str, framework: str, directory: Path, ranks: int = 2
) -> dict[str, list[Any]]:
    """What each rank found, by check; one run of a script of the kind of ``session_checks``."""
    arguments = [framework, str(initial_weights(directory))]
    return run_checks(
        environment, HERE / script, directory, ranks, timeout=840, arguments=arguments
    )


def relative(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The largest relative difference."""
    assert len(found) == len(wanted)
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted))


def same_curve(found: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> bool:
    """Losses of each rank within 1e-3 of each other all along, and they fall."""
    assert len(found) == len(wanted) == 2
    pairs = [(a["losses"], b["losses"]) for a, b in zip(found, wanted)]
    falls = all(b[-1] < 0.8 * b[0] for _, b in pairs)
    return falls and all(relative(a, b) < 1e-3 for a, b in pairs)


def communication_is_measured(rows: Sequence[dict[str, Any]]) -> None:
    """Assert what holds of ``session_checks.communication``: without all-reduce each rank stepped
    on gradients of its own, and all ranks were told one share."""
    first, second = (row["communication"] for row in rows)
    assert first.pop("alone") != second.pop("alone")
    assert first == second and (first["reason"], first["steps"]) == ("", 2)
    assert len(first["rank_ms"]) == len(rows) and min(first["rank_ms"]) > 0
    assert first["exposed"] == 1 - first["without_ms"] / first["with_ms"] < 1


def is_whole(row: dict[str, Any]) -> None:
    """Assert what holds of one rank's ``session_checks.a_window``, whatever the back end."""
    timed = row["timed"]
    assert timed["moved"] and timed["iterations"] == 4
    assert (timed["optimizer_steps"], timed["skipped_steps"]) == (2, 0)
    assert len(timed["step_times"]) == len(timed["losses"]) == 4
    assert 0 < sum(timed["step_times"]) <= timed["elapsed_s"]
    # Dropout differs from micro-batch to micro-batch.
    assert len(set(timed["losses"])) == 4
    assert timed["memory_mb"] > 100 and timed["data_wait_s"] == 0
    assert row["facts"]["parameters"] == 4434242
