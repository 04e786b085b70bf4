"""Run the checks within a budget of seconds, each as a process of its own, and keep the table.

Whatever a check does (it crashes, hangs, leaves processes behind), the pack goes on, and the check
is a row. The two files in the directory are written again after each check: a pack that is killed
has lost nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from dlperf_hpc import __version__
from dlperf_hpc.acceptance.checks import CHECKS, FIRST, Check
from dlperf_hpc.acceptance.finding import FAIL, VERDICTS, Finding, read, skipped
from dlperf_hpc.files import write_atomically

TABLE, ROWS = "acceptance.md", "acceptance.json"
_LEAST_S = 5.0  # a check that has less is not begun
_LAST_LINES = 4  # of a check that crashed
_GRACE_S = 3.0


def command_of(check: Check, device: str) -> list[str]:
    """What the process of a check runs."""
    return [sys.executable, "-u", "-m", "dlperf_hpc.acceptance.checks", check.name, device]


@dataclass(frozen=True)
class Row:
    """A finding, the check that it is of, and the seconds that the check took."""

    check: str
    finding: Finding
    seconds: float


def run_pack(
    out: Path,
    device: str,
    budget_s: float,
    only: Sequence[str] = (),
    show: Callable[[str], None] = print,
    checks: Sequence[Check] = CHECKS,
    command: Callable[[Check, str], list[str]] = command_of,
) -> list[Row]:
    """Run the checks in the order of their value; the rows, which are in ``out`` as well.

    ``device`` is ``cuda`` or ``cpu`` (a rehearsal: each check at its smallest); ``only`` names
    checks, all without it. A check that the budget does not reach is a row that is skipped.
    """
    out.mkdir(parents=True, exist_ok=True)
    end, rows = time.monotonic() + budget_s, list[Row]()
    for check in checks:
        if only and check.name not in only:
            continue
        show(f"{check.name}: {check.title}")
        begun = time.monotonic()
        limit_s = min(check.limit_s, end - begun)
        if any(row.check == FIRST and row.finding.verdict == FAIL for row in rows):
            findings = iter([skipped("not begun", f"{FIRST} has failed")])
        elif limit_s < _LEAST_S:
            findings = iter([skipped("not reached", "the budget was used up")])
        else:
            findings = _findings(command(check, device), limit_s)
        for finding in findings:
            row = Row(check.name, finding, round(time.monotonic() - begun, 1))
            rows.append(row)
            show(f"  {finding.verdict:8}{finding.what}: {finding.value}")
            write_atomically(out / ROWS, json.dumps(as_json(rows), indent=1) + "\n")
            write_atomically(out / TABLE, table(rows, device))
    return rows


def failed(rows: Sequence[Row]) -> bool:
    """Whether any row says FAIL."""
    return any(row.finding.verdict == FAIL for row in rows)


def as_json(rows: Sequence[Row]) -> dict[str, object]:
    """``{"ok": no row says FAIL, "rows": [{check, seconds, what, value, goal, verdict}]}``."""
    told = [{"check": r.check, "seconds": r.seconds, **asdict(r.finding)} for r in rows]
    return {"version": __version__, "ok": not failed(rows), "rows": told}


def _findings(command: list[str], limit_s: float) -> Iterator[Finding]:
    """What a check's process prints, as it prints it; then how it ended, if not well."""
    # What it prints besides goes into a file: a pipe that nobody reads would stop it.
    with tempfile.TemporaryFile() as output, _own_session(command, output) as process:
        told = 0
        deadline = time.monotonic() + limit_s
        while True:
            over = process.poll() is not None
            found = _read(output)
            yield from found[told:]
            told = len(found)
            if over:
                break
            if time.monotonic() > deadline:
                yield Finding("ends", f"still ran after {limit_s:.0f} s", verdict=FAIL)
                return
            time.sleep(0.1)
        if process.returncode:
            value = f"exit code {process.returncode}: {_last_words(output)}"
            yield Finding("ends", value, "exit code 0", FAIL)
        elif not told:
            yield Finding("ends", "the check said nothing", verdict=FAIL)


@contextlib.contextmanager
def _own_session(command: list[str], output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a check; with it ends all that it started."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        yield process
    finally:
        for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)


def _text(output: IO[bytes]) -> str:
    number = output.fileno()
    return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")


def _read(output: IO[bytes]) -> list[Finding]:
    whole = _text(output).rpartition("\n")[0]
    return [found for line in whole.splitlines() if (found := read(line)) is not None]


def _last_words(output: IO[bytes]) -> str:
    lines = [line.strip() for line in _text(output).splitlines() if read(line) is None]
    return " | ".join([line for line in lines if line][-_LAST_LINES:])[-600:]


def table(rows: Sequence[Row], device: str) -> str:
    """``acceptance.md``: what ran where, counts of verdicts, and a row for each finding."""
    counts = {verdict: 0 for verdict in VERDICTS}
    for row in rows:
        counts[row.finding.verdict] += 1
    head = (
        f"dlperf_hpc {__version__}, Python {platform.python_version()}, {platform.node()},"
        f" device {device}, {time.strftime('%Y-%m-%d %H:%M')}"
    )
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    lines = ["# Acceptance", "", head, "", told, ""]
    lines += ["| check | what | found | asked for | verdict |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (row.check, row.finding.what, row.finding.value, row.finding.goal)
        shown = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
        lines.append(f"| {' | '.join(shown)} | {row.finding.verdict} |")
    return "\n".join(lines) + "\n"
