"""Many files at once: scanned in parallel, and not again while they have not changed.

The cache knows a file by device, inode, size and the times of its last changes; a clock that is set
back changes the last of these too. A file that was written a moment ago may still change within the
clock's grain, so it is not kept. The cache lies in the user's own directory, and a damaged one only
costs the time to read the logs again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import json
import os
import sqlite3
import sys
import time
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from multiprocessing import active_children
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

import tomllib
from ahocorasick_rs import BytesAhoCorasick

from dlperf_hpc.errors import LogError
from dlperf_hpc.logs.scan.sources import Source, beginning, blocks
from dlperf_hpc.logs.scanned import (
    FACTS,
    GAPS,
    OUR_OWN,
    Column,
    LogStep,
    LogSteps,
    Note,
    ScannedFile,
)
from dlperf_hpc.model.checks import misfits

if TYPE_CHECKING:  # the scanner is loaded where a file is read: of a sweep's none is
    from dlperf_hpc.logs.format import Format
    from dlperf_hpc.sweepfile.readtable import ReadTable

# --- scanning

_MOST_WORKERS = 8  # a login node is everybody's
_FEW_BYTES = 8 << 20  # below this, starting other processes costs more than it saves
_TASK_BYTES = 1 << 23  # small files go to a worker in one task, as many as this
_KEPT_BYTES = 64 << 20  # of freed memory that a process does not give back
_AHEAD = 4  # tasks per worker that are given out, or done and not yet asked for

_FEWEST_STEPS = 5  # that show a training in a file of an unknown program
_MOST_REASONS = 2  # why it was not read

_Found = tuple[ScannedFile, bytes]  # and as the cache keeps it

OwnFormat = tuple[str, "ReadTable"]
"""A format of the user's own: its name, and its table."""


@dataclass(frozen=True)
class Scanned:
    """A source and what was found in it, now or (``cached``) at an earlier time."""

    source: Source
    file: ScannedFile
    cached: bool = False


def scan_source(source: Source, own_format: OwnFormat | None = None) -> ScannedFile:
    """Read one log to its end, or as far as it can be read: a note then says why it ends there. A
    file in no known format is searched for who else may have written it. If lines are in the user's
    own format, other programs' formats do not count: the user knows whose log it is."""
    from dlperf_hpc.logs.scan.scanner import scanner

    errors: list[str] = []

    def readable() -> Iterator[bytes]:
        try:
            yield from blocks(source)
        except LogError as error:
            errors.append(str(error))

    own = _format(own_format)
    found = scanner(own).scan(source.name, source.size, readable())
    late = scanner(own).with_rows.intersection(r.format for r in found.readings if not r.steps)
    if late:  # what tells whose bars they are may have been buffered, and stand behind them
        found = scanner(own).scan(source.name, source.size, readable(), late)
    if own is not None and any(each.format == own.name for each in found.readings):
        kept = (own.name, OUR_OWN)
        found = replace(found, readings=tuple(r for r in found.readings if r.format in kept))
    if not found.readings:
        found = _by_names(found, source)
    program = "" if found.readings else ", ".join(programs_in(beginning(source, HEAD_BYTES)))
    notes = (*found.notes, *(Note(0, text) for text in dict.fromkeys(errors)))
    return replace(found, program=program, notes=notes)


def _by_names(found: ScannedFile, source: Source) -> ScannedFile:
    """A file in no known format, with what the names of its figures say, if that is a speed."""
    from dlperf_hpc.logs.named import FIRST_BYTES, NAMED, READ_BYTES
    from dlperf_hpc.logs.scan.scanner import Scanner

    named = found
    with contextlib.suppress(LogError):
        for most in (FIRST_BYTES, READ_BYTES):
            head = bytes(beginning(source, most))
            named = Scanner([NAMED]).scan(source.name, source.size, [head])
            if not named.readings:
                return found
            if len(head) < most:
                break
        if len(named.readings[0].steps) < _FEWEST_STEPS:
            why = [f"line {note.line}: {note.text}" for note in named.notes[:_MOST_REASONS]]
            few = f"fewer than {_FEWEST_STEPS} of its iterations have a time or a speed"
            return replace(found, nearest="; ".join([few, *why]))
        notes = (*found.notes, *named.notes)
        return replace(found, readings=named.readings, facts=named.facts, notes=notes)
    return found


def _format(own_format: OwnFormat | None) -> Format | None:
    if own_format is None:
        return None
    from dlperf_hpc.logs.tableformat import format_of

    return format_of(own_format[1], own_format[0])


def scan_all(
    sources: Sequence[Source], cache: ScanCache, workers: int | None = None
) -> Iterator[Scanned]:
    """What is in every source, in the order of ``sources``; those in ``cache`` are not read again.
    The memory in use grows neither with the number of files nor with their sizes."""
    known = list(map(cache.has, sources))
    new = [source for source, has in zip(sources, known) if not has]
    fresh = _scan(new, workers, cache.own_format)
    for source, has in zip(sources, known):
        file = cache.get(source) if has else None
        cached = file is not None
        if file is None:
            # A file that the cache has and cannot read after all is read here.
            file, content = _found(source, cache.own_format) if has else next(fresh)
            cache.put(source, content)
        yield Scanned(source, file, cached)
    cache.save()


