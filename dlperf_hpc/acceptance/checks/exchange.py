"""On one rank an iteration without all-reduce takes as long as one with it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import TOLD, Finding, judged
from dlperf_hpc.train.window import timed_loop, warm_up

_ITERATIONS = 10


def run(device: str) -> Iterator[Finding]:
    """Blocks of each in turn; a CPU's noise is told, not judged."""
    with tiny.session(tiny.case("bert-tiny", device)) as session:
        warm_up(session, _ITERATIONS, lambda: None)
        ratios = []
        for number in range(10 if device == "cuda" else 2):
            times = {}
            for reduce in (True, False) if number % 2 else (False, True):
                session.set_all_reduce(reduce)
                session.iterate()  # the first after a change is another kind of iteration
                session.open_window(_ITERATIONS)
                session.synchronize()
                times[reduce] = timed_loop(session, _ITERATIONS, lambda: None)
            ratios.append(times[True] / times[False])
    ratio = statistics.median(ratios)
    value = f"{ratio:.3f} of the time without"
    if device == "cpu":
        yield Finding("with all-reduce, one rank", value, verdict=TOLD)
    else:
        yield judged("with all-reduce, one rank", value, "0.98 to 1.02", abs(ratio - 1) <= 0.02)
