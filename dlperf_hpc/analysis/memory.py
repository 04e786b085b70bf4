"""How much memory a case needs that did not fit, by the line through smaller batches."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import NamedTuple

from dlperf_hpc.model.case import CaseFacts
from dlperf_hpc.model.result import RunResult, Status


class Peak(NamedTuple):
    """A case's peak of memory, MB per device; None if no run of its counts. ``sweep`` is that of
    its runs."""

    sweep: str
    case: CaseFacts
    memory_mb: float | None


def does_not_fit(group: Collection[RunResult]) -> bool:
    """Whether a case has no run that counts, and one that ended out of memory."""
    statuses = [result.status for result in group if not result.counts]
    return len(statuses) == len(group) and Status.OUT_OF_MEMORY in statuses


def needed(case: Peak, cases: Sequence[Peak]) -> str:
    """What a case that does not fit needs, in a sentence: by the straight line through the two
    largest smaller batches of cases that are alike in all else. Activations grow with the batch,
    weights and states do not. Without two such batches it says that."""
    batch = case.case.batch_size
    told = "ran out of memory"
    if not batch:
        return told
    peaks = sorted(dict(_smaller(case, cases, batch)).items())[-2:]
    if len(peaks) < 2:
        return f"{told}; two smaller batches of this case would tell how much it needs"
    (small, low), (large, high) = peaks
    slope = (high - low) / (large - small)
    if slope <= 0:
        return f"{told}; batches {small} and {large} took {low:.0f} and {high:.0f} MB a device"
    need = high + slope * (batch - large)
    line = f"by the line through {low:.0f} MB at {small} and {high:.0f} MB at {large}"
    return f"{told}; batch {batch} needs about {need:.0f} MB a device, {line}"


def _smaller(case: Peak, cases: Sequence[Peak], batch: int) -> Iterator[tuple[int, float]]:
    wanted = _alike(case)
    for each in cases:
        size = each.case.batch_size
        if size and size < batch and each.memory_mb is not None and _alike(each) == wanted:
            yield size, each.memory_mb


def _alike(peak: Peak) -> tuple[Hashable, ...]:
    case = peak.case
    alike = (case.framework, case.model, case.topology, case.precision, case.seq_len)
    return (peak.sweep, *alike, case.accumulation, tuple(case.tags))
