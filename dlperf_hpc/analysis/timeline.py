"""Time stamps of one run as seconds that rise: midnight and New Year are no going back."""

from __future__ import annotations

from collections.abc import Sequence

from dlperf_hpc.records.foreign import Stamps

DAY_S = 86400.0
YEAR_S = 365 * DAY_S
_MARCH_1 = 59  # day of a year of 365 days that a leap year's 29 February falls on too


class ClockError(ValueError):
    """The clock went backward; ``position`` is the stamp that is earlier than the one before."""

    def __init__(self, position: int, by_s: float) -> None:
        self.position = position
        self.by_s = by_s
        super().__init__(f"the clock goes backward by {by_s:.6g} s")


def elapsed(stamps: Sequence[float], kind: Stamps) -> list[float]:
    """Seconds since the first of ``stamps``, in the order of the iterations.

    Stamps without a date that are earlier by more than 12 h have passed midnight; those without a
    year that are earlier by more than half a year, New Year. ClockError for any other step back.
    """
    seconds = [0.0] if stamps else []
    for i, (before, now) in enumerate(zip(stamps, stamps[1:]), 1):
        passed = now - before
        if passed < 0:
            passed += _wrap(passed, now, kind)
        if passed < 0:
            raise ClockError(i, -passed)
        seconds.append(seconds[-1] + passed)
    return seconds


def _wrap(passed: float, now: float, kind: Stamps) -> float:
    if kind is Stamps.TIME_ONLY and passed < -DAY_S / 2:
        return DAY_S
    if kind is Stamps.NO_YEAR:
        if passed < -YEAR_S / 2:
            return YEAR_S
        if passed < -DAY_S / 2 and now // DAY_S == _MARCH_1:
            return DAY_S
    return 0.0
