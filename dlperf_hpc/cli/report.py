"""``dlperf report DIR...``: CSV, JSON, Markdown and plot from job logs, whoever's."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    made.add_argument(
        "--write",
        metavar="KIND,...",
        help="what to write (default: csv,json,md,png; --write help lists the kinds). Files of an"
        " earlier report beside them are written anew as well",
    )
    made.add_argument("--parquet", action="store_true", help="short for parquet added to --write")
    made.add_argument("--sqlite", action="store_true", help="short for sqlite added to --write")
    made.add_argument("--formats", action="store_true", help="list the log formats, and leave")
    common.add_external_options(made, accelerator=True)
    return made


def _base(text: str | None) -> str | None:
    if not text:
        return None
    from dlperf_hpc.sweepfile.keys import topology_issue

    issue = topology_issue("--base", text)
    if issue is not None:
        raise SpecError("command line", [Issue(issue.where, issue.message)])
    return text


def _report(arguments: argparse.Namespace) -> int:
    if arguments.formats:
        return _list_formats()
    if arguments.write == "help":
        return _list_writers()
    if not arguments.paths:
        raise SpecError("command line", [Issue("DIR", "no directory and no log to report on")])
    from dlperf_hpc.logs.gather import gather
    from dlperf_hpc.reporting.report import Report
    from dlperf_hpc.reporting.writers import write_report

    base, kinds = _base(arguments.base), _kinds(arguments)
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
    report = Report.of(
        manifest.sweep if manifest else arguments.paths[0].absolute().name,
        found.results,
        base or (manifest.base if manifest else None),
        source=f"{found.summary()} of {', '.join(map(str, arguments.paths))}",
        unread=found.unread,
        unrecognised=found.unrecognised,
        accelerator=arguments.accelerator,
    )
    paths = write_report(out, report, kinds)
    _tell(found, arguments.json)
    if arguments.json:
        from dlperf_hpc.reporting.writers.json import text

        print(text(report), end="")
    else:
        from dlperf_hpc.reporting.terminal import print_report

        print_report(report)
        print(found.summary())
        print("\n".join(f"written: {path}" for path in paths))
    return 1 if any(result.status.bad for result in found.results) else 0


def _kinds(arguments: argparse.Namespace) -> Sequence[str]:
    """The writers asked for; SpecError for a word that names none."""
    from dlperf_hpc.reporting.writers import DEFAULT, writers

    kinds = list(DEFAULT)
    if arguments.write is not None:
        kinds = [word for word in arguments.write.replace(" ", "").split(",") if word]
        strange = [word for word in kinds if word not in writers()]
        if strange or not kinds:
            message = f"no such kind: {', '.join(strange)}" if strange else "names no kind"
            raise SpecError("command line", [Issue("--write", message, _there_are(writers()))])
    return kinds + [name for name in ("parquet", "sqlite") if getattr(arguments, name)]


def _there_are(names: Iterable[str]) -> str:
    return f"there are {', '.join(names)}"


def _out(arguments: argparse.Namespace) -> Path:
    """Beside what is reported on, if that is one directory."""
    from dlperf_hpc.records import layout

    if arguments.out is not None:
        return Path(arguments.out)
    only: Path = arguments.paths[0]
    return only / layout.REPORT if len(arguments.paths) == 1 and only.is_dir() else Path("report")


def _tell(found: Gathered, shortly: bool) -> None:
    """What was not read, to standard error: the report has all of it."""
    from dlperf_hpc.reporting.text import printable

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

    _print_columns([(each.name, each.evidence.value, each.title) for each in formats()])
    return 0


def _list_writers() -> int:
    from dlperf_hpc.reporting.writers import writers

    _print_columns(
        [(each.name, ", ".join(each.files), each.meaning) for each in writers().values()]
    )
    return 0


def _print_columns(rows: Sequence[tuple[str, str, str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    for name, kind, meaning in rows:
        print(f"{name:{widths[0]}}  {kind:{widths[1]}}  {meaning}")


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
    # Everything that is read is kept to the end: to look for garbage in it again and again takes a
    # tenth of the time.
    gc.set_threshold(100_000)
    return common.run(_report, _parser(), argv, one_thread=True)


if __name__ == "__main__":
    sys.exit(main())
