"""What all verbs share: errors become messages, messages become exit codes.

0 ok · 1 some run failed, or the scheduler refused · 2 the request cannot be · 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlperf_hpc import __version__
from dlperf_hpc.errors import DlperfError, Issue, SpecError

if TYPE_CHECKING:
    from dlperf_hpc.logs.interpret.rules import Rule
    from dlperf_hpc.logs.scan.search import ScanCache

Verb = Callable[[argparse.Namespace], int]


def parser(verb: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """An argument parser in the house's manner."""
    made = argparse.ArgumentParser(
        prog=f"dlperf {verb}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"dlperf_hpc {__version__}")
    return made


_FACTS = (
    "devices",
    "nodes",
    "gpus_per_node",
    "batch_size",
    "accumulation",
    "global_batch",
    "seq_len",
)


def add_external_options(made: argparse.ArgumentParser, accelerator: bool) -> None:
    """Options about other programs' logs: the window rule, and what the logs do not say.

    ``accelerator``: also the device's name, for a verb that shows what depends on it.
    """
    external = made.add_argument_group("logs of other programs")
    external.add_argument(
        "--rule",
        default="default",
        help="window rule, by name or form (`extract --rules` lists them; default: the clock"
        " between iterations 20 and 120, else the next best that the log allows)",
    )
    for name in _FACTS:
        option = "--" + name.replace("_", "-")
        what = "per device " if name == "batch_size" else ""
        external.add_argument(option, type=int, metavar="N", help=f"{what}where a log has none")
    for name in ("precision", "framework", "model"):
        external.add_argument(f"--{name}", metavar="NAME", help="where a log has none")
    if accelerator:
        external.add_argument(
            "--accelerator", "--card", metavar="NAME", help="V100, A100...: where a log has none"
        )
    external.add_argument("--no-cache", action="store_true", help="read every file again")


def said(arguments: argparse.Namespace) -> dict[str, Any]:
    """Facts given on the command line. SpecError for a number below 1."""
    names = (*_FACTS, "precision", "framework", "model")
    given = {name: getattr(arguments, name) for name in names}
    wrong = [
        Issue("--" + name.replace("_", "-"), f"{value} is not a count of 1 or more")
        for name, value in given.items()
        if isinstance(value, int) and value < 1
    ]
    if wrong:
        raise SpecError("command line", wrong)
    return {name: value for name, value in given.items() if value is not None}


def rule(arguments: argparse.Namespace) -> Rule:
    """The window rule asked for; SpecError with the nearest names if there is none such."""
    from dlperf_hpc.logs.interpret.rules import rule as parsed

    return parsed(arguments.rule)


def cache(arguments: argparse.Namespace) -> ScanCache:
    """Where results of earlier scans are, unless the user wants none."""
    from dlperf_hpc.logs.scan.search import ScanCache, default_path

    return ScanCache(None if arguments.no_cache else default_path())


def run(
    verb: Verb,
    made: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
    one_thread: bool = False,
) -> int:
    """Parse, run, and turn what the user can mend into one message on stderr.

    ``one_thread``: numpy's OpenBLAS starts a thread per core as it is imported, unless told not to;
    where a login node limits processes, that ends Python. Jobs would inherit what it is told.
    """
    arguments = made.parse_args(argv)
    if one_thread:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic would look for plug-ins in every installed package: slow on a shared file system.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        return verb(arguments)
    except DlperfError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; Python's own flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
