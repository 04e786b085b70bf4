"""A sweep's directory as one file: a zip archive, to keep, to send, to read as it is.

``<sweep>/manifest.json`` and everything beside it, so that unpacked it is the directory again. What
is packed may lie where others can write: no link leads out of it, no pipe is waited for. An archive
may come from anybody: what is unpacked has a bounded size, and stays within a directory of its own
that is removed afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import io
import lzma
import os
import re
import shutil
import signal
import stat
import struct
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NoReturn, cast

from dlperf_hpc.errors import LedgerError, below, redacted, secrets_in
from dlperf_hpc.files import NotAFile, lock, move_once, open_in, open_own, open_regular
from dlperf_hpc.model.checks import is_printable
from dlperf_hpc.records import layout

MOST_MEMBERS = 500_000
DEEPEST = 64
"""How many directories a file may have above it in an archive."""

MOST_BYTES = 8 << 30
"""How much of an archive is unpacked: the records and logs of some 10 000 runs have 2 GiB."""

_USUAL = 200
"""Logs and records unpack to some 5 to 50 times their size in the archive, bombs to 1000 times."""
_SMALL = 64 << 20
_PIECE = 1 << 16
# What jobs run, and nothing that a program printed: secrets are masked in it.
_OURS = re.compile(rf"[^/]+/(?:{layout.MANIFEST}|sweep(\.\d+)?\.toml|{layout.JOBS}/[^/]+\.sh)")
_EARLIEST, _LATEST = 315_619_200, 4_354_819_000  # 1980 to 2107, as zip archives have it
_MOST_NAMED = 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # for the archive: reading needs none
# bzip2 and LZMA make up to 100 MB of this much, and zipfile does not stop them before
_SMALL_PIECE = 1 << 12

_BROKEN = (
    *(OSError, EOFError, MemoryError, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
    # odd compression or version, a password; names, offsets and fields that are none
    *(NotImplementedError, RuntimeError, LookupError, ValueError, struct.error, OverflowError),
)


@dataclass
class Packed:
    """What became of a directory's files: how many are in the archive, which were left out and why,
    which could not be read, and file, line and kind of each secret in what is not ours."""

    files: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    secrets: dict[tuple[str, int, str], None] = field(default_factory=dict)


def pack(root: Path, target: Path, anyway: bool = False) -> Packed:
    """Write the archive of a sweep's directory. Links, pipes, sockets and devices are left out, and
    no link is followed. LedgerError if ``root`` holds no sweep, if ``target`` is there, if what is
    read holds secrets (but ``anyway``), or cannot be read or written: then nothing is left."""
    from dlperf_hpc.records.manifest import read_manifest

    read_manifest(root)
    if os.path.lexists(target):
        raise LedgerError(f"{target}: is there already; give another name with --out")
    held = target.with_name(f".{target.name}.{os.urandom(16).hex()}.tmp")
    try:
        _remove_leftovers(target)
        with undone_by_signals():
            packed = _pack_into(held, root, anyway)
            if not move_once(held, target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    except OSError as error:
        what = f"{error.filename or target}: {error.strerror}"
        raise LedgerError(f"{what}; no archive was written") from error
    finally:
        held.unlink(missing_ok=True)
    return packed


def _remove_leftovers(target: Path) -> None:
    """Remove what earlier calls of this user's left that were killed: nobody holds it any more."""
    for entry in os.scandir(target.parent):
        if re.fullmatch(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}\.tmp", entry.name):
            with contextlib.suppress(OSError), open(open_own(Path(entry), os.O_RDWR), "rb") as file:
                if lock(file.fileno()):
                    os.unlink(entry)


def top_name(root: Path) -> str:
    """The name of the archive's one directory, also of ``logs/sweep/..`` and of ``.``."""
    return root.name if root.name not in ("", ".", "..") else root.resolve().name or "sweep"


def _pack_into(held: Path, root: Path, anyway: bool) -> Packed:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(held, "x+b", opener=lambda _, how: open_own(held, how)))
        with contextlib.suppress(OSError):  # without locks nobody removes what is left
            lock(file.fileno())
        archive = stack.enter_context(zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED))
        made = os.fstat(file.fileno())
        packing = _Packing(archive, (made.st_dev, made.st_ino))
        with _open_folder(root) as folder:
            packing.add_folder(folder, top_name(root), 0)
    packed = packing.packed
    if packed.unreadable:
        lines = (f"{path}: {why}" for path, why in packed.unreadable.items())
        _refuse(root, "because this cannot be read", lines)
    if packed.secrets and not anyway:
        lines = (f"{path}:{line}: holds a secret: {kind}" for path, line, kind in packed.secrets)
        why = "because of secrets that programs printed (take them out, or pack them with --anyway)"
        _refuse(root, why, lines)
    return packed


