"""From a scanned log to its runs, each with one number or the reason why it has none."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlperf_hpc.logs.interpret import segments, throughput
from dlperf_hpc.logs.interpret.figures import figure
from dlperf_hpc.logs.interpret.rules import Basis, By, WindowRule
from dlperf_hpc.logs.interpret.throughput import Converted, MissingFact, ResolvedSettings
from dlperf_hpc.logs.scan.launchers import CONTAINER
from dlperf_hpc.logs.scanned import (
    Fact,
    Reading,
    ScannedFile,
    Stamps,
    Trouble,
    Unit,
    is_rising,
    no_speed,
)
from dlperf_hpc.model.case import ObservedCase, ObservedRun
from dlperf_hpc.model.result import (
    MOST_LOSSES,
    REST_DIFFERS,
    ExternalWindow,
    Rates,
    RunResult,
    Status,
    rates_of,
)
from dlperf_hpc.model.statistics import drift, is_steady, pieces
from dlperf_hpc.records.failures import READING, SIGNS, WINDOW, Verdict
from dlperf_hpc.records.lines import NCCL

FROM_OUTSIDE = (Status.CANCELLED, Status.TIMEOUT, Status.PREEMPTED)
"""Ends of a job that say nothing of what the program had done until then."""

_BAD = {status.value: status for status in Status if status.bad}

MIN_FOR_STEADY = 10
"""Lines in a window from which on it is asked whether it is steady."""


@dataclass(frozen=True)
class Interpretation:
    """The runs of one log, in its order, as attempts 1, 2, ... of one run.

    There are none if no format was recognised, or if the number of devices is not known:
    ``problems`` then say so, and which option states it. They also say that a format was recognised
    of which no line has a speed.
    """

    results: tuple[RunResult, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Measured:
    """A figure, and the speed over all devices that it is converted to."""

    figure: segments.WindowFigure
    speed: Converted

    @property
    def in_iterations(self) -> bool:
        """Whether the speed is in iterations/s, because nobody knows the batch."""
        return self.speed.unit is Unit.OWN and self.figure.unit is Unit.ITERATIONS_PER_S

    @property
    def used(self) -> str:
        """What stands behind the reasons why another window was not taken."""
        unit = ", in iterations/s" if self.in_iterations else ""
        return f"{self.figure.rule.name} is used{unit}"


@dataclass(frozen=True)
class _Outcome:
    """What a rule with its alternatives gives: a figure, or the reason why there is none."""

    measured: _Measured | None
    reason: str = ""
    short: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def is_steady(self) -> bool:
        """Whether the log holds a steady speed, though no whole window."""
        return self.measured is not None and self.measured.figure.rule.short

    @property
    def end_line(self) -> int | None:
        """The last line of a complete window; None without one."""
        if self.measured is None or self.measured.figure.lacking or self.short:
            return None
        return self.measured.figure.end_line


def interpret(
    scanned: ScannedFile,
    named: Sequence[Fact],
    variant: Sequence[str],
    stated: Mapping[str, Any],
    rule: WindowRule,
) -> Interpretation:
    """The runs of one log, each with a number or the reason why it has none.

    ``named`` and ``variant`` are the settings and the tags of the file's name, ``stated`` the
    settings that the user gave, by their names. If a file has lines of several formats, the one
    with most lines in the window counts; if that gives no number, the next one that does. The
    other readings are compared with it.
    """
    if not scanned.readings:
        return Interpretation()
    best: list[RunResult] = []
    readings = scanned.readings
    if len(readings) > 1:
        readings = tuple(sorted(readings, key=lambda reading: _usefulness(reading, rule)))
    for reading in readings:
        runs = [
            _RunOfLog(scanned, reading, segment, named, variant, stated, rule)
            for segment in segments.segments_of(reading)
        ]
        found = [result for run in runs if (result := run.result()) is not None]
        if not best or _rank(found) > _rank(best):
            best = found
    if not any(map(_has_speed, scanned.readings)):
        formats = ", ".join(reading.format for reading in scanned.readings)
        return Interpretation(tuple(best), (no_speed(formats),))
    if not best:
        return Interpretation(problems=(_unplaced(scanned, named, stated),))
    return Interpretation(tuple(best))


def _has_speed(reading: Reading) -> bool:
    figures = reading.steps.column("printed") or ()
    printed = any(figure == figure for figure in figures)
    return printed or bool(reading.totals) or reading.stamps is not Stamps.NONE


def _unplaced(scanned: ScannedFile, named: Sequence[Fact], stated: Mapping[str, Any]) -> str:
    """What the user has to state so that the topology is known."""
    settings = throughput.resolved(scanned.facts, stated, named, scanned.end_line)
    devices = throughput.devices_of(settings.values)
    if devices:
        return f"it ran on {devices} devices, on an unknown number of nodes: give --nodes"
    return "the number of devices is not known: give --nodes and --gpus-per-node"


def _usefulness(reading: Reading, rule: WindowRule) -> tuple[bool, int]:
    """Which reading to try first: the least; those of the rule's own formats, with most lines that
    the rule can use."""
    if rule.basis is Basis.TOTAL:
        usable = sum(rule.total in ("", total.name) for total in reading.totals)
    elif rule.by is By.LINES:
        usable = len(reading.steps)
    else:
        first, last = rule.first or 0, math.inf if rule.last is None else rule.last
        usable = sum(first <= number <= last for number in reading.steps.numbers("iteration"))
    return bool(rule.formats) and reading.format not in rule.formats, -usable


def _rank(results: Sequence[RunResult]) -> tuple[bool, bool]:
    """Which of two readings' results count: the greater; first those with a number."""
    return (
        any(result.rates for result in results),
        any(result.external is not None for result in results),
    )


