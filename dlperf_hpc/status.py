"""``python -m dlperf_hpc.status DIR``: how the runs of a sweep stand, disk first, Slurm second."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc import cli

if TYPE_CHECKING:
    from dlperf_hpc.records.collect import Collection


def _parser() -> argparse.ArgumentParser:
    made = cli.parser("status", "One table: per topology how many runs stand how.")
    made.add_argument("directory", type=Path, help="the sweep's directory, logs/<sweep>")
    made.add_argument("--offline", action="store_true", help="believe the disk, ask no scheduler")
    made.add_argument("--json", action="store_true", help="every run with its state, as JSON")
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


def _status(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.launch.watch import current

    collection = current(arguments.directory, ask_scheduler=not arguments.offline)
    if arguments.json:
        print(json.dumps(_as_json(collection), indent=1))
    else:
        from dlperf_hpc.reporting.terminal import print_status

        print_status(collection.results)
    return 1 if any(result.status.bad for result in collection.results) else 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return cli.run(_status, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
