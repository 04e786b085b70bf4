"""Runs of users' programs in a sweep: their lines in our logs, read as other programs' logs are.

The supervisor (:mod:`dlperf_hpc.train.program`) has put the moment of arrival and its rank before
each line. Here they come off again, and what is left goes through the scanner, the formats and the
window rules; how the run ended is known better than any line tells it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LogError, number_of, printable
from dlperf_hpc.logs.formats.bars import bar_of
from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import ITERATIONS, WARMUP, WindowRule, of_program
from dlperf_hpc.logs.interpret.rules import rule as parsed
from dlperf_hpc.logs.interpret.throughput import disagreement
from dlperf_hpc.logs.scan.scanner import Scanner
from dlperf_hpc.logs.scan.sources import Source, blocks
from dlperf_hpc.logs.scan.state import LONGEST_LINE
from dlperf_hpc.logs.scanned import Evidence, LogSteps, Reading, ScannedFile
from dlperf_hpc.logs.tableformat import Doubts, wanted_formats
from dlperf_hpc.model.case import Case, Measure, Run
from dlperf_hpc.model.checks import Misfit
from dlperf_hpc.model.result import (
    PROGRAM,
    SAMPLES_PER_S,
    ExternalWindow,
    RunResult,
    Status,
    Window,
    own_unit,
    rates_of,
)
from dlperf_hpc.records.failures import LOSS, READING, SETTINGS, Signs
from dlperf_hpc.records.forms import read_table_of
from dlperf_hpc.records.lines import NCCL, PROGRAM_END, TimerReport, timed_in
from dlperf_hpc.records.logfile import read_bytes
from dlperf_hpc.records.supervision import ANEW
from dlperf_hpc.sweepfile.patterns import PatternError, fixed_texts
from dlperf_hpc.sweepfile.readtable import ReadTable, misuses

_LINE = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6})Z ([0-9]{1,7})\| "
)
_RANK = re.compile(r"^\[rank[0-9]{1,7}\]: ")
_LONGEST = 120  # characters of a line that is printed
_TAIL = 1 << 20  # bytes at the end of what a program printed
_REQUESTED = ("global_batch", "seq_len", "precision")
"""Settings that a log may state and a sweep requests: another value is another measurement."""

_SHIFTED = 0.02  # by how much a speed may depend on where its window lies
_BAR_HINT = (
    "; it draws a progress bar that does not name an epoch: if it counts iterations,"
    r" [program.NAME.read] line = '(?P<iteration>[0-9]+)/[0-9]+ \[' reads it"
)

NO_FIGURE = "no figure: "
"""How the warning of a run begins that is ok, and of whose lines none was read."""

_OF_BOTH = (
    *("elapsed_s", "optimizer_steps", "loss_first", "loss_last", "memory_mb", "drift", "steady"),
)
"""Fields of a Timer's window that a log's window has too."""

TIMER = "timer"
"""Basis and format of a figure by a program's Timer."""


@dataclass(frozen=True)
class _Lines:
    """A program's lines, each where it stands in our log, and when each came (s), by its number."""

    text: bytes
    arrivals: dict[int, float]

    def rows(self) -> list[str]:
        """The last lines that are not blank, without ranks."""
        rows = self.text[-_TAIL:].decode(errors="replace").split("\n")
        return [row for row in (_RANK.sub("", row) for row in rows) if row.strip()]


