"""``status DIR --why RUN``: looks at everything that tells of one run's end, and writes nothing.

Collected here, by all rooms that know something of it; :mod:`.run_states` prints it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dlperf_hpc.engines.states import one_run
from dlperf_hpc.errors import LogError, number_of
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.records.collect import EarlierAttempt, earlier_attempts
from dlperf_hpc.records.failures import LOG, SCHEDULER, Verdict, recorded, with_codes
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.lines import PROGRAM, PROGRAM_END
from dlperf_hpc.records.logfile import ParsedLog, read_log
from dlperf_hpc.records.record import Record, read_record
from dlperf_hpc.records.store import Failure, failures_of
from dlperf_hpc.reporting.run_states import Looked, Why
from dlperf_hpc.sweepfile.readtable import ReadTable

_MOST = 4  # ranks, codes or flags that a line names
_SHORT = 160  # characters of another attempt's reason
_ASKED = ("global_batch", "seq_len", "precision")


def why(ledger: Ledger, run: Run, ask_scheduler: bool) -> Why:
    """What was looked at, in order, and what decided. LogError if the run's log is damaged."""
    result, scheduler = one_run(ledger, run, ask_scheduler)
    seen = _Seen(ledger, run, result, scheduler)
    looked = tuple(Looked(what, tuple(texts)) for what, texts in seen.rows())
    return Why(
        run=run.id,
        number=1 + ledger.manifest.runs.index(run),
        runs=len(ledger.manifest.runs),
        status=seen.figure.status,
        reason=seen.figure.reason,
        decided=_decided(seen),
        looked=looked,
        lines=() if seen.read is None or seen.read.reading is not None else seen.read.last,
    )


def _decided(seen: _Seen) -> str:
    """What of all that was looked at decided."""
    result = seen.figure
    if result.source == "scheduler":
        return SCHEDULER
    if not result.status.finished:
        return LOG if result.source == "log" else SCHEDULER
    if result.decided_by:
        return result.decided_by
    of_this = seen.record.get("attempt") == result.attempt
    told = Verdict(result.status, result.reason)
    return with_codes(recorded(seen.record) if of_this else told).decided_by