def _refuse(root: Path, why: str, found: Iterable[str]) -> NoReturn:
    listed = below(list(found), _MOST_NAMED)
    raise LedgerError(f"{root}: no archive was written, {why}:{listed}")


class _Packing:
    """A walk through open directories: no name is looked up twice, so that nobody can put a link
    into the place of a directory that has been looked at."""

    def __init__(self, archive: zipfile.ZipFile, itself: tuple[int, int]) -> None:
        self.packed = Packed()
        self._archive = archive
        self._itself = itself

    def add_folder(self, folder: int, where: str, depth: int) -> None:
        if depth > DEEPEST:
            self.packed.unreadable[where] = f"has more than {DEEPEST} directories above it"
            return
        for name in sorted(os.listdir(folder)):
            path = f"{where}/{name}"
            try:
                self._add(folder, name, path, depth)
            except NotAFile as error:
                self.packed.left_out[path] = str(error.strerror)
            except FileNotFoundError:
                self.packed.left_out[path] = "has disappeared meanwhile"
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise
                self.packed.unreadable[path] = str(error.strerror)

    def _add(self, folder: int, name: str, path: str, depth: int) -> None:
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        itself = (seen.st_dev, seen.st_ino) == self._itself
        if itself or name in (layout.LOCK, layout.STOP) or name.endswith(layout.LIFE):
            return
        if stat.S_ISLNK(seen.st_mode):
            self.packed.left_out[path] = "is a link, and links are not followed"
        elif "\\" in name or not is_printable(name):
            self.packed.left_out[path] = "has a name that zip archives do not keep"
        elif stat.S_ISDIR(seen.st_mode):
            with _open_folder(name, os.O_NOFOLLOW, folder) as below:
                self.add_folder(below, path, depth + 1)
        else:
            with open_in(folder, name) as file:
                if not self.packed.unreadable:  # else there will be no archive
                    self._copy(file, path)

    def _copy(self, file: BinaryIO, path: str) -> None:
        """As much as the file has now: it may be the log of a run that goes on."""
        seen = os.fstat(file.fileno())
        stamp = time.localtime(min(max(seen.st_mtime, _EARLIEST), _LATEST))
        info = zipfile.ZipInfo(path, stamp[:6])
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (seen.st_mode & 0xFFFF) << 16
        left, line = seen.st_size, 1
        lines: BinaryIO = io.BufferedReader(cast("io.FileIO", file))
        if _OURS.fullmatch(path):
            data = redacted(lines.read(left).decode("latin-1")).encode("latin-1")
            left, lines = len(data), io.BytesIO(data)
        info.file_size = left
        with self._archive.open(info, "w") as member:
            while left > 0 and (piece := lines.read(_PIECE) + lines.readline(_PIECE)):
                member.write(piece[:left])
                left -= len(piece)
                self._note_secrets(path, line, piece.decode("latin-1"))
                line += piece.count(b"\n")
        self.packed.files += 1

    def _note_secrets(self, path: str, line: int, text: str) -> None:
        for begin, _, kind in secrets_in(text):
            self.packed.secrets[path, line + text.count("\n", 0, begin), kind] = None


