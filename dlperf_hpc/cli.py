"""What all verbs share: errors become messages, messages become exit codes.

0 ok · 1 some run failed, or the scheduler refused · 2 the request cannot be · 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from dlperf_hpc import __version__
from dlperf_hpc.errors import DlperfError

Verb = Callable[[argparse.Namespace], int]


def parser(verb: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """An argument parser in the house's manner."""
    made = argparse.ArgumentParser(
        prog=f"python -m dlperf_hpc.{verb}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"dlperf_hpc {__version__}")
    return made


def run(verb: Verb, made: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse, run, and turn what the user can mend into one message on stderr."""
    arguments = made.parse_args(argv)
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
