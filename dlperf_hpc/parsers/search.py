"""Many files at once: scanned in parallel, and not again while they stay as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from dlperf_hpc.errors import LogError
from dlperf_hpc.parsers.cache import ScanCache
from dlperf_hpc.parsers.scan import scanner
from dlperf_hpc.parsers.sources import Source, blocks
from dlperf_hpc.records.foreign import Note, ScannedFile

Progress = Callable[[Source], None]
_FEW_BYTES = 8 << 20  # below this, starting other processes costs more than it saves
_PER_TASK = 8


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
    """Every source's content, in the order of ``sources``; those in ``cache`` are not read."""
    known = {source: cache.get(source) for source in sources}
    new = [source for source in sources if known[source] is None]
    fresh = _scan(new, workers or len(os.sched_getaffinity(0)))
    for source in sources:
        file = known.pop(source)
        if file is None:
            scanned = Scanned(source, next(fresh))
            cache.put(source, scanned.file)
        else:
            scanned = Scanned(source, file, cached=True)
        progress(source)
        yield scanned
    cache.save()


def _scan(sources: Sequence[Source], workers: int) -> Iterator[ScannedFile]:
    few = sum(source.size for source in sources) < _FEW_BYTES
    if workers < 2 or few or len(sources) < 2:
        yield from map(scan_source, sources)
        return
    with ProcessPoolExecutor(min(workers, len(sources))) as pool:
        yield from pool.map(scan_source, sources, chunksize=_PER_TASK)
