"""Many files at once: scanned in parallel, and not again while they have not changed.

What was found in a file travels from the process that read it, and lies in the cache, as few bytes:
:mod:`.packing`.

The cache knows a file by device, inode, size and the times of its last changes; a clock that is set
back changes the last of these too. A file that was written a moment ago may still change within the
clock's grain, so it is not kept. The cache lies in the user's own directory and never beside the
logs, and a damaged one only costs the time to read the logs again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from stat import S_ISREG

from dlperf_hpc import pools
from dlperf_hpc.errors import LogError
from dlperf_hpc.logs.format import OUR_OWN
from dlperf_hpc.logs.recognised import HEAD_BYTES, programs_in
from dlperf_hpc.logs.scan.packing import checked, packed, unpacked
from dlperf_hpc.logs.scan.scanner import scanner
from dlperf_hpc.logs.scan.sources import Source, blocks
from dlperf_hpc.logs.scanned import Note, ScannedFile
from dlperf_hpc.logs.tableformat import format_of
from dlperf_hpc.sweepfile.readtable import ReadTable

# --- scanning

Progress = Callable[[Source], None]
_MOST_WORKERS = 8  # a login node is everybody's
_FEW_BYTES = 8 << 20  # below this, starting other processes costs more than it saves
_TASK_BYTES = 1 << 23  # small files go to a worker in one task, as many as this
_KEPT_BYTES = 64 << 20  # of freed memory that a process does not give back
_AHEAD = 4  # tasks per worker that are given out, or done and not yet asked for

_Found = tuple[ScannedFile, bytes]  # and as the cache keeps it

Told = tuple[str, ReadTable]
"""A format that a user tells: its name, and its table."""


@dataclass(frozen=True)
class Scanned:
    """A source and what was found in it, now or (``cached``) at an earlier time."""

    source: Source
    file: ScannedFile
    cached: bool = False


def scan_source(source: Source, told: Told | None = None) -> ScannedFile:
    """Read one log to its end, or as far as it can be read: a note then says why it ends there. In
    what has no known format it is looked who else may have written it. Where lines are as ``told``,
    other programs' formats do not count: whoever tells a format knows whose log it is."""
    trouble: list[str] = []

    def readable() -> Iterator[bytes]:
        try:
            yield from blocks(source)
        except LogError as error:
            trouble.append(str(error))

    own = format_of(told[1], told[0]) if told else None
    found = scanner(own).scan(source.name, source.size, readable())
    if own and any(each.format == own.name for each in found.readings):
        kept = (own.name, OUR_OWN)
        found = replace(found, readings=tuple(r for r in found.readings if r.format in kept))
    program = "" if found.readings else ", ".join(programs_in(_head(source)))
    notes = (*found.notes, *(Note(0, text) for text in trouble))
    return replace(found, program=program, notes=notes)


def _head(source: Source) -> bytes:
    """The beginning of a log, as far as it can be read: read anew, since most logs have readings
    and need not be kept for this."""
    head = bytearray()
    try:
        for block in blocks(source):
            head += block[: HEAD_BYTES - len(head)]
            if len(head) >= HEAD_BYTES:
                break
    except LogError:
        pass  # which the scan has told
    return bytes(head)


def scan_all(
    sources: Sequence[Source],
    cache: ScanCache,
    progress: Progress = lambda _: None,
    workers: int | None = None,
    told: Told | None = None,
) -> Iterator[Scanned]:
    """What is in every source, in the order of ``sources``; those in ``cache``, which must have
    been made for the format ``told``, are not read again.

    The memory in use grows neither with the number of files nor with their sizes.
    """
    known = [cache.has(source) for source in sources]
    fresh = _scan([source for source, has in zip(sources, known) if not has], workers, told)
    for source, has in zip(sources, known):
        file = cache.get(source) if has else None
        cached = file is not None
        if file is None:
            # A file that the cache has and cannot read after all is read here.
            file, content = _found(source, told) if has else next(fresh)
            cache.put(source, content)
        progress(source)
        yield Scanned(source, file, cached)
    cache.save()


