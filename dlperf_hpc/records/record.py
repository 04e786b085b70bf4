"""The run record, and how a run ended by its log and its record together.

One judgement for whoever asks: a task that is about to measure the run again, ``status``,
``rerun`` and ``report``. A record alone proves no number. A log states its throughput more than
once: ``samples_per_s`` beside ``samples`` and ``elapsed_s`` in the summary, and the window beside
the lines of its iterations. Who changes one figure by hand leaves the others. Tolerances are those
of printing: a rate and milliseconds have three digits after the point, a stamp has microseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import ABSENT, LogError, raising
from dlperf_hpc.files import read_regular
from dlperf_hpc.model.case import RunFacts
from dlperf_hpc.model.checks import is_number, parse
from dlperf_hpc.model.result import Contradiction, RunResult, Status, Window
from dlperf_hpc.records.layout import RECORD_SCHEMA
from dlperf_hpc.records.lines import PROGRAM_END, Timeline, read_timeline

Record = dict[str, Any]
Table = Mapping[str, Any]
Found = Iterator[tuple[str, bool]]
"""What disagrees, and whether samples/s may be wrong by it."""
_DETAIL = b',\n "detail": {'  # as dump_json writes a key of the record itself
_THROUGHPUT = ("samples", "elapsed_s", "iterations", "accumulation", "global_batch", "ranks")
_MOST_NAMED = 8
_ROUNDED = 0.00051  # of a figure that is printed with three digits after the point
_STAMP_S = 3e-6  # two stamps, each to a microsecond, of a clock of 0.25
_STATUSES = {status.value for status in Status}


def read_record(path: Path, detail: bool = True) -> Record | None:
    """A run record, or None if there is none (or none of ours); LogError if it cannot be read.
    ``detail``: with what is behind the window (per-step, per-rank columns, packages)."""
    data = None
    with raising(LogError, f"{path}: cannot be read"), suppress(*ABSENT, ValueError):
        content = read_regular(path)
        data = parse(content if detail else _head(content))
    if isinstance(data, dict) and data.get("schema") == RECORD_SCHEMA and _is_whole(data):
        return data
    return None


def _is_whole(record: Mapping[str, Any]) -> bool:
    status, reason = record.get("status"), record.get("reason", "")
    known = isinstance(status, str) and status in _STATUSES and isinstance(reason, str)
    return known and type(record.get("attempt")) is int


def _head(content: bytes) -> bytes:
    """A record as far as its window, most of which is what follows; as it is, if not written so."""
    at = content.find(_DETAIL)
    return content[:at] + b"\n}" if at > 0 and content.endswith(b"\n}\n") else content


def of_record(run: RunFacts, record: Record) -> RunResult:
    """A run of which only the record is left."""
    status, reason = Status(record["status"]), str(record.get("reason", ""))
    if status is Status.OK:
        status, reason = Status.PARTIAL, "its record says ok, but there is no log to prove it"
    return RunResult(run, status, reason, attempt=record["attempt"], source="record")


def with_record(result: RunResult, record: Record | None) -> RunResult:
    """What a log says, and where it was cut what the record of the same attempt says of the end."""
    if result.status is not Status.UNKNOWN or record is None:
        return result
    if record["attempt"] != result.attempt:
        return result
    status, reason = Status(record["status"]), str(record.get("reason", ""))
    if status is Status.OK and result.window is None and PROGRAM_END not in result.facts:
        status, reason = Status.PARTIAL, "its record says ok, but the log has no whole summary"
    return replace(result, status=status, reason=reason, source="record")


# --- do they agree?


def reconcile(
    result: RunResult, record: Record | None = None, path: Path | None = None, log: bytes = b""
) -> RunResult:
    """A run whose log and record were compared; partial where it cannot be known which figures are
    right. No number is reported from the record: a log that contradicts itself counts if its record
    confirms the window, and a record that contradicts both the log and itself is passed over.
    ``path`` is the record's, and ``log`` the log's content: they are read whole where something
    disagrees."""
    if record is not None and record["attempt"] != result.attempt:
        record = None
    differing = [] if record is None else list(_differences(result, record))
    found = [*result.contradictions, *differing]
    if not found:
        return result
    columns = None
    if record is not None and path is not None:
        columns = read_record(path)
        found += _iterations_in_record(log, columns or {})
    warnings = (*result.warnings, *(each.text for each in found))
    compared = replace(result, contradictions=tuple(found), warnings=warnings)
    if result.status is not Status.OK or not _is_doubtful(result, record, differing, columns):
        return compared
    return replace(compared, status=Status.PARTIAL, reason=_reason(found))


def _is_doubtful(
    result: RunResult,
    record: Record | None,
    differing: Sequence[Contradiction],
    columns: Record | None,
) -> bool:
    log_is_odd = any(each.doubt for each in result.contradictions)
    if record is not None and any(each.doubt for each in differing):
        # Whose own figures do not fit is the one that was changed.
        changed = columns is not None and not log_is_odd and _contradicts_itself(columns)
        return not changed or record["status"] != result.status.value
    confirms = record is not None and isinstance(record.get("window"), dict)
    return log_is_odd and not confirms


def _reason(found: Sequence[Contradiction]) -> str:
    first, *more = sorted(found, key=lambda each: not each.doubt)
    rest = f" (and {len(more)} more contradictions)" if more else ""
    return f"{first.text}{rest}; nothing shows which is right, so that no number counts"


def _differences(result: RunResult, record: Record) -> Iterator[Contradiction]:
    """Log and record hold the same figures, digit by digit: a difference was made by hand."""
    ends = result.status.value, record["status"]
    # partial is what an ok becomes whose summary was lost: the log does not say it
    if result.status is not Status.PARTIAL and ends[0] != ends[1]:
        text = f"the log says status {ends[0]}, the record {ends[1]}: one of them was changed"
        yield Contradiction("record", text, True)
    recorded = record.get("window")
    if result.window is None or not isinstance(recorded, dict):
        return
    logged = vars(result.window)
    for key in sorted(logged.keys() & recorded.keys()):
        mine, theirs = logged[key], recorded[key]
        if mine != theirs:
            how = by_how_much(mine, theirs)
            text = f"the log says {key} {mine}, the record {theirs}{how}: one of them was changed"
            yield Contradiction("record", text, key in _THROUGHPUT)


def _contradicts_itself(record: Record) -> bool:
    """Whether the window of a record cannot be that of its columns."""
    window, detail = record.get("window"), record.get("detail")
    if not isinstance(window, dict) or not isinstance(detail, dict):
        return False
    try:
        of_ranks, losses = detail["rank_elapsed_s"], detail["loss"]
        return bool(
            max(of_ranks) != window["elapsed_s"]
            or len(of_ranks) != window["ranks"]
            or len(losses) != window["iterations"]
            or window["samples"] * window["accumulation"]
            != window["iterations"] * window["global_batch"]
        )
    except (KeyError, TypeError, ValueError):
        return True


def _iterations_in_record(log: bytes, record: Record) -> list[Contradiction]:
    detail = record.get("detail")
    timeline, _ = read_timeline(log)
    if timeline is None or not isinstance(detail, dict):
        return []
    try:
        ends = [0.0] * len(detail["rank_step_ms"])
        before, ms = 0.0, []
        for steps in zip(*detail["rank_step_ms"]):
            ends = [end + step for end, step in zip(ends, steps)]
            ms.append(max(ends) - before)
            before = max(ends)
        recorded = [ms[number - timeline.before - 1] for number in timeline.numbers]
    except (KeyError, TypeError, ValueError, IndexError):
        return []
    # The record's own times are rounded, and were added up.
    rows = zip(timeline.numbers, timeline.ms, recorded)
    odd = [row for row in rows if abs(row[1] - row[2]) > 0.002 * (1 + len(ms))]
    return [
        Contradiction("record", apart(f"iteration {n} says ms", mine, "the record", theirs), False)
        for n, mine, theirs in odd[:_MOST_NAMED]
    ]


def in_log(
    tables: Mapping[str, Table], window: Window, timeline: Timeline | None
) -> tuple[Contradiction, ...]:
    """What in a log with a whole summary cannot be true together."""
    found = [*_in_summary(window, tables), *_in_timeline(window, timeline, tables)]
    return tuple(Contradiction("log", text, doubt) for text, doubt in found)


def _in_summary(window: Window, tables: Mapping[str, Table]) -> Found:
    rate: Any = tables["summary"].get("samples_per_s")
    if is_number(rate) and not _near(rate, window.samples_per_s, _ROUNDED):
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
    found = "the numbers of the iteration lines do not follow one another"
    if lost:
        found = f"{lost} of {len(expected)} iteration lines are missing"
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
        if ms > seen + 0.01 or (ms < seen - 0.01 and not above_only):
            yield apart(f"iteration {number} says ms", ms, "its time stamp", seen), True


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
