"""Every writer of a report: one module each in this folder (docs/adding-a-writer.md).

A module declares ``WRITERS``: of each its name, which is a word of ``dlperf report --write``, and
the files that it makes, each by a function from the report to the file's bytes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Optional

from dlperf_hpc.errors import LedgerError, raising
from dlperf_hpc.files import make_output_directory, write_atomically
from dlperf_hpc.reporting.contents import Report

Make = Callable[[Report], Optional[bytes]]
"""The content of a file; None if there is nothing to show, so that there is no such file.
LedgerError where it cannot be made on this machine, with what to do about that."""


class Unwritable(LedgerError):
    """A file cannot be written where it belongs; what it would say is not at fault."""


DEFAULT = ("csv", "json", "md", "png", "html")
"""What a report consists of unless the user picks."""


@dataclass(frozen=True)
class Writer:
    """``files`` are made beside each other in the report's directory, by name; two writers may name
    the same file, which is made once. ``meaning`` says in a few words what the files are for. The
    same report gives the same bytes. ``slow`` are files that take long: a process of its own makes
    each of them, beside this one."""

    name: str
    meaning: str
    files: Mapping[str, Make]
    slow: frozenset[str] = frozenset()


@functools.cache
def writers() -> Mapping[str, Writer]:
    """The writers by name: the default ones first, in their order."""
    found: list[Writer] = []
    for module in pkgutil.iter_modules(__path__):
        found += importlib.import_module(f"{__name__}.{module.name}").WRITERS
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise ValueError(f"two writers of one name: {sorted(names)}")
    by_name = {each.name: each for each in found}
    return {name: by_name[name] for name in dict.fromkeys((*DEFAULT, *sorted(names)))}


def write_report(
    directory: Path, report: Report, names: Iterable[str] = DEFAULT
) -> tuple[Path, ...]:
    """Write the files of the named writers, each whole or not at all; return their paths. All files
    of a report that lie beside each other tell of the same runs: what an earlier report left there
    is written anew even if its writer is not named, and a file with nothing to show any more is
    removed. KeyError for a name that no writer has; LedgerError if a file cannot be made,
    Unwritable if one cannot be written."""
    known = writers()
    files = {file: make for name in names for file, make in known[name].files.items()}
    every = {file: make for writer in known.values() for file, make in writer.files.items()}
    files |= {f: m for f, m in every.items() if f not in files and (directory / f).exists()}
    slow = frozenset().union(*(writer.slow for writer in known.values()))
    if slow & files.keys():  # what follows once, not in each process
        report.compute()
        with contextlib.suppress(ImportError):  # who needs it says so
            importlib.import_module("matplotlib.backends.backend_agg")
    waiting = {file: _start(make, report) for file, make in files.items() if file in slow}
    made = {file: make(report) for file, make in files.items() if file not in slow}
    made |= {file: content() for file, content in waiting.items()}
    paths = []
    for file in files:
        path, content = directory / file, made[file]
        if content is None:
            with raising(Unwritable, f"{path}: cannot be removed"):
                path.unlink(missing_ok=True)
        else:
            write_atomic(path, content)
            paths.append(path)
    return tuple(paths)


def _start(make: Make, report: Report) -> Callable[[], bytes | None]:
    """Let a forked process make a file; what is returned waits for the file's content. Where there
    can be no process, or where it ends badly, the content is made here instead."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return functools.partial(make, report)
    if child == 0:
        _make_into(writing, make, report)
    os.close(writing)

    def content() -> bytes | None:
        with open(reading, "rb") as pipe:
            found = pipe.read()
        _, status = os.waitpid(child, 0)
        return make(report) if status else found or None

    return content


def _make_into(writing: int, make: Make, report: Report) -> NoReturn:
    """Of the forked process: make the file, write it into the pipe, and end without more ado."""
    with contextlib.suppress(BaseException), open(writing, "wb") as pipe:
        pipe.write(make(report) or b"")
        pipe.flush()
        os._exit(0)
    os._exit(1)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step: a reader sees the old file or the new, whole.
    Creates the directory. Unwritable naming the path if it cannot be written."""
    with raising(Unwritable, f"{path}: cannot be written"):
        make_output_directory(path.parent)
        write_atomically(path, data)
