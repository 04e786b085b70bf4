"""Runs of users' programs in a sweep: their lines in our logs, read as other programs' logs are.

The supervisor (:mod:`dlperf_hpc.train.program`) has put the moment of arrival and its rank before
each line. Here they come off again, and what is left goes through the scanner, the formats and the
window rules; how the run ended is known better than any line tells it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LogError
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.interpret.rules import ITERATIONS, WARMUP, Rule, of_program
from dlperf_hpc.logs.interpret.rules import rule as parsed
from dlperf_hpc.logs.interpret.runs import interpret
from dlperf_hpc.logs.scan.scanner import Scanner
from dlperf_hpc.logs.scan.sources import Source, blocks
from dlperf_hpc.logs.scanned import Reading, ScannedFile, Steps
from dlperf_hpc.records.logfile import PROGRAM, PROGRAM_END, read_bytes
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status
from dlperf_hpc.sweepfile.case import Case, Measure, Run

OWN = "dlperf"
_LAST = 3  # lines that are shown where nothing is read
_LINE = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6})Z ([0-9]{1,7})\| "
)
_ASKED = ("global_batch", "seq_len", "precision")
"""Settings that a log may state and a sweep asks for: another value is another measurement."""


@dataclass(frozen=True)
class _Lines:
    """A program's lines, each where it stands in our log, and when each came (s), by its number."""

    text: bytes
    arrivals: dict[int, float]


def with_figures(
    results: Sequence[RunResult], rule: Rule, data: bytes | None = None
) -> list[RunResult]:
    """The results, those of users' programs that ended ok with the figure in their lines.

    ``rule`` is the window rule that was asked for; the default has the window of the sweep.
    ``data`` is the log's content where its path only names it.
    """
    return [
        _with_figure(result, rule, data)
        if result.status is Status.OK and PROGRAM in result.facts
        else result
        for result in results
    ]


def _with_figure(result: RunResult, rule: Rule, data: bytes | None) -> RunResult:
    try:
        content = read_bytes(Path(result.log)) if data is None else data
    except LogError as error:
        return replace(result, status=Status.PARTIAL, reason=str(error))
    scanned, _ = _scanned(result, content or b"")
    scanned = replace(scanned, troubles=())  # the exit codes say how it ended
    if not scanned.readings:
        note = "no figure: no line of the program is in a known format ([program.NAME.read] names"
        return replace(result, warnings=(*result.warnings, f"{note} one of `report --formats`)"))
    return _read(result, scanned, rule)


def _scanned(result: RunResult, content: bytes) -> tuple[ScannedFile, _Lines]:
    """What is found in a program's lines of our log, and these lines."""
    stopped = str(result.facts.get(PROGRAM_END, {}).get("stopped", ""))
    lines = _program_lines(content, stopped)
    wanted = str(result.facts[PROGRAM].get("format", ""))
    scanned = _scanner(wanted).scan(result.log, len(lines.text), [lines.text])
    readings = tuple(_with_arrivals(each, lines) for each in scanned.readings)
    return replace(scanned, readings=readings), lines


@dataclass(frozen=True)
class LookedAt:
    """What a program's lines say, however its run ended. ``stated`` are settings that they state,
    by their names, ``signs`` the lines by which something broke, ``last`` its last lines."""

    reading: Reading | None
    stated: dict[str, Any]
    signs: tuple[str, ...]
    last: tuple[str, ...]


def looked_at(result: RunResult) -> LookedAt:
    """Read a program's lines once more; LogError if its log cannot be read."""
    scanned, lines = _scanned(result, read_bytes(Path(result.log)) or b"")
    told = [each for each in lines.text.decode(errors="replace").splitlines() if each.strip()]
    known = {name: own for name, own in _stated(result.run.case).items() if name not in _ASKED}
    best = interpret(scanned, (), (), known, _effective(parsed(), result))
    facts = best.results[0].facts if best.results else {}
    return LookedAt(
        reading=scanned.readings[0] if scanned.readings else None,
        stated={name: facts[name] for name in _ASKED if facts.get(name) is not None},
        signs=tuple(trouble.text for trouble in scanned.troubles),
        last=tuple(each.partition("]: ")[2] for each in told[-_LAST:]),
    )


def _read(result: RunResult, scanned: ScannedFile, rule: Rule) -> RunResult:
    told = interpret(scanned, (), (), _stated(result.run.case), _effective(rule, result))
    return _grafted(result, told.results)


