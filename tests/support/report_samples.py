"""Runs for the tests of analysis and reporting: made from speeds, without a log."""

from __future__ import annotations

from typing import Any

from dlperf_hpc.model.case import Case, ObservedCase, ObservedRun, Run, Topology
from dlperf_hpc.model.result import TOKENS_PER_S, ExternalWindow, Rates, RunResult, Status, Window


def case(topology: str = "1n1g", **changes: Any) -> Case:
    """A case of one series unless ``changes`` say otherwise."""
    values: dict[str, Any] = {
        "framework": "torch",
        "model": "bert",
        "precision": "fp32",
        "batch_size": 32,
        "seq_len": 128,
        **changes,
    }
    return Case(topology=Topology.parse(topology), **values)


def window(of: Case, speed: float, **changes: Any) -> Window:
    """A window of 100 iterations that gives ``speed`` samples/s."""
    samples = 100 * of.micro_batch
    values: dict[str, Any] = {
        "warmup": 20,
        "iterations": 100,
        "optimizer_steps": 100 // of.accumulation,
        "skipped_steps": 0,
        "accumulation": of.accumulation,
        "global_batch": of.global_batch,
        "ranks": of.ranks,
        "samples": samples,
        "elapsed_s": samples / speed,
        "elapsed_min_s": 0.99 * samples / speed,
        "step_ms_p5": 9.0,
        "step_ms_p50": 10.0,
        "step_ms_p95": 11.0,
        "step_ms_p99": 12.0,
        "loss_first": 10.5,
        "loss_last": 9.5,
        "data_wait_s": 0.0,
        "steady": True,
        **changes,
    }
    return Window(**values)


def ok(of: Case, repeat: int, speed: float, **changes: Any) -> RunResult:
    """A run that counts; ``changes`` are to its window."""
    return RunResult(Run(of, repeat), Status.OK, window=window(of, speed, **changes), source="log")


def oks(of: Case, *speeds: float, **changes: Any) -> list[RunResult]:
    """One run that counts per speed, repeats from 1."""
    return [ok(of, repeat, speed, **changes) for repeat, speed in enumerate(speeds, 1)]


def bad(
    of: Case, repeat: int, status: Status, reason: str = "", timed: Window | None = None
) -> RunResult:
    """A run that does not count, perhaps with a window in its log all the same."""
    return RunResult(Run(of, repeat), status, reason, window=timed, source="scheduler")


def external(topology: str, *rates: Rates, **changes: Any) -> list[RunResult]:
    """Runs of another program's logs that count, one for each of the throughputs."""
    values = {"framework": "torchtitan", "model": "llama", "precision": "bf16", **changes}
    seen = ObservedCase(topology=Topology.parse(topology), **values)
    return [
        RunResult(
            ObservedRun(seen, repeat, f"{topology}_{repeat}.log"),
            Status.OK,
            log=f"{topology}_{repeat}.log",
            external=ExternalWindow(
                each, "printed[20:120]", "printed", next(iter(each)), 1.0, "x", "quoted lines"
            ),
        )
        for repeat, each in enumerate(rates, 1)
    ]


def tokens(topology: str, *speeds: float, **changes: Any) -> list[RunResult]:
    """Runs of logs that give tokens/s alone."""
    return external(topology, *({TOKENS_PER_S: speed} for speed in speeds), **changes)
