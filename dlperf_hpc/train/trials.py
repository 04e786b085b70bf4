"""One trial of a batch size: a child of each rank opens the session, does a few optimizer steps and
ends, so that memory which cannot be had ends the child and not the rank.

A process joins MPI once, and the rank has done so: what children exchange goes through a pipe to
their ranks, which exchange it by MPI. The ranks do that in step, several times a second and also
where a child has nothing to say, so that none of them waits for a rank whose child is dead.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from typing import IO, Any

from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import Status
from dlperf_hpc.pools import end_with
from dlperf_hpc.records import failures
from dlperf_hpc.records.failures import Verdict
from dlperf_hpc.records.store import describe, format_trace
from dlperf_hpc.train import measurement
from dlperf_hpc.train.drills import drill
from dlperf_hpc.train.probe.node import kernel_value
from dlperf_hpc.train.ranks import World, communicator
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.session import fault_of

_OF_RANKS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
_TICK_S = 0.05
_GRACE_S = 3.0  # for the others' accounts, once the child of one rank has failed
_FEWEST = 4  # iterations, so that a back end that compiles has looked at one
_MOST_WORDS = 1 << 16  # of what a child printed last


@dataclass(frozen=True)
class TrialEnd:
    """How the child of a rank ended: with its peak memory (MiB), or by a verdict; with neither its
    rank ended it. ``consequence``: it only lost another rank's child."""

    host: str
    memory_mb: float | None = None
    verdict: Verdict | None = None
    consequence: bool = False

    @property
    def no_memory(self) -> bool:
        """Whether it ended because memory could not be had."""
        return self.verdict is not None and self.verdict.status is Status.OUT_OF_MEMORY


def try_case(case: Case, world: World, beat: Callable[[], None]) -> list[TrialEnd]:
    """How the children of all ranks ended, in order of rank, on every rank. ``beat`` is called
    whenever a child of any rank makes progress."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryFile() as words:
        name = f"/proc/{os.getpid()}/fd/{words.fileno()}"
        place = replace(world, comm=None)
        child = context.Process(target=_child, args=(theirs, name, case, place, os.getpid()))
        _start(child)
        theirs.close()
        relay = _Relay(world, ours, child, words, beat)
        try:
            ends = relay.ends()
        finally:
            child.kill()
            child.join()
            ours.close()
        if any(each.verdict and not each.no_memory for each in ends):
            sys.stderr.write(relay.printed())
        return ends


def _start(child: Any) -> None:
    """Start a child that leaves signals to its rank, and looks for no modules where we are."""
    resource_tracker.ensure_running()  # its start would let them through
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_RANKS)
    here = os.getcwd()
    os.chdir("/")
    child.start()
    os.chdir(here)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@dataclass
class _Relay:
    """What a rank does while the children train."""

    world: World
    pipe: Any
    child: Any
    words: IO[bytes]
    beat: Callable[[], None]

    def ends(self) -> list[TrialEnd]:
        mine, last, killed = None, float("inf"), _kills()
        while True:
            mine = self._latest(mine, last, killed)
            everyone = self.world.gather(mine)
            if any(everyone):
                self.beat()
            ended = [each for each in everyone if isinstance(each, TrialEnd)]
            if len(ended) == len(everyone):
                return ended
            if any(each.verdict for each in ended):
                last = min(last, time.monotonic() + _GRACE_S)  # some may wait for it in vain
            elif not ended and all(everyone):
                self.pipe.send([value for (value,) in everyone])
                mine = None

    def _latest(self, mine: Any, last: float, killed: int) -> Any:
        """What the child has said and waits for an answer to, or how it ended; None for neither."""
        if isinstance(mine, TrialEnd):
            return mine
        if time.monotonic() > last:
            return TrialEnd(self.world.host)
        return mine or self._message(killed)

    def _message(self, killed: int) -> Any:
        """What the child says, or how it died; None if it says nothing for a moment."""
        with suppress(EOFError, ConnectionResetError):
            if not self.pipe.poll(_TICK_S):
                return None
            said = self.pipe.recv()
            if said is None:
                self.beat()
            return said
        self.child.join()
        return self._death(killed)

    def printed(self) -> str:
        """The last that the child printed."""
        self.words.seek(max(0, self.words.seek(0, os.SEEK_END) - _MOST_WORDS))
        return self.words.read().decode(errors="replace")

    def _death(self, killed: int) -> TrialEnd:
        """How a child ended that could not say so: by what it printed, or by the kernel."""
        printed = self.printed()
        last = next((line for line in reversed(printed.splitlines()) if line.strip()), "")
        code = self.child.exitcode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        reason = f"its process ended with {how}" + f": {last[:300]}" * bool(last)
        row = failures.found_in(printed, failures.Where.PROGRAM)
        verdict = Verdict(Status.FAILED, reason)
        if row is not None and row.status is Status.OUT_OF_MEMORY:
            verdict = Verdict(row.status, reason, failures.SIGNS, row.cause)
        elif code == -signal.SIGKILL and _kills() > killed:
            reason = "the kernel killed its process, as memory could not be had (oom_kill)"
            verdict = Verdict(Status.OUT_OF_MEMORY, reason, failures.SIGNS, failures.HOST_MEMORY)
        return TrialEnd(self.world.host, verdict=verdict)


def _kills() -> int:
    """How many processes this machine's kernel has killed for memory; 0 if it does not say."""
    return int(kernel_value("/proc/vmstat", "oom_kill") or 0)


# --- in the child


def _through(pipe: Any, place: World) -> Any:
    """A communicator through that of the rank."""

    def allgather(value: Any) -> Any:
        pipe.send((value,))
        return pipe.recv()

    return communicator(place.rank, place.size, allgather)


def _child(pipe: Any, words: str, case: Case, place: World, parent: int) -> None:
    end_with(parent)
    os.dup2(os.open(words, os.O_WRONLY | os.O_APPEND), 2)
    with suppress(OSError):  # if the kernel must kill a process of this node, then this one
        Path("/proc/self/oom_score_adj").write_text("1000")
    world, modules = replace(place, comm=_through(pipe, place)), list[str]()
    try:
        end = TrialEnd(world.host, _train(case, world, modules, lambda: pipe.send(None)))
    except BaseException as error:  # noqa: BLE001 - the process's edge: its rank judges
        trace = format_trace(error)
        print(trace, file=sys.stderr, flush=True)
        verdict = replace(
            failures.of_error(error), reason=describe(error), fault=fault_of(error, modules)
        )
        lost = verdict.cause in ("", failures.NETWORK) and failures.is_of_lost_peer(trace)
        end = TrialEnd(world.host, verdict=verdict, consequence=lost)
    pipe.send(end)
    os._exit(0)


def _train(case: Case, world: World, modules: list[str], beat: Callable[[], None]) -> float:
    """Two optimizer steps or more, as a run's warm-up does them; the peak memory, MiB."""
    declared = registry()
    workload, backend = declared.workloads[case.model], declared.backends[case.framework]
    modules += [backend.library, *backend.modules]
    session = backend.open_session(case, world, workload)
    drill(world.rank, case)
    measurement.warm_up(session, max(_FEWEST, 2 * case.accumulation), beat)
    world.barrier()  # none leaves while another still needs it
    return float(session.memory_mb())
