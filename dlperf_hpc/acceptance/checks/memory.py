"""Peak memory lies on a line over the batch size: three batches foretell a fourth."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import Finding, judged, skipped

_BATCHES = (16, 32, 48, 96)


def run(device: str) -> Iterator[Finding]:
    """Only where PyTorch's allocator counts: a CPU's resident set does not fall again."""
    if device == "cpu":
        yield skipped("memory over batch size", "a CPU's peak does not fall from batch to batch")
        return
    peaks = []
    for batch_size in _BATCHES:
        torch.cuda.reset_peak_memory_stats()
        with tiny.session(tiny.case("bert-tiny", device, batch_size=batch_size)) as session:
            for _ in range(4):
                session.iterate()
            session.synchronize()
            peaks.append(session.memory_mb())
    x, y = _BATCHES[:3], peaks[:3]
    mean_x, mean_y = sum(x) / 3, sum(y) / 3
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum(
        (a - mean_x) ** 2 for a in x
    )
    foretold = mean_y + slope * (_BATCHES[3] - mean_x)
    value = f"foretold {foretold:.0f} MiB, found {peaks[3]:.0f} MiB"
    yield judged("a fourth batch", value, "3 %", abs(foretold / peaks[3] - 1) <= 0.03)
    left = torch.cuda.memory_allocated() / 2**20
    yield judged("left behind", f"{left:.1f} MiB", "< 16 MiB", left < 16)
