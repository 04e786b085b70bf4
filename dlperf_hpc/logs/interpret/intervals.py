"""The intervals between a window's lines: less the pauses in them, and without those that are long
because of something else than training."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from operator import gt, sub, truediv
from statistics import median
from typing import NamedTuple

from dlperf_hpc.logs.interpret.segments import SPAN, NoFigure
from dlperf_hpc.logs.scanned import Numbers, Pause, differences

_CLOCK_STEP_S = 1.0  # by which the difference of two clocks of whole seconds may be off
_FAR = 6.0  # median deviations from the usual time: longer is no noise
_UNEVEN = 0.02  # of a window: what such intervals have more is said
_LONG, _MOST_LONG = 3, 0.2  # times the median of single iterations, and how many may be so long


class Net(NamedTuple):
    """What is left of a window without its pauses: which of the intervals between its lines count,
    the iterations and seconds of each of these, and what to say."""

    counts: Sequence[bool]
    apart: Numbers
    spent: Numbers
    warning: str


def less_pauses(pauses: Sequence[Pause], ends: Numbers, spent: Sequence[float]) -> Net:
    """``spent`` are the seconds between each two of the iterations ``ends``. Pauses whose length is
    known are taken off; an interval with another is left out. NoFigure if these are more than half
    of the window, or if pauses are longer than the interval that holds them."""
    within = [pause for pause in pauses if ends[0] <= pause.after < ends[-1]]
    apart, less, warnings = differences(ends), _lengths(within, ends), []
    if any(map(gt, less, [seconds + _CLOCK_STEP_S for seconds in spent])):
        what = f"{_listed(within)} up to line {within[-1].line}"
        raise NoFigure(f"{what} took longer than the clock of the lines allows")
    counts = list(map(math.isfinite, less))
    left_out = sum(apart) - sum(compress(apart, counts))
    if left_out > (1 - SPAN) * sum(apart):
        why = f"{_listed(within)} of unknown length beside {left_out} of {sum(apart)} iterations"
        raise NoFigure(f"{why} of the window")
    if left_out:
        warnings.append(f"without {left_out} iterations, for unknown times of {_listed(within)}")
    if taken := math.fsum(compress(less, counts)):
        known = [pause for pause in within if pause.seconds]
        warnings.append(f"less {taken:.4g} s of {_listed(known)}")
    left = array("d", compress(map(sub, spent, less), counts))
    return Net(counts, array("q", compress(apart, counts)), left, "; ".join(warnings))


def _lengths(pauses: Sequence[Pause], ends: Numbers) -> list[float]:
    """The seconds of the pauses between each two iterations, NaN where they are not known."""
    seconds = [0.0] * (len(ends) - 1)
    for pause in pauses:
        length = math.nan if pause.seconds is None else pause.seconds
        seconds[bisect_right(ends, pause.after) - 1] += length
    return seconds


def of_long_intervals(net: Net, error: float) -> str:
    """What to say of a window in which some intervals took so much longer than most that something
    else than training is in its time; '' without such. ``error`` is that of an interval (s)."""
    times, more = list(map(truediv, net.spent, net.apart)), []
    usual = median(times)
    spread = median([abs(each - usual) for each in times])
    for seconds, iterations in zip(net.spent, net.apart):
        noise = max(0.1 * usual * iterations, _FAR * (spread * iterations - error))
        if seconds - error > usual * iterations + noise:
            more.append(seconds - usual * iterations)
    if math.fsum(more) <= _UNEVEN * math.fsum(net.spent):
        return ""
    return (
        f"{len(more)} of {len(times)} intervals between lines are {math.fsum(more):.3g} s longer "
        "than usual: an evaluation, a checkpoint or a step of the clock may be in the time"
    )


def without_long(apart: Numbers, rates: Sequence[float]) -> tuple[Numbers, Sequence[float], str]:
    """The iterations and rates (per s) without the few that are those of single iterations with a
    long time, and a warning of these. Where a line stands for several iterations, what is in its
    time beside the iteration would count as often."""
    least = median(rates) / _LONG if sum(apart) > len(apart) else 0.0
    usual = [each >= least for each in rates]
    long = usual.count(False)
    if not 0 < long <= _MOST_LONG * len(rates):
        return apart, rates, ""
    warning = (
        f"{long} of {len(rates)} printed times of single iterations were left out: they are more "
        f"than {_LONG} times the median and may hold an evaluation"
    )
    return array("q", compress(apart, usual)), list(compress(rates, usual)), warning


def _listed(pauses: Sequence[Pause]) -> str:
    """What was done in pauses, and how often: ``checkpoint (once), evaluation (3 times)``."""
    counted = Counter(pause.what for pause in pauses)
    often = {what: f"{number} times" if number > 1 else "once" for what, number in counted.items()}
    return ", ".join(f"{what} ({often[what]})" for what in sorted(often))
