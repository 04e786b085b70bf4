"""Files that may be somebody else's: opened so that nothing bites, and written whole or not at all.

A path in a shared file system may be a named pipe, a socket, a device, a link into another's home,
or endless. What is read here is a regular file of a bounded size, or an OSError whose ``strerror``
says what it is instead; what is appended to is a regular file, never what a link points to.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 1 << 30
"""The largest file that is read whole where the caller names no other bound: a manifest of 10^6
runs has a third of it."""

_PIECE = 1 << 24  # bytes read at once, for a file that tells no size

_KINDS = (
    (stat.S_ISFIFO, "is a named pipe, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
    (stat.S_ISLNK, "is a link, which is not followed when something is to be written"),
)


class NotAFile(OSError):
    """What was to be read or appended to is no regular file; ``strerror`` says what it is."""


def _regular(mode: int, path: object) -> None:
    """IsADirectoryError or NotAFile, unless it is the mode of a regular file."""
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    words = next((words for is_kind, words in _KINDS if is_kind(mode)), "is not a regular file")
    raise NotAFile(errno.EINVAL, words, str(path))


def _descriptor(path: str | Path, flags: int, mode: int = 0o644, folder: int | None = None) -> int:
    """A descriptor of a regular file; ``path`` is relative to the open directory ``folder``, if
    there is one. What is no file is not opened if that can be known before: to open a device may
    already do something, and O_NONBLOCK keeps a pipe from waiting."""
    try:
        follow = not flags & os.O_NOFOLLOW
        _regular(os.stat(path, dir_fd=folder, follow_symlinks=follow).st_mode, path)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode, dir_fd=folder)
    try:
        _regular(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading; bytes, unbuffered.

    OSError as :func:`open` raises it; NotAFile for pipes, sockets and devices, without waiting.
    """
    return os.fdopen(_descriptor(path, os.O_RDONLY), "rb", buffering=0)


def open_in(folder: int, name: str) -> BinaryIO:
    """Open a regular file of an open directory for reading, and no link; bytes, unbuffered.

    OSError as :func:`open` raises it (ELOOP if a link has taken the file's place), NotAFile.
    """
    return os.fdopen(_descriptor(name, os.O_RDONLY | os.O_NOFOLLOW, folder=folder), "rb", 0)


def read_regular(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """All of a regular file, as long as it is when it is opened; OSError (EFBIG) if it has more
    than ``most`` bytes, NotAFile if it is none."""
    descriptor = _descriptor(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        data = _read(descriptor, size or most + 1) if size <= most else b""
    finally:
        os.close(descriptor)
    if max(size, len(data)) > most:
        words = f"has more than the {most} bytes that are read of such a file"
        raise OSError(errno.EFBIG, words, str(path))
    return data


def _read(descriptor: int, size: int) -> bytes:
    """That many bytes, or those until the end: what the kernel makes (/proc) tells no size."""
    data = os.read(descriptor, min(size, _PIECE))
    parts = [data]
    while data and (size := size - len(data)):
        data = os.read(descriptor, min(size, _PIECE))
        parts.append(data)
    return b"".join(parts)


def dump_json(value: Any) -> str:
    """JSON as every file of ours has it: no NaN or Infinity (ValueError), readable, one newline."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _write_temporary(path: Path, content: str | bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # a full disk leaves a file, if an empty one
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step: a reader sees the old content or the new, never half of one."""
    temporary = _write_temporary(path, content)
    try:
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_once(path: Path, text: str) -> bool:
    """Write ``path`` unless it is there; True for the one writer that made it.

    A hard link is the exclusive creation that also holds on NFS, and unlike ``open(.., "x")`` it
    never shows an empty file.
    """
    temporary = _write_temporary(path, text)
    try:
        return link_once(temporary, path)
    finally:
        temporary.unlink()


def link_once(source: Path, target: Path) -> bool:
    """A second name for a file; False if something has that name already."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def open_append(path: str | Path) -> BinaryIO:
    """Open a regular file to add to it; it is made if it is not there. Bytes, unbuffered.

    NotAFile if the path is a link or anything else that is no regular file.
    """
    descriptor = _descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
    os.set_blocking(descriptor, True)  # programs inherit it
    return os.fdopen(descriptor, "ab", buffering=0)


def append_line(path: Path, text: str) -> None:
    """Add lines in a single write, so that those of several writers do not mix.

    After a line that was torn by a kill or a full disk, they begin on a line of their own. NotAFile
    if the path is a link or anything else that is no regular file; OSError also if not all is
    taken.
    """
    data = (text.rstrip("\n") + "\n").encode(errors="backslashreplace")
    descriptor = _descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)
