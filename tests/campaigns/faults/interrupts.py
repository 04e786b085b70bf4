"""Sweeps on this machine that are interrupted at a random instant: ``python
tests/campaigns/faults/interrupts.py``. Signals as a terminal, a shell or the kernel sends them, to
real sweeps; ranks under MPI, under torchrun, of any program, some of which ignore SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pty
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from places import BUSY, ROOT
from queueing import files_of_ok_runs
from sweeping import Workplace, local_environment

from dlperf_hpc.cli import rerun, status, sweep
from dlperf_hpc.train.joblog import provenance

PROGRAMS = ROOT / "tests" / "support" / "programs"
PATIENCE_S = 90.0 * BUSY
TOKEN = "INTERRUPTED_SWEEP"  # in the environment of all that a trial starts
ANY = """
repeats = 3
topologies = ["1n2g"]
base = "1n2g"
time_limit = "00:02:00"
[measure]
warmup = 3
iterations = 20
[case]
framework = "mine"
model = "toy"
batch_size = 4
[program.mine]
launch = "{launch}"
workdir = "{programs}"
run = ["steps.py", "30", "40", "{{global_batch}}", "{what}", "{{scratch}}"]
[program.mine.read]
format = "megatron"
"""
SWEEPS: dict[str, str] = {
    "any program": ANY.format(launch="rank", programs=PROGRAMS, what="plain"),
    "deaf": ANY.format(launch="rank", programs=PROGRAMS, what="deaf"),
    "nested": ANY.format(launch="rank", programs=PROGRAMS, what="nested"),
    "torchrun": ANY.format(launch="torchrun", programs=PROGRAMS, what="deaf"),
    "MPI": "",  # the wrapper's own tiny BERT
}
"""What is interrupted; of ``nested`` ranks start processes in sessions of their own, which ignore
SIGTERM, and end only by themselves."""

Strike = Callable[["_Sweep", random.Random], None]


def _press(times: int) -> Strike:
    """Ctrl-C: to the terminal's process group."""

    def strike(sweep: _Sweep, dice: random.Random) -> None:
        for count in range(times):
            time.sleep(dice.uniform(0, 1.0) * (count > 0))
            sweep.send(signal.SIGINT, whole_group=True)

    return strike


def _to_sweep(number: int) -> Strike:
    """A signal to the sweep's process alone."""
    return lambda sweep, _dice: sweep.send(number)


STRIKES: dict[str, Strike] = {
    "Ctrl-C once": _press(1),
    "Ctrl-C twice": _press(2),
    "Ctrl-C three times": _press(3),
    "SIGTERM": _to_sweep(signal.SIGTERM),
    "SIGHUP": _to_sweep(signal.SIGHUP),
    "the terminal is closed": lambda sweep, _dice: sweep.hang_up(),
    "SIGKILL": _to_sweep(signal.SIGKILL),
}


@dataclass
class Count:
    """What came of some interrupts of one kind."""

    interrupts: int = 0
    runs: int = 0
    ok_before: int = 0
    interrupted: int = 0
    without_an_end: int = 0
    otherwise: int = 0
    ranks_alive: int = 0
    not_taken: int = 0
    altered: int = 0

    def __iadd__(self, other: Count) -> Count:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self

    @property
    def good(self) -> bool:
        return not any((self.without_an_end, self.ranks_alive, self.not_taken, self.altered))


def interrupt(home: Path, strike: str, kind: str, after_s: float, dice: random.Random) -> Count:
    """One sweep, struck ``after_s`` after its first run's log, or before; and what was left."""
    place = Workplace(home, {**local_environment(), TOKEN: str(home)})
    root = place.directory("struck")
    spec = place.tiny("struck", ["1n2g"], 3)
    if SWEEPS[kind]:
        spec = place.write("struck.toml", SWEEPS[kind])
    sweep = _Sweep(place, spec)
    try:
        _wait(lambda: after_s < 0 or not sweep.lives() or bool(_logs(root)))
        time.sleep(abs(after_s))
        before = files_of_ok_runs(root) if (root / "manifest.json").exists() else {}
        struck = sweep.lives()
        if struck:
            STRIKES[strike](sweep, dice)
        _wait(lambda: not sweep.lives())
    finally:
        sweep.close()
    if not (root / "manifest.json").exists():
        return Count(interrupts=struck)
    return _judged(place, root, before, struck)


class _Sweep:
    """A sweep in the foreground of a terminal of its own; a process of this one's, forked, so that
    a hundred of them do not import everything a hundred times."""

    def __init__(self, place: Workplace, spec: Path) -> None:
        self._ended = False
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            _be_the_sweep(place, spec)
        os.set_blocking(self._terminal, False)

    def lives(self) -> bool:
        """Whether it has not ended. What it prints is read, as a terminal does."""
        with contextlib.suppress(OSError):
            os.read(self._terminal, 1 << 16)
        self._ended = self._ended or os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return not self._ended

    def send(self, number: int, whole_group: bool = False) -> None:
        if self.lives():
            with contextlib.suppress(ProcessLookupError):  # not yet the leader of a group
                (os.killpg if whole_group else os.kill)(self.pid, number)

    def hang_up(self) -> None:
        """Close the terminal: the kernel sends SIGHUP, and nothing can be printed any more."""
        with contextlib.suppress(OSError):
            os.close(self._terminal)

    def close(self) -> None:
        self.send(signal.SIGKILL)
        self.hang_up()


