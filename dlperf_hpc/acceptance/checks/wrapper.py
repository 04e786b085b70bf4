"""The wrapper's timed loop beside a loop written by hand, in turn (benchmarks/wrapper_cost.py)."""

from __future__ import annotations

from collections.abc import Iterator

from dlperf_hpc.acceptance.checks.commands import benchmark
from dlperf_hpc.acceptance.finding import TOLD, Finding, judged, skipped


def run(device: str) -> Iterator[Finding]:
    """On a card the median is within 0.5 % of 1; a CPU rehearses with two rounds."""
    rounds = 30 if device == "cuda" else 2
    found = benchmark("wrapper_cost.py", "--device", device, "--rounds", rounds, "--small")
    if found is None:
        yield skipped("wrapper / bare", "benchmarks/ is part of a checkout, not of a wheel")
        return
    value = f"{found['median']:.4f} over {rounds} rounds"
    if found["interval"]:
        value += f" [{found['interval']['low']:.4f}, {found['interval']['high']:.4f}]"
    if device == "cpu":
        yield Finding("wrapper / bare", value, verdict=TOLD)
    else:
        yield judged("wrapper / bare", value, "0.995 to 1.005", abs(found["median"] - 1) <= 0.005)
