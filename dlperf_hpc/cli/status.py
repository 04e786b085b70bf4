"""``dlperf status DIR``: how the runs of a sweep stand, disk first, Slurm second."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli import common

if TYPE_CHECKING:
    from dlperf_hpc.records.collect import Collection


def _parser() -> argparse.ArgumentParser:
    made = common.parser("status", "One table: per topology how many runs stand how.")
    made.add_argument(
        "directory", type=Path, help="the sweep's directory, logs/<sweep>, or archive"
    )
    made.add_argument("--offline", action="store_true", help="believe the disk, ask no scheduler")
    made.add_argument("--json", action="store_true", help="every run with its state, as JSON")
    made.add_argument("--watch", action="store_true", help="a live table, until all has ended")
    made.add_argument("--every", type=float, metavar="S", help="seconds between looks (30)")
    return made


def _as_json(collection: Collection) -> dict[str, Any]:
    return {
        "root": str(collection.root),
        "sweep": collection.manifest.sweep if collection.manifest else None,
        "counts": dict(Counter(result.status.value for result in collection.results)),
        "runs": [
            {
                "run": result.run.id,
                "topology": str(result.run.case.topology),
                "status": result.status.value,
                "reason": result.reason,
                "source": result.source,
            }
            for result in collection.results
        ],
    }


def _watched(arguments: argparse.Namespace) -> Collection:
    """Show the table again and again, by one squeue (and at most one sacct) each time."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from dlperf_hpc.engines.watch import current
    from dlperf_hpc.records.manifest import read_manifest
    from dlperf_hpc.reporting.terminal import status_table

    kept = read_manifest(arguments.directory).site.get("poll_s", 30.0)
    every_s = max(1.0, arguments.every or float(kept))
    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            collection = current(arguments.directory, ask_scheduler=not arguments.offline)
            note = Text(f"{time.strftime('%H:%M:%S')}, every {every_s:g} s; Ctrl-C leaves")
            live.update(Group(status_table(collection.results), note), refresh=True)
            if all(result.status.finished for result in collection.results):
                return collection
            time.sleep(every_s)


def _status(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines.watch import current
    from dlperf_hpc.records.archive import unpacked

    if arguments.watch:
        collection = _watched(arguments)
        return 1 if any(result.status.bad for result in collection.results) else 0
    with unpacked(arguments.directory) as root:
        archived = root != arguments.directory
        collection = current(root, ask_scheduler=not (arguments.offline or archived))
    if arguments.json:
        print(json.dumps(_as_json(collection), indent=1))
    else:
        from dlperf_hpc.reporting.terminal import print_status

        print_status(collection.results)
    return 1 if any(result.status.bad for result in collection.results) else 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return common.run(_status, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
