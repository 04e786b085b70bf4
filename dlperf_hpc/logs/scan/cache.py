"""What was found in a file as few bytes, quickly made and quickly read: for the cache, and for the
way from the process that read the file.

JSON holds all but the steps; these follow as columns of machine numbers. All is compressed.

What was found in files that have not changed since: a second report need not read them again.

A file is the same if device, inode, size, and the times of its last change are; a change of the
clock backwards changes the last of these too. What was just written may change within the clock's
grain, so that young files are not kept. Nothing is kept beside the logs: the cache is the user's
own, and whatever is wrong with it only costs time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import sqlite3
import sys
import time
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, Union

from dlperf_hpc.logs.scan.sources import Source
from dlperf_hpc.logs.scanned import ScannedFile, Step

_WHOLE = ("line", "iteration", "rank")  # the other columns are floats
_NO_RANK = -1
_WIDTH = 8  # bytes of a number

_Kind = Union[str, list[Any], None]
"""Of a column: its typecode, as :mod:`array` has it; its values, where these are no such numbers;
None if they are all None."""


def packed(file: ScannedFile) -> bytes:
    """The file's content; :func:`unpacked` reads it back."""
    columns: list[bytes] = []
    steps = [_columns(reading.steps, columns) for reading in file.readings]
    bare = replace(file, readings=tuple([replace(each, steps=()) for each in file.readings]))
    # ``vars`` makes the same of it as to_dict(), which takes six times as long.
    told = json.dumps([sys.byteorder, steps, bare], default=vars).encode()
    return zlib.compress(b"".join([len(told).to_bytes(_WIDTH, "little"), told, *columns]), 1)


def unpacked(content: bytes) -> ScannedFile:
    """Inverse of :func:`packed`; zlib.error, KeyError, TypeError or ValueError if it is not one."""
    data = zlib.decompress(content)
    at = _WIDTH + int.from_bytes(data[:_WIDTH], "little")
    byteorder, steps, bare = json.loads(data[_WIDTH:at])
    if byteorder != sys.byteorder:
        raise ValueError("packed on a machine of another kind")
    file = ScannedFile.from_dict(bare)
    readings = []
    for reading, (count, kinds) in zip(file.readings, steps):
        columns: list[Iterable[Any]] = []
        for kind in kinds:
            end = at + (_WIDTH * count if isinstance(kind, str) else 0)
            columns.append(_values(kind, data[at:end], count))
            at = end
        readings.append(replace(reading, steps=tuple(map(Step._make, zip(*columns)))))
    return replace(file, readings=tuple(readings))


def _columns(steps: Sequence[Step], into: list[bytes]) -> tuple[int, list[_Kind]]:
    """How many steps, and what each column is; the numbers go ``into`` a list."""
    kinds: list[_Kind] = []
    for name, column in zip(Step._fields, zip(*steps)):
        if column.count(None) == len(column):
            kinds.append(None)
            continue
        kind, gap = ("q", _NO_RANK) if name in _WHOLE else ("d", math.nan)
        values = [gap if each is None else each for each in column] if None in column else column
        try:
            into.append(array(kind, values).tobytes())
            kinds.append(kind)
        except (OverflowError, TypeError):
            kinds.append(list(column))
    return len(steps), kinds


def _values(kind: _Kind, data: bytes, count: int) -> Iterable[Any]:
    if not isinstance(kind, str):
        return repeat(None, count) if kind is None else kind
    numbers = array(kind, data)
    if len(numbers) != count:
        raise ValueError("fewer numbers than steps")
    values: list[Any] = numbers.tolist()
    if kind == "q":
        return [None if each == _NO_RANK else each for each in values]
    return [None if each != each else each for each in values]


_YOUNG_S = 2.0
_KEPT = 200_000
"""Files remembered; beyond that those not asked for longest are forgotten."""

_MOST_HELD = 8 << 20  # bytes, until they are written down


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
    for path in sorted([*rooms, *logs.glob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class ScanCache:
    """Results by the identity of their files; ``path`` None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._database = _open(path)
        self._new: list[tuple[str, str, bytes, float]] = []
        self._held = 0  # bytes
        self._now = time.time()

    def get(self, source: Source) -> ScannedFile | None:
        """What was found in this very content at an earlier time, or None."""
        if self._database is None:
            return None
        try:
            row = self._database.execute(
                "SELECT content FROM scans WHERE file = ? AND version = ?",
                (_key(source), _version()),
            ).fetchone()
            return unpacked(row[0]) if row else None
        except (sqlite3.Error, zlib.error, KeyError, TypeError, ValueError):
            return None

    def has(self, source: Source) -> bool:
        """Whether something is kept of this very content."""
        if self._database is None:
            return False
        try:
            row = self._database.execute(
                "SELECT 1 FROM scans WHERE file = ? AND version = ?", (_key(source), _version())
            ).fetchone()
        except sqlite3.Error:
            return False
        return row is not None

    def put(self, source: Source, content: bytes) -> None:
        """Remember what :mod:`~dlperf_hpc.logs.scan.cache` made, from the next :meth:`save` on."""
        changed_s = max(source.identity[3:], default=0) / 1e9
        if self._database is None or not source.identity or changed_s > self._now - _YOUNG_S:
            return
        self._new.append((_key(source), _version(), content, self._now))
        self._held += len(content)
        if self._held > _MOST_HELD:
            self.save()

    def save(self) -> None:
        """Write down what is new. A cache that cannot be written is none."""
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
        database = sqlite3.connect(path, timeout=1.0)
        database.execute(
            "CREATE TABLE IF NOT EXISTS scans"
            " (file TEXT PRIMARY KEY, version TEXT, content BLOB, used REAL)"
        )
    except (OSError, sqlite3.Error):
        return None
    return database


def _key(source: Source) -> str:
    key = "\n".join([os.path.abspath(source.path), source.member, *map(str, source.identity)])
    return key.encode("utf-8", "backslashreplace").decode()  # a name may be no text
