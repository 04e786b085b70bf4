"""The times of the iterations are the window's, and a piece of work of known length is seen."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import Finding, judged
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.window import timed_loop

_SLOW, _EXTRA_S, _STEP_S = 7, 0.05, 0.005


def run(device: str) -> Iterator[Finding]:
    """A window of iterations of 5 ms, one of them 50 ms longer, made of nothing but waiting."""
    cycles = _cycles_per_second() if device == "cuda" else 0.0

    class Waiting(DdpSession):
        done = 0

        def iterate(self) -> None:
            wait_s = _STEP_S + (_EXTRA_S if self.done == _SLOW else 0.0)
            self.done += 1
            if device == "cuda":
                torch.cuda._sleep(int(wait_s * cycles))
            else:
                _busy(wait_s)

    with tiny.session(tiny.case("bert-tiny", device), Waiting) as session:
        session.open_window(20)
        session.synchronize()
        elapsed = timed_loop(session, 20, lambda: None) / 1e9
        times = session.step_times()
    off = abs(sum(times) - elapsed)
    value = f"{sum(times) * 1e3:.2f} ms of {elapsed * 1e3:.2f} ms"
    yield judged(
        "sum of iterations and window", value, "0.3 % + 0.5 ms", off <= 0.003 * elapsed + 5e-4
    )
    slowest = max(range(len(times)), key=times.__getitem__)
    extra = times[slowest] - sorted(times)[len(times) // 2]
    value = f"iteration {slowest}, {extra * 1e3:.1f} ms longer than the median"
    # A CPU that others use waits longer than asked, never less.
    near = abs(extra - _EXTRA_S) < 0.1 * _EXTRA_S or (device == "cpu" and extra > 0.9 * _EXTRA_S)
    yield judged("50 ms in iteration 7", value, f"iteration {_SLOW}", slowest == _SLOW and near)


def _cycles_per_second() -> float:
    """Of the kernel that waits so many cycles of the card's clock, measured by events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 100_000_000
    torch.cuda._sleep(cycles)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    torch.cuda.synchronize()
    return cycles / float(begin.elapsed_time(end) / 1e3)


def _busy(wait_s: float) -> None:
    until = time.perf_counter() + wait_s
    while time.perf_counter() < until:
        pass
