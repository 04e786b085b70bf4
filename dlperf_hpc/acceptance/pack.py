"""Run the checks, each as a process of its own with its own limit, and keep the table:
``python -m dlperf_hpc.acceptance.pack --out DIR``.

Whatever a check does (it crashes, hangs, leaves processes behind), the pack goes on. Its files are
written again after each check. It needs the standard library alone; a check is a generator of
findings in a module that may import torch. Exit code: 0 no FAIL, 1 a FAIL, 2 invalid request.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dlperf_hpc import __version__
from dlperf_hpc.files import make_output_directory, write_atomically

TABLE, ROWS, KEPT = "acceptance.md", "acceptance.json", "acceptance.zip"
"""``KEPT`` has, of each check with a row that says FAIL or ``cut``, all that it printed as
``<check>.log``, and the directories of its sweeps."""

OK, FAIL, NOTED, SKIPPED, CUT = _ORDER = "ok", "FAIL", "told", "skipped", "cut"
"""Verdicts. ``told``: a figure without a bound; ``skipped``: this machine cannot show it, as
``value`` says; ``cut``: the check's time was over."""

CARD, IMPORTS = "card", "imports"
"""Rows of the first check: where one says FAIL, no other check can say anything."""

_MARK = "dlperf_acceptance "  # begins a line of a check's output that holds a finding
_LEAST_S, _GRACE_S = 5.0, 3.0  # a check that has less is not started
_LOOK_S = 0.2  # between two looks at what a check prints
_LAST_LINES = 4  # of a check that crashed
_SLOWER = {"cuda": 1, "cpu": 4}  # a rehearsal's machine has much else to do
_MOST_BYTES = 2**22  # of one file that is kept
_MPI = "from mpi4py import MPI; print(MPI.COMM_WORLD.Get_size())"
_MPI_S = 20.0


class Check(NamedTuple):
    """``name`` is the function's in ``module``; ``limit_s`` the seconds that it may take, twice
    that where earlier checks left time; ``calls`` which of the four calls have it; ``no_card``
    says why a machine without a card cannot show it."""

    name: str
    module: str
    title: str
    limit_s: float
    calls: str = "1"
    no_card: str = ""


CHECKS = (
    Check("environment", "runs", "versions, the card, its clocks, an all-reduce", 40, "1234"),
    Check("ceilings", "speed", "matrix products and a copy, without a model", 30),
    Check("clock", "training", "events' times are the window's; a known kernel is seen", 25),
    Check("trained", "training", "precisions, optimizers, accumulation, eager", 60),
    Check("waiting", "training", "nothing waits for the device inside the window", 40,
          no_card="a CPU has no calls that wait"),
    Check("telemetry", "speed", "NVML: energy, and what watching costs", 45,
          no_card="a CPU has no NVML"),
    Check("memory", "speed", "a line through three batches predicts a fourth", 30,
          no_card="a CPU's resident set does not fall from batch to batch"),
    Check("checkpoint", "training", "10 + 10 iterations through a checkpoint against 20", 40),
    Check("wrapper", "speed", "the wrapper's loop beside a bare one", 25),
    Check("sharing", "runs", "two ranks on one card: a clear error, at once", 30,
          no_card="a CPU may be shared"),
    Check("sweep", "runs", "doctor, a sweep of up to three cases, its report", 75),
    Check("endings", "runs", "runs that raise, die, hang or run out of memory end so", 90),
    Check("numerics", "numerics", "tiny models against transformers, a CPU, compiled", 200, "2"),
    Check("matrix", "training", "precisions, compiled; mode tuned", 270, "2"),
    Check("models", "speed", "models beside transformers', eager", 200, "3"),
    Check("compiled", "speed", "models beside transformers', compiled", 290, "3"),
    Check("tuned", "speed", "models in mode tuned: MFU, kernels", 490, "4"),
)  # fmt: skip
"""Cheap ones first, compilation not in the first call; a call's limits total less than 9 min."""

FIRST = CHECKS[0].name


class Finding(NamedTuple):
    """One row: what was looked at, what was found, what was asked for, and the verdict; the pack
    adds the check, and the seconds from the check's start to this row."""

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
    call = f"run_check{(check.module, check.name, device)!r}"
    return [sys.executable, "-u", "-c", f"from dlperf_hpc.acceptance.pack import run_check; {call}"]


def run_check(module: str, name: str, device: str) -> None:
    """The process of a check: a line for each finding."""
    try:
        check = getattr(importlib.import_module(f"dlperf_hpc.acceptance.{module}"), name)
    except ImportError as error:
        lack = f"{sys.executable}: {error}: run this by the Python that has PyTorch"
        print(line(judged(IMPORTS, lack, "all that a check needs", False)))
        return
    for finding in check(device):
        print(line(finding), flush=True)


def line(finding: Finding) -> str:
    """What the process of a check prints for a finding."""
    return _MARK + json.dumps(finding)


def chosen(only: Sequence[str]) -> list[Check]:
    """The checks of these names or numbers of calls; all without any."""
    return [c for c in CHECKS if not only or c.name in only or set(c.calls) & set(only)]


