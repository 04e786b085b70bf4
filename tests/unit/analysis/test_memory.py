"""What a case needs that did not fit: a line through the peaks of smaller batches."""

from __future__ import annotations

from typing import Any

import pytest
from report_samples import bad, case, ok

from dlperf_hpc.analysis.speedup import summarise
from dlperf_hpc.model.result import RunResult, Status


def fits(batch: int, memory_mb: float, **changes: Any) -> RunResult:
    return ok(case(batch_size=batch, **changes), 1, 100.0, memory_mb=memory_mb)


def notes(*results: RunResult, batch: int = 64) -> str:
    (found,) = (s for s in summarise([*results]) if s.case.batch_size == batch)
    return " ".join(found.notes) if "does-not-fit" in found.flags else ""


def test_the_line_through_the_two_largest_smaller_batches() -> None:
    large = bad(case(batch_size=64), 1, Status.OUT_OF_MEMORY, "CUDA out of memory")
    known = [fits(8, 9_000), fits(16, 20_000), fits(32, 36_000), fits(16, 1.0, precision="bf16")]
    told = notes(*known, large)
    assert "batch 64 needs about 68000 MB a device, by the line through 20000 MB at 16" in told
    assert "two smaller batches" in notes(known[2], known[3], large)
    assert "took 36000 and 30000 MB" in notes(fits(16, 36_000), fits(32, 30_000), large)


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMEOUT])
def test_only_memory_is_told(status: Status) -> None:
    known = [fits(16, 20_000), fits(32, 36_000)]
    assert notes(*known, bad(case(batch_size=64), 1, status)) == ""
    counted = fits(64, 60_000)
    assert notes(*known, counted, bad(case(batch_size=64), 2, Status.OUT_OF_MEMORY)) == ""
