"""``python -m dlperf_hpc.report DIR``: CSV, JSON, Markdown and plot from a sweep's logs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dlperf_hpc import cli
from dlperf_hpc.errors import Issue, SpecError


def _parser() -> argparse.ArgumentParser:
    made = cli.parser("report", "Rebuild the report of a sweep's directory, from its logs alone.")
    made.add_argument("directory", type=Path, help="logs/<sweep>, or any directory of such logs")
    made.add_argument("--out", type=Path, help="where to write (default: <directory>/report)")
    made.add_argument("--base", help="topology that speedup refers to (default: the sweep's)")
    made.add_argument("--json", action="store_true", help="print the report as JSON")
    return made


def _base(text: str | None) -> str | None:
    from dlperf_hpc.spec.keys import topology_issue

    issue = topology_issue("--base", text) if text else None
    if issue is not None:
        raise SpecError("command line", [Issue(issue.where, issue.message)])
    return text


def _report(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.analysis.speedup import summarise
    from dlperf_hpc.records import layout
    from dlperf_hpc.records.collect import full_results
    from dlperf_hpc.reporting.write import write_report

    collection = full_results(arguments.directory)
    manifest = collection.manifest
    base = _base(arguments.base) or (manifest.base if manifest else None)
    name = manifest.sweep if manifest else arguments.directory.absolute().name
    out = arguments.out or arguments.directory / layout.REPORT
    note = f"{len(collection.results)} runs of {arguments.directory}"
    paths = write_report(out, name, collection.results, base, note)
    for line in collection.unreadable:
        print(f"not read: {line}", file=sys.stderr)
    if arguments.json:
        print((out / "report.json").read_text(encoding="utf-8"), end="")
    else:
        from dlperf_hpc.reporting.terminal import print_report

        print_report(name, summarise(collection.results, base), collection.results)
        print("\n".join(f"written: {path}" for path in paths))
    return 1 if any(result.status.bad for result in collection.results) else 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return cli.run(_report, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