@dataclass(frozen=True)
class _RunOfLog:
    scanned: ScannedFile
    reading: Reading
    segment: segments.Segment
    named: Sequence[Fact]
    variant: Sequence[str]
    stated: Mapping[str, Any]
    rule: WindowRule

    def result(self) -> RunResult | None:
        """The run, its number and its status; None if its topology is not known."""
        settings = self._settings()
        if self._case(settings.values) is None:
            return None
        outcome = self._outcome(settings.values)
        if outcome.measured is not None:
            settings = self._settings(outcome.measured.figure)
        values = settings.values
        case = self._case(values)
        assert case is not None, "a batch says nothing of devices"
        ended, behind = self._ended(outcome)
        warnings = [*self._notes(), *settings.warnings, *outcome.warnings]
        if ended.status is Status.OK and behind:
            warnings.append(behind)
        warnings.append(throughput.topology_of(values)[1])
        window = None
        if outcome.measured is not None:
            window, checked = self._window(outcome.measured, values)
            warnings += checked
        return RunResult(
            run=ObservedRun(case, values.get("repeat", 1), self.scanned.path),
            status=ended.status,
            reason=ended.reason,
            attempt=self.segment.number,
            source="log",
            log=self.scanned.path,
            facts={**values, **({NCCL: self.scanned.nccl} if self.scanned.nccl else {})},
            warnings=tuple(filter(None, dict.fromkeys(warnings))),
            external=window,
            whole=(bool(behind) and ended.status in FROM_OUTSIDE)
            or (ended.decided_by == WINDOW and outcome.is_steady),
            decided_by=ended.decided_by,
            cause=ended.cause,
        )

    def _notes(self) -> Iterator[str]:
        """What the scan has noted of the run's lines."""
        yield from self.segment.notes
        yield from (note.text for note in self.scanned.notes if note.partly)
        if self.scanned.launcher == CONTAINER and self.reading.stamps is Stamps.NONE:
            yield (
                "what stands before the lines is a container's or a journal's: its stamps are when "
                "a line was collected, and no clock of the program"
            )

    def _settings(self, measured: segments.WindowFigure | None = None) -> ResolvedSettings:
        line = self.segment.steps[0].line if self.segment.steps else self.scanned.end_line
        facts = self.scanned.facts
        if measured is not None and measured.batch is not None:
            facts = tuple(fact for fact in facts if fact.name != "global_batch")
            if set(measured.steps.values("global_batch")) == {measured.batch}:
                own = Fact(measured.steps[0].line, "global_batch", int(measured.batch))
                facts = (*facts, own)
        return throughput.resolved(facts, self.stated, self.named, line, self.reading.framework)

    def _outcome(self, values: Mapping[str, Any]) -> _Outcome:
        """The first of the rule's alternatives that gives a complete window, else a partial one."""
        there, own = self.reading.format, self.rule.formats
        if own and there not in own:
            wanted = f"{self.rule.name} takes lines of {' or '.join(own)}"
            return _Outcome(None, f"{wanted}: there are none, but of {there}")
        partial: _Measured | None = None
        reasons, expected, short = list[str](), list[str](), False
        tries = [(rule, False) for rule in self.rule.tries]
        for rule, without_batch in tries:
            try:
                found = figure(rule, self.reading, self.segment)
                short = short or bool(found.lacking)
                measured = _Measured(found, self._speed(found, values, without_batch))
            except (segments.NoFigure, MissingFact) as error:
                if isinstance(error, MissingFact) and found.unit is Unit.ITERATIONS_PER_S:
                    tries.append((rule, True))  # behind all others
                short = short or getattr(error, "short", False)
                (expected if getattr(error, "expected", False) else reasons).append(str(error))
                continue
            if not found.lacking:
                return _complete(measured, dict.fromkeys(reasons))
            partial = partial or measured
            reasons.append(found.lacking)
        reason = "; ".join(dict.fromkeys(reasons or expected))
        if not _has_speed(self.reading):
            why = (note.text for note in self.scanned.notes if note.line and not note.partly)
            reason = f"{no_speed(self.reading.format)}: {next(why, reason)}"
        return _Outcome(partial, reason, short)

    def _speed(
        self, found: segments.WindowFigure, values: Mapping[str, Any], without_batch: bool
    ) -> Converted:
        """The figure over all devices. NoFigure if it is no speed, or rests on an assumption which
        the same lines contradict. ``without_batch``: iterations/s, in a unit that is named after
        the topology, so that those of different ones are not compared."""
        if without_batch:
            reading, of_one = throughput.in_iterations(self.reading)
            one = throughput.converted(found, of_one, reading.counter, 1)
            unit = f"iterations/s on {throughput.topology_of(values)[0]}"
            return replace(one, unit=Unit.OWN, name=unit)
        speed = throughput.converted(found, values, self.reading.counter, self.segment.ranks)
        if not (math.isfinite(speed.value) and speed.value > 0):
            raise segments.NoFigure(f"{speed.value!r} {speed.label} is no speed")
        if not speed.assumed:
            return speed
        other = throughput.on_other_basis(found, self.reading, self.segment, values)
        if other is None or other[1].label != speed.label:
            return speed
        differs = throughput.disagreement(speed.value, other[1].value, values)
        if differs:
            raise segments.NoFigure(f"{'; '.join(speed.assumed)}, which does not fit ({differs})")
        return speed

    def _ended(self, outcome: _Outcome) -> tuple[Verdict, str]:
        """How the run ended; a warning of what does not count against it or, of a run that broke
        behind its whole window, that it did."""
        troubles = [t for t in self.scanned.troubles if self.segment.holds(t.line)]
        early = [t for t in troubles if outcome.end_line is None or t.line <= outcome.end_line]
        if early:
            return _by_trouble(_most_specific(early), outcome.reason), ""
        if troubles:
            return self._after(troubles)
        if outcome.short or (outcome.measured is None and self.scanned.cut):
            cut = " (the file is cut within its last line)" if self.scanned.cut else ""
            used = f": {outcome.measured.used}" if outcome.measured and outcome.is_steady else ""
            return Verdict(Status.PARTIAL, f"{outcome.reason}{used}{cut}", WINDOW), ""
        open_end = self.scanned.cut and self.rule.last is None and self.segment.until is None
        warning = "the file is cut within its last line, which does not count" if open_end else ""
        return Verdict(Status.OK, outcome.reason, READING), warning

    def _after(self, troubles: Sequence[Trouble]) -> tuple[Verdict, str]:
        """How it ended by trouble after the window: of what ended the job from outside only if
        nothing broke before; none if the program's total stands before it."""
        worst = _most_specific(troubles)
        totals = (total.line for reading in self.scanned.readings for total in reading.totals)
        ends = filter(self.segment.holds, totals)
        if min(ends, default=math.inf) < min(trouble.line for trouble in troubles):
            warning = f"after the program's summary: {_trouble_text(worst, '')}"
            return Verdict(Status.OK, "", READING), warning
        first = next((t for t in troubles if not t.text.startswith("srun: error: ")), worst)
        ended_by = worst if _kind(first) in FROM_OUTSIDE else first
        return _by_trouble(ended_by, "after the window"), "after the window"

    def _case(self, values: Mapping[str, Any]) -> ObservedCase | None:
        topology, _ = throughput.topology_of(values)
        if topology is None:
            return None
        return ObservedCase(
            framework=values.get("framework", self.reading.framework),
            model=values.get("model", ""),
            topology=topology,
            precision=values.get("precision", ""),
            batch_size=throughput.batch_size_of(values),
            seq_len=values.get("seq_len"),
            accumulation=throughput.accumulation_of(values),
            global_batch=values.get("global_batch"),
            tags=tuple(dict.fromkeys([*self.variant, *(["xla"] if values.get("xla") else [])])),
        )

    def _window(
        self, measured: _Measured, values: Mapping[str, Any]
    ) -> tuple[ExternalWindow, list[str]]:
        found, speed = measured.figure, measured.speed
        check, check_basis, warnings = self._check(measured, values)
        if check is None:
            warnings += speed.assumed  # no other basis confirms it
        reading, known = self.reading, values
        if measured.in_iterations:
            reading, known = throughput.in_iterations(self.reading)
        rest = throughput.behind_window(found, reading, self.segment, known)
        warnings += [*_without_samples(measured), *_of_rest(measured, rest)]
        loss_first, loss_last, lost = segments.losses_of(found)
        times = found.times()
        steady = len(times) >= MIN_FOR_STEADY
        window = ExternalWindow(
            rates=self._rates(measured, values),
            rule=found.rule.name,
            basis=found.rule.basis.value,
            unit=found.printed.label,
            factor=speed.factor,
            format=self.reading.format,
            evidence=self.reading.evidence.value,
            first=found.first,
            last=found.last,
            elapsed_s=found.elapsed_s,
            check=check,
            check_basis=check_basis,
            rest=None if rest is None else rest.value,
            optimizer_steps=throughput.optimizer_steps(
                values, self.reading.counter, found.first, found.last
            ),
            loss_first=loss_first,
            loss_last=loss_last,
            memory_mb=self._memory(found.end_line),
            drift=drift(times) if steady else None,
            steady=is_steady(times) if steady else None,
            content=segments.content_of(found, self.reading),
            losses=_loss_curve(found),
        )
        return window, [*warnings, *lost]

    def _rates(self, measured: _Measured, values: Mapping[str, Any]) -> Rates:
        """The throughput in each unit that is known. Without the length of a sequence the tokens
        are those that the lines of the window print."""
        speed, seq_len = measured.speed, values.get("seq_len")
        if speed.unit is not Unit.SAMPLES_PER_S:
            return {speed.label: speed.value}
        rates = rates_of(speed.value, seq_len)
        if seq_len is not None:
            return rates
        other = throughput.on_other_basis(measured.figure, self.reading, self.segment, values)
        if other is None or other[1].unit is not Unit.TOKENS_PER_S:
            return rates
        return {**rates, other[1].unit.value: other[1].value}

    def _memory(self, end_line: int) -> float | None:
        """The most memory in MB on any line up to the window's end."""
        steps = self.segment.steps
        lines, column = steps.numbers("line"), steps.column("memory_mb")
        if column is None:
            return None
        count = bisect_right(lines, end_line) if is_rising(lines) else len(lines)
        known = zip(lines[:count], column[:count])
        return max((mb for line, mb in known if mb == mb and line <= end_line), default=None)

    def _check(
        self, measured: _Measured, values: Mapping[str, Any]
    ) -> tuple[float | None, str, list[str]]:
        """The speed on another basis, which that is, and a warning for each that differs."""
        speed, basis = measured.speed, measured.figure.rule.basis.value
        warnings, checks = [], []
        for name, other_basis, other in self._checks(measured.figure, values):
            if other.label != speed.label:
                continue
            checks.append((other_basis, other))
            differs = throughput.disagreement(speed.value, other.value, values)
            # Of two clocks the better one was taken: the other has whole seconds, or jumped.
            if differs and (basis, other_basis) != (Basis.ARRIVAL.value, Basis.CLOCK):
                warnings.append(f"{speed.label} by {name} over those by {basis}: {differs}")
        if not checks:
            return None, "", warnings
        # A clock says most, whichever lines have it.
        best_basis, best = min(checks, key=lambda each: each[0] is not Basis.CLOCK)
        return best.value, best_basis.value, warnings

    def _checks(
        self, found: segments.WindowFigure, values: Mapping[str, Any]
    ) -> Iterator[tuple[str, Basis, Converted]]:
        if found.rule.basis is Basis.TOTAL:
            whole = throughput.of_all_lines(self.reading, self.segment, values)
            if whole is not None:
                yield f"all lines by {_called(whole[0])}", *whole
        other = throughput.on_other_basis(found, self.reading, self.segment, values)
        if other is not None:
            basis = Basis.PRINTED if other[0] is Basis.PRINTED else Basis.CLOCK
            yield _called(basis), basis, other[1]
        for reading in self.scanned.readings:
            if reading is self.reading:
                continue
            check = throughput.by_other_reading(found, self.segment, reading, values)
            if check is not None:
                yield f"{reading.format} lines by {check[0].value}", *check


