"""Inside the window nothing waits for the device, copies from it, or asks the driver for memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import Finding, judged
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.window import timed_loop, warm_up

_ITERATIONS = 10
# As CUDA's runtime and PyTorch call them.
_WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
_COPIES, _MEMORY = ("Memcpy DtoH",), ("cudaMalloc", "cudaFree")
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")


def run(device: str) -> Iterator[Finding]:
    """BERT and GPT-2, without and with a loss scale, profiled over a short window."""
    precisions = ("bf16", "fp16") if device == "cuda" else ("bf16",)
    for model in tiny.SMALL if device == "cuda" else ("bert-tiny",):
        for precision in precisions:
            with tiny.session(tiny.case(model, device, precision)) as session:
                yield from _looked(f"{model} {precision}", session, device)


def _looked(what: str, session: DdpSession, device: str) -> Iterator[Finding]:
    # DDP asks for no more memory from its third iteration on.
    warm_up(session, _ITERATIONS, lambda: None)
    session.open_window(_ITERATIONS)
    session.synchronize()
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        activities = [ProfilerActivity.CPU]
        activities += [ProfilerActivity.CUDA] if device == "cuda" else []
        with profile(activities=activities) as profiled:
            timed_loop(session, _ITERATIONS, lambda: None)
    except RuntimeError as error:
        yield judged(what, f"waits: {str(error).splitlines()[0]}", "no wait", False)
        return
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    counts = Counter({event.key: event.count for event in profiled.key_averages()})
    if device == "cpu":  # where reading a value waits for nothing
        yield Finding(f"{what}: values read", f"{_sum(counts, _READS)}")
        return
    waits = _sum(counts, _WAITS)
    # The window's own, at its end; the profiler waits once more for itself.
    yield judged(f"{what}: waits", f"{waits}", "<= 2", waits <= 2)
    for told, names in (("copies from the device", _COPIES), ("calls for memory", _MEMORY)):
        count = _sum(counts, names)
        yield judged(f"{what}: {told}", f"{count}", "0", count == 0)


def _sum(counts: Counter[str], beginnings: tuple[str, ...]) -> int:
    return sum(count for key, count in counts.items() if key.startswith(beginnings))