def _be_the_sweep(place: Workplace, spec: Path) -> NoReturn:
    code = 1
    try:
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(place.root)
        os.environ.clear()
        os.environ.update({**place.env, "OMP_NUM_THREADS": "1"})
        code = sweep.main([str(spec), "--cluster", "local", "--no-check", "--json"])
    finally:
        os._exit(code)


def _judged(place: Workplace, root: Path, before: dict[Path, bytes], struck: bool) -> Count:
    rows = _verb(status.main, root)["runs"]
    alive = _processes(f"{TOKEN}={place.root}")
    names: set[str] = set()
    for array in _verb(rerun.main, root, "--dry-run")["arrays"]:
        names.update(array["runs"])
    after = files_of_ok_runs(root)
    count = Count(int(struck), len(rows), ranks_alive=len(alive))
    count.altered = sum(after.get(path) != data for path, data in before.items())
    for row in rows:
        _add(count, row, row["run"] in names)
    if not count.good:
        print(json.dumps(rows, indent=1), alive, names, file=sys.stderr)
    return count


def _verb(main: Callable[..., int], root: Path, *options: str) -> dict[str, Any]:
    """What a verb prints as JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main([str(root), *options, "--json"])
    printed: dict[str, Any] = json.loads(out.getvalue())
    return printed


def _add(count: Count, row: dict[str, Any], taken: bool) -> None:
    if row["status"] == "ok":
        count.ok_before += 1
    elif not row["submitted"]:
        return  # the same sweep again submits it
    elif row["status"] in ("running", "unknown", "pending"):
        count.without_an_end += 1
    elif row["status"] == "cancelled" and row["reason"].startswith("interrupted"):
        count.interrupted += 1
    else:
        count.otherwise += 1
    count.not_taken += row["status"] != "ok" and not taken


def completed(place: Workplace, root: Path) -> bool:
    """Whether ``rerun``, and ``sweep`` for what never was in the queue, complete the sweep."""
    before = files_of_ok_runs(root)
    place.verb("rerun", root, "--json")
    done = place.verb("sweep", place.root / "struck.toml", "--cluster", "local", "--json")
    after = files_of_ok_runs(root)
    return done.returncode == 0 and all(after.get(path) == data for path, data in before.items())


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.02)


def _logs(root: Path) -> list[Path]:
    return list(root.glob("*/*/*/*/*.log"))


def _processes(mark: str) -> list[str]:
    """The command lines of all processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def campaign(number: int, kinds: Sequence[str], seed: int) -> Iterator[tuple[str, Count]]:
    """So many interrupts, each way in turn, over the kinds of sweeps; every 20th sweep is
    completed."""
    dice, ways = random.Random(seed), list(STRIKES)
    with tempfile.TemporaryDirectory(prefix="interrupts-", ignore_cleanup_errors=True) as folder:
        for turn in range(number):
            strike, kind = ways[turn % len(ways)], kinds[turn // len(ways) % len(kinds)]
            home = Path(folder, str(turn))
            home.mkdir()
            count = interrupt(home, strike, kind, dice.uniform(-2.0, 6.0), dice)
            root = home / "logs" / "struck"
            if turn % 20 == 5 and (root / "manifest.json").exists():
                place = Workplace(home, local_environment())
                count.not_taken += not completed(place, root)
            print(f"{turn:3} {strike:24} {kind:12} {count}", file=sys.stderr, flush=True)
            yield strike, count
            shutil.rmtree(home, ignore_errors=True)


def table(counts: dict[str, Count]) -> str:
    """As a table of the docs."""
    names = [each.name for each in fields(Count)]
    rows = [["interrupt", *(name.replace("_", " ") for name in names)]]
    rows.append(["---", *["---:"] * len(names)])
    for strike, count in counts.items():
        rows.append([strike, *(str(getattr(count, name)) for name in names)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=105, help="of interrupts (105)")
    parser.add_argument("--kinds", default=",".join(SWEEPS), help="of sweeps: all by default")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts = {strike: Count() for strike in (*STRIKES, "all")}
    for strike, count in campaign(arguments.number, arguments.kinds.split(","), arguments.seed):
        counts[strike] += count
        counts["all"] += count
    print(f"dlperf_hpc at {provenance()['tool_commit']}\n\n{table(counts)}")
    return 0 if counts["all"].good else 1


if __name__ == "__main__":
    sys.exit(main())
