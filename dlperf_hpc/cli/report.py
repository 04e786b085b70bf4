"""``dlperf report DIR...``: CSV, JSON, Markdown and plot from job logs, whoever's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import common
from dlperf_hpc.errors import Issue, SpecError

if TYPE_CHECKING:
    from dlperf_hpc.logs.gather import Gathered

_MOST_SHOWN = 20


def _parser() -> argparse.ArgumentParser:
    made = common.parser(
        "report",
        "Speedup tables from job logs: a sweep's directory, or logs of any framework whose format\n"
        "is known (--formats lists them). Compressed logs and zip archives are read as they are.",
    )
    made.add_argument("paths", nargs="*", type=Path, metavar="DIR", help="directories or log files")
    made.add_argument("--out", type=Path, help="where to write (default: DIR/report, or ./report)")
    made.add_argument("--base", help="topology that speedup refers to (default: the sweep's)")
    made.add_argument("--json", action="store_true", help="print the report as JSON")
    made.add_argument("--parquet", action="store_true", help="write Parquet files too")
    made.add_argument("--sqlite", action="store_true", help="write a SQLite database too")
    made.add_argument("--formats", action="store_true", help="list the log formats, and leave")
    common.add_external_options(made)
    return made


def _base(text: str | None) -> str | None:
    from dlperf_hpc.sweepfile.keys import topology_issue

    issue = topology_issue("--base", text) if text else None
    if issue is not None:
        raise SpecError("command line", [Issue(issue.where, issue.message)])
    return text


def _report(arguments: argparse.Namespace) -> int:
    if arguments.formats:
        return _list_formats()
    if not arguments.paths:
        raise SpecError("command line", [Issue("DIR", "no directory and no log to report on")])
    from dlperf_hpc.logs.gather import gather
    from dlperf_hpc.reporting.write import write_report

    base = _base(arguments.base)
    out = _out(arguments)
    with progress_bar() as advance:
        found = gather(
            arguments.paths,
            common.rule(arguments),
            common.said(arguments),
            common.cache(arguments),
            advance,
            leave_out=[out],
        )
    manifest = found.manifest
    base = base or (manifest.base if manifest else None)
    name = manifest.sweep if manifest else arguments.paths[0].absolute().name
    note = f"{found.summary()} of {', '.join(map(str, arguments.paths))}"
    paths = write_report(
        out, name, found.results, base, note,
        accelerator=arguments.accelerator, unread=found.unread, unrecognised=found.unrecognised,
        parquet=arguments.parquet, sqlite=arguments.sqlite,
    )  # fmt: skip
    _tell(found, arguments.json)
    if arguments.json:
        print((out / "report.json").read_text(encoding="utf-8"), end="")
    else:
        from dlperf_hpc.analysis.speedup import summarise
        from dlperf_hpc.reporting.terminal import print_report

        print_report(name, summarise(found.results, base, arguments.accelerator), found.results)
        print(found.summary())
        print("\n".join(f"written: {path}" for path in paths))
    return 1 if any(result.status.bad for result in found.results) else 0


def _out(arguments: argparse.Namespace) -> Path:
    """Beside what is reported on, if that is one directory."""
    from dlperf_hpc.records import layout

    if arguments.out is not None:
        return Path(arguments.out)
    only: Path = arguments.paths[0]
    return only / layout.REPORT if len(arguments.paths) == 1 and only.is_dir() else Path("report")


def _tell(found: Gathered, shortly: bool) -> None:
    """What was not read, to standard error: the report has all of it."""
    from dlperf_hpc.reporting.terminal import printable

    for line in found.unread[:_MOST_SHOWN]:
        print(f"not read: {printable(line)}", file=sys.stderr)
    if len(found.unread) > _MOST_SHOWN:
        more = len(found.unread) - _MOST_SHOWN
        print(f"and {more} more remarks: report.json has them all", file=sys.stderr)
    if found.unrecognised and not shortly:
        shown = ", ".join(map(printable, found.unrecognised[:3]))
        others = ", ..." if len(found.unrecognised) > 3 else ""
        print(
            f"no known format: {len(found.unrecognised)} files ({shown}{others})", file=sys.stderr
        )


def _list_formats() -> int:
    from dlperf_hpc.logs.formats import formats

    rows = [(each.name, each.evidence.value, each.title) for each in formats()]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    for name, evidence, title in rows:
        print(f"{name:{widths[0]}}  {evidence:{widths[1]}}  {title}")
    return 0


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, int], None]]:
    """A bar of bytes on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.fields[files]} files"),
        *(BarColumn(), DownloadColumn(), TransferSpeedColumn()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", files=0)
        yield lambda files, done, total: bar.update(task, completed=done, total=total, files=files)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return common.run(_report, _parser(), argv, one_thread=True)


if __name__ == "__main__":
    sys.exit(main())
