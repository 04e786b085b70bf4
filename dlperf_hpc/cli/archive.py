"""``dlperf archive DIR``: a sweep's directory as one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dlperf_hpc.cli import common


def _parser() -> argparse.ArgumentParser:
    made = common.parser(
        "archive",
        "Put a sweep's directory into one zip archive: logs, records, attempts, manifest, report.\n"
        "status, report and compare read it as it is; unpacked it is the directory again.",
    )
    made.add_argument("directory", type=Path, help="the sweep's directory, logs/<sweep>")
    made.add_argument("--out", type=Path, help="the archive (default: ./<sweep>.zip)")
    made.add_argument(
        "--anyway", action="store_true", help="also where runs are still waiting or running"
    )
    return made


def _archive(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines.watch import current
    from dlperf_hpc.errors import LedgerError
    from dlperf_hpc.records.archive import pack

    root = arguments.directory.absolute()
    # Asking also keeps the scheduler's last words, which it forgets.
    unfinished = [r for r in current(root).results if not r.status.finished]
    if unfinished and not arguments.anyway:
        raise LedgerError(
            f"{root}: {len(unfinished)} runs have not ended ({unfinished[0].run.id}:"
            f" {unfinished[0].status.value}); wait for them, or archive it --anyway"
        )
    target = arguments.out or Path(f"{root.name}.zip")
    count = pack(root, target)
    print(f"written: {target} ({count} files, {target.stat().st_size / 2**20:.1f} MiB)")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return common.run(_archive, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
