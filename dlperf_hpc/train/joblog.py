"""What a run writes into its log about the world it ran in and the window it timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from dlperf_hpc.records.files import append_line
from dlperf_hpc.records.lines import utc, write_line
from dlperf_hpc.records.manifest import Manifest
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import Attempt, finish, log_event
from dlperf_hpc.train import provenance, summary
from dlperf_hpc.train.communication import Communication
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.window import Timed

_MOST_ITERATION_LINES = 200


def log_world(attempt: Attempt, world: World, all_facts: list[dict[str, Any]]) -> None:
    """Provenance of rank 0's node, what all ranks share, and a line for each rank."""
    log_event(attempt, "provenance", provenance.provenance())
    shared = {
        key: value
        for key, value in all_facts[0].items()
        if key not in ("rank", "host", "local_rank", "pid", "cpus", "device", "device_uuid")
    }
    same = all(all(facts.get(key) == value for key, value in shared.items()) for facts in all_facts)
    if not same:
        shared["ranks_differ"] = True
    size = {"ranks": world.size, "nodes": len(world.nodes), "hosts": world.nodes}
    log_event(attempt, "world", {**size, **shared})
    for facts in all_facts:
        log_event(attempt, "rank", facts if not same else _without(facts, shared))


def _without(facts: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key not in shared}


def _iteration_lines(windows: list[Timed], warmup: int) -> str:
    """The window's iterations, counted from 1 with the warm-up, stamped when they ended."""
    times, losses = summary.iteration_times(windows), summary.mean_losses(windows)
    every = -(-len(times) // _MOST_ITERATION_LINES)
    opened = max(window.opened for window in windows)
    lines = [write_line("window_open", {"iteration": warmup}, utc(opened))]
    elapsed = 0.0
    for i, (seconds, loss) in enumerate(zip(times, losses), 1):
        elapsed += seconds
        if i % every == 0 or i == len(times):
            values = {"n": warmup + i, "loss": loss, "ms": round(1e3 * seconds, 3)}
            lines.append(write_line("iteration", values, utc(opened + elapsed)))
    return "\n".join(lines)


def log_window(
    attempt: Attempt, manifest: Manifest, windows: list[Timed], found: Communication
) -> None:
    """Iterations and summary into the log; then the record, which ends the run ok."""
    measure = manifest.measure
    window = summary.summarise(windows, attempt.run.case, measure)
    window = replace(window, exposed_comm=found.exposed)
    append_line(attempt.paths.log, _iteration_lines(windows, measure.warmup))
    medians = {key: value for key, value in asdict(found).items() if key != "reason"}
    log_event(attempt, "communication", medians if found.steps else {"reason": found.reason})
    rate = {"samples_per_s": round(window.samples_per_s, 3), "rank_spread": window.rank_spread}
    log_event(attempt, "summary", {**asdict(window), **rate})
    detail = {
        "window": asdict(window),
        "detail": summary.detail(windows),
        "packages": provenance.packages(),
        "window_opened": utc(max(w.opened for w in windows)),
    }
    finish(attempt, Status.OK, detail=detail)


def log_gpus(attempt: Attempt, states: Sequence[dict[str, dict[str, Any]]]) -> None:
    """Each rank's GPU before, during and after the window; nothing where there is no NVML."""
    for rank, account in enumerate(states):
        for when, state in account.items():
            if state:
                log_event(attempt, "gpu", {"rank": rank, "when": when, **state})