@dataclass(frozen=True)
class _ByLines:
    """A result by a program's own lines, and by what it was read; ``scanned`` if something was."""

    result: RunResult
    lines: _Lines
    rule: WindowRule
    table: ReadTable = field(default_factory=ReadTable)
    scanned: ScannedFile | None = None

    def doubted(self) -> RunResult:
        """The result with what the same lines say against it, or why it does not count."""
        found, case = self.result, self.result.run.case
        if self.scanned is None or not isinstance(case, Case):
            return found
        reading, window = self.scanned.readings[0], found.external
        against = Doubts(self.table, reading, case, {fact.name for fact in self.scanned.facts})
        texts = self.lines.text.decode(errors="replace").split("\n")
        texts.insert(0, "")  # lines are counted from 1
        doubts = list(against.of_numbers(texts, case.batch_size))
        if window is None or found.status is not Status.OK:
            return replace(found, reason="; ".join([found.reason, *doubts]))
        if against.is_of_micro_steps(window):
            reason = "read.counts must be given: by the printed speeds the numbers are micro-steps"
            return replace(found, status=Status.PARTIAL, reason=reason, decided_by=READING)
        doubts += [note.text for note in self.scanned.notes[: 2 * bool(self.table.line)]]
        doubts += [*against.of_figure(window, texts), *self._of_first(window)]
        return replace(found, warnings=tuple(dict.fromkeys([*found.warnings, *doubts])))

    def _of_first(self, window: ExternalWindow) -> Iterator[str]:
        """That the speed is another one if the first line is that of the first iteration."""
        if self.table.each < 2 or self.table.first != 1:
            return
        other, name = replace(self.table, first=0), self.result.run.case.framework
        scanned = _scanned(other, name, self.result.log, self.lines)
        again = _read(self.result, scanned, self.rule).external
        if again is not None and abs(again.speed / window.speed - 1) > _SHIFTED:
            yield (
                f"read.first is not given: the first line is of iteration {self.table.each}; of a"
                f" program that prints at 0 (first = 0) it is {again.speed:.6g} {again.speed_unit}"
            )


def with_figures(
    results: Sequence[RunResult],
    rule: WindowRule,
    data: bytes | None = None,
    own_format: tuple[str, ReadTable] | None = None,
) -> list[RunResult]:
    """The results, those of users' programs that ended ok with the figure in their lines.

    ``rule`` is the requested window rule; the default has the window of the sweep. ``data`` is the
    log's content where its path only names it. ``own_format`` is the user's: of lines that fit it,
    it takes the place of what the sweep says.
    """
    return [
        _with_figure(result, rule, data, own_format)
        if result.status is Status.OK and PROGRAM in result.facts
        else result
        for result in results
    ]


def _with_figure(
    result: RunResult,
    rule: WindowRule,
    data: bytes | None,
    own_format: tuple[str, ReadTable] | None,
) -> RunResult:
    try:
        lines = _lines_of(result, data)
    except LogError as error:
        return replace(result, status=Status.PARTIAL, reason=str(error))
    by_lines = _by_lines(result, rule, lines, own_format)
    timed = list(timed_in(lines.text.decode(errors="replace").split("\n")))
    if timed and rule == parsed():
        return by_timer(result, by_lines.result, timed)
    return by_lines.doubted()  # also where a rule is requested: then what the lines say


def _by_lines(
    result: RunResult, rule: WindowRule, lines: _Lines, own_format: tuple[str, ReadTable] | None
) -> _ByLines:
    if own_format is not None:
        scanned = _scanned(own_format[1], own_format[0], result.log, lines)
        if scanned.readings:
            return _ByLines(_read(result, scanned, rule), lines, rule, own_format[1], scanned)
    table, wrong = _table_of(result.facts[PROGRAM])
    if wrong:
        problem = f"{NO_FIGURE}the log's own [program.NAME.read] cannot be used: {wrong}"
        return _ByLines(_with_warning(result, problem), lines, rule)
    scanned = _scanned(table, result.run.case.framework, result.log, lines)
    if scanned.nccl:
        result = replace(result, facts={**result.facts, NCCL: scanned.nccl})
    if not scanned.readings:
        printed = "; ".join(printable(row)[:_LONGEST] for row in near_lines(table, lines.rows()))
        printed = f"of its lines: {printed}" if printed else "it printed nothing"
        hint = _BAR_HINT * any(map(bar_of, lines.rows()[-100:]))
        note = f"{NO_FIGURE}{nothing_fits(table)}{hint}; {printed}"
        return _ByLines(_with_warning(result, note), lines, rule)
    return _ByLines(_read(result, scanned, rule), lines, rule, table, scanned)


def _scanned(table: ReadTable, name: str, log: str, lines: _Lines) -> ScannedFile:
    found = _scanner(table, name).scan(log, len(lines.text), [lines.text])
    return replace(
        found,
        troubles=(),  # the exit codes say how it ended
        readings=tuple(_with_arrivals(each, lines) for each in found.readings),
    )


