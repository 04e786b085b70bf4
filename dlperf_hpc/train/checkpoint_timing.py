"""How long one checkpoint takes to save and to load, on the file system of the sweep's directory.

After the timed window, and after the steps with and without all-reduce. Whatever goes wrong here
costs the run nothing that was measured before: there is a reason in place of the figures.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dlperf_hpc.records.results import Checkpoint
from dlperf_hpc.train.checkpoints import files_of_rank, partial_directories
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.session import Session

_MARGIN_S = 60.0  # nobody knows how long it will take; the watchdog ends it at the time limit


def measure_checkpoint(
    session: Session,
    world: World,
    directory: Path,
    accumulation: int,
    left_s: float,
    beat: Callable[[], None],
    keep: bool = False,
) -> tuple[Checkpoint | None, str]:
    """Save into ``directory`` and load from it, once; all ranks take part and get the same answer.

    The figures, and the reason why some or all are missing ("" if none is). Nothing is saved with
    the time limit less than a minute away (``left_s``, seconds). The files are removed afterwards
    unless ``keep`` is set.
    """
    if world.broadcast(left_s < _MARGIN_S):
        return None, "the time limit is near"
    _end_accumulation(session, accumulation, beat)
    try:
        save_s, problem = _timed(session, world, lambda: session.save(directory))
        if problem:
            return None, problem
        beat()
        size = _size(world, directory)
        _forget_pages(world, directory)
        load_s, problem = _timed(session, world, lambda: session.load(directory))
        return Checkpoint(save_s, None if problem else load_s, size, world.size), problem
    finally:
        if world.rank == 0:
            remove(directory, keep)


def remove(directory: Path, keep: bool = False) -> None:
    """Remove a checkpoint, unless it is to be kept, and what is left of attempts to save it."""
    for path in partial_directories(directory) + ([] if keep else [directory]):
        shutil.rmtree(path, ignore_errors=True)


def _end_accumulation(session: Session, accumulation: int, beat: Callable[[], None]) -> None:
    """Iterate up to the end of an optimizer step: only there can a checkpoint be taken."""
    steps = session.counts()[0]
    for _ in range(accumulation):
        session.iterate()
        beat()
        if session.counts()[0] > steps:
            return


def _timed(session: Session, world: World, act: Callable[[], None]) -> tuple[float, str]:
    """Seconds from a barrier until the slowest rank is done, and what the first one failed of."""
    problem = ""
    session.synchronize()
    world.barrier()
    start = time.perf_counter_ns()
    try:
        act()
        session.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason to lose the window
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
    elapsed = (time.perf_counter_ns() - start) / 1e9
    found = world.gather((elapsed, problem))
    return max(seconds for seconds, _ in found), next((text for _, text in found if text), "")


def _size(world: World, directory: Path) -> int:
    """Bytes of all files. Each node tells of those it sees: a network file system may show a node
    those of the others later."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    seen = {str(path.relative_to(directory)): path.stat().st_size for path in paths}
    sizes: dict[str, int] = {}
    for told in world.gather(seen if world.local_rank == 0 else {}):
        for name, size in told.items():
            sizes[name] = max(size, sizes.get(name, 0))
    return sum(sizes.values())


def _forget_pages(world: World, directory: Path) -> None:
    """Ask each node's kernel to drop the files from its page cache, where it was left by saving."""
    for path in files_of_rank(world, directory):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    world.barrier()
