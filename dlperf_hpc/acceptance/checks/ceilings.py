"""What the card reaches without a model: matrix products, and a copy."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dlperf_hpc.acceptance.checks.tiny import device_name, seconds
from dlperf_hpc.acceptance.finding import Finding, judged
from dlperf_hpc.analysis import accelerators

_SHARE = 0.6
"""Of the data sheet's dense peak, which no product of matrices reaches: below it something else
than the card's own limits is slow. Chosen before any card was measured."""


def run(device: str) -> Iterator[Finding]:
    """TFLOPS of a square product for each precision, and bytes per second of a copy."""
    size, precisions = (
        (8192, ("bf16", "fp16", "tf32", "fp32")) if device == "cuda" else (256, ("fp32",))
    )
    for precision in precisions:
        yield _product(device, precision, size)
    yield _copy(device, 2**31 if device == "cuda" else 2**24)


def _product(device: str, precision: str, size: int) -> Finding:
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a = torch.randn(size, size, device=device, dtype=kind)
    out = torch.empty_like(a)
    tflops = 2 * size**3 / seconds(lambda: torch.matmul(a, a, out=out), device) / 1e12
    what, peak = f"{size}^3 product, {precision}", accelerators.peak(device_name(device), precision)
    if peak is None:
        return Finding(what, f"{tflops:.3g} TFLOPS")
    value = f"{tflops:.3g} TFLOPS, {tflops / peak:.0%} of {peak:g}"
    return judged(what, value, f">= {_SHARE:.0%}", tflops >= _SHARE * peak)


def _copy(device: str, size: int) -> Finding:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rate = 2 * size / seconds(lambda: target.copy_(source), device)
    return Finding("copy on the device, read and written", f"{rate / 1e12:.3g} TB/s")
