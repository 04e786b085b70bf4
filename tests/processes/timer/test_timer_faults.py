"""Whatever a Timer or the hook calls may raise: the program goes on as long as it would have.

A first loop shows what they call; in each later one another of these calls raises, on its way in.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from dlperf_hpc import Timer, hook
from dlperf_hpc.hook import OptimizerSteps
from dlperf_hpc.timer import config
from dlperf_hpc.train import joblog

LONG = 30  # iterations: less than those of the usual window
Site = tuple[CodeType, int, str]
PLACES = (str(Path(config.__file__).parent), hook.__file__)
# The program's own data, which may raise as it likes; and what cannot raise but for want of memory.
NOT_OURS = {
    "iter",
    "next",
    "perf_counter_ns",
    "__enter__",
    "__exit__",
    "get_ident",
    "RLock",
    "add",
    "__del__",
    "told",
}
PLAIN = {("_iterations", "__init__"), ("report", "__init__"), ("loss", "open")}
PLAIN |= {("optimizer_step", "append")}
PRINTING = {"write", "rank", "<lambda>"}
# Those that catch what is raised below them, and the generators that a program's `for` resumes.
GUARDS = {
    "_iterations",
    "_timed",
    "_over",
    "_advance",
    "_harmless",
    "_try",
    "harmless",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if re.match("DLPERF_|SLURM_|PMI|OMPI_|MPI_|(LOCAL_)?(RANK|WORLD_SIZE)$", name):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Calls:
    """Calls that the package makes in this thread: each place of one once, and what happens there.
    ``at`` is the number of the place whose first call raises."""

    def __init__(self, at: int = -1, error: type[Exception] = RuntimeError) -> None:
        self.sites: dict[Site, int] = {}
        self._at, self._error = at, error

    def __call__(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "call":
            caller, name = frame.f_back, frame.f_code.co_name
        elif event == "c_call":
            caller, name = frame, what.__name__
        else:
            return
        if caller is None or not caller.f_code.co_filename.startswith(PLACES):
            return
        if name in NOT_OURS | GUARDS or (caller.f_code.co_name, name) in PLAIN:
            return
        site = (caller.f_code, caller.f_lineno, name)
        if site in self.sites:
            return
        self.sites[site] = len(self.sites)
        if self.sites[site] == self._at:
            raise self._error(f"planted in {name}")


def profiled(calls: Calls, run: Callable[[], Any]) -> Any:
    before = sys.getprofile()
    sys.setprofile(calls)
    try:
        return run()
    finally:
        sys.setprofile(before)


def loop() -> int:
    timer = Timer(batch_size=1, warmup=2, iterations=3, min_seconds=1e-9, sync=lambda: None)
    done = 0
    for _ in timer(range(40)):
        timer.loss(1.0)
        timer.optimizer_step()
        done += 1
        if done == LONG:
            break
    timer.close()
    return done


class Optimizer:
    pass


def hooked() -> int:
    seen = OptimizerSteps(Timer(batch_size=1, warmup=1, iterations=2, stop=False, quiet=True))
    optimizers = Optimizer(), Optimizer()
    for _ in range(3):
        for each in optimizers:
            seen.after_step(each)
    seen.report(None)
    return 3


@pytest.mark.parametrize("program", [loop, hooked])
def test_no_call_can_end_a_program(
    program: Callable[[], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("provenance", "packages"):  # which take tenths of a second
        monkeypatch.setattr(joblog, name, lambda *_: {})
    monkeypatch.setattr(os, "fsync", lambda _: None)
    usual = program()
    calls = Calls()
    assert profiled(calls, program) == usual
    sites = list(calls.sites)
    assert len(sites) > 100
    capsys.readouterr()
    wrong = []
    for number, site in enumerate(sites):
        where = f"{site[0].co_name}:{site[1]} {site[2]}"
        monkeypatch.setenv("DLPERF_LOGS", f"logs/{number}")
        try:
            done = profiled(Calls(number), program)
        except Exception as error:  # noqa: BLE001 - each is what is looked for
            wrong.append(f"{where}: {error!r}")
            continue
        text = capsys.readouterr().err
        # Where nobody knows which window was wanted it is the usual one.
        spoken = "no number" in text or "samples/s" in text or site[2] in PRINTING
        if done not in (usual, LONG) or not spoken:
            wrong.append(f"{where}: {done} iterations, {text}")
    assert not wrong, "\n".join(wrong)


class Meeting:
    """A communicator of two threads, which meet as two processes do; also whether they all came."""

    def __init__(self) -> None:
        self.barrier, self.rows = threading.Barrier(2, timeout=20), [None, None]
        self.rank = threading.local()

    def Get_rank(self) -> int:
        return int(self.rank.value)

    def Get_size(self) -> int:
        return 2

    def Barrier(self) -> None:
        self.barrier.wait()

    def allgather(self, value: Any) -> list[Any]:
        self.rows[self.Get_rank()] = value
        self.barrier.wait()
        found = list(self.rows)
        self.barrier.wait()
        return found

    def bcast(self, value: Any, root: int = 0) -> Any:
        return self.allgather(value)[root]


def together(calls: Calls, rank: int) -> tuple[Meeting, list[int]]:
    """Two processes' loops, in one of which a call raises, and how many iterations each made."""
    meeting, done = Meeting(), [0, 0]

    def run(mine: int) -> None:
        meeting.rank.value = mine
        done[mine] = profiled(calls, loop) if mine == rank else loop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "_groups", lambda: [meeting])
        threads = [threading.Thread(target=run, args=(mine,)) for mine in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    return meeting, done


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_without_a_number_still_meets_the_others(
    rank: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mismatch of collective calls would end, or hold up, the program's own."""
    for name in ("provenance", "packages"):
        monkeypatch.setattr(joblog, name, lambda *_: {})
    monkeypatch.setattr(os, "fsync", lambda _: None)
    calls = Calls()
    _, usual = together(calls, rank)
    capsys.readouterr()
    wrong: list[str] = []
    local = {"device_facts", "rank_facts", "synchronize", "WindowClock", "losses", "step_times",
             "memory_mb", "kept", "open_log", "log_start", "log_event", "odd", "clone", "start",
             "unwaited", "iteration", "log_window", "timed_line", "finish", "sentence"}  # fmt: skip
    sites = [site for site in calls.sites if site[2] in local]
    assert usual == [5, 5] and len(sites) > 15 - 5 * rank
    for site in sites:
        monkeypatch.setenv("DLPERF_LOGS", f"logs/{len(wrong)}-{calls.sites[site]}")
        meeting, done = together(Calls(calls.sites[site]), rank)
        text = capsys.readouterr().err
        if done != usual or meeting.barrier.broken or "dlperf_hpc: " not in text:
            wrong.append(f"{site[0].co_name}:{site[1]} {site[2]}: {done}, {text}")
    assert not wrong, "\n".join(wrong)