def _table_of(program: Mapping[str, Any]) -> tuple[ReadTable, str]:
    """The table by which a log's lines are read, as the log has it, and what is wrong with it: the
    log may be anybody's."""
    try:
        table = read_table_of(program.get("read", {"format": program.get("format", "")}))
    except Misfit as error:
        return ReadTable(), str(error)
    wrong = next(misuses(table), None)
    return (table, "") if wrong is None else (ReadTable(), str(wrong))


def nothing_fits(table: ReadTable) -> str:
    """That no line was read, and by what."""
    if table.tells_format:
        return "no line of the program fits a pattern of [program.NAME.read]"
    if table.format:
        return f"no line of the program is in the format {table.format}, which its table names"
    return (
        "no line of the program is in a known format ([program.NAME.read] names one of"
        " `report --formats`, or tells one)"
    )


def near_lines(table: ReadTable, rows: Sequence[str], most: int = 3) -> Sequence[str]:
    """Of ``rows`` those with the text that each line has which fits the table's pattern, the last
    ones; without such the last of all."""
    literals: tuple[str, ...] = ()
    for text in filter(None, (table.line, table.total)):
        with contextlib.suppress(PatternError):
            literals = literals or fixed_texts(text)
    near = [row for row in rows if any(literal in row for literal in literals)]
    return (near or list(rows))[-most:]


@dataclass(frozen=True)
class LookedAt:
    """What a program's lines say, however its run ended. ``stated`` are settings that they state,
    by their names, ``signs`` the lines by which something broke, ``last`` three lines of a program
    of which nothing was read: the last of those that are nearest to what ``table`` has."""

    reading: Reading | None
    table: ReadTable
    stated: dict[str, Any]
    signs: tuple[str, ...]
    last: tuple[str, ...]


def looked_at(result: RunResult) -> LookedAt:
    """Read a program's lines once more; LogError if its log cannot be read."""
    lines = _lines_of(result, None)
    table, _ = _table_of(result.facts[PROGRAM])
    scanner = _scanner(table, result.run.case.framework)
    scanned = scanner.scan(result.log, len(lines.text), [lines.text])
    known = {n: own for n, own in _stated(result.run.case).items() if n not in _REQUESTED}
    best = interpret(scanned, (), (), known, _effective(parsed(), result))
    facts = best.results[0].facts if best.results else {}
    return LookedAt(
        reading=next(iter(scanned.readings), None),
        table=table,
        stated={name: facts[name] for name in _REQUESTED if facts.get(name) is not None},
        signs=tuple(trouble.text for trouble in scanned.troubles),
        last=tuple(near_lines(table, lines.rows())),
    )


def _read(result: RunResult, scanned: ScannedFile, rule: WindowRule) -> RunResult:
    found = interpret(scanned, (), (), _stated(result.run.case), _effective(rule, result)).results
    if not found:
        return replace(result, status=Status.PARTIAL, reason="its lines give no run")
    whole = [each for each in found if each.status is Status.OK and each.external is not None]
    best = (whole or sorted(found, key=lambda each: each.samples_per_s is None))[0]
    own = [text.replace("the command line", "the sweep") for text in best.warnings]
    warnings = tuple(dict.fromkeys([*result.warnings, *own, *[ANEW] * (len(whole) > 1)]))
    result = replace(result, warnings=warnings, external=best.external)
    if differing := _other_settings(result.run.case, best.facts):
        return _not_as_requested(result, differing)
    if whole:
        return result
    reason = "; ".join([best.reason or "its lines give no figure", *[ANEW] * (len(found) > 1)])
    by = best.decided_by
    return replace(result, status=Status.PARTIAL, reason=reason, decided_by=by, cause=best.cause)


@dataclass(frozen=True)
class TriedLog:
    """What a log that is there already would give as a run of a sweep. ``reading`` is that of the
    format with most iterations; None if no line is in a known one. ``notes`` are lines that could
    not be read, ``signs`` what ``fail`` and ``must`` of its table say of the lines."""

    result: RunResult
    reading: Reading | None = None
    notes: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()


