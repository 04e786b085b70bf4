"""``dlperf cancel DIR``: end the jobs of one sweep, and no others."""

from __future__ import annotations

import argparse
import json
import sys

from dlperf_hpc.cli import messages, options
from dlperf_hpc.errors import visible

SUMMARY = "cancel the jobs of one sweep"


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "cancel",
        "Cancel the jobs of a sweep, by their ids. Runs that have ended keep their results;\n"
        "`dlperf rerun DIR --status cancelled` submits the others again.",
    )
    options.add_directory(made)
    made.add_argument("--dry-run", action="store_true", help="print the command, do not run it")
    options.add_json(made, "the cancelled jobs")
    return made


def _cancel(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines import get_engine
    from dlperf_hpc.records.ledger import read_ledger

    ledger = read_ledger(arguments.directory.absolute())
    engine = get_engine(ledger.manifest.engine)
    jobs = engine.live_jobs(ledger)
    if jobs and not arguments.dry_run:
        engine.cancel(jobs)
    if arguments.json:
        print(json.dumps({"root": str(ledger.root), "tasks": jobs}, indent=1))
    elif not jobs:
        print("no job of this sweep waits or runs")
    elif arguments.dry_run:
        print(visible(" ".join(engine.cancel_command(jobs))))
    else:
        print(visible(f"cancelled: {', '.join(jobs)}"))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return messages.run(_cancel, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
