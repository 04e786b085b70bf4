"""Run the checks within a budget of seconds, each as a process of its own, and keep the table.

Whatever a check does (it crashes, hangs, leaves processes behind), the pack goes on, and the check
is a row. The two files in the directory are written again after each check. The pack itself needs
the standard library alone; a check is a generator of findings in a module that may import torch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from dlperf_hpc import __version__
from dlperf_hpc.files import write_atomically

TABLE, ROWS = "acceptance.md", "acceptance.json"
OK, FAIL, TOLD, SKIPPED = "ok", "FAIL", "told", "skipped"
"""Verdicts. ``told``: a figure without a bound, or a goal that is reported and never a FAIL;
``skipped``: this machine cannot show it, and ``value`` says why."""

_MARK = "dlperf_acceptance "  # begins a line of a check's output that holds a finding
_LEAST_S = 5.0  # a check that has less is not started
_LAST_LINES = 4  # of a check that crashed
_GRACE_S = 3.0


@dataclass(frozen=True)
class Check:
    """``name`` is the function's in ``module``; ``limit_s`` the most seconds that it may take."""

    name: str
    module: str
    title: str
    limit_s: float


CHECKS = (
    Check("environment", "card", "versions, the card, its clocks, MPI", 60),
    Check("ceilings", "card", "matrix products and a copy, without a model", 60),
    Check("precision", "training", "products are computed as asked, also after torch.compile", 90),
    Check("numerics", "numerics", "tiny models against transformers, a CPU, fp32, compiled", 150),
    Check("clock", "training", "events' times are the window's; a known kernel is seen", 60),
    Check("waiting", "training", "nothing waits for the device inside the window", 90),
    Check("matrix", "training", "precisions x eager and compiled, optimizers, accumulation", 150),
    Check("sweep", "runs", "doctor, a sweep of three cases, its report", 150),
    Check("models", "speed", "models beside others' of the same size", 240),
    Check("tuned", "speed", "models in mode tuned: MFU, kernels", 240),
    Check("wrapper", "speed", "the wrapper's loop beside a bare one", 60),
    Check("telemetry", "card", "NVML: energy, and what watching costs", 60),
    Check("memory", "card", "a line through three batches foretells a fourth", 60),
    Check("checkpoint", "training", "10 + 10 iterations through a checkpoint against 20", 90),
    Check("exchange", "speed", "one rank: with and without all-reduce", 60),
    Check("sharing", "runs", "two ranks on one card: a clear error, at once", 90),
    Check("endings", "runs", "runs that raise, die, hang or run out of memory end so", 150),
)  # fmt: skip
"""In the order of their value: a budget that ends early has shown the most."""

FIRST = CHECKS[0].name
"""Where this one fails, no other can say anything."""


@dataclass(frozen=True)
class Finding:
    """One row: what was looked at, what was found, what was asked for, and the verdict."""

    what: str
    value: str
    goal: str = ""
    verdict: str = TOLD

    def line(self) -> str:
        """What the process of a check prints."""
        return _MARK + json.dumps(asdict(self))


def judged(what: str, value: str, goal: str, holds: bool) -> Finding:
    """A finding with a bound: ``ok`` where it holds, else ``FAIL``."""
    return Finding(what, value, goal, OK if holds else FAIL)


def skipped(what: str, why: str) -> Finding:
    """What this machine cannot show."""
    return Finding(what, why, verdict=SKIPPED)


@dataclass(frozen=True)
class Row:
    """A finding, the check that it is of, and the seconds that the check took."""

    check: str
    finding: Finding
    seconds: float


def command_of(check: Check, device: str) -> list[str]:
    """What the process of a check runs."""
    return [sys.executable, "-u", "-m", "dlperf_hpc.acceptance.pack", check.name, device]


def run_check(name: str, device: str) -> int:
    """The process of a check: a line for each finding. The exit code is 0 whatever it finds."""
    module = {check.name: check.module for check in CHECKS}[name]
    try:
        check = getattr(importlib.import_module(f"dlperf_hpc.acceptance.{module}"), name)
    except ImportError as error:
        lack = f"{sys.executable}: {error}: run this by the Python that has PyTorch"
        print(judged("imports", lack, "all that a check needs", False).line())
        return 0
    for finding in check(device):
        print(finding.line(), flush=True)
    return 0


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
        started = time.monotonic()
        limit_s = min(check.limit_s, end - started)
        if any(row.check == FIRST and row.finding.verdict == FAIL for row in rows):
            findings = [skipped("not begun", f"{FIRST} has failed")]
        elif limit_s < _LEAST_S:
            findings = [skipped("not reached", "the budget was used up")]
        else:
            findings = _findings(command(check, device), limit_s)
        seconds = round(time.monotonic() - started, 1)
        rows += [Row(check.name, finding, seconds) for finding in findings]
        for finding in findings:
            show(f"  {finding.verdict:8}{finding.what}: {finding.value}")
        write_atomically(out / ROWS, json.dumps(as_json(rows), indent=1) + "\n")
        write_atomically(out / TABLE, table(rows, device))
    return rows


def failed(rows: Sequence[Row]) -> bool:
    """Whether any row says FAIL."""
    return any(row.finding.verdict == FAIL for row in rows)


def as_json(rows: Sequence[Row]) -> dict[str, object]:
    """``{"ok": no row says FAIL, "rows": [{check, seconds, what, value, goal, verdict}]}``."""
    plain = [{"check": r.check, "seconds": r.seconds, **asdict(r.finding)} for r in rows]
    return {"version": __version__, "ok": not failed(rows), "rows": plain}


def _findings(command: list[str], limit_s: float) -> list[Finding]:
    """What a check's process printed; then how it ended, if not well."""
    # A file: a pipe that nobody reads would stop the process.
    with tempfile.TemporaryFile() as output:
        code = _run(command, output, limit_s)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines(keepends=True)
    # A line that has no end was cut when the process was killed.
    whole = [line for line in lines if line.startswith(_MARK) and line.endswith("\n")]
    findings = [Finding(**json.loads(line[len(_MARK) :])) for line in whole]
    if code is None:
        findings.append(Finding("ends", f"still ran after {limit_s:.0f} s", verdict=FAIL))
    elif code:
        words = [line.strip() for line in lines if line.strip() and not line.startswith(_MARK)]
        value = f"exit code {code}: {' | '.join(words[-_LAST_LINES:])[-600:]}"
        findings.append(Finding("ends", value, "exit code 0", FAIL))
    return findings or [Finding("ends", "the check said nothing", verdict=FAIL)]


def _run(command: list[str], output: IO[bytes], limit_s: float) -> int | None:
    """Exit code of a check's process, None if it did not end in time; all that it started ends."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)


def table(rows: Sequence[Row], device: str) -> str:
    """``acceptance.md``: what ran where, counts of verdicts, and a row for each finding."""
    verdicts = [row.finding.verdict for row in rows]
    counts = {verdict: verdicts.count(verdict) for verdict in (OK, FAIL, TOLD, SKIPPED)}
    head = (
        f"dlperf_hpc {__version__}, Python {platform.python_version()}, {platform.node()},"
        f" device {device}, {time.strftime('%Y-%m-%d %H:%M')}"
    )
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    lines = ["# Acceptance", "", head, "", counted, ""]
    lines += ["| check | what | found | asked for | verdict |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (row.check, row.finding.what, row.finding.value, row.finding.goal)
        escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
        lines.append(f"| {' | '.join(escaped)} | {row.finding.verdict} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run_check(*sys.argv[1:]))
