"""``sweep SPEC --try-log LOG``: what would be read of a log, before a node-hour is spent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli.messages import usage_error
from dlperf_hpc.errors import printable, visible

if TYPE_CHECKING:
    from dlperf_hpc.logs.program_figures import TriedLog
    from dlperf_hpc.logs.scan.sources import Source
    from dlperf_hpc.model.case import Case
    from dlperf_hpc.sweepfile.load import Sweep
    from dlperf_hpc.sweepfile.readtable import ReadTable

_SHOWN = 3


def show(sweep: Sweep, path: Path, as_json: bool) -> int:
    """Print it; the exit code: 0 if there is a figure, else 1. SpecError if the sweep has no
    program; LogError if the log cannot be read."""
    from dlperf_hpc.logs.program_figures import tried

    case, table = _case(sweep)
    source = _source(path)
    trial = tried(case, table, sweep.measure, source)
    told = _told(case, path, trial)
    if as_json:
        print(json.dumps(told, indent=1, allow_nan=False))
    else:
        for name, value in told.items():
            if value not in (None, []):
                lines = value if isinstance(value, list) else [value]
                print("\n".join(f"{name:9}  {visible(str(line))}" for line in lines))
    if trial.reading is None:
        _show_lines(source, table)
    return 0 if trial.result.rates else 1


def _case(sweep: Sweep) -> tuple[Case, ReadTable]:
    """The sweep's first case of a program, and how its table says that its lines are read."""
    cases = [case for case in sweep.cases if case.framework in sweep.programs]
    if not cases:
        hint = "a back end of dlperf_hpc writes logs of its own, which `dlperf report` reads"
        raise usage_error("--try-log", "the sweep has no [program.NAME]", hint)
    if len(cases) > 1:
        note = f"note: of {len(cases)} cases the first is tried; --only selects another"
        print(note, file=sys.stderr)
    return cases[0], sweep.programs[cases[0].framework].read


def _source(path: Path) -> Source:
    from dlperf_hpc.logs.scan.sources import Unread, find

    found = list(find([path])) if path.exists() else []
    if not path.exists():
        raise usage_error("--try-log", f"{path}: no such file")
    if len(found) != 1 or path.is_dir():
        raise usage_error("--try-log", f"{path}: {len(found)} logs", "name one log")
    (only,) = found
    if isinstance(only, Unread):
        raise usage_error("--try-log", f"{only.path}: {only.why}")
    return only


def _told(case: Case, path: Path, trial: TriedLog) -> dict[str, Any]:
    result, reading = trial.result, trial.reading
    window = result.external
    lines = None
    if reading is not None and len(reading.steps):
        first, last = reading.steps[0].iteration, reading.steps[-1].iteration
        lines = f"{len(reading.steps)} with an iteration, {first} to {last}"
    elif reading is not None and reading.totals:
        lines = f"{len(reading.totals)} with a figure of the whole run"
    return {
        "log": str(path),
        "as": case.id,
        "format": reading.format if reading else None,
        "lines": lines,
        "window": window and f"after iteration {window.first}, up to {window.last}: {window.rule}",
        "factor": window and f"{window.factor:.6g} (what is printed is in {window.unit})",
        "figure": [f"{value:.6g} {unit}" for unit, value in result.rates.items()],
        "no figure": None if result.rates else result.reason,
        "warning": [printable(line) for line in result.warnings],
        "signs": [printable(line) for line in trial.signs],
        "not read": [printable(note) for note in trial.notes[:_SHOWN]],
    }


def _show_lines(source: Source, table: ReadTable) -> None:
    """A few lines of a log of which nothing was read, those that are nearest to a pattern: is it
    the right file?"""
    from dlperf_hpc.logs.program_figures import near_lines
    from dlperf_hpc.logs.scan.sources import blocks

    rest = b""
    for block in blocks(source):
        rest = (rest + block)[-(1 << 16) :]
    rows = [line for line in rest.decode(errors="replace").splitlines() if line.strip()]
    print("of its last lines (docs/external-logs.md says what to do):", file=sys.stderr)
    for line in near_lines(table, rows, _SHOWN):
        print(f"  {printable(line)[:150]}", file=sys.stderr)
