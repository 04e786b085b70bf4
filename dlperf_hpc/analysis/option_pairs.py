"""What one option changes: cases that differ in a single tag, side by side.

A tag is an option that left its default (``optimizer_placement``, ``xla``, ``zerostage1``), so the
case without it is the one to hold it against. Other people's logs say ``on`` and ``off``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dlperf_hpc.analysis.speedup import CaseSummary, units_of_all
from dlperf_hpc.model.statistics import Interval, ratio_interval


@dataclass(frozen=True)
class OptionPair:
    """Case ``on`` has the tag ``name``, case ``off`` lacks it, and all else is the same.

    ``ratio`` is the speed on / off, of the medians, in ``unit``: samples/s if both sides have it.
    ``memory_mb`` is the difference of the peaks of a device, on - off; MB, None where one of them
    is not known.
    """

    name: str
    off: CaseSummary
    on: CaseSummary
    unit: str
    ratio: float
    interval: Interval | None
    memory_mb: float | None


def option_pairs(summaries: Sequence[CaseSummary]) -> list[OptionPair]:
    """Every such pair of which runs count on both sides, in the order of the cases. Cases that were
    measured on different devices are no pair.
    """
    counted = [summary for summary in summaries if summary.sample is not None]
    by_variant = {_variant(summary, _tags(summary)): summary for summary in counted}
    return [
        _pair(name, by_variant[rest], on)
        for on in counted
        for name, rest in _without_one(on)
        if rest in by_variant and _comparable(by_variant[rest], on)
    ]


def _comparable(off: CaseSummary, on: CaseSummary) -> bool:
    """False if both cases tell their devices, and these are others: that is no option's doing.
    False also for throughputs in different units."""
    if not units_of_all([off.samples, on.samples]):
        return False
    return not off.devices or not on.devices or off.devices == on.devices


_Variant = tuple[object, ...]


def _tags(summary: CaseSummary) -> frozenset[str]:
    return frozenset(summary.case.tags) - {"off"}


def _variant(summary: CaseSummary, tags: frozenset[str]) -> _Variant:
    case = summary.case
    shape = (case.batch_size, case.seq_len, case.precision, case.topology)
    return summary.sweep, case.framework, case.model, *shape, tags


def _without_one(summary: CaseSummary) -> Iterator[tuple[str, _Variant]]:
    tags = _tags(summary)
    for name in sorted(tags):
        yield name, _variant(summary, tags - {name})


def _pair(name: str, off: CaseSummary, on: CaseSummary) -> OptionPair:
    unit = units_of_all([off.samples, on.samples])[0]
    before, after = off.samples[unit], on.samples[unit]
    known = off.memory_mb is not None and on.memory_mb is not None
    return OptionPair(
        name=name,
        off=off,
        on=on,
        unit=unit,
        ratio=after.median / before.median,
        interval=ratio_interval(after.interval, before.interval),
        memory_mb=(on.memory_mb or 0.0) - (off.memory_mb or 0.0) if known else None,
    )