def _complete(measured: _Measured, why: Iterable[str]) -> _Outcome:
    """What a window gives, with the reasons why no better one was taken."""
    kept = measured.figure.warnings
    if measured.figure.rule.short:
        return _Outcome(measured, "; ".join(why), True, kept)
    return _Outcome(measured, warnings=(*[f"{reason}: {measured.used}" for reason in why], *kept))


def _without_samples(measured: _Measured) -> Iterator[str]:
    if measured.speed.unit is Unit.TOKENS_PER_S:
        why = str(MissingFact(["seq_len"]))
        if measured.figure.unit is Unit.UNPADDED_TOKENS_PER_S:
            why = "the program counts tokens without padding"
        yield f"{why}: tokens/s are known, samples/s are not"


def _of_rest(measured: _Measured, rest: Converted | None) -> Iterator[str]:
    change = 0.0 if rest is None else rest.value / measured.speed.value - 1
    if rest is not None and abs(change) > REST_DIFFERS:
        yield (
            f"behind the window, from iteration {measured.figure.last} on, it is {rest.value:.6g} "
            f"{measured.speed.label}: {100 * change:+.1f} %"
        )


def _called(basis: Basis) -> str:
    return "the clock" if basis is Basis.CLOCK else "printed figures"


def _most_specific(troubles: Sequence[Trouble]) -> Trouble:
    """The first trouble that is no mere failure, else the first whose cause is known, else the
    first."""
    special = [trouble for trouble in troubles if _kind(trouble) is not Status.FAILED]
    known = [trouble for trouble in troubles if trouble.cause]
    return (special or known or list(troubles))[0]


def _by_trouble(trouble: Trouble, more: str) -> Verdict:
    return Verdict(_kind(trouble), _trouble_text(trouble, more), SIGNS, trouble.cause)


def _kind(trouble: Trouble) -> Status:
    return _BAD.get(trouble.kind, Status.FAILED)


def _trouble_text(trouble: Trouble, more: str) -> str:
    return f"line {trouble.line}: {trouble.text[:200]}" + (f" ({more})" if more else "")


def _loss_curve(found: segments.WindowFigure) -> tuple[tuple[int, float], ...]:
    """Iterations of a window with their finite losses: of more than :data:`MOST_LOSSES`, the last
    of each piece."""
    lines = zip(found.steps.numbers("iteration"), found.steps.numbers("loss"))
    known = [(int(iteration), loss) for iteration, loss in lines if math.isfinite(loss)]
    return tuple(part[-1] for part in pieces(known, MOST_LOSSES))
