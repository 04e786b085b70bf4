"""Progress on standard error while a verb works, where standard error is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dlperf_hpc.errors import printable

_WIDTH = 120


@contextmanager
def counting_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar that the caller moves by ``advance(what, done, total)``; it stays on the screen."""
    with _bar(in_bytes=False) as advance:
        yield advance


@contextmanager
def reading_bar() -> Iterator[Callable[[int, int, int], None]]:
    """A bar that the caller moves by ``advance(files, bytes_read, bytes_in_all)``; it vanishes."""
    with _bar(in_bytes=True) as advance:
        yield lambda files, done, total: advance(f"{files} files", done, total)


@contextmanager
def _bar(in_bytes: bool) -> Iterator[Callable[[str, int, int], None]]:
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    words = (TextColumn("{task.description}", markup=False), BarColumn())
    amount = (
        (DownloadColumn(), TransferSpeedColumn())
        if in_bytes
        else (MofNCompleteColumn(), TimeElapsedColumn())
    )
    with Progress(*words, *amount, console=Console(stderr=True), transient=in_bytes) as bar:
        task = bar.add_task("")
        yield lambda what, done, total: bar.update(
            task, description=printable(what), completed=done, total=total
        )


def show_wait(text: str) -> None:
    """Name what the verb waits for, on the terminal's last line; "" wipes that line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{printable(text)[:_WIDTH]}", end="", file=sys.stderr, flush=True)