@dataclass(frozen=True)
class _Seen:
    """All that is known of one run; what is slow to find is looked for when it is asked for."""

    ledger: Ledger
    run: Run
    result: RunResult
    scheduler: str

    @cached_property
    def paths(self) -> RunPaths:
        return RunPaths(self.ledger.root, self.run.id)

    @cached_property
    def log(self) -> ParsedLog | None:
        try:
            return read_log(Path(self.result.log)) if self.result.log else None
        except LogError:
            return None

    @cached_property
    def record(self) -> Record:
        try:
            return read_record(self.paths.record, detail=False) or {}
        except LogError:
            return {}

    @cached_property
    def earlier(self) -> list[EarlierAttempt]:
        return earlier_attempts(self.paths)

    @cached_property
    def failures(self) -> list[Failure]:
        return failures_of(self.paths, self.record.get("attempt", self.result.attempt))

    @cached_property
    def ended(self) -> dict[str, Any]:
        """The log's line about the end of a program, else what the record has of it."""
        told = self.result.facts.get(PROGRAM_END) or self.record.get("program")
        return dict(told) if isinstance(told, dict) else {}

    @cached_property
    def table(self) -> ReadTable:
        """How a program's lines are to be read, as its table says; empty for a back end."""
        program = self.ledger.manifest.programs.get(self.run.case.framework)
        return program.read if program else ReadTable()

    @cached_property
    def read(self) -> Any:
        """What a program's lines say, None where there are none."""
        from dlperf_hpc.logs.program_figures import looked_at

        return looked_at(self.result) if self.result.log and self._is_program else None

    @cached_property
    def figure(self) -> RunResult:
        """The result with its figure, and what reading that brought to light."""
        from dlperf_hpc.logs.interpret.rules import rule
        from dlperf_hpc.logs.program_figures import with_figures

        return with_figures([self.result], rule())[0]

    @property
    def _is_program(self) -> bool:
        return PROGRAM in self.result.facts

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """What is looked at, in the order in which it decides."""
        yield "attempts", list(self._attempts())
        yield "scheduler", [self.scheduler]
        yield "ended by", [self._ended_by()]
        yield "exit codes", list(self._codes())
        yield "signs", list(self._signs())
        yield "loss", [self._loss()]
        if self._is_program:
            lines = number_of(len(self.table.must), "line")
            must = f"{lines} of read.must" if self.table.must else "nothing is demanded"
            yield "must", [must]
        yield "window", [self._window()]
        yield "settings", list(self._settings())
        yield "flags", list(self._flags())
        yield "reading", list(self._reading())
        yield "nodes", [self._nodes()]
        yield "log", [self.result.log or f"{self.paths.log} is not there"]

    def _attempts(self) -> Iterator[str]:
        last = self.record.get("attempt", self.result.attempt if self.result.log else 0)
        yield f"attempt {last}, the last one" if last else "none was begun"
        for each in self.earlier[-_MOST:]:
            yield f"{each.number}: {each.status.value} {each.reason[:_SHORT]}".rstrip()

    def _ended_by(self) -> str:
        own = [each for each in self.failures if not each.consequence] or self.failures
        if own and own[0].why:
            return _ENDED.get(own[0].why, own[0].why)
        if own:
            return f"a rank that failed, {own[0].time}"
        if "ended" in self.ended:
            stopped = self.ended.get("stopped")
            return f"{self.ended['ended']}{f', {stopped}' if stopped else ''}"
        return "itself" if self.result.ended else "nothing is known of an end"

    def _codes(self) -> Iterator[str]:
        codes = self.ended.get("codes")
        if isinstance(codes, list):
            groups: dict[str, list[int]] = {}
            for rank, code in enumerate(codes):
                groups.setdefault("not known" if code is None else str(code), []).append(rank)
            for code, ranks in groups.items():
                more = ", ..." if len(ranks) > _MOST else ""
                yield f"{code} of rank {', '.join(map(str, ranks[:_MOST]))}{more}"
        for first in self.failures[:1]:
            known = first.reason == self.result.reason
            yield f"first rank {first.rank} on {first.host}" if known else f"first {first.reason}"
        if len(self.failures) > 1:
            after = sum(each.consequence for each in self.failures)
            yield f"{len(self.failures)} ranks left word, {after} of them in consequence"
        if not isinstance(codes, list) and not self.failures:
            yield "no rank has left word of a failure"

    def _signs(self) -> Iterator[str]:
        if self.table.fail:
            yield f"{number_of(len(self.table.fail), 'pattern')} of read.fail"
        told = [str(self.ended[name]) for name in ("failed", "broken") if self.ended.get(name)]
        signs = list(dict.fromkeys([*told, *(self.read.signs if self.read else ())]))
        yield from signs[:_MOST]
        yield from self.result.warnings[:_MOST]
        if not signs:
            yield "no line that is known to tell of a fault"

    def _loss(self) -> str:
        bad = self.ended.get("bad_loss")
        if bad is not None:
            return f"not finite from iteration {bad} on"
        losses = (
            [each["loss"] for each in self.log.iterations if "loss" in each] if self.log else []
        )
        if self.read and self.read.reading:
            losses = [step.loss for step in self.read.reading.steps if step.loss is not None]
        if not losses:
            return "none was told"
        odd = [loss for loss in losses if not (_is_number(loss) and math.isfinite(loss))]
        ends = [f"{loss:.6g}" if _is_number(loss) else str(loss) for loss in losses]
        told = f"{len(odd)} of {len(losses)} are not finite"
        return f"{told}; the first {ends[0]}, the last {ends[-1]}"

    def _window(self) -> str:
        measure = self.ledger.manifest.measure
        begin, end = measure.warmup, measure.warmup + measure.iterations
        asked = f"iterations {begin + 1} to {end}"
        numbers = sorted({each["n"] for each in self.log.iterations if _is_whole(each.get("n"))}
                         if self.log else ())  # fmt: skip
        if self.read and self.read.reading:
            numbers = sorted({step.iteration for step in self.read.reading.steps})
        if not numbers:
            return f"{asked}; no iteration was told"
        inside = [number for number in numbers if begin < number <= end]
        whole = numbers[0] <= begin + 1 and numbers[-1] >= end
        told = f"{asked}; the lines tell of {numbers[0]} to {numbers[-1]}, {len(inside)} inside"
        return f"{told}: {'complete' if whole else 'not complete'}"

    def _settings(self) -> Iterator[str]:
        case = self.run.case
        if self.read is None:
            window = self.result.window
            there = vars(window) if window else {}
            pairs = {name: there.get(name) for name in ("ranks", "accumulation", "global_batch")}
        else:
            pairs = {name: self.read.stated.get(name) for name in _ASKED}
        for name, told in pairs.items():
            asked = getattr(case, name)
            if told is not None and asked:
                same = "as asked" if told == asked else f"asked was {asked}"
                yield f"{name} {told}, {same}"
        if not any(value is not None for value in pairs.values()):
            yield "none is stated"

    def _flags(self) -> Iterator[str]:
        from dlperf_hpc.analysis.speedup import summarise

        if not self.figure.rates:
            yield "no figure to look at"
            return
        (summary,) = summarise([self.figure])
        found = [name for name in summary.flags if name not in _OF_MANY_RUNS]
        yield ", ".join(found) or "none"

    def _reading(self) -> Iterator[str]:
        from dlperf_hpc.logs.program_figures import nothing_fits

        figure, window = self.figure, self.figure.external
        if self.read is not None:
            timed = window is not None and window.basis == "timer"
            if timed:
                yield "the line of its Timer"
            if self.read.reading is not None:
                yield f"format {self.read.reading.format}, {_chosen_by(self.read.table)}"
                yield f"{number_of(len(self.read.reading.steps), 'line')} with an iteration"
            elif not timed:
                yield nothing_fits(self.read.table)
                return
            if window is not None:
                yield f"rule {window.rule}, factor {window.factor:.6g} per {window.unit}"
        elif self.result.window is not None:
            yield "the summary line of dlperf's own log"
        yield from (f"{value:.6g} {unit}" for unit, value in figure.rates.items())
        if not figure.rates:
            same = figure.reason == self.result.reason
            yield f"no figure: {'the run does not count' if same else figure.reason}"

    def _nodes(self) -> str:
        hosts = self.result.facts.get("world", {}).get("hosts")
        named = hosts if isinstance(hosts, list) else []
        named = named or list(dict.fromkeys(each.host for each in self.failures))
        more = f", ... {len(named)} in all" if len(named) > 2 * _MOST else ""
        return ", ".join(map(str, named[: 2 * _MOST])) + more if named else "none is named"


_ENDED = {
    "hang": "us: it made no progress",
    "timeout": "us: its time was over",
    "signal": "a signal from outside (SIGTERM)",
    "notice": "the scheduler, after its notice (SIGUSR2)",
    "failed": "us: another rank had failed",
}
_OF_MANY_RUNS = ("too-few-repeats",)


def _chosen_by(table: ReadTable) -> str:
    """By what a program's lines were taken to be in a format."""
    if table.tells_format:
        return "which its table tells"
    return "which its table names" if table.format else "which its lines show"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
