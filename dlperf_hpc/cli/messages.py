"""From errors to messages and exit codes: every verb runs through ``run``. And how far a verb is,
where standard error is a terminal.

0 ok · 1 some run failed, or the scheduler refused · 2 invalid request · 130 interrupted · 141 the
reader of the output has gone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import DlperfError, Issue, SpecError, printable, redacted, visible

Verb = Callable[[argparse.Namespace], int]

# What the verbs need, and the Python of a framework's environment may lack.
_DEPENDENCIES = {
    *("ahocorasick_rs", "matplotlib", "numpy", "pandas", "pydantic", "rich", "submitit"),
    "zstandard",
}
_WIDTH = 120  # of the line that names what a verb waits for
_BROKEN_PIPE = 128 + 13  # what a shell says of a program that SIGPIPE has ended
_OLDEST = (3, 11)
_TOO_OLD = (
    "the verbs need Python 3.11 or newer, and {} is {}.{}: use a newer one on the login node (a"
    " framework's environment may be as old as 3.9, and needs no verbs)"
)


def usage_error(where: str, message: str, hint: str | None = None) -> SpecError:
    """The error to raise for one wrong thing on the command line. ``where`` is the option or
    argument (``--seq-len``), ``hint`` what to write in its place."""
    return SpecError("command line", [Issue(where, message, hint)])


def shortest(path: Path) -> str:
    """A path as one would type it here."""
    here = Path.cwd()
    return visible(str(path.relative_to(here) if path.is_relative_to(here) else path))


def say(text: str) -> None:
    """A line on standard error, with other people's words made visible."""
    print(printable(text), file=sys.stderr)


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts as lines, two blanks at least between the texts of a row."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def print_json(value: Any) -> None:
    """Print plain JSON values to standard output, secrets masked."""
    print(redacted(json.dumps(value, indent=1, allow_nan=False)))


def entry(
    verb: Verb, parser: Callable[[], argparse.ArgumentParser], one_thread: bool = False
) -> Callable[..., int]:
    """The ``main`` of a verb: from its arguments to its exit code. ``one_thread``: numpy's OpenBLAS
    starts one thread per core when numpy is imported, unless OPENBLAS_NUM_THREADS says otherwise;
    where a login node limits processes, these threads end Python. A verb that submits jobs leaves
    the variable alone, since the jobs would inherit it."""

    def main(argv: Sequence[str] | None = None) -> int:
        if one_thread:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        return run(verb, parser(), argv)

    if verb.__module__ == "__main__":  # python -m dlperf_hpc.cli.VERB, as in earlier versions
        sys.exit(main())
    return main


def run(verb: Verb, parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse ``argv``, run the verb, and print an error that a user can mend as one message."""
    if sys.version_info < _OLDEST:
        say(f"error: {_TOO_OLD.format(sys.executable, *sys.version_info)}")
        return 2
    os.umask(os.umask(0o077) | 0o002)  # also for jobs, which have it from who submits
    # Everything that is read is kept to the end: garbage collections would find nothing to free
    # and take a tenth of the time.
    gc.set_threshold(100_000)
    # pydantic would look for plug-ins in every installed package: slow on a shared file system.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        code = verb(parser.parse_args(argv))
        sys.stdout.flush()
        return code
    except DlperfError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in _DEPENDENCIES:
            raise
        say(
            f"error: {sys.executable} has no {error.name}, which this verb needs: install"
            " dlperf_hpc there without --no-deps, or use the Python of the login node (a"
            " framework's environment needs no verbs)"
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; Python's own flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except OSError as error:  # of a file that no message of ours foresees
        where = f"{error.filename}: " if error.filename else ""
        print(visible(f"error: {where}{error.strerror or error}"), file=sys.stderr)
        return 2


@contextmanager
def counting_bar(in_bytes: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A bar that the caller moves by ``advance(what, done, total)``; one of bytes vanishes, any
    other stays."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich import progress
    from rich.console import Console

    columns = [progress.TextColumn("{task.description}", markup=False), progress.BarColumn()]
    if in_bytes:
        columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    else:
        columns += [progress.MofNCompleteColumn(), progress.TimeElapsedColumn()]
    with progress.Progress(*columns, console=Console(stderr=True), transient=in_bytes) as bar:
        task = bar.add_task("")
        yield lambda what, done, total: bar.update(
            task, description=printable(what), completed=done, total=total
        )


def show_wait(text: str) -> None:
    """Name what the verb waits for, on the terminal's last line; "" wipes that line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{printable(text)[:_WIDTH]}", end="", file=sys.stderr, flush=True)