@dataclass(frozen=True)
class Trial:
    """What a log that is there already would give as a run of a sweep. ``reading`` is that of the
    format with most iterations; None if no line is in a known one."""

    result: RunResult
    reading: Reading | None = None


def tried(case: Case, wanted: str, measure: Measure, source: Source) -> Trial:
    """Read a log as the lines of a run of ``case``, which nobody has stamped. ``wanted`` is the
    format that the program's table names, '' for what the lines show. LogError if the log cannot
    be read."""
    facts = {"measure": asdict(measure), PROGRAM: {"format": wanted}}
    result = RunResult(Run(case, 1), Status.OK, log=source.name, facts=facts)
    scanned = _scanner(wanted).scan(source.name, source.size, blocks(source))
    if not scanned.readings:
        return Trial(replace(result, status=Status.PARTIAL, reason="no line is in a known format"))
    whole = replace(scanned, troubles=())  # the exit code will say how a run ended
    return Trial(_read(result, whole, parsed()), scanned.readings[0])


def _grafted(result: RunResult, found: Sequence[RunResult]) -> RunResult:
    """Our result with the figure of what was read in its lines."""
    if not found:
        return replace(result, status=Status.PARTIAL, reason="its lines give no run")
    best = next((each for each in found if each.samples_per_s is not None), found[0])
    own = [text.replace("the command line", "the sweep") for text in best.warnings]
    warnings = tuple(dict.fromkeys([*result.warnings, *own]))
    result = replace(result, warnings=warnings, external=best.external)
    if differing := _not_as_asked(result.run.case, best.facts):
        return replace(result, status=Status.PARTIAL, reason=f"not as asked: {differing}")
    if best.status is Status.OK and best.external is not None:
        return result
    reason = best.reason or "its lines give no figure"
    return replace(result, status=Status.PARTIAL, reason=reason)


def _not_as_asked(case: Any, facts: dict[str, Any]) -> str:
    """Which setting the program's own lines contradict."""
    for name in _ASKED:
        asked, there = getattr(case, name), facts.get(name)
        if asked and there is not None and there != asked:
            return f"the log says {name} {there}, the sweep {asked}"
    return ""


def _stated(case: Any) -> dict[str, Any]:
    """What the sweep knows of a run. Of ``batch_size`` nothing: it is one replica's, which may have
    several devices."""
    topology = case.topology
    stated = {
        "nodes": topology.nodes,
        "gpus_per_node": topology.gpus_per_node,
        "devices": topology.devices,
        "accumulation": case.accumulation,
        "global_batch": case.global_batch,
        "seq_len": case.seq_len or None,
        "precision": case.precision,
        "model": case.model,
        "framework": case.framework,
    }
    if isinstance(case, Case) and case.replicas in (None, topology.devices):
        stated["batch_size"] = case.batch_size
    return {name: value for name, value in stated.items() if value is not None}


def _effective(rule: Rule, result: RunResult) -> Rule:
    """The rule that was asked for; of the default, that of programs with the sweep's window."""
    if rule != parsed():
        return rule
    measure = result.facts.get("measure", {})
    w, n = measure.get("warmup", WARMUP), measure.get("iterations", ITERATIONS)
    return of_program(w, n) if isinstance(w, int) and isinstance(n, int) else of_program(20, 100)


@lru_cache(maxsize=8)
def _scanner(wanted: str) -> Scanner:
    known = [each for each in formats() if each.name != OWN]
    return Scanner([each for each in known if wanted in ("", each.name)])


def _program_lines(data: bytes, stopped: str) -> _Lines:
    """A program's own lines in one of our logs, without those that came after we ended it."""
    rows, arrivals = [], {}
    last = stopped[:-1].encode()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        found = _LINE.match(line)
        if found is None or (last and found[1] > last):
            rows.append(b"")
            continue
        # torchrun's form of a rank's label cannot be mistaken for the program's own words.
        rows.append(b"[rank%s]: %s" % (found[2], line[found.end() :]))
        if (seconds := _seconds(found[1])) is not None:
            arrivals[number] = seconds
    return _Lines(b"\n".join([*rows, b""]), arrivals)


def _seconds(stamp: bytes) -> float | None:
    try:
        moment = datetime.fromisoformat(stamp.decode("ascii"))
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp()


def _with_arrivals(reading: Reading, lines: _Lines) -> Reading:
    steps = (step._replace(arrival=lines.arrivals.get(step.line)) for step in reading.steps)
    return replace(reading, steps=Steps(steps))
