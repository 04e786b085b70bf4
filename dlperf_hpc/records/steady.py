"""Was a window steady? Tests on its iteration times, whoever measured them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from operator import gt, lt
from statistics import fmean, median

_MAX_POINTS = 200  # the tests are quadratic: longer windows are averaged into blocks first
_CHANGE_LIMIT = 0.01
_Z_LIMIT = 2.58  # two-sided p = 0.01


def _blocks(times: Sequence[float]) -> tuple[float, ...]:
    size = math.ceil(len(times) / _MAX_POINTS)
    if size == 1:
        return tuple(map(float, times))
    starts = range(0, len(times) - size + 1, size)
    return tuple([fmean(times[start : start + size]) for start in starts])


def drift(times: Sequence[float]) -> float:
    """Change of the iteration time from the window's start to its end, relative to its median.

    Theil-Sen slope (Sen 1968), so a few slow iterations do not make a trend; 0 if fewer than 3.
    """
    return _drift(_blocks(times))


@functools.lru_cache(maxsize=1)  # who asks for the drift asks next whether the window is steady
def _drift(points: tuple[float, ...]) -> float:
    if len(points) < 3 or median(points) <= 0:
        return 0.0
    apart = range(1, len(points))
    slope = median([(b - a) / n for n in apart for a, b in zip(points, points[n:])])
    return slope * (len(points) - 1) / median(points)


def shift(times: Sequence[float]) -> float:
    """Median of the window's last quarter over that of its first, less 1.

    Sees a change of level (a clock that drops) wherever it stands but in the outer eighths; the
    median slope does not see one that stands far from the middle. 0 if fewer than 8.
    """
    points = _blocks(times)
    quarter = len(points) // 4
    if quarter < 2 or median(points[:quarter]) <= 0:
        return 0.0
    return median(points[-quarter:]) / median(points[:quarter]) - 1


def trend_z(times: Sequence[float]) -> float:
    """Mann-Kendall's z: how far the order of the times is from one without a trend (Mann 1945)."""
    points = _blocks(times)
    n = len(points)
    if n < 3:
        return 0.0
    later = [points[i:] for i in range(1, n)]
    score = sum(sum(map(gt, each, points)) - sum(map(lt, each, points)) for each in later)
    variance = n * (n - 1) * (2 * n + 5) / 18
    return (score - math.copysign(1, score)) / math.sqrt(variance) if score else 0.0


def is_steady(times: Sequence[float]) -> bool:
    """Neither drift nor shift over 1 % that noise would not explain (p < 0.01)."""
    change = max(abs(drift(times)), abs(shift(times)))
    return change <= _CHANGE_LIMIT or abs(trend_z(times)) <= _Z_LIMIT
