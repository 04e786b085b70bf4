"""One submitter at a time in a sweep's directory, whatever kills it; and how it is stopped."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.files import open_own, read_regular, write_atomically
from dlperf_hpc.records import layout, ownership

_POLL_S = 0.2
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_held: list[int] = []


def held_descriptors() -> tuple[int, ...]:
    """Descriptors of the locks this process holds, for children that must hold them as well."""
    return tuple(_held)


@contextmanager
def submit_lock(root: Path, patience_s: float) -> Iterator[None]:
    """Hold the right to submit in ``root``; LedgerError if another holds it for ``patience_s``.

    It is a lock of the kernel's (flock), gone with the last process that has the file open. The
    file becomes this process's standard input for as long, so that an sbatch which outlives us
    still holds it: who comes next must find what that sbatch has submitted.
    """
    descriptor = _open(root / layout.LOCK)
    try:
        _acquire(descriptor, root, time.monotonic() + patience_s)
        stdin = os.dup(0)
        os.dup2(descriptor, 0)
        _held.append(descriptor)
        try:
            yield
        finally:
            _held.remove(descriptor)
            os.dup2(stdin, 0)
            os.close(stdin)
    finally:
        os.close(descriptor)


def ask_to_stop(root: Path) -> None:
    """Ask whoever is submitting in ``root`` to stop after the present array; OSError if that
    cannot be written down."""
    write_atomically(root / layout.STOP, f"{uuid.uuid4().hex}\n")


def stop_asked(root: Path) -> str:
    """The latest wish that submitting stops, '' if there was none. Who submits stops when it is
    another than it was in the beginning: times of several machines cannot be compared."""
    try:
        return read_regular(root / layout.STOP, most=100).decode(errors="replace")
    except OSError:
        return ""


def _open(path: Path) -> int:
    try:
        return open_own(path, os.O_RDWR, ownership.sharing_group())
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written: {error.strerror}; only who may write a sweep's directory"
            " can submit its runs"
        ) from error


def _acquire(descriptor: int, root: Path, deadline: float) -> None:
    announced = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                raise LedgerError(
                    f"{root}: the file system has no locks (flock), so that two processes could"
                    " submit the same runs: give a directory on another file system with --logs"
                ) from error
        else:
            return
        if time.monotonic() > deadline:
            raise LedgerError(
                f"{root}: another process is submitting here (fuser {root / layout.LOCK} names"
                " it); try again when that process has ended"
            )
        if not announced:
            announced = True
            print("another process is submitting here: waiting for its end", file=sys.stderr)
        time.sleep(_POLL_S)
