"""Packing a sweep's directory into one zip archive (:mod:`dlperf_hpc.records.archive` reads it).

What is packed may lie where others can write: no link leads out of it, no pipe is waited for.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.files import NotAFile, open_in
from dlperf_hpc.records import layout
from dlperf_hpc.records.archive import DEEPEST, undone_by_signals
from dlperf_hpc.records.manifest import read_manifest

_PIECE = 1 << 16
_EARLIEST, _LATEST = 315_619_200, 4_354_819_000  # 1980 to 2107, as zip archives have it
_MOST_NAMED = 10


@dataclass
class Packed:
    """What became of a directory's files: how many are in the archive, which were left out and why,
    and which could not be read."""

    files: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def pack(root: Path, target: Path) -> Packed:
    """Write the archive of a sweep's directory.

    Links, pipes, sockets and devices are left out, and no link is followed. LedgerError if ``root``
    holds no sweep, if ``target`` is there already, or if something cannot be read or written: then
    nothing is left.
    """
    read_manifest(root)
    if os.path.lexists(target):
        raise LedgerError(f"{target}: is there already; give another name with --out")
    held = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with undone_by_signals():
            packed = _pack_into(held, root)
            os.link(held, target)  # over nothing, also if somebody was quicker
    except OSError as error:
        told = f"{error.filename or target}: {error.strerror}"
        raise LedgerError(f"{told}; no archive was written") from error
    finally:
        held.unlink(missing_ok=True)
    return packed


def top_name(root: Path) -> str:
    """The name of the archive's one directory, also of ``logs/sweep/..`` and of ``.``."""
    return root.name if root.name not in ("", ".", "..") else root.resolve().name or "sweep"


def _pack_into(held: Path, root: Path) -> Packed:
    with zipfile.ZipFile(held, "x", zipfile.ZIP_DEFLATED) as archive:
        made = os.stat(held)
        packing = _Packing(archive, (made.st_dev, made.st_ino))
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            packing.add_folder(folder, top_name(root), 0)
        finally:
            os.close(folder)
    unreadable = packing.packed.unreadable
    if unreadable:
        shown = [f"\n  {path}: {why}" for path, why in [*unreadable.items()][:_MOST_NAMED]]
        more = len(unreadable) - len(shown)
        raise LedgerError(
            f"{root}: no archive was written, because this cannot be read:{''.join(shown)}"
            + (f"\n  and {more} more" if more else "")
        )
    return packing.packed


class _Packing:
    """A walk through open directories: no name is looked up twice, so that nobody can put a link
    into the place of a directory that has been looked at."""

    def __init__(self, archive: zipfile.ZipFile, itself: tuple[int, int]) -> None:
        self.packed = Packed()
        self._archive = archive
        self._itself = itself

    def add_folder(self, folder: int, where: str, depth: int) -> None:
        """Add all that is in an open directory, called ``where`` in the archive."""
        if depth > DEEPEST:
            self.packed.unreadable[where] = f"has more than {DEEPEST} directories above it"
            return
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            self.packed.unreadable[where] = str(error.strerror)
            return
        for name in names:
            path = f"{where}/{name}"
            try:
                self._add(folder, name, path, depth)
            except NotAFile as error:
                self.packed.left_out[path] = str(error.strerror)
            except FileNotFoundError:
                self.packed.left_out[path] = "has disappeared meanwhile"
            except _Unreadable as error:
                self.packed.unreadable[path] = str(error)

    def _add(self, folder: int, name: str, path: str, depth: int) -> None:
        with _reading():
            seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if name in (layout.LOCK, layout.STOP) or (seen.st_dev, seen.st_ino) == self._itself:
            return
        if stat.S_ISLNK(seen.st_mode):
            self.packed.left_out[path] = "is a link, and links are not followed"
        elif "\\" in name or not _is_utf8(name):
            self.packed.left_out[path] = "has a name that zip archives do not keep"
        elif stat.S_ISDIR(seen.st_mode):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            with _reading():
                below = os.open(name, flags, dir_fd=folder)
            try:
                self.add_folder(below, path, depth + 1)
            finally:
                os.close(below)
        else:
            with _reading():
                file = open_in(folder, name)
            with file:
                if not self.packed.unreadable:  # else there will be no archive
                    self._copy(file, path)

    def _copy(self, file: BinaryIO, path: str) -> None:
        """As much as the file has now: it may be the log of a run that goes on."""
        seen = os.fstat(file.fileno())
        stamp = time.localtime(min(max(seen.st_mtime, _EARLIEST), _LATEST))
        info = zipfile.ZipInfo(path, stamp[:6])
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (seen.st_mode & 0xFFFF) << 16
        info.file_size = left = seen.st_size
        with self._archive.open(info, "w") as member:
            while left > 0:
                with _reading():
                    piece = file.read(min(left, _PIECE))
                if not piece:
                    break
                member.write(piece)
                left -= len(piece)
        self.packed.files += 1


class _Unreadable(Exception):
    """What is to be packed cannot be read; says why."""


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """To tell what cannot be read from an archive that cannot be written: both are an OSError."""
    try:
        yield
    except (NotAFile, FileNotFoundError):
        raise
    except OSError as error:
        raise _Unreadable(error.strerror) from error


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
