"""Reports for the tests of the page: of many series, with holes, failures and hostile names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from report_samples import bad, case, external, oks, window

from dlperf_hpc.model.case import Case, ObservedCase, ObservedRun
from dlperf_hpc.model.result import GpuUse, RunResult, Status
from dlperf_hpc.reporting.contents import Report

TOPOLOGIES = ("1n1g", "1n2g", "1n4g", "1n8g", "2n8g")
HOSTILE = (
    "<script>document.title='taken'</script>",
    "\"quoted\" 'too' & <b>bold</b>",
    "a|b`c`",
    '=HYPERLINK("x")',
    "\u202eright to left",
    "\u0645\u0631\u062d\u0628\u0627",
    "\x1b[31mred\x1b[0m",
    "</script><!--",
)
"""Names that a page must show and not obey."""
SPEEDS = (1.0, 1.004, 0.996, 1.008, 0.993, 1.002)


def facts(of: Case, driver: str = "570.86") -> dict[str, Any]:
    """What a log tells of machine and software."""
    hosts = [f"n{1 + rank // of.topology.gpus_per_node}" for rank in range(of.ranks)]
    return {
        "world": {"ranks": of.ranks, "hosts": [*dict.fromkeys(hosts)],
                  "device_name": "NVIDIA H100 80GB HBM3", "cuda": "12.8", "nccl": "2.26.2"},
        "provenance": {"cpu": "AMD EPYC 9654", "kernel": "5.14.0", "mpi": "MPICH 5.0.2",
                       "env": {"NCCL_IB_HCA": "mlx5"}},
        "ranks": [{"rank": rank, "host": host} for rank, host in enumerate(hosts)],
        "framework_name": "PyTorch", "framework_version": "2.13.0", "drivers": [driver],
        "flops_per_sample": 8.4e10,
    }  # fmt: skip


def measured(of: Case, speed: float, repeats: int = 6, driver: str = "570.86") -> list[RunResult]:
    """Runs of one case that count, as on GPUs of an H100 node."""
    job = 4000 + of.topology.devices
    made = oks(of, *(speed * SPEEDS[i % 6] for i in range(repeats)), drift=0.002,
               memory_mb=21_344.0, exposed_comm=0.02 * math.log2(of.topology.devices))  # fmt: skip
    return [
        replace(
            run, facts=facts(of, driver), launch=f"{job}_{i}.0",
            started=f"2026-11-2{1 + i % 2}T14:0{i % 10}:00.000000Z",
            ended=f"2026-11-2{1 + i % 2}T14:0{i % 10}:59.000000Z",
            gpu=GpuUse(util=97.0, memory_mb=24_000.0, sm_mhz=1755.0, watts=640.0, celsius=61.0,
                       joules=640.0 * of.topology.devices * 100 * of.micro_batch / speed,
                       throttle=0, devices=of.topology.devices),
        )
        for i, run in enumerate(made)
    ]  # fmt: skip


def curve(
    topologies: Sequence[str] = TOPOLOGIES, repeats: int = 6, **changes: Any
) -> list[RunResult]:
    """A series with an efficiency that falls a little with each doubling."""
    speed = 300.0 * (changes.get("batch_size", 32) / 32) ** 0.3
    speed *= 1.9 if changes.get("precision") == "bf16" else 1.0
    speed *= 1.12 if "compile" in changes.get("tags", ()) else 1.0
    found = []
    for topology in topologies:
        of = case(topology, framework="ddp", model="bert-base", **changes)
        n = of.topology.devices
        found += measured(of, speed * n * 0.972 ** math.log2(n), repeats)
    return found


def few_series(repeats: int = 3) -> Report:
    """Three series on three topologies, one of them with a run that failed."""
    found = [
        run for batch in (16, 32, 64) for run in curve(TOPOLOGIES[:3], repeats, batch_size=batch)
    ]
    of = case("1n4g", framework="ddp", model="bert-base", batch_size=64)
    found.append(bad(of, 9, Status.FAILED, "rank 2: ValueError: x"))
    return Report("few", found, source="28 runs", site="Example cluster")


def many_series(repeats: int = 6) -> Report:
    """Sixteen series, one with a hole, one with runs that failed, one with a run that has a window
    and does not count, and one of another program's logs in tokens/s alone."""
    found: list[RunResult] = []
    for batch in (2, 16, 32, 64):
        for precision in ("fp32", "bf16"):
            for tags in ((), ("compile",)):
                found += curve(repeats=repeats, batch_size=batch, precision=precision, tags=tags)
    found = [
        run for run in found
        if not (run.run.case.batch_size == 64 and str(run.run.case.topology) == "1n4g"
                and run.run.case.precision == "bf16")
    ]  # fmt: skip
    big = case("4n8g", framework="ddp", model="bert-base", batch_size=64, precision="fp32")
    found += [
        bad(big, repeat, Status.OUT_OF_MEMORY, "CUDA out of memory on n3") for repeat in (1, 2)
    ]
    of = case("1n2g", framework="ddp", model="bert-base", batch_size=2, precision="fp32")
    found.append(bad(of, 7, Status.PARTIAL, "log and record differ", window(of, 190.0)))
    found += external("1n1g", {"tokens/s": 9000.0}, {"tokens/s": 9100.0})
    return Report("bert_base_h100", found, source="481 runs of logs/bert_base_h100",
                     site="Example cluster, partition gpu")  # fmt: skip


def hostile() -> Report:
    """Every name that a log gives is one of :data:`HOSTILE`."""
    found: list[RunResult] = []
    for place, name in enumerate(HOSTILE):
        rates = [{"samples/s": 100.0 * (1 + place) * x} for x in (1.0, 1.01, 0.99)]
        runs = external("1n1g", *rates, framework=name, model=name, tags=(name,))
        found += [
            replace(run, log=name, facts={"world": {"hosts": [name], "x": name}}) for run in runs
        ]
        of = runs[0].run.case
        assert isinstance(of, ObservedCase)
        found.append(RunResult(ObservedRun(of, 9, f"{place}.log"), Status.FAILED, name))
    return Report(HOSTILE[0], found, source=HOSTILE[1], unread=[f"{HOSTILE[0]}: {HOSTILE[1]}"],
                     unrecognised=[HOSTILE[2]], site=HOSTILE[6])  # fmt: skip
