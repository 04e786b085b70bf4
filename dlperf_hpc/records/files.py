"""Writing files that others read while we write: whole or not at all, and never over another's."""

from __future__ import annotations

import errno
import json
import os
import uuid
from pathlib import Path
from typing import Any


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


def append_line(path: Path, text: str) -> None:
    """Add lines in a single write, so that those of several writers do not mix.

    After a line that was torn by a kill or a full disk, they begin on a line of their own.
    """
    data = (text.rstrip("\n") + "\n").encode(errors="backslashreplace")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)