def tried(case: Case, table: ReadTable, measure: Measure, source: Source) -> TriedLog:
    """Read a log as the lines of a run of ``case``, which nobody has stamped. ``table`` says how
    its program's lines are read. LogError if the log cannot be read."""
    facts = {"measure": asdict(measure), PROGRAM: {"read": table.to_dict()}}
    result = RunResult(Run(case, 1), Status.OK, log=source.name, facts=facts)
    scanned = _scanner(table, case.framework).scan(source.name, source.size, blocks(source))
    signs = tuple(_signs(table, source))
    if not scanned.readings:
        nothing = replace(result, status=Status.PARTIAL, reason=nothing_fits(table))
        return TriedLog(nothing, signs=signs)
    whole = replace(scanned, troubles=())  # the exit code will say how a run ended
    notes = tuple(f"line {note.line}: {note.text}" for note in scanned.notes)
    return TriedLog(_read(result, whole, parsed()), scanned.readings[0], notes, signs)


def _signs(table: ReadTable, source: Source) -> Iterator[str]:
    if not (table.fail or table.must):
        return
    signs, rest = Signs(table.fail, table.must), b""
    for block in blocks(source):
        # States of a bar are lines of their own, as the supervisor of a program reads them.
        *lines, rest = (rest + block.replace(b"\r", b"\n")).split(b"\n")
        rest = rest[: LONGEST_LINE + 1]  # too long already
        for line in lines:
            if len(line) <= LONGEST_LINE:
                signs.take(line.decode(errors="replace"), "")
    if signs.failed:
        yield f"a line of read.fail: {signs.failed}"
    for number, text in enumerate(table.must):
        if number not in signs.met:
            yield f"no line is as read.must says: {text!r}"


def _other_settings(case: Any, facts: dict[str, Any]) -> str:
    for name in _REQUESTED:
        requested, there = getattr(case, name), facts.get(name)
        if requested and there is not None and there != requested:
            return f"the log says {name} {there}, the sweep {requested}"
    return ""


def _not_as_requested(result: RunResult, differing: str) -> RunResult:
    """A run that was another measurement than the sweep's, which ``differing`` says."""
    reason = f"not as asked: {differing}"
    return replace(result, status=Status.PARTIAL, reason=reason, decided_by=SETTINGS)


def _stated(case: Any) -> dict[str, Any]:
    """What the sweep knows of a run. Of ``batch_size`` nothing: it is one replica's, which may have
    several devices."""
    stated = {name: getattr(case.topology, name) for name in ("nodes", "gpus_per_node", "devices")}
    for name in ("accumulation", "global_batch", "precision", "model", "framework"):
        stated[name] = getattr(case, name)
    stated["seq_len"] = case.seq_len or None
    if isinstance(case, Case) and case.replicas in (None, case.topology.devices):
        stated["batch_size"] = case.batch_size
    return {name: value for name, value in stated.items() if value is not None}


def _effective(rule: WindowRule, result: RunResult) -> WindowRule:
    """The requested rule; of the default, that of programs with the sweep's window."""
    if rule != parsed():
        return rule
    measure = result.facts.get("measure", {})
    w, n = measure.get("warmup", WARMUP), measure.get("iterations", ITERATIONS)
    return of_program(w, n) if isinstance(w, int) and isinstance(n, int) else of_program(20, 100)


@lru_cache(maxsize=8)
def _scanner(table: ReadTable, name: str) -> Scanner:
    return Scanner(wanted_formats(table, name))


def _lines_of(result: RunResult, data: bytes | None) -> _Lines:
    """A program's own lines in one of our logs, without those that came after we ended it. LogError
    if the log, which ``data`` may be the content of, cannot be read."""
    if data is None:
        data = read_bytes(Path(result.log)) or b""
    rows, arrivals = [], {}
    last = str(result.facts.get(PROGRAM_END, {}).get("stopped", ""))[:-1].encode()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        found = _LINE.match(line)
        if found is None or (last and found[1] > last):
            rows.append(b"")
            continue
        # torchrun's form of a rank's label cannot be mistaken for the program's own words.
        rows.append(b"[rank%s]: %s" % (found[2], line[found.end() :]))
        with contextlib.suppress(ValueError):  # a day that there is not
            moment = datetime.fromisoformat(found[1].decode("ascii"))
            arrivals[number] = moment.replace(tzinfo=timezone.utc).timestamp()
    return _Lines(b"\n".join([*rows, b""]), arrivals)


