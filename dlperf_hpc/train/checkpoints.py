"""A checkpoint: one directory that all ranks write together, and that is whole or is not there; and
how long one takes to save and to load, on the file system of the sweep's directory.

It is timed after the window, and after the steps with and without all-reduce. Whatever goes wrong
then costs the run nothing that was measured before: there is a reason in place of the figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import RunError
from dlperf_hpc.files import dump_json
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import Checkpoint
from dlperf_hpc.train.measurement import IterationClock
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.session import Session

if TYPE_CHECKING:
    from dlperf_hpc.train.feeds import Feed  # which needs NumPy

_NAME = "checkpoint.json"
# Where data lies and how a sweep calls the case may be another when training goes on.
_FREE = ("data_path", "environment", "tags", "threads", "topology", "processes_per_node")


def rank_file(directory: Path, rank: int, ending: str) -> Path:
    """The file of one rank."""
    return directory / f"rank-{rank:05d}.{ending}"


def files_of_rank(world: World, directory: Path) -> list[Path]:
    """A rank's share of the files below a directory: the ranks of a node have each file once."""
    paths = sorted(filter(Path.is_file, directory.rglob("*")))
    return paths[world.local_rank :: world.local_size]


class Resumable:
    """What sessions of all libraries share: their half of ``save`` and ``load``, the clock, and the
    wait for data. A session that derives from it writes and reads one rank's part itself."""

    case: Case
    world: World
    parameters: int
    _feed: Feed | None
    _micro_steps: int
    _loss: Any
    _clock: IterationClock

    def mark(self) -> None:
        """See :class:`dlperf_hpc.train.session.Session`."""
        self._clock.mark(self._loss)

    def data_wait_s(self) -> float:
        """Synthetic data lies on the device before the window opens: 0 then."""
        return self._feed.waited_s if self._feed else 0.0

    def training_facts(self) -> dict[str, Any]:
        """The size of what is trained, and how real data is shared out."""
        facts = {"parameters": self.parameters}
        return {**facts, **self._feed.facts} if self._feed else facts

    def write_state(self, directory: Path) -> None:
        """Put this rank's part of a checkpoint into ``directory``."""
        raise NotImplementedError

    def read_state(self, directory: Path) -> None:
        """Take this rank's part of the checkpoint in ``directory``."""
        raise NotImplementedError

    def save(self, directory: Path) -> None:
        """See :class:`dlperf_hpc.train.session.Session`. ``directory`` gets its name when all is in
        it and every node has synced what its ranks wrote (fsync). A save that fails leaves nothing;
        of one that was killed a hidden ``.partial`` directory is left."""
        world, name = self.world, f".{directory.name}.{uuid.uuid4().hex}.partial"
        partial = directory.with_name(world.broadcast(name))
        header = {"settings": _settings(self.case), "micro_steps": self._micro_steps}

        def begin() -> None:
            if self._micro_steps % self.case.accumulation:
                raise RunError("a checkpoint can be taken only after a whole optimizer step")
            if world.rank:
                return  # a network file system would go on showing this node what it saw too early
            if directory.exists():
                raise RunError(f"{directory} is there already: save into a new directory")
            partial.mkdir(parents=True)

        def sync() -> None:
            # On the node that wrote it: another's fsync would not reach pages that lie here.
            for path in files_of_rank(world, partial):
                _to_disk(path)

        def finish() -> None:
            if world.rank == 0:
                (partial / _NAME).write_text(dump_json(header), encoding="utf-8")
                _end_save(partial, directory)

        try:
            for act in (begin, lambda: self.write_state(partial), sync, finish):
                _together(world, f"no checkpoint in {directory}", act)
        except RunError:
            if world.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise

    def load(self, directory: Path) -> None:
        """See :class:`dlperf_hpc.train.session.Session`."""
        header: dict[str, Any] = {}
        where = f"the checkpoint in {directory} cannot be loaded"
        _together(self.world, where, lambda: header.update(_read(directory, self.case)))
        _together(self.world, where, lambda: self.read_state(directory))
        self._micro_steps = int(header["micro_steps"])
        if self._feed:
            self._feed.go_on(1 + self._micro_steps)  # one was taken when the session was made


def _together(world: World, what: str, act: Callable[[], None]) -> None:
    """RunError on every rank if one fails: none is left waiting for another."""
    problem = None
    try:
        act()
    except RunError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - each library's own, for a full disk or a torn file
        problem = f"{what}: rank {world.rank}: {type(error).__name__}: {error}"
    for text in filter(None, world.gather(problem)):
        raise RunError(text)


def _end_save(partial: Path, directory: Path) -> None:
    """Give a checkpoint that is whole its name."""
    directories = filter(Path.is_dir, partial.rglob("*"))
    for path in (partial / _NAME, *directories, partial):
        _to_disk(path)
    partial.rename(directory)
    _to_disk(directory.parent)


def _to_disk(path: Path) -> None:
    with _opened(path) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(directory: Path, case: Case) -> dict[str, Any]:
    file = directory / _NAME
    if not file.is_file():
        raise RunError(f"there is no checkpoint in {directory}: it has no {_NAME}")
    header: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    there, here = header["settings"], json.loads(dump_json(_settings(case)))
    keys = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
    if keys:
        apart = "; ".join(f"{key} is {there.get(key)} there, {here.get(key)} here" for key in keys)
        raise RunError(f"the checkpoint in {directory} is another training's: {apart}")
    return header


def _settings(case: Case) -> dict[str, Any]:
    """What has to be the same where training goes on, flat."""
    flat: dict[str, Any] = {"ranks": case.ranks, "devices": case.topology.devices}
    for key, value in case.to_dict().items():
        if isinstance(value, dict):
            flat.update({f"{key}.{name}": each for name, each in value.items()})
        elif key not in _FREE:
            flat[key] = value
    # Only where training begins.
    return {key: value for key, value in flat.items() if key != "options.initial_weights"}


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
    """Save into ``directory`` and load from it, once; all ranks take part and get the same figures,
    and the reason why some or all are missing, else "". Nothing is saved with the time limit less
    than a minute away (``left_s``, seconds). Without ``keep`` the files are removed."""
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
    for path in directory.parent.glob(f".{directory.name}.*.partial"):
        shutil.rmtree(path, ignore_errors=True)
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)


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
    """Bytes of all files, as all nodes see them: one may not see yet what another has written."""
    paths = filter(Path.is_file, directory.rglob("*"))
    seen = {str(path.relative_to(directory)): path.stat().st_size for path in paths}
    sizes: dict[str, int] = {}
    for node in world.gather(seen if world.local_rank == 0 else {}):
        for name, size in node.items():
            sizes[name] = max(size, sizes.get(name, 0))
    return sum(sizes.values())


def _forget_pages(world: World, directory: Path) -> None:
    """Ask each node's kernel to drop the files from its page cache, where it was left by saving."""
    for path in files_of_rank(world, directory):
        with contextlib.suppress(OSError), _opened(path) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    world.barrier()