def run_pack(
    out: Path,
    device: str,
    budget_s: float = math.inf,
    only: Sequence[str] = (),
    show: Callable[[str], None] = print,
) -> list[Finding]:
    """Run the checks that ``only`` chooses, in their order; the rows, which are in ``out`` as well.
    ``device`` is ``cuda`` or ``cpu`` (a rehearsal: each check at its smallest). A check that the
    budget does not reach gives a skipped row."""
    make_output_directory(out)
    (out / KEPT).unlink(missing_ok=True)
    env, allowed, start = _environment(), 0.0, time.monotonic()
    rows = _without_mpi(env)
    for check in chosen(only):
        show(f"{check.name}: {check.title}")
        limit_s, started = check.limit_s * _SLOWER[device], time.monotonic()
        allowed += limit_s

        def tell(finding: Finding, name: str = check.name, began: float = started) -> None:
            seconds = round(time.monotonic() - began, 1)
            rows.append(finding._replace(check=name, seconds=seconds))
            show(f"  {finding.verdict:8}{finding.what}: {finding.value}")
            write_atomically(out / ROWS, json.dumps(as_json(rows), indent=1) + "\n")
            write_atomically(out / TABLE, table(rows, device))

        if any((r.check, r.verdict) == (FIRST, FAIL) and r.what in (CARD, IMPORTS) for r in rows):
            tell(skipped("not begun", f"{FIRST} has failed"))
        elif check.no_card and device == "cpu":
            tell(skipped(check.name, check.no_card))
        else:
            left_s = start + min(allowed, budget_s) - started
            _run_one(check, device, min(left_s, 2 * limit_s), env, out / KEPT, tell)
    return rows


def _environment() -> dict[str, str]:
    """That of the checks: what they start finds this package too, wherever it runs."""
    here = Path(__file__).resolve().parents[2]
    places = [str(here), str(here / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def _without_mpi(env: dict[str, str]) -> list[Finding]:
    """Whether MPI starts, tried by a process, which a broken one may end. Without it the checks run
    as one process each, and a row says so."""
    if "DLPERF_MPI" in env:
        return []
    code, output = _run([sys.executable, "-c", _MPI], _MPI_S, env)
    if code == 0:
        return []
    env["DLPERF_MPI"] = "none"
    why = f"it does not start, all runs without it: {_last(output.splitlines())}"
    return [Finding("MPI", why, check=FIRST)]


def _last(lines: Sequence[str]) -> str:
    return " | ".join(filter(None, map(str.strip, lines[-_LAST_LINES:])))[-600:]


def _run_one(
    check: Check,
    device: str,
    left_s: float,
    env: dict[str, str],
    kept: Path,
    tell: Callable[[Finding], None],
) -> None:
    """Tell the findings of a check as they come, and how it ended if badly. It runs in a directory
    of its own."""
    if left_s < _LEAST_S:
        tell(skipped("not reached", "the budget was used up"))
        return
    verdicts = list[str]()

    def found(finding: Finding) -> None:
        verdicts.append(finding.verdict)
        tell(finding)

    def heard(text: str) -> None:
        if text.startswith(_MARK):
            found(Finding(*json.loads(text.removeprefix(_MARK))))

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        code, log = _run(command_of(check, device), left_s, env, scratch, heard)
        if code is None:
            found(Finding("ends", f"still ran after {left_s:.0f} s", verdict=CUT))
        elif code or not verdicts:
            words = [text for text in log.splitlines() if not text.startswith(_MARK)]
            value = f"exit code {code}: {_last(words)}"
            found(Finding("ends", value, "exit code 0, and a finding", FAIL))
        if {FAIL, CUT} & set(verdicts):
            _keep(kept, check.name, log, Path(scratch))


def _keep(kept: Path, name: str, log: str, scratch: Path) -> None:
    with zipfile.ZipFile(kept, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.log", log)
        for path in sorted(scratch.rglob("*")):
            if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                archive.write(path, f"{name}/{path.relative_to(scratch)}")


def failed(rows: Sequence[Finding]) -> bool:
    """Whether any row says FAIL."""
    return any(row.verdict == FAIL for row in rows)


def as_json(rows: Sequence[Finding]) -> dict[str, object]:
    """``{"ok": no row says FAIL, "rows": [{what, value, goal, verdict, check, seconds}]}``."""
    return {"version": __version__, "ok": not failed(rows), "rows": [row._asdict() for row in rows]}


def _run(
    command: list[str],
    limit_s: float,
    env: dict[str, str],
    cwd: str = "/",
    heard: Callable[[str], None] = lambda _line: None,
) -> tuple[int | None, str]:
    """Exit code of a process, None if it did not end in time, and what it printed, each whole line
    of which was ``heard`` as it came; all that it started ends."""
    # A file: a pipe that nobody reads would stop the process.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=env,
            cwd=cwd,
        )
        code, end, place = None, time.monotonic() + limit_s, 0
        try:
            while code is None and time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(_LOOK_S)
                place = _hear(output.fileno(), place, heard)
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
        _hear(output.fileno(), place, heard)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _hear(file: int, place: int, heard: Callable[[str], None]) -> int:
    """Hand over the whole lines of a file from a place on; the place behind them. The position of
    the file is that of the process which writes it."""
    data = os.pread(file, os.fstat(file).st_size - place, place)
    whole = data[: data.rfind(b"\n") + 1]
    for text in whole.decode(errors="replace").splitlines():
        heard(text)
    return place + len(whole)


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


def main() -> int:
    """Run the pack, and say where its table lies; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dlperf_hpc.acceptance.pack")
    names = [*(check.name for check in CHECKS), *CHECKS[0].calls]
    parser.add_argument("--out", type=Path, required=True, help="directory for the table")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    words = "by name, or those of a call (1 to 4) of less than nine minutes (default: all)"
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="CHECK", help=words)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the check
    try:
        rows = run_pack(given.out, given.device, only=given.only)
    except OSError as error:
        print(f"{given.out}: {error.strerror}: --out names a directory that can be written")
        return 2
    print(given.out / TABLE)
    return int(failed(rows))


if __name__ == "__main__":
    sys.exit(main())
