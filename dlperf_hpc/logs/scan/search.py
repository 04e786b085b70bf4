"""Many files at once: scanned in parallel, and not again while they stay as they are."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import active_children

from dlperf_hpc.errors import LogError
from dlperf_hpc.logs.scan.cache import ScanCache, packed, unpacked
from dlperf_hpc.logs.scan.scanner import scanner
from dlperf_hpc.logs.scan.sources import Source, blocks
from dlperf_hpc.logs.scanned import Note, ScannedFile
from dlperf_hpc.pools import POOL, end_with, has_room

Progress = Callable[[Source], None]
_MOST_WORKERS = 8  # a login node is everybody's
_FEW_BYTES = 8 << 20  # below this, starting other processes costs more than it saves
_TASK_BYTES = 1 << 23  # small files go to a worker in one task, as many as this
_KEPT_BYTES = 64 << 20  # of freed memory that a process does not give back
_AHEAD = 4  # tasks per worker that are given out, or done and not yet asked for

_Found = tuple[ScannedFile, bytes]  # and as the cache keeps it


@dataclass(frozen=True)
class Scanned:
    """A source and what is in it; ``cached``: as it was found an earlier time."""

    source: Source
    file: ScannedFile
    cached: bool = False


def scan_source(source: Source) -> ScannedFile:
    """Read one log to its end, or as far as it can be read: then with a note that says why."""
    trouble: list[str] = []

    def told() -> Iterator[bytes]:
        try:
            yield from blocks(source)
        except LogError as error:
            trouble.append(str(error))

    found = scanner().scan(source.name, source.size, told())
    return replace(found, notes=(*found.notes, *(Note(0, text) for text in trouble)))


def scan_all(
    sources: Sequence[Source],
    cache: ScanCache,
    progress: Progress = lambda _: None,
    workers: int | None = None,
) -> Iterator[Scanned]:
    """Every source's content, in the order of ``sources``; those in ``cache`` are not read.

    What is in memory does not grow with the number of files, nor with their sizes.
    """
    known = [cache.has(source) for source in sources]
    fresh = _scan([source for source, has in zip(sources, known) if not has], workers)
    for source, has in zip(sources, known):
        file = cache.get(source) if has else None
        cached = file is not None
        if file is None:
            # What the cache cannot read after all is read here.
            file, content = _found(source) if has else next(fresh)
            cache.put(source, content)
        progress(source)
        yield Scanned(source, file, cached)
    cache.save()


def _scan(sources: Sequence[Source], workers: int | None) -> Iterator[_Found]:
    _keep_memory()
    total = sum(source.size for source in sources)
    workers = min(workers or min(_MOST_WORKERS, len(os.sched_getaffinity(0))), len(sources))
    done = 0
    if workers > 1 and total >= _FEW_BYTES and has_room(workers + POOL):
        tasks = _tasks(sources, min(_TASK_BYTES, total // (4 * workers)))
        for content in _in_parallel(tasks, workers):
            done += 1
            yield unpacked(content), content
    yield from map(_found, sources[done:])


def _in_parallel(tasks: Iterator[list[Source]], workers: int) -> Iterator[bytes]:
    """What is in the tasks' sources, as other processes find it, in order. It ends early if these
    cannot be had after all, or one was killed (of memory, perhaps): the rest is left to be read."""
    import numpy  # noqa: F401 - as the scanner: so that a worker that is forked has it

    scanner()
    others, pool, whole = active_children(), None, True
    try:
        pool = ProcessPoolExecutor(workers, initializer=end_with, initargs=(os.getpid(),))
        given = (pool.submit(_scan_task, task) for task in tasks)
        waiting = deque(islice(given, _AHEAD * workers))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(islice(given, 1))
            yield from done
    except (OSError, RuntimeError):  # a broken pool is one of the latter
        whole = False  # such a pool must not be waited for
        for child in active_children():
            if child not in others:
                child.kill()
    finally:
        if pool is not None:
            pool.shutdown(wait=whole, cancel_futures=True)


def _keep_memory() -> None:
    """glibc: not to give each block back to the kernel and fault the next one in, page by page: a
    sixth of the time goes there. mallopt(3); workers are forked, and do the same."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        trim_threshold, mmap_threshold = -1, -3
        mallopt(trim_threshold, _KEPT_BYTES)
        mallopt(mmap_threshold, _KEPT_BYTES // 2)


def _tasks(sources: Sequence[Source], size: int) -> Iterator[list[Source]]:
    """The sources in turn, about ``size`` bytes in each task."""
    task: list[Source] = []
    for source in sources:
        task.append(source)
        if sum(each.size for each in task) >= size or len(task) == 64:
            yield task
            task = []
    if task:
        yield task


def _scan_task(sources: Sequence[Source]) -> list[bytes]:
    return [packed(scan_source(source)) for source in sources]


def _found(source: Source) -> _Found:
    file = scan_source(source)
    return file, packed(file)
