"""Where logs lie: files below directories, compressed or not, and members of zip archives.

Nothing is unpacked to disk, and no symbolic link to a directory is followed: the tree cannot loop.
What is no regular file is not opened: it is named as not read, wherever it was found.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any

import zstandard

from dlperf_hpc.errors import LogError
from dlperf_hpc.files import is_tar, open_regular, unpack_tar

BLOCK_BYTES = 1 << 18
"""Fits a core's own cache beside the automaton; blocks of 1 MiB take 1.5 times as long to read."""

_HEAD_BYTES = 1 << 13
_PASSED_OVER = (
    *(".png", ".jpg", ".pdf", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", ".h5", ".hdf5"),
    *(".tfrecord", ".safetensors", ".so", ".pyc", ".parquet", ".sqlite", ".tar", ".whl", ".pkl"),
)
_MEMBER = "!"
_STORED = 2  # where a source's identity has the size of its file
_GROWTH = 500  # of a log that is decompressed; real ones grow to 10 to 100 times their size
_ANY_LOG = 1 << 30  # bytes that any compressed log may have


@dataclass(frozen=True)
class Source:
    """One log: a file, or with ``member`` one in a zip archive. ``size`` in bytes, as stored."""

    path: str
    size: int
    member: str = ""
    identity: tuple[int, ...] = ()
    """Device, inode, size and times of the file: they differ where the content may differ."""

    @property
    def name(self) -> str:
        """As it is shown: ``archive.zip!logs/a.log`` for a member."""
        return f"{self.path}{_MEMBER}{self.member}" if self.member else self.path


@dataclass(frozen=True)
class Unread:
    """A file or directory that could not be read, and why."""

    path: str
    why: str


def find(paths: Iterable[Path], leave_out: Iterable[Path] = ()) -> Iterator[Source | Unread]:
    """Every file that may be a log, at and below ``paths``, once each and in the order of names.

    Directories in ``leave_out`` (spelt as a walk from ``paths`` finds them) are not entered.
    """
    seen: set[tuple[int, int]] = set()
    left_out = {*map(str, leave_out)}
    for path in paths:
        for found in _below(path, left_out):
            if isinstance(found, Unread):
                yield found
            else:
                yield from _at(found, os.fspath(path) == found, seen)


def _at(path: str, named: bool, seen: set[tuple[int, int]]) -> Iterator[Source | Unread]:
    """What lies at a path, which the user has ``named`` or not, unless it was ``seen`` before."""
    try:
        stat = os.stat(path)
    except OSError as error:
        yield Unread(path, f"cannot be read: {error.strerror}")
        return
    regular, identity = S_ISREG(stat.st_mode), (stat.st_dev, stat.st_ino)
    if named and regular and is_tar(path):
        yield Unread(path, unpack_tar(path))
    elif identity not in seen and not _passed_over(path):
        seen.add(identity)
        if regular:
            yield from _sources(path, stat)
        else:
            yield Unread(path, _why_not(path))


def _below(path: Path, left_out: set[str]) -> Iterator[str | Unread]:
    if not os.path.isdir(path):  # which never raises
        yield str(path)
        return
    errors: list[OSError] = []
    for folder, folders, names in os.walk(path, onerror=errors.append):
        folders[:] = sorted(each for each in folders if os.path.join(folder, each) not in left_out)
        yield from (os.path.join(folder, name) for name in sorted(names))
    for error in errors:
        yield Unread(str(error.filename), f"cannot be read: {error.strerror}")


def _passed_over(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in _PASSED_OVER


def _why_not(path: str) -> str:
    """What something is that is no file, nor a directory that the walk enters."""
    try:
        open_regular(path).close()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "was no file a moment ago"


def _sources(path: str, stat: os.stat_result) -> Iterator[Source | Unread]:
    identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if not path.lower().endswith(".zip"):
        yield Source(path, stat.st_size, identity=identity)
        return
    try:
        with open_regular(path) as raw, zipfile.ZipFile(raw) as archive:
            named = (each for each in archive.infolist() if each.filename)
            members = [each for each in named if not each.is_dir()]
    except _BROKEN as error:
        yield Unread(path, f"is no zip archive that can be read: {error}")
        return
    for each in sorted(members, key=lambda member: member.filename):
        if not _passed_over(each.filename):
            yield Source(path, each.file_size, each.filename, identity)


@contextmanager
def _opened(source: Source) -> Iterator[IO[bytes]]:
    with open_regular(source.path) as raw:
        if source.member:
            with zipfile.ZipFile(raw) as archive, archive.open(source.member) as file:
                yield file
            return
        start = raw.read(6)
        raw.seek(0)
        with _decompressed(raw, start) as file:
            yield file


def _decompressed(raw: Any, start: bytes) -> Any:
    """The compression is recognised by the first bytes, not by the name: logs are renamed."""
    for magic, reader in _COMPRESSIONS.items():
        if start.startswith(magic):
            return reader(raw)
    return raw


class _Zstandard:
    """Reads frames one after another. The package's own reader ends quietly within a frame."""

    _PIECE = 1 << 11  # as much as 64 MiB may come out of it, if it was made to

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._rest = b""
        self._frame: zstandard.ZstdDecompressionObj | None = None

    def __enter__(self) -> _Zstandard:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def read1(self, _: int) -> bytes:
        """The next bytes; b"" at the end of the file. EOFError if that lies within a frame."""
        while True:
            compressed = self._rest or self._raw.read(self._PIECE)
            if not compressed:
                if self._frame is not None:
                    raise EOFError("Compressed file ended before the end of a frame")
                return b""
            frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            data = frame.decompress(compressed)
            self._rest = frame.unused_data if frame.eof else b""
            self._frame = None if frame.eof else frame
            if data:
                return data


def blocks(source: Source) -> Iterator[bytes]:
    """The bytes of a log, decompressed, a block at a time; none if it is no text.

    LogError if it cannot be read to its end, after the blocks that could be read, or if more comes
    out of a compressed one than ever comes of a log.
    """
    stored = max(source.identity[_STORED:][:1] if source.member else (), default=source.size)
    most, size = max(_ANY_LOG, _GROWTH * stored), 0
    try:
        with _opened(source) as file:
            for block in _as_utf_8(_as_far_as_it_goes(file)):
                if not size:
                    _refuse(source, block)
                    # A log that was emptied while its program writes begins with zeros.
                    head = block.lstrip(b"\0")[:_HEAD_BYTES]
                    if not head or head.count(0) * 10 > len(head):
                        return  # no text, however much of it is damaged
                size += len(block)
                if size > most:
                    grown = f"{stored} bytes become more than {most}, as no log's do"
                    raise LogError(f"{source.name}: is not read to its end: {grown}")
                yield block
    except _BROKEN as error:
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LogError(f"{source.name}: cannot be read to its end: {what}") from error


def beginning(source: Source, size: int = BLOCK_BYTES) -> bytes:
    """The first ``size`` bytes of a log or more, as far as they can be read."""
    found = bytearray()
    with suppress(LogError):
        for block in blocks(source):
            found += block[:size]
            if len(found) >= size:
                break
    return bytes(found)


def _refuse(source: Source, head: bytes) -> None:
    """LogError for a file that begins as another kind of file does."""
    if not source.member and is_tar("", head):
        raise LogError(f"{source.name}: {unpack_tar(source.name)}")


def _as_utf_8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks; of UTF-16, as PowerShell's ``>`` writes and its first bytes show, in UTF-8."""
    first = next(blocks, b"")
    whole = chain([first], blocks)
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return whole
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    return (decoder.decode(block).encode() for block in whole)


def _as_far_as_it_goes(file: Any) -> Iterator[bytes]:
    """The file in blocks; where it is damaged, first the bytes before the damage, then the error.

    A decompressed file's ``read`` would lose the bytes that it has when it finds the damage.
    """
    read = file.read1 if hasattr(file, "read1") else file.read
    parts: list[bytes] = []
    size, broken = 0, None
    while True:
        try:
            part = read(BLOCK_BYTES)
        except _BROKEN as error:
            part, broken = b"", error
        parts.append(part)
        size += len(part)
        if size and (size >= BLOCK_BYTES or not part):
            yield b"".join(parts)
            parts, size = [], 0
        if broken is not None:
            raise broken
        if not part:
            return


_BROKEN = (
    *(OSError, EOFError, MemoryError, zlib.error, lzma.LZMAError, zstandard.ZstdError),
    # zipfile: odd compression or version, a password, names, offsets and fields that are none
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, LookupError, ValueError, struct.error),
)
_COMPRESSIONS: Mapping[bytes, Callable[[Any], Any]] = {
    **{b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open},
    b"\x28\xb5\x2f\xfd": _Zstandard,
}