def _scan(sources: Sequence[Source], workers: int | None, told: Told | None) -> Iterator[_Found]:
    _keep_memory()
    total = sum(source.size for source in sources)
    workers = min(workers or min(_MOST_WORKERS, len(os.sched_getaffinity(0))), len(sources))
    done = 0
    if workers > 1 and total >= _FEW_BYTES and pools.has_room(workers + pools.POOL):
        tasks = _tasks(sources, min(_TASK_BYTES, total // (4 * workers)))
        for content in _in_parallel(tasks, workers, told):
            done += 1
            yield unpacked(content), content
    yield from (_found(source, told) for source in sources[done:])


def _in_parallel(tasks: Iterator[list[Source]], workers: int, told: Told | None) -> Iterator[bytes]:
    """What other processes find in the tasks' sources, in order. It ends early if no process can be
    started, or if one was killed (for its memory, perhaps): the caller then reads the rest."""
    import numpy  # noqa: F401 - imported here, like the scanner, so that forked workers have it

    scanner(format_of(told[1], told[0]) if told else None)
    others, pool, whole = active_children(), None, True
    try:
        pool = pools.pool(workers, "fork")
        given = (pool.submit(_scan_task, task, told) for task in tasks)
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
    """Make glibc keep freed memory (mallopt(3)). It would give each block back to the kernel and
    fault the next one in page by page, a sixth of the time. Forked workers inherit the setting."""
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


def _scan_task(sources: Sequence[Source], told: Told | None) -> list[bytes]:
    return [packed(scan_source(source, told)) for source in sources]


def _found(source: Source, told: Told | None) -> _Found:
    file = scan_source(source, told)
    return file, packed(file)


# --- the cache

_YOUNG_S = 2.0
_KEPT = 200_000
"""Files remembered; beyond that those not asked for longest are forgotten."""

_MOST_HELD = 8 << 20  # bytes, until they are written
_MOST_PACKED, _MOST_UNPACKED = 1 << 28, 1 << 30  # bytes of one file's content
_MOST_CACHE = 1 << 36  # bytes


def default_path() -> Path:
    """``$XDG_CACHE_HOME/dlperf_hpc/scans.sqlite`` (XDG base directory specification)."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "dlperf_hpc" / "scans.sqlite"


@functools.lru_cache(maxsize=1)
def _version() -> str:
    """Digest of the code that reads logs: another version may find another thing in a file."""
    logs = Path(__file__).parent.parent
    rooms = [path for room in ("scan", "formats") for path in (logs / room).rglob("*.py")]
    digest = hashlib.sha256()
    for path in sorted([*rooms, *logs.glob("*.py"), *logs.glob("*.[jt]*")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class ScanCache:
    """What was found in files, by their identity; with ``path`` None nothing is kept. ``told`` is
    the format by which they are read besides those that are known."""

    def __init__(self, path: Path | None, told: Told | None = None) -> None:
        self._path = path
        self._told = hashlib.sha256(repr(told).encode()).hexdigest() if told else ""
        self._new: list[tuple[str, str, bytes, float]] = []
        self._held = 0  # bytes
        self._now = time.time()

    @functools.cached_property
    def _database(self) -> sqlite3.Connection | None:
        """Opened when the first file is asked for: a report of nothing but sweeps needs none."""
        return _open(self._path)

    def get(self, source: Source) -> ScannedFile | None:
        """What was found in this very content at an earlier time, or None."""
        if self._database is None:
            return None
        try:
            row = self._database.execute(
                "SELECT content FROM scans WHERE file = ? AND version = ?"
                f" AND length(content) <= {_MOST_PACKED}",
                (_key(source), self._reader()),
            ).fetchone()
            if row is None:
                return None
            return checked(unpacked(row[0], _MOST_UNPACKED))
        except (sqlite3.Error, KeyError, TypeError, ValueError, RecursionError):
            return None

    def has(self, source: Source) -> bool:
        """Whether something is kept of this very content."""
        if self._database is None:
            return False
        try:
            row = self._database.execute(
                "SELECT 1 FROM scans WHERE file = ? AND version = ?", (_key(source), self._reader())
            ).fetchone()
        except sqlite3.Error:
            return False
        return row is not None

    def put(self, source: Source, content: bytes) -> None:
        """Remember what :func:`packed` made of a file, from the next :meth:`save` on."""
        changed_s = max(source.identity[3:], default=0) / 1e9
        if self._database is None or not source.identity or changed_s > self._now - _YOUNG_S:
            return
        self._new.append((_key(source), self._reader(), content, self._now))
        self._held += len(content)
        if self._held > _MOST_HELD:
            self.save()

    def _reader(self) -> str:
        """Who reads: the code, and the format that was told."""
        return _version() + self._told

    def save(self) -> None:
        """Write what is new. If the cache cannot be written, logs are read again next time."""
        if self._database is None or not self._new:
            return
        try:
            with self._database:
                self._database.executemany("REPLACE INTO scans VALUES (?, ?, ?, ?)", self._new)
                self._database.execute(
                    "DELETE FROM scans WHERE file IN"
                    " (SELECT file FROM scans ORDER BY used DESC LIMIT -1 OFFSET ?)",
                    (_KEPT,),
                )
        except sqlite3.Error:
            pass
        self._new.clear()
        self._held = 0


def _open(path: Path | None) -> sqlite3.Connection | None:
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_mine(path):
            return None
        database = sqlite3.connect(path, timeout=1.0)
        database.execute(
            "CREATE TABLE IF NOT EXISTS scans"
            " (file TEXT PRIMARY KEY, version TEXT, content BLOB, used REAL)"
        )
    except (OSError, sqlite3.Error):
        return None
    return database


def _is_mine(path: Path) -> bool:
    """Whether the cache, if there is one, is a file of this user's, of a sane size, in a directory
    in which nobody else can put another in its place. OSError if that cannot be seen."""
    folder = os.stat(path.parent)
    if folder.st_uid != os.geteuid() or folder.st_mode & 0o022:
        return False
    try:
        file = os.lstat(path)
    except FileNotFoundError:
        return True
    return S_ISREG(file.st_mode) and file.st_uid == os.geteuid() and file.st_size <= _MOST_CACHE


def _key(source: Source) -> str:
    key = "\n".join([os.path.abspath(source.path), source.member, *map(str, source.identity)])
    return key.encode("utf-8", "backslashreplace").decode()  # a name may be no text