def _scan(
    sources: Sequence[Source], workers: int | None, own_format: OwnFormat | None
) -> Iterator[_Found]:
    _keep_memory()
    total = sum(source.size for source in sources)
    workers = min(workers or min(_MOST_WORKERS, len(os.sched_getaffinity(0))), len(sources))
    done = 0
    if workers > 1 and total >= _FEW_BYTES:
        tasks = _tasks(sources, min(_TASK_BYTES, total // (4 * workers)))
        for content in _in_parallel(tasks, workers, own_format):
            done += 1
            yield unpacked(content), content
    yield from (_found(source, own_format) for source in sources[done:])


def _found(source: Source, own_format: OwnFormat | None) -> _Found:
    file = scan_source(source, own_format)
    return file, packed(file)


def _scan_task(sources: Sequence[Source], own_format: OwnFormat | None) -> list[bytes]:
    return [_found(source, own_format)[1] for source in sources]


def _in_parallel(
    tasks: Iterator[list[Source]], workers: int, own_format: OwnFormat | None
) -> Iterator[bytes]:
    """What other processes find in the tasks' sources, in order. It ends early if no process can be
    started, or if one was killed (for its memory, perhaps): the caller then reads the rest."""
    from dlperf_hpc import pools
    from dlperf_hpc.logs.scan.scanner import scanner

    if not pools.has_room(workers + pools.POOL):
        return
    scanner(_format(own_format))  # made here, so that forked workers have it
    earlier, pool, whole = active_children(), None, True
    try:
        pool = pools.pool(workers, "fork")
        given = (pool.submit(_scan_task, task, own_format) for task in tasks)
        waiting = deque(itertools.islice(given, _AHEAD * workers))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(itertools.islice(given, 1))
            yield from done
    except (OSError, RuntimeError):  # a broken pool is one of the latter
        whole = False  # such a pool must not be waited for
        for child in active_children():
            if child not in earlier:
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
    task: list[Source] = []
    for source in sources:
        task.append(source)
        if sum(each.size for each in task) >= size or len(task) == 64:
            yield task
            task = []
    if task:
        yield task


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


@functools.cache
def _version() -> str:
    """Digest of the code that reads logs: another version may find another thing in a file."""
    logs = Path(__file__).parent.parent
    rooms = [path for room in ("scan", "formats") for path in (logs / room).rglob("*.py")]
    digest = hashlib.sha256()
    for path in sorted([*rooms, *logs.glob("*.py"), *logs.glob("*.[jt]*")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class ScanCache:
    """What was found in files, by their identity; with ``path`` None nothing is kept.
    ``own_format`` is the user's own, by which they are read besides those that are known."""

    def __init__(self, path: Path | None, own_format: OwnFormat | None = None) -> None:
        self._path = path
        self.own_format = own_format
        self._new: list[tuple[str, str, bytes, float]] = []
        self._held = 0  # bytes
        self._now = time.time()

    @functools.cached_property
    def _database(self) -> sqlite3.Connection | None:
        """Opened when the first file is asked for: a report of nothing but sweeps needs none."""
        return _open(self._path)

    def get(self, source: Source) -> ScannedFile | None:
        """What was found in this very content at an earlier time, or None."""
        row = self._row(f"CASE WHEN length(content) <= {_MOST_PACKED} THEN content END", source)
        try:
            return unpacked(row[0], _MOST_UNPACKED) if row else None
        except (KeyError, TypeError, ValueError, RecursionError):
            return None

    def has(self, source: Source) -> bool:
        """Whether something is kept of this very content."""
        return self._row("1", source) is not None

    def _row(self, columns: str, source: Source) -> tuple[Any, ...] | None:
        if self._database is None:
            return None
        query = f"SELECT {columns} FROM scans WHERE file = ? AND version = ?"
        try:
            row: tuple[Any, ...] | None = self._database.execute(
                query, (_key(source), self._reader)
            ).fetchone()
        except sqlite3.Error:
            return None
        return row

    def put(self, source: Source, content: bytes) -> None:
        """Remember what :func:`packed` made of a file, from the next :meth:`save` on."""
        changed_s = max(source.identity[3:], default=0) / 1e9
        if self._database is None or not source.identity or changed_s > self._now - _YOUNG_S:
            return
        self._new.append((_key(source), self._reader, content, self._now))
        self._held += len(content)
        if self._held > _MOST_HELD:
            self.save()

    @functools.cached_property
    def _reader(self) -> str:
        """Who reads: the kind of machine, the code, and the user's own format."""
        own = self.own_format
        return (
            sys.byteorder
            + _version()
            + (hashlib.sha256(repr(own).encode()).hexdigest() if own else "")
        )

    def save(self) -> None:
        """Write what is new. If the cache cannot be written, logs are read again next time."""
        if self._database is None or not self._new:
            return
        with contextlib.suppress(sqlite3.Error), self._database:
            self._database.executemany("REPLACE INTO scans VALUES (?, ?, ?, ?)", self._new)
            self._database.execute(
                "DELETE FROM scans WHERE file IN"
                " (SELECT file FROM scans ORDER BY used DESC LIMIT -1 OFFSET ?)",
                (_KEPT,),
            )
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


# --- what was found, as bytes: JSON, in it the columns of the iterations as machine numbers

_SUM_BYTES = 8
_LEVEL = 1
_ALWAYS = ("line", "iteration")  # no step is without these


def packed(file: ScannedFile) -> bytes:
    """The file's content, compressed, and a checksum; :func:`unpacked` reads it back."""
    import zstandard  # where no log is scanned there may be none

    text = json.dumps(file, default=_as_json).encode()
    content = zstandard.ZstdCompressor(_LEVEL).compress(text)
    return content + zlib.crc32(content).to_bytes(_SUM_BYTES, "little")


def _as_json(value: Any) -> Any:
    if isinstance(value, LogSteps):
        return [None if column is None else column.tobytes().hex() for column in value.columns()]
    return vars(value)  # which takes a sixth of the time of ``asdict``


def unpacked(content: bytes, most: int = 0) -> ScannedFile:
    """Inverse of :func:`packed`; KeyError, TypeError, ValueError or RecursionError if it is not
    one, or has more than ``most`` bytes (0: any number)."""
    if zlib.crc32(content[:-_SUM_BYTES]) != int.from_bytes(content[-_SUM_BYTES:], "little"):
        raise ValueError("has another checksum")
    file: ScannedFile = _restored(ScannedFile, json.loads(_decompressed(content, most)))
    for fact in file.facts:
        if type(fact.value) is not FACTS[fact.name]:
            raise TypeError(f"{fact.name} is {fact.value!r}")
    return file


def _decompressed(content: bytes, most: int) -> bytes:
    import zstandard

    content = content[:-_SUM_BYTES]
    try:
        if most and not 0 <= zstandard.frame_content_size(content) <= most:
            raise ValueError("has an unknown number of bytes, or too many")
        return zstandard.ZstdDecompressor().decompress(content)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


@functools.cache
def _types_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _restored(kind: Any, value: Any) -> Any:
    """A value of this type out of JSON; KeyError, TypeError or ValueError if it is none."""
    if kind is LogSteps:
        return _steps(value)
    if get_origin(kind) is tuple:
        return tuple([_restored(get_args(kind)[0], each) for each in value])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if hasattr(kind, "__dataclass_fields__"):
        types = _types_of(kind)
        made = kind(**{name: _restored(types[name], each) for name, each in dict(value).items()})
    elif hasattr(kind, "_make"):  # a named tuple
        made = kind._make(map(_restored, _types_of(kind).values(), value))
    else:
        return value
    for name, each in misfits(made):
        raise TypeError(f"{name} is {each!r}")
    return made


def _steps(columns: Sequence[str | None]) -> LogSteps:
    """Steps by their columns; ValueError or TypeError if these are other ones than steps have, or
    lack one that every step has."""
    found: list[Column] = []
    for (kind, _), column in zip(GAPS, columns, strict=True):
        found.append(None if column is None else array(kind, bytes.fromhex(column)))
    counts = {len(column) for column in found if column is not None}
    if len(counts) > 1:
        raise ValueError("has columns of several lengths")
    for name in _ALWAYS if any(counts) else ():
        numbers = found[LogStep._fields.index(name)]
        if numbers is None or min(numbers) < 0:
            raise ValueError(f"a step has no {name}")
    return LogSteps.of(found)


# --- programs of which no speed is read

HEAD_BYTES = 1 << 20
"""Where signs are sought: as far as settings are at most."""

TABLE = Path(__file__).parent.parent / "recognised.toml"
"""The programs and their signs: strings of their lines, sought in the beginning of a file in which
no format was recognised, so that logs that are read pay nothing for them."""


class RecognisedProgram(NamedTuple):
    """A program, and strings of its lines."""

    name: str
    signs: tuple[str, ...]


@functools.cache
def programs() -> tuple[RecognisedProgram, ...]:
    """Every program of the table, in its order."""
    kinds = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(
        RecognisedProgram(name, tuple(row["signs"]))
        for rows in kinds.values()
        for name, row in rows.items()
    )


def programs_in(head: bytes | bytearray) -> tuple[str, ...]:
    """The names of the programs of which ``head``, a file's beginning, holds a sign; in the order
    in which their first signs stand there."""
    search, owners = _signs()
    found = search.find_matches_as_indexes(memoryview(head)[:HEAD_BYTES])
    return tuple(dict.fromkeys(owners[index] for index, _, _ in found))


@functools.cache
def _signs() -> tuple[BytesAhoCorasick, list[str]]:
    owners = [(sign, each.name) for each in programs() for sign in each.signs]
    return BytesAhoCorasick([sign.encode() for sign, _ in owners]), [name for _, name in owners]
