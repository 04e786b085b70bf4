"""NVML's figures agree with each other, and watching costs the window nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import FAIL, TOLD, Finding, judged, skipped
from dlperf_hpc.train.telemetry import Watch, find_device
from dlperf_hpc.train.window import timed_loop, warm_up

_LOAD_S, _ROUNDS, _ITERATIONS = 6.0, 20, 20


def run(device: str) -> Iterator[Finding]:
    """Energy against mean power x seconds; windows with and without a watcher, in turn."""
    if device == "cpu":
        yield skipped("NVML", "a CPU has none")
        return
    card = find_device(str(torch.cuda.get_device_properties(0).uuid))
    if card is None:
        yield Finding("NVML", "not there: pip install nvidia-ml-py", verdict=FAIL)
        return
    a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    watch, begun = Watch(card), time.monotonic()
    while time.monotonic() - begun < _LOAD_S:
        for _ in range(50):
            torch.matmul(a, a)
        tiny.wait(device)
    spent, seen = time.monotonic() - begun, watch.summary()
    if "joules" in seen and "watts" in seen:
        ratio = seen["joules"] / (seen["watts"] * spent)
        value = f"{seen['joules']:.0f} J counted, {ratio:.2f} of mean power x seconds"
        yield judged("energy", value, "0.85 to 1.15", 0.85 <= ratio <= 1.15)
    else:
        yield Finding("energy", f"this card does not count: {sorted(seen)}", verdict=TOLD)
    with tiny.session(tiny.case("bert-tiny", device)) as session:
        warm_up(session, _ITERATIONS, lambda: None)
        ratios = []
        for number in range(_ROUNDS):
            times = {}
            for watched in (True, False) if number % 2 else (False, True):
                session.open_window(_ITERATIONS)
                session.synchronize()
                looks = Watch(card) if watched else None
                times[watched] = timed_loop(session, _ITERATIONS, lambda: None)
                if looks:
                    looks.summary()
            ratios.append(times[True] / times[False])
    cost = statistics.median(ratios) - 1
    yield judged("cost of watching", f"{cost:+.2%} of a window", "< 0.3 %", cost < 0.003)
