"""``dlperf cancel DIR``: end a sweep's jobs, and nobody else's."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dlperf_hpc.cli import common


def _parser() -> argparse.ArgumentParser:
    made = common.parser(
        "cancel",
        "Cancel the jobs that stand for a sweep's runs: by their ids, in one command.\n"
        "What has been measured stays; `rerun --status cancelled` takes the rest up again.",
    )
    made.add_argument("directory", type=Path, help="the sweep's directory, logs/<sweep>")
    made.add_argument("--dry-run", action="store_true", help="print the command, do not run it")
    made.add_argument("--json", action="store_true", help="print what happened as JSON")
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
        print("none of this sweep's jobs waits or runs")
    elif arguments.dry_run:
        print(" ".join(engine.cancel_command(jobs)))
    else:
        print(f"cancelled: {', '.join(jobs)}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return common.run(_cancel, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
