"""Sweeps, logs and records for the tests, made by the code that makes them on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from report_samples import case

from dlperf_hpc.model.case import Case, Limits, Measure, Run, Topology
from dlperf_hpc.model.result import Checkpoint, RunResult, Status
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.manifest import Array, Manifest, write_manifest
from dlperf_hpc.records.store import Attempt, begin_log, finish, log_event, open_attempt
from dlperf_hpc.train import joblog
from dlperf_hpc.train.measurement import Communication, MeasuredWindow
from dlperf_hpc.train.ranks import World

SWEEP = "sample"
COMMUNICATION = Communication(steps=2, with_ms=50.0, without_ms=45.0)
CHECKPOINT = Checkpoint(save_s=2.5, load_s=0.7, bytes=106_400_123, ranks=2)
FACTS = {"flops_per_sample": 1.5e9, "framework_name": "PyTorch", "framework_version": "2.13.0+cpu"}


def a_run(topology: str = "1n2g", repeat: int = 1, **changes: Any) -> Run:
    """A run with an option of each plain type, so that the log holds them."""
    options = (("bucket_mb", 25), ("dropout", 0.1), ("note", "a b=c"), ("switch", False))
    return Run(case(topology, **{"options": options, **changes}), repeat)


def timed(ranks: int = 2, iterations: int = 6, seconds: float = 0.05) -> list[MeasuredWindow]:
    """What the ranks of a run bring out of the window: figures of many digits."""
    windows = []
    for rank in range(ranks):
        times = [seconds * (1 + 0.1 * ((rank + i) % 3)) / 3 for i in range(iterations)]
        losses = [10.0 - 0.1 * i + 0.01 * rank for i in range(iterations)]
        windows.append(
            MeasuredWindow(
                iterations=iterations,
                opened=1_700_000_000.25 + 1e-3 * rank,
                elapsed_s=sum(times),
                step_times=times,
                losses=losses,
                optimizer_steps=iterations,
                skipped_steps=0,
                moved=True,
                data_wait_s=1e-3 / 7,
                memory_mb=513.78515625,
                execution={
                    **{"attention": "math", "graphs": 3, "graph_breaks": 0, "recompiles": 0},
                    **{"parameter_bytes": 4000 + rank, "gradient_bytes": 4000},
                    **{"optimizer_bytes": 8000, "memory_growth_mb": 0.125 * rank},
                },
            )
        )
    return windows


def opened(root: Path, run: Run, launch: str = "100_0.0") -> Attempt:
    """An attempt at a run that has not ended ok yet."""
    attempt = open_attempt(SWEEP, run, root, launch)
    assert attempt is not None
    return attempt


def begun(root: Path, run: Run, launch: str = "100_0.0") -> Attempt:
    """An attempt whose log has all that comes before the window."""
    attempt = opened(root, run, launch)
    world = World(0, tuple("n1" for _ in range(run.case.ranks)))
    facts = [
        {"rank": rank, "host": "n1", "local_rank": rank, "pid": 100 + rank, "torch": "2.13.0+cpu"}
        for rank in range(world.size)
    ]
    begin_log(attempt)
    log_event(attempt, "measure", asdict(Measure(warmup=5, iterations=6)))
    log_event(attempt, "phase", {"name": "build"})
    log_event(attempt, "provenance", {"tool": "0.1.0", "cpu": 'an "odd" name', "cpus": 2})
    log_event(attempt, "world", {"ranks": world.size, "nodes": 1, "hosts": world.nodes})
    for row in facts:
        log_event(attempt, "rank", row)
    for phase in ("warmup", "measure", "shutdown"):
        log_event(attempt, "phase", {"name": phase})
    return attempt


def ended_ok(
    root: Path,
    run: Run,
    launch: str = "100_0.0",
    iterations: int = 6,
    seconds: float = 0.05,
    checkpoint: bool = False,
) -> RunResult:
    """A run that ended well, written as rank 0 writes it; what its log gives."""
    attempt = begun(root, run, launch)
    windows = timed(run.case.ranks, iterations, seconds)
    measured = joblog.Measured(manifest([run]).measure, windows, COMMUNICATION, FACTS)
    joblog.log_window(attempt, measured)
    if checkpoint:
        joblog.log_checkpoint(attempt, CHECKPOINT, "")
    joblog.end_ok(attempt, measured, CHECKPOINT if checkpoint else None)
    return result_of_log(attempt.paths.log)


def ended(
    root: Path, run: Run, status: Status, reason: str = "", launch: str = "100_0.0"
) -> Attempt:
    """A run that ended otherwise, after it had begun."""
    attempt = begun(root, run, launch)
    assert finish(attempt, status, reason, "Traceback\n  line\nValueError: x")
    return attempt


def without_end(log: Path) -> None:
    """Take a log's ``end`` line away, as a kill just before it would."""
    lines = log.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not (line.startswith("dlperf ") and " end " in line[:40])]
    log.write_text("".join(kept))


SITE = {"description": "", "srun": [], "environment": {"default": {"mpi": "pmi2"}}}


def token_of(topology: Topology | str) -> str:
    """The token of a sample's array: as ours look, and the same for each run of a test."""
    return f"dlperf-{str(topology).encode().hex()}"


def manifest(
    runs: Sequence[Run],
    engine: str = "local",
    time_limit_s: int = 600,
    site: Mapping[str, Any] = SITE,
) -> Manifest:
    """A manifest of these runs: one array for each topology."""
    topologies = list(dict.fromkeys(run.case.topology for run in runs))
    arrays = tuple(
        Array(
            name=f"{topology}.{SWEEP}",
            token=token_of(topology),
            topology=topology,
            environment="default",
            time_limit_s=time_limit_s,
            tasks=tuple(run for run in runs if run.case.topology == topology),
        )
        for topology in topologies
    )
    return Manifest(
        sweep=SWEEP,
        engine=engine,
        base="1n1g",
        repeats=max(run.repeat for run in runs),
        measure=Measure(warmup=5, iterations=6),
        limits=Limits(),
        arrays=arrays,
        site=dict(site),
        tool_version="0.1.0",
        created="2026-11-21T14:53:20.399564Z",
        source="sweeps/sample.toml",
    )


def a_sweep(
    root: Path, runs: Sequence[Run], engine: str = "local", site: Mapping[str, Any] = SITE
) -> Manifest:
    """A sweep's directory before its first run."""
    root.mkdir(parents=True, exist_ok=True)
    made = manifest(runs, engine, site=site)
    write_manifest(root, made)
    return made


def many(cases: Sequence[Case], repeats: int) -> list[Run]:
    """Every repeat of every case."""
    return [Run(case, repeat) for repeat in range(1, repeats + 1) for case in cases]


def paths(root: Path, run: Run) -> RunPaths:
    """Where a run's files lie."""
    return RunPaths(root, run.id)
