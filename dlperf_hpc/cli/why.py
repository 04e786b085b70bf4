"""``status DIR --why RUN``: looks at everything that tells of one run's end, and writes nothing.

Collected here, by all rooms that know something of it; :mod:`.run_states` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dlperf_hpc.analysis.speedup import summarise
from dlperf_hpc.engines.states import one_run
from dlperf_hpc.errors import LogError, number_of
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.program_figures import looked_at, nothing_fits, with_figures
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.checks import is_number
from dlperf_hpc.model.result import PROGRAM, RunResult
from dlperf_hpc.records.collect import EarlierAttempt, earlier_attempts
from dlperf_hpc.records.failures import LOG, SCHEDULER, Verdict, recorded, with_codes
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.lines import PROGRAM_END
from dlperf_hpc.records.logfile import ParsedLog, read_log
from dlperf_hpc.records.record import Record, read_record
from dlperf_hpc.records.store import Failure, failures_of
from dlperf_hpc.reporting.run_states import Why
from dlperf_hpc.sweepfile.readtable import ReadTable

_MOST = 4  # ranks, codes or flags that a line names
_SHORT = 160  # characters of another attempt's reason


def why(ledger: Ledger, run: Run, ask_scheduler: bool) -> Why:
    """What was looked at, in order, and what decided. LogError if the run's log is damaged."""
    result, scheduler = one_run(ledger, run, ask_scheduler)
    seen = _Evidence(ledger, run, result, scheduler)
    return Why(
        run=run.id,
        number=1 + ledger.manifest.runs.index(run),
        runs=len(ledger.manifest.runs),
        status=seen.figure.status,
        reason=seen.figure.reason,
        decided=_decided(seen),
        looked=dict(seen.rows()),
        lines=() if seen.read is None or seen.read.reading is not None else seen.read.last,
    )


def _decided(seen: _Evidence) -> str:
    result = seen.figure
    if result.source == "scheduler":
        return SCHEDULER
    if not result.status.finished:
        return LOG if result.source == "log" else SCHEDULER
    if result.decided_by:
        return result.decided_by
    of_this = seen.record.get("attempt") == result.attempt
    if of_this:
        return with_codes(recorded(seen.record)).decided_by
    return with_codes(Verdict(result.status, result.reason)).decided_by


