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
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from dlperf_hpc import __version__
from dlperf_hpc.files import make_output_directory, write_atomically

TABLE, ROWS = "acceptance.md", "acceptance.json"
OK, FAIL, NOTED, SKIPPED = _ORDER = "ok", "FAIL", "told", "skipped"
"""Verdicts. ``told``: a figure without a bound, or a goal that is reported and never a FAIL;
``skipped``: this machine cannot show it, and ``value`` says why."""

_MARK = "dlperf_acceptance "  # begins a line of a check's output that holds a finding
_LEAST_S = 5.0  # a check that has less is not started
_LAST_LINES = 4  # of a check that crashed
_GRACE_S = 3.0


class Check(NamedTuple):
    """``name`` is the function's in ``module``; ``limit_s`` the most seconds that it may take;
    ``no_card`` says why a machine without a card cannot show it."""

    name: str
    module: str
    title: str
    limit_s: float
    no_card: str = ""


CHECKS = (
    Check("environment", "runs", "versions, the card, its clocks, MPI", 60),
    Check("ceilings", "speed", "matrix products and a copy, without a model", 60),
    Check("precision", "training", "products are computed as asked, also after torch.compile", 90),
    Check("numerics", "numerics", "tiny models against transformers, a CPU, fp32, compiled", 150),
    Check("clock", "training", "events' times are the window's; a known kernel is seen", 60),
    Check("waiting", "training", "nothing waits for the device inside the window", 90,
          "a CPU has no calls that wait"),
    Check("matrix", "training", "precisions x eager and compiled, optimizers, accumulation", 150),
    Check("sweep", "runs", "doctor, a sweep of three cases, its report", 150),
    Check("models", "speed", "models beside others' of the same size", 240),
    Check("tuned", "speed", "models in mode tuned: MFU, kernels", 240),
    Check("wrapper", "speed", "the wrapper's loop beside a bare one", 60),
    Check("telemetry", "speed", "NVML: energy, and what watching costs", 60, "a CPU has no NVML"),
    Check("memory", "speed", "a line through three batches predicts a fourth", 60,
          "a CPU's resident set does not fall from batch to batch"),
    Check("checkpoint", "training", "10 + 10 iterations through a checkpoint against 20", 90),
    Check("exchange", "speed", "one rank: with and without all-reduce", 60),
    Check("sharing", "runs", "two ranks on one card: a clear error, at once", 90,
          "a CPU may be shared"),
    Check("endings", "runs", "runs that raise, die, hang or run out of memory end so", 150),
)  # fmt: skip
"""In the order of their value: a budget that ends early has shown the most."""

FIRST = CHECKS[0].name
"""Where this one fails, no other can say anything."""


class Finding(NamedTuple):
    """One row: what was looked at, what was found, what was asked for, and the verdict; the pack
    adds the check, and the seconds that the check took."""

    what: str
    value: str
    goal: str = ""
    verdict: str = NOTED
    check: str = ""
    seconds: float = 0.0


def judged(what: str, value: str, goal: str, holds: bool) -> Finding:
    """A finding with a bound: ``ok`` where it holds, else ``FAIL``."""
    return Finding(what, value, goal, (FAIL, OK)[holds])


def skipped(what: str, why: str) -> Finding:
    """What this machine cannot show."""
    return Finding(what, why, verdict=SKIPPED)


def command_of(check: Check, device: str) -> list[str]:
    """What the process of a check runs."""
    return [
        sys.executable,
        "-u",
        "-m",
        "dlperf_hpc.acceptance.pack",
        check.module,
        check.name,
        device,
    ]


def run_check(module: str, name: str, device: str) -> None:
    """The process of a check: a line for each finding."""
    try:
        check = getattr(importlib.import_module(f"dlperf_hpc.acceptance.{module}"), name)
    except ImportError as error:
        lack = f"{sys.executable}: {error}: run this by the Python that has PyTorch"
        print(line(judged("imports", lack, "all that a check needs", False)))
        return
    for finding in check(device):
        print(line(finding), flush=True)


def line(finding: Finding) -> str:
    """What the process of a check prints for a finding."""
    return _MARK + json.dumps(finding)


def run_pack(
    out: Path,
    device: str,
    budget_s: float,
    only: Sequence[str] = (),
    show: Callable[[str], None] = print,
) -> list[Finding]:
    """Run the checks in the order of their value; the rows, which are in ``out`` as well.

    ``device`` is ``cuda`` or ``cpu`` (a rehearsal: each check at its smallest); ``only`` names
    checks, all without it. A check that the budget does not reach gives a skipped row.
    """
    make_output_directory(out)
    end, rows = time.monotonic() + budget_s, list[Finding]()
    for check in CHECKS:
        if only and check.name not in only:
            continue
        show(f"{check.name}: {check.title}")
        started = time.monotonic()
        if any(row.check == FIRST and row.verdict == FAIL for row in rows):
            findings = [skipped("not begun", f"{FIRST} has failed")]
        else:
            findings = _checked(check, device, end - started)
        seconds = round(time.monotonic() - started, 1)
        for finding in findings:
            rows.append(finding._replace(check=check.name, seconds=seconds))
            show(f"  {finding.verdict:8}{finding.what}: {finding.value}")
        write_atomically(out / ROWS, json.dumps(as_json(rows), indent=1) + "\n")
        write_atomically(out / TABLE, table(rows, device))
    return rows


def _checked(check: Check, device: str, left_s: float) -> list[Finding]:
    if check.no_card and device == "cpu":
        return [skipped(check.name, check.no_card)]
    if left_s < _LEAST_S:
        return [skipped("not reached", "the budget was used up")]
    return _findings(command_of(check, device), min(check.limit_s, left_s))


def failed(rows: Sequence[Finding]) -> bool:
    """Whether any row says FAIL."""
    return any(row.verdict == FAIL for row in rows)


def as_json(rows: Sequence[Finding]) -> dict[str, object]:
    """``{"ok": no row says FAIL, "rows": [{what, value, goal, verdict, check, seconds}]}``."""
    return {"version": __version__, "ok": not failed(rows), "rows": [row._asdict() for row in rows]}


def _findings(command: list[str], limit_s: float) -> list[Finding]:
    """What a check's process printed; then how it ended, if not well."""
    # A file: a pipe that nobody reads would stop the process.
    with tempfile.TemporaryFile() as output:
        code = _run(command, output, limit_s)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines(keepends=True)
    findings, words = list[Finding](), list[str]()
    for text in lines:
        if not text.startswith(_MARK):
            words += filter(None, [text.strip()])
        elif text.endswith("\n"):  # else it was cut when the process was killed
            findings.append(Finding(*json.loads(text.removeprefix(_MARK))))
    if code is None:
        findings.append(Finding("ends", f"still ran after {limit_s:.0f} s", verdict=FAIL))
    elif code:
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
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)


def table(rows: Sequence[Finding], device: str) -> str:
    """``acceptance.md``: what ran where, counts of verdicts, and a row for each finding."""
    counts = Counter(row.verdict for row in rows)
    where = f"{platform.node()}, device {device}, {time.strftime('%Y-%m-%d %H:%M')}"
    lines = [
        f"# Acceptance\n\ndlperf_hpc {__version__}, Python {platform.python_version()}, {where}\n",
        ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict]),
        "\n| check | what | found | asked for | verdict |\n|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.check, row.what, row.value, row.goal, row.verdict)
        escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_check(*sys.argv[1:])
