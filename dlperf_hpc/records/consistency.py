"""Whether a log of ours can be true: two checks of its figures.

A log tells its throughput more than once: ``samples_per_s`` beside ``samples`` and ``elapsed_s`` in
the summary, and the window beside the lines of its iterations. Who changes one figure by hand
leaves the others. Tolerances are those of printing: a rate and milliseconds have three digits after
the point, a stamp has microseconds. (:mod:`.record` holds the log against its record.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from dlperf_hpc.model.checks import is_number
from dlperf_hpc.model.result import Contradiction, Window
from dlperf_hpc.records.lines import Timeline

Table = Mapping[str, Any]

_ROUNDED = 0.00051  # of a figure that is printed with three digits after the point
_STAMP_S = 3e-6  # two stamps, each to a microsecond, of a clock of 0.25


def in_log(
    tables: Mapping[str, Table], window: Window, timeline: Timeline | None
) -> tuple[Contradiction, ...]:
    """What in a log with a whole summary cannot be true together."""
    found = [*_in_summary(window, tables), *_in_timeline(window, timeline, tables)]
    return tuple(Contradiction("log", text, doubt) for text, doubt in found)


Found = Iterator[tuple[str, bool]]
"""What disagrees, and whether samples/s may be wrong by it."""


# --- the summary's figures against each other


def _in_summary(window: Window, tables: Mapping[str, Table]) -> Found:
    rate = _number(tables["summary"], "samples_per_s")
    if rate is not None and not _near(rate, window.samples_per_s, _ROUNDED):
        yield apart("the summary says samples_per_s", rate, "samples / elapsed_s",
                     window.samples_per_s), True  # fmt: skip
    if window.global_batch is not None and window.accumulation is not None:
        through = window.iterations * window.global_batch
        if window.samples * window.accumulation != through:
            yield apart("the summary says samples", window.samples,
                         "iterations x global_batch / accumulation",
                         through / max(1, window.accumulation)), True  # fmt: skip
    count = tables.get("world", {}).get("ranks")
    if isinstance(count, int) and count != window.ranks:
        yield f"the summary says ranks {window.ranks}, the world line {count}", True


# --- the iteration lines against the window


def _waits_at_the_end(tables: Mapping[str, Table]) -> bool:
    """Whether the host runs ahead of the device, so that iterations end in the log before they end:
    TensorFlow gives no stamp on a GPU's own time line."""
    known = [str(table.get("framework_name", "")) for table in tables.values()]
    known.append(str(tables.get("case", {}).get("framework", "")))
    tensorflow = any("tensorflow" in name.lower() or "horovod" in name.lower() for name in known)
    return tensorflow and tables.get("world", {}).get("device_name", "cpu") != "cpu"


def _in_timeline(window: Window, timeline: Timeline | None, tables: Mapping[str, Table]) -> Found:
    if timeline is None:
        yield (f"the summary counts {window.iterations} iterations, of which no line is there",
               False)  # fmt: skip
        return
    try:
        span = timeline.seconds(0, -1)
    except ValueError:
        yield "the time of an iteration line is none", True
        return
    every = timeline.numbers[0] - timeline.before
    whole = timeline.before == window.warmup and timeline.numbers == _expected(
        timeline.before, every, timeline.before + window.iterations
    )
    if not whole:
        yield _missing(window, timeline, every), False
    if sorted(timeline.stamps) != list(timeline.stamps):
        yield "the times of the iteration lines do not follow one another", True
    yield from _in_times(window, timeline, span, every == 1 and whole)
    elapsed = window.elapsed_s
    too_short = span < elapsed - max(0.01 * elapsed, max(timeline.ms) / 1e3, 0.05)
    if span > 1.001 * elapsed + 0.005 or (too_short and not _waits_at_the_end(tables)):
        yield apart("the summary says elapsed_s", window.elapsed_s,
                     "from window_open to the last iteration it took", span), True  # fmt: skip


@functools.lru_cache(maxsize=64)
def _expected(before: int, every: int, last: int) -> tuple[int, ...]:
    """Numbers of the lines of every k-th iteration after ``before``, and of the last one."""
    return (*range(before + every, last, every), last) if every > 0 else ()


def _missing(window: Window, timeline: Timeline, every: int) -> str:
    numbers, before = timeline.numbers, timeline.before
    if before != window.warmup:
        return f"the summary says warmup {window.warmup}, window_open iteration {before}"
    expected = _expected(before, every, before + window.iterations)
    lost = len(set(expected) - set(numbers))
    if lost:
        found = f"{lost} of {len(expected)} iteration lines are missing"
    else:
        found = "the numbers of the iteration lines do not follow one another"
    return f"the summary counts {window.iterations} iterations: {found}"


def _in_times(window: Window, timeline: Timeline, span: float, whole: bool) -> Found:
    """The iterations' times against their stamps. ``whole``: each iteration has its line; of a long
    window only every k-th has."""
    rounding = len(timeline.ms) * _ROUNDED / 1e3 + _STAMP_S
    if whole and abs(sum(timeline.ms) / 1e3 - span) > rounding:
        yield from _odd_iterations(timeline, above_only=False)
    elif not whole and timeline.ms:
        # Between two lines lie more iterations: the longest that is told must at least fit.
        place = max(range(len(timeline.ms)), key=timeline.ms.__getitem__)
        if timeline.ms[place] / 1e3 > timeline.seconds(place, place + 1) + rounding:
            yield from _odd_iterations(timeline, above_only=True)


def _odd_iterations(timeline: Timeline, above_only: bool) -> Found:
    for place, (number, ms) in enumerate(zip(timeline.numbers, timeline.ms)):
        seen = 1e3 * timeline.seconds(place, place + 1)
        near = ms <= seen + 0.01 if above_only else abs(ms - seen) <= 0.01
        if not near:
            yield apart(f"iteration {number} says ms", ms, "its time stamp", seen), True


# --- words and tolerances


def _number(table: Table, key: str) -> float | None:
    value = table.get(key)
    return value if is_number(value) else None


def _near(one: float, other: float, tolerance: float) -> bool:
    """Equal but for rounding: digits after the point, and the last bits of a float."""
    return abs(one - other) <= tolerance + 1e-9 * max(abs(one), abs(other))


def apart(what: str, one: float, by: str, other: float) -> str:
    """``what`` and its figure, what it is held against, and how far they are apart."""
    return f"{what} {one:.9g}, {by}: {other:.9g}{by_how_much(one, other)}"


def by_how_much(one: Any, other: Any) -> str:
    """`` (+12.3 %)`` or `` (300 times as much)``, of the first figure against the second; '' where
    there is no ratio."""
    if not (is_number(one) and is_number(other)) or other == 0:
        return ""
    ratio = one / other
    if 0.1 <= ratio <= 10:
        return f" ({100 * (ratio - 1):+.3g} %)"
    return f" ({ratio:.3g} times as much)"