@dataclass(frozen=True)
class _Evidence:
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
        values = self.result.facts.get(PROGRAM_END) or self.record.get("program")
        return dict(values) if isinstance(values, dict) else {}

    @cached_property
    def table(self) -> ReadTable:
        """How a program's lines are to be read, as its table says; empty for a back end."""
        program = self.ledger.manifest.programs.get(self.run.case.framework)
        return program.read if program else ReadTable()

    @cached_property
    def read(self) -> Any:
        return looked_at(self.result) if self.result.log and self._is_program else None

    @cached_property
    def figure(self) -> RunResult:
        """The result with its figure, and what reading that brought to light."""
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
            words = (self.ended["ended"], self.ended.get("stopped"))
            return ", ".join(str(word) for word in words if word)
        return "itself" if self.result.ended else "nothing is known of an end"

    def _codes(self) -> Iterator[str]:
        codes = self.ended.get("codes")
        if isinstance(codes, list):
            yield from _exit_codes(codes)
        elif not self.failures:
            yield "no rank has left word of a failure"
        for first in self.failures[:1]:
            known = first.reason == self.result.reason
            yield f"first rank {first.rank} on {first.host}" if known else f"first {first.reason}"
        if len(self.failures) > 1:
            after = sum(each.consequence for each in self.failures)
            yield f"{len(self.failures)} ranks left word, {after} of them in consequence"

    def _signs(self) -> Iterator[str]:
        if self.table.fail:
            yield f"{number_of(len(self.table.fail), 'pattern')} of read.fail"
        signs = [str(self.ended[name]) for name in ("failed", "broken") if self.ended.get(name)]
        if self.read:
            signs += self.read.signs
        yield from list(dict.fromkeys(signs))[:_MOST]
        yield from self.figure.warnings[:_MOST]
        if not signs:
            yield "no line that is known to tell of a fault"

    @property
    def _steps(self) -> list[tuple[Any, Any]]:
        """Number and loss of each iteration of the log, or of a program's lines."""
        if self.read and self.read.reading:
            return [(step.iteration, step.loss) for step in self.read.reading.steps]
        if self.log is None:
            return []
        return [(each.get("n"), each.get("loss")) for each in self.log.iterations]

    def _loss(self) -> str:
        bad = self.ended.get("bad_loss")
        if bad is not None:
            return f"not finite from iteration {bad} on"
        losses = [loss for _, loss in self._steps if loss is not None]
        if not losses:
            return "none was told"
        odd = sum(not is_number(loss) for loss in losses)
        ends = (losses[0], losses[-1])
        first, last = (f"{loss:.6g}" if is_number(loss) else str(loss) for loss in ends)
        return f"{odd} of {len(losses)} are not finite; the first {first}, the last {last}"

    def _window(self) -> str:
        measure = self.ledger.manifest.measure
        begin, end = measure.warmup, measure.warmup + measure.iterations
        wanted = f"iterations {begin + 1} to {end}"
        numbers = sorted({number for number, _ in self._steps if type(number) is int})
        if not numbers:
            return f"{wanted}; no iteration was told"
        first, last = numbers[0], numbers[-1]
        inside = sum(begin < number <= end for number in numbers)
        whole = "complete" if first <= begin + 1 and last >= end else "not complete"
        return f"{wanted}; the lines tell of {first} to {last}, {inside} inside: {whole}"

    def _settings(self) -> Iterator[str]:
        names: tuple[str, ...] = ("ranks", "accumulation", "global_batch")
        stated: Mapping[str, Any] = vars(self.result.window) if self.result.window else {}
        if self.read is not None:
            names, stated = ("global_batch", "seq_len", "precision"), self.read.stated
        values = {name: stated[name] for name in names if stated.get(name) is not None}
        for name, value in values.items():
            requested = getattr(self.run.case, name)
            if value == requested:
                yield f"{name} {value}, as asked"
            elif requested:
                yield f"{name} {value}, asked was {requested}"
        if not values:
            yield "none is stated"

    def _flags(self) -> Iterator[str]:
        if not self.figure.rates:
            yield "no figure to look at"
            return
        (summary,) = summarise([self.figure])
        found = [name for name in summary.flags if name not in _OF_MANY_RUNS]
        yield ", ".join(found) or "none"

    def _reading(self) -> Iterator[str]:
        figure = self.figure
        if self.read is not None:
            yield from self._of_program(self.read)
        elif self.result.window is not None:
            yield "the summary line of dlperf's own log"
        yield from (f"{value:.6g} {unit}" for unit, value in figure.rates.items())
        if not figure.rates and (self.read is None or self._is_read):
            same = figure.reason == self.result.reason
            yield f"no figure: {'the run does not count' if same else figure.reason}"

    @property
    def _is_read(self) -> bool:
        window = self.figure.external
        timed = window is not None and window.basis == "timer"
        return timed or (self.read is not None and self.read.reading is not None)

    def _of_program(self, read: Any) -> Iterator[str]:
        window = self.figure.external
        if not self._is_read:
            yield nothing_fits(read.table)
            return
        if window is not None and window.basis == "timer":
            yield "the line of its Timer"
        if read.reading is not None:
            yield f"format {read.reading.format}, {_chosen_by(read.table)}"
            yield f"{number_of(len(read.reading.steps), 'line')} with an iteration"
        if window is not None:
            yield f"rule {window.rule}, factor {window.factor:.6g} per {window.unit}"
            if window.check is not None:
                yield f"check: {window.check:.6g} {window.speed_unit} by {window.check_basis}"

    def _nodes(self) -> str:
        named = self.result.facts.get("world", {}).get("hosts")
        if not isinstance(named, list) or not named:
            named = list(dict.fromkeys(each.host for each in self.failures))
        more = f", ... {len(named)} in all" if len(named) > 2 * _MOST else ""
        return ", ".join(map(str, named[: 2 * _MOST])) + more or "none is named"


_ENDED = {
    "hang": "us: it made no progress",
    "timeout": "us: its time was over",
    "signal": "a signal from outside (SIGTERM)",
    "notice": "the scheduler, after its notice (SIGUSR2)",
    "failed": "us: another rank had failed",
}
_OF_MANY_RUNS = ("too-few-repeats",)


def _exit_codes(codes: Sequence[int | None]) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for rank, code in enumerate(codes):
        groups.setdefault("not known" if code is None else str(code), []).append(str(rank))
    for name, ranks in groups.items():
        yield f"{name} of rank {', '.join(ranks[:_MOST])}{', ...' * (len(ranks) > _MOST)}"


def _chosen_by(table: ReadTable) -> str:
    if table.tells_format:
        return "which its table tells"
    return "which its table names" if table.format else "which its lines show"