@contextlib.contextmanager
def _open_folder(path: Path | str, flags: int = 0, folder: int | None = None) -> Iterator[int]:
    """The descriptor of a directory, for as long as the context lasts."""
    flags |= os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The sweep's directory in an archive, for as long as the context lasts; any other path as it
    is. It holds what tells how the runs stand: manifest, arrays, ledger, logs and records.
    LedgerError for an archive that is damaged, too large, or leads out of its directory."""
    with contextlib.ExitStack() as stack:
        found = _opened(path, stack)
        if found is None:
            yield path
            return
        archive, top = found
        stack.enter_context(undone_by_signals())
        with _unpacking(path, "the archive"):
            members = _checked(archive, top)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlperf-"))
            _check_size(path, members, folder)
        left = MOST_BYTES
        for member in members:
            with _unpacking(path, member.filename):
                left -= _extract(archive, member, folder, left)
        yield Path(folder, top)


def _opened(path: Path, stack: contextlib.ExitStack) -> tuple[zipfile.ZipFile, str] | None:
    """An archive with its one directory, in which is the manifest of a sweep; None if it is none,
    or too damaged to tell: whoever reads logs, or the ledger, says what is wrong with it."""
    try:
        with open_regular(path) as raw:
            file = stack.enter_context(_Bounded(os.dup(raw.fileno()), "rb"))
        if not zipfile.is_zipfile(file):
            return None
        archive = stack.enter_context(zipfile.ZipFile(file))
    except _BROKEN:
        return None
    names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    if len(tops) != 1:
        return None
    top = tops.pop()
    return (archive, top) if _is_ours(archive, f"{top}/{layout.MANIFEST}", names) else None


class _Bounded(io.FileIO):
    """zipfile reads the whole list of members at once, before it says how many there are."""

    _MOST = 64 << 20

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self._MOST:
            raise OSError(errno.EFBIG, "has a list of members of more than 64 MiB")
        return super().read(size)


def _is_ours(archive: zipfile.ZipFile, name: str, names: Sequence[str]) -> bool:
    if name not in names:
        return False
    try:
        with archive.open(name) as file:
            return layout.MANIFEST_SCHEMA.split("/")[0].encode() in file.read(_SMALL_PIECE)
    except _BROKEN:
        return True  # to be told of as a damaged member


@contextlib.contextmanager
def _unpacking(path: Path, what: str) -> Iterator[None]:
    """Name what is wrong with a part of an archive, whatever zipfile says of it."""
    try:
        yield
    except _BROKEN as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LedgerError(f"{path}: cannot be unpacked: {what}: {why}") from error


def _checked(archive: zipfile.ZipFile, top: str) -> list[zipfile.ZipInfo]:
    """The members to unpack; ValueError for one that this tool would not have written."""
    members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise ValueError(f"has more than {MOST_MEMBERS} members")
    seen: set[str] = set()
    wanted = []
    for member in members:
        name = member.filename.removesuffix("/")
        parts = name.split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or "\\" in name or len(parts) > DEEPEST:
            raise ValueError(f"has the member {name!a}, which is no plain path in it")
        if name in seen:
            raise ValueError(f"has the member {name!a} twice")
        seen.add(name)
        if not member.is_dir() and _tells(parts[1:]):
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                raise ValueError(f"has the member {name!a}, which is no file")
            wanted.append(member)
    return wanted


def _tells(parts: Sequence[str]) -> bool:
    """Whether a file tells how runs stand: not scripts, outputs, checkpoints, earlier attempts."""
    if len(parts) == 1:
        return parts[0] in (layout.MANIFEST, layout.SUBMISSIONS, layout.FINAL_STATES)
    if parts[0] in (layout.JOBS, layout.REPORT) or layout.ATTEMPTS in parts:
        return False
    return parts[-1].endswith((".log", ".json"))


def _check_size(path: Path, members: Sequence[zipfile.ZipInfo], folder: str) -> None:
    total = sum(member.file_size for member in members)
    most = min(MOST_BYTES, _SMALL + _USUAL * path.stat().st_size)
    if total > most:
        raise ValueError(f"unpacks to {_mib(total)}, more than the {_mib(most)} of a usual one")
    free = shutil.disk_usage(folder).free
    if total > free:
        where = f"{tempfile.gettempdir()} has {_mib(free)} left"
        raise ValueError(f"unpacks to {_mib(total)}, and {where}; set TMPDIR to another directory")


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: str, most: int) -> int:
    """Write a member, of at most ``most`` bytes; how many it has."""
    path = Path(folder, member.filename)
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    size = 0
    with archive.open(member) as source, open(path, "xb") as file:
        while piece := source.read(_PIECE if plain else _SMALL_PIECE):
            size += len(piece)
            if size > most:
                raise ValueError("has more bytes than it says")
            file.write(piece)
    if size != member.file_size:
        raise EOFError(f"has {size} bytes of the {member.file_size} that it says")
    stamp = time.mktime((*member.date_time, 0, 0, -1))  # how long a log has been silent is asked
    os.utime(path, (stamp, stamp))
    return size


@contextlib.contextmanager
def undone_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as an exception does, so that what it made is removed.
    The exit code is then 128 + the signal's number. What is ignored stays ignored (nohup)."""
    owner, handlers = os.getpid(), {}

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked process: what there is to remove is not its own
            os._exit(128 + number)
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                handlers[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