def _with_arrivals(reading: Reading, lines: _Lines) -> Reading:
    steps = (step._replace(arrival=lines.arrivals.get(step.line)) for step in reading.steps)
    return replace(reading, steps=LogSteps(steps))


# --- the number of a Timer decides: it has synchronised the device and met the other processes


def by_timer(result: RunResult, by_lines: RunResult, timed: Sequence[TimerReport]) -> RunResult:
    """The run with the number of its Timer; ``by_lines`` is the same run by its lines, which is the
    check, ``timed`` what its Timers have reported, one at least."""
    if by_lines.decided_by == SETTINGS:
        return by_lines
    windows = [(each.window, each.notes) for each in timed if each.window is not None]
    if not windows:
        return _without_number(by_lines, timed[0])
    if len(windows) > 1:
        many = f"{number_of(len(windows), 'Timer')} have told a number: which one is the training's"
        return _with_warning(by_lines, f"{many} is not known, and none of them counts")
    ((window, notes),) = windows
    if unit := own_unit(by_lines.rates):
        speed = f"its Timer tells {window.samples_per_s:.6g} samples/s"
        text = f"{speed}; the program's own figure, in {unit}, is the run's"
        return _with_warning(by_lines, text)
    if differing := _other_samples(result, window):
        return _not_as_requested(by_lines, differing)
    return _timed(result, by_lines, window, notes)


def _with_warning(result: RunResult, text: str) -> RunResult:
    return replace(result, warnings=tuple(dict.fromkeys([*result.warnings, text])))


def _without_number(by_lines: RunResult, timed: TimerReport) -> RunResult:
    """A Timer that has measured and has no number (the loss was not finite) leaves none to the
    lines either; one that did not come to its end does."""
    reason = f"its Timer has no number: {timed.reason}"
    if timed.status is Status.FAILED:
        return replace(by_lines, status=Status.FAILED, reason=reason, decided_by=LOSS)
    return _with_warning(by_lines, reason)


def _other_samples(result: RunResult, window: Window) -> str:
    """That the Timer counts other samples than the sweep requested. An iteration of its is a
    micro-batch or, of the hook's, an optimizer step; batches that differ are not looked at."""
    case = result.run.case
    if not isinstance(case, Case) or window.global_batch is None:
        return ""
    each = window.samples / window.iterations
    if each in (case.global_batch, case.global_batch / case.accumulation):
        return ""
    return (
        f"its Timer counts {each:g} samples in an iteration over all processes, the sweep"
        f" {case.global_batch} in an optimizer step"
        + (f" of {case.accumulation} iterations" if case.accumulation > 1 else "")
    )


def _timed(
    result: RunResult, by_lines: RunResult, window: Window, notes: Sequence[str]
) -> RunResult:
    case, lines = result.run.case, by_lines.external
    ends = window.warmup, window.warmup + window.iterations
    check = by_lines.samples_per_s
    warnings = [*result.warnings, *notes]
    if check is not None and lines is not None:
        warnings += by_lines.warnings
        known = {"devices": case.topology.devices, "nodes": case.topology.nodes,
                 "gpus_per_node": case.topology.gpus_per_node, "seq_len": case.seq_len,
                 "accumulation": case.accumulation, "batch_size": case.batch_size}  # fmt: skip
        differs = disagreement(window.samples_per_s, check, known)
        if differs:
            warnings.append(f"samples/s by {lines.basis} over those by its Timer: {differs}")
    external = ExternalWindow(
        rates=rates_of(window.samples_per_s, case.seq_len),
        rule=f"{TIMER}[{ends[0]}:{ends[1]}]",
        basis=TIMER,
        unit=SAMPLES_PER_S,
        factor=1.0,
        format=TIMER,
        evidence=Evidence.REAL.value,
        first=ends[0],
        last=ends[1],
        check=check,
        check_basis="" if check is None or lines is None else lines.basis,
        rest=None if lines is None or check is None else lines.rest,
        losses=() if lines is None else lines.losses,
        **{name: getattr(window, name) for name in _OF_BOTH},
    )
    every = tuple(dict.fromkeys(warnings))
    facts = by_lines.facts  # with what the lines tell besides
    return replace(result, window=window, external=external, warnings=every, facts=facts)
