"""Checks of the card itself: what it is, what it reaches, its energy and memory."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator

import torch

from dlperf_hpc.acceptance import training
from dlperf_hpc.acceptance.pack import FAIL, OK, TOLD, Finding, judged, skipped
from dlperf_hpc.analysis import accelerators
from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.case import Case
from dlperf_hpc.train import ranks
from dlperf_hpc.train.telemetry import Device, GpuWatch, find_device, gpu_state
from dlperf_hpc.train.torch.ddp import DdpSession

_SHARE = 0.6
"""Of the data sheet's dense peak, which no product of matrices reaches: below it something else
than the card's own limits is slow. Chosen before any card was measured."""
_LOAD_S, _ROUNDS = 6.0, 20
_BATCHES = (16, 32, 48, 96)


def environment(device: str) -> Iterator[Finding]:
    """The facts that every other row rests on; FAIL where there is no card, or no MPI."""
    built = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none: built for CPUs'}"
    yield Finding("versions", f"Python {platform.python_version()}, {built}")
    try:
        world = ranks.discover()
        yield Finding("MPI", f"{world.size} rank on {world.host}", verdict=OK)
    except WorldError as error:
        yield judged("MPI", str(error), "a world of one rank", False)
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        yield judged("card", "torch.cuda.is_available() is False", "a card", False)
        return
    name, count = torch.cuda.get_device_name(), torch.cuda.device_count()
    known = accelerators.accelerator(name)
    words = f"known as {known.name}" if known else "not in the table: there will be no MFU"
    yield Finding("card", f"{count} x {name}, {words}", verdict=OK if known else TOLD)
    properties = torch.cuda.get_device_properties(0)
    yield Finding("memory", f"{properties.total_memory / 2**30:.1f} GiB")
    state = gpu_state(find_device(str(properties.uuid)))
    yield Finding("state", ", ".join(f"{k} {v}" for k, v in state.items()) or "NVML says nothing")


def ceilings(device: str) -> Iterator[Finding]:
    """TFLOPS of a square product for each precision, and bytes per second of a copy."""
    if device == "cuda":
        for precision in ("bf16", "fp16", "tf32", "fp32"):
            yield _product(device, precision, 8192)
    else:
        yield _product(device, "fp32", 256)
    size = 2**31 if device == "cuda" else 2**24
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rate = 2 * size / training.seconds(lambda: target.copy_(source), device)
    yield Finding("copy on the device, read and written", f"{rate / 1e12:.3g} TB/s")


def _product(device: str, precision: str, size: int) -> Finding:
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a = torch.randn(size, size, device=device, dtype=kind)
    out = torch.empty_like(a)
    elapsed = training.seconds(lambda: torch.matmul(a, a, out=out), device)
    tflops = 2 * size**3 / elapsed / 1e12
    what = f"{size}^3 product, {precision}"
    peak = accelerators.peak(training.device_name(device), precision)
    if peak is None:
        return Finding(what, f"{tflops:.3g} TFLOPS")
    value = f"{tflops:.3g} TFLOPS, {tflops / peak:.0%} of {peak:g}"
    return judged(what, value, f">= {_SHARE:.0%}", tflops >= _SHARE * peak)


def telemetry(device: str) -> Iterator[Finding]:
    """Energy against mean power x seconds; windows with and without a watcher, in turn."""
    if device == "cpu":
        yield skipped("NVML", "a CPU has none")
        return
    card = find_device(str(torch.cuda.get_device_properties(0).uuid))
    if card is None:
        yield Finding("NVML", "not there: pip install nvidia-ml-py", verdict=FAIL)
        return
    yield _energy(device, card)
    with training.session(training.case("bert-tiny", device)) as session:
        training.warm(session, 20)
        watched = [lambda: _watched(session, card), lambda: training.window(session, 20)]
        costs = training.ratios(*training.in_turn(watched, _ROUNDS))
    cost = statistics.median(costs) - 1
    yield judged("cost of watching", f"{cost:+.2%} of a window", "< 0.3 %", cost < 0.003)


def _energy(device: str, card: Device) -> Finding:
    a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    watch, started = GpuWatch(card), time.monotonic()
    while time.monotonic() - started < _LOAD_S:
        for _ in range(50):
            torch.matmul(a, a)
        torch.cuda.synchronize()
    spent, seen = time.monotonic() - started, watch.summary()
    if "joules" not in seen or "watts" not in seen:
        return Finding("energy", f"this card does not count: {sorted(seen)}", verdict=TOLD)
    ratio = seen["joules"] / (seen["watts"] * spent)
    value = f"{seen['joules']:.0f} J counted, {ratio:.2f} of mean power x seconds"
    return judged("energy", value, "0.85 to 1.15", 0.85 <= ratio <= 1.15)


def _watched(session: DdpSession, card: Device) -> float:
    watch = GpuWatch(card)
    elapsed = training.window(session, 20)
    watch.summary()
    return elapsed


def memory(device: str) -> Iterator[Finding]:
    """Peak memory lies on a line over the batch size: three batches foretell a fourth. Only where
    PyTorch's allocator counts: a CPU's resident set does not fall again."""
    if device == "cpu":
        yield skipped("memory over batch size", "a CPU's peak does not fall from batch to batch")
        return
    peaks = [_peak_mb(training.case("bert-tiny", device, batch_size=size)) for size in _BATCHES]
    line = statistics.linear_regression(_BATCHES[:3], peaks[:3])
    foretold = line.intercept + line.slope * _BATCHES[3]
    value = f"foretold {foretold:.0f} MiB, found {peaks[3]:.0f} MiB"
    yield judged("a fourth batch", value, "3 %", abs(foretold / peaks[3] - 1) <= 0.03)
    left = torch.cuda.memory_allocated() / 2**20
    yield judged("left behind", f"{left:.1f} MiB", "< 16 MiB", left < 16)


def _peak_mb(case: Case) -> float:
    torch.cuda.reset_peak_memory_stats()
    with training.session(case) as session:
        for _ in range(4):
            session.iterate()
        session.synchronize()
        return session.memory_mb()
