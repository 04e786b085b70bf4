"""What a run writes into its log about the world it ran in and the window it timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dlperf_hpc.files import append_line
from dlperf_hpc.model.case import Case, Measure
from dlperf_hpc.model.result import Checkpoint, Status, Window
from dlperf_hpc.records.lines import utc, write_line
from dlperf_hpc.records.store import AnyAttempt, Attempt, finish, log_event
from dlperf_hpc.train import provenance, summary
from dlperf_hpc.train.communication import Communication
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.window import RankTimes, Timed

_MOST_ITERATION_LINES = 200
_OF_ONE_RANK = (
    *("rank", "host", "local_rank", "pid", "cpus", "device", "device_uuid"),
    *("cpus_numa", "memory_numa", "gpu_pci", "gpu_cpus", "gpu_numa", "bound"),
)


@dataclass(frozen=True)
class Measured:
    """What every rank knows once the window is timed, and the record of the run is made of.

    ``windows`` are the ranks', in order; ``facts`` go into the record as they are.
    """

    measure: Measure
    windows: Sequence[Timed]
    communication: Communication
    facts: Mapping[str, Any] = field(default_factory=dict)

    def window(self, case: Case) -> Window:
        """The window over all ranks."""
        window = summary.summarise(self.windows, case, self.measure)
        return replace(window, exposed_comm=self.communication.exposed)


def log_world(attempt: AnyAttempt, world: World, all_facts: list[dict[str, Any]]) -> None:
    """Provenance of rank 0's node, what all ranks share, and a line for each rank."""
    log_event(attempt, "provenance", provenance.provenance(world))
    shared = {key: value for key, value in all_facts[0].items() if key not in _OF_ONE_RANK}
    same = all(all(facts.get(key) == value for key, value in shared.items()) for facts in all_facts)
    if not same:
        shared["ranks_differ"] = True
    size = {"ranks": world.size, "nodes": len(world.nodes), "hosts": world.nodes}
    log_event(attempt, "world", {**size, **shared})
    for facts in all_facts:
        log_event(attempt, "rank", facts if not same else _without(facts, shared))


def _without(facts: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key not in shared}


def log_iterations(
    begun: AnyAttempt,
    windows: Sequence[RankTimes],
    losses: Sequence[float | None],
    warmup: int,
) -> None:
    """The window's iterations, counted from 1 with the warm-up, stamped when they ended."""
    times, opened = summary.iteration_times(windows), max(each.opened for each in windows)
    every = -(-len(times) // _MOST_ITERATION_LINES)
    lines = [write_line("window_open", {"iteration": warmup}, utc(opened))]
    elapsed = 0.0
    for i, (seconds, loss) in enumerate(zip(times, losses), 1):
        elapsed += seconds
        if i % every == 0 or i == len(times):
            values = {"n": warmup + i, "loss": loss, "ms": round(1e3 * seconds, 3)}
            lines.append(write_line("iteration", values, utc(opened + elapsed)))
    append_line(begun.paths.log, "\n".join(lines))


def log_summary(begun: AnyAttempt, window: Window, nulls: bool = False) -> None:
    """The window over all ranks; with ``nulls`` also what is not known of it."""
    rate = {"samples_per_s": round(window.samples_per_s, 3), "rank_spread": window.rank_spread}
    log_event(begun, "summary", {**asdict(window), **rate}, nulls=nulls)


def log_window(attempt: Attempt, measured: Measured) -> None:
    """Iterations, communication and summary into the log. The run has not ended by that."""
    window, found = measured.window(attempt.run.case), measured.communication
    losses = summary.mean_losses(measured.windows)
    log_iterations(attempt, measured.windows, losses, measured.measure.warmup)
    medians = {key: value for key, value in asdict(found).items() if value not in ("", ())}
    log_event(attempt, "communication", medians if found.steps else {"reason": found.reason})
    log_summary(attempt, window)


def log_checkpoint(attempt: Attempt, checkpoint: Checkpoint | None, reason: str) -> None:
    """What saving and loading took, rates rounded for people, and why something is missing."""
    told: dict[str, Any] = {"reason": reason or None}
    if checkpoint is not None:
        told.update(asdict(checkpoint))
        for name in ("mb_per_rank", "save_mb_s", "load_mb_s"):
            value = getattr(checkpoint, name)
            told[name] = None if value is None else round(value, 3)
    log_event(attempt, "checkpoint", told)


def end_ok(attempt: Attempt, measured: Measured, checkpoint: Checkpoint | None = None) -> None:
    """The record of a run whose window is in the log; it ends the run ok. Whoever is first does."""
    detail = {
        **measured.facts,
        "window": asdict(measured.window(attempt.run.case)),
        "detail": {
            **summary.detail(measured.windows, summary.mean_losses(measured.windows)),
            "rank_compute_ms": list(measured.communication.rank_ms),
        },
        "packages": provenance.packages(),
        "window_opened": utc(max(w.opened for w in measured.windows)),
        **({"checkpoint": asdict(checkpoint)} if checkpoint else {}),
    }
    finish(attempt, Status.OK, detail=detail)


def log_gpus(attempt: Attempt, states: Sequence[dict[str, dict[str, Any]]]) -> None:
    """Each rank's GPU before, during and after the window; nothing where there is no NVML."""
    for rank, account in enumerate(states):
        for when, state in account.items():
            if state:
                log_event(attempt, "gpu", {"rank": rank, "when": when, **state})
