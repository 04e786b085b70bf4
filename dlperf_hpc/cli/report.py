"""``dlperf report DIR...``: CSV, JSON, Markdown and a plot from the job logs of any program."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import messages, options
from dlperf_hpc.cli.messages import counting_bar, usage_error
from dlperf_hpc.errors import LedgerError, at_most, listed, number_of, visible

if TYPE_CHECKING:
    from dlperf_hpc.logs.gather import Gathered
    from dlperf_hpc.logs.scan.search import ScanCache
    from dlperf_hpc.model.result import SweepSource
    from dlperf_hpc.records.manifest import Manifest

SUMMARY = "write speedup tables, CSVs and a plot from job logs"

_MOST_REMARKS = 20
_MOST_SWEEPS = 4  # by their names, in a title
_OF_SITE = ("partition", "gpu_type", "constraint", "qos", "mem", "cpus_per_task", "gpu_bind")


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "report",
        "Write speedup tables from job logs: of a sweep's directory, or of any program whose log\n"
        "format is known (--formats lists the formats). Compressed logs and zip archives are read\n"
        "as they are.",
    )
    add = made.add_argument
    add("paths", nargs="*", type=Path, metavar="DIR", help="directories or log files")
    out = (
        "directory to write (default: DIR/report if DIR is one directory of yours, ./report if"
        " there are several; nothing is written for one directory of somebody else's)"
    )
    add("--out", type=Path, metavar="DIR", help=out)
    base = "topology to which speedup refers (default: the sweep's base, else 1n1g)"
    add("--base", metavar="TOPOLOGY", help=base)
    write = (
        "kinds of files to write (default: csv,json,md,png,html; --write help lists the kinds)."
        " Files of an earlier report in the same directory are rewritten as well"
    )
    add("--write", metavar="KIND,...", help=write)
    add("--parquet", action="store_true", help="add parquet to the kinds of --write")
    add("--sqlite", action="store_true", help="add sqlite to the kinds of --write")
    add("--all", action="store_true", help="print every row and every remark, not 40 lines of them")
    add("--formats", action="store_true", help="list the log formats, and write nothing")
    options.add_json(made, "the report")
    options.add_external_options(made, accelerator=True)
    return made


def _base(text: str | None) -> str | None:
    if not text:
        return None
    from dlperf_hpc.sweepfile.keys import topology_issue

    if issue := topology_issue("--base", text):
        raise usage_error(issue.where, issue.message, issue.hint)
    return text


def _report(arguments: argparse.Namespace) -> int:
    if arguments.formats:
        return _list_formats()
    if arguments.write == "help":
        return _list_writers()
    if not arguments.paths:
        raise usage_error("DIR", "there is no directory and no log to report on")
    from dlperf_hpc.analysis.costs import price_of
    from dlperf_hpc.reporting.contents import Report
    from dlperf_hpc.reporting.writers import Unwritable, write_report

    base, kinds = _base(arguments.base), _kinds(arguments)
    (directory, unwritten), cache = _target(arguments), options.cache(arguments)
    found = _read(arguments, directory, cache)
    if _settled(arguments.paths[0], found):
        found = _read(arguments, directory, cache)
    manifest = found.manifest
    name, site, limits_s = arguments.paths[0].absolute().name, "", {}
    if manifest is not None:
        name, site, limits_s = manifest.sweep, _site(manifest), _limits(manifest)
    elif found.sweeps and len(arguments.paths) > 1:
        name = listed([*found.sweeps], _MOST_SWEEPS, " + ")
    report = Report(
        name,
        found.results,
        base or found.base,
        source=f"{found.summary()} of {', '.join(map(_named, arguments.paths))}",
        unread=found.unread,
        unrecognised=found.unrecognised,
        accelerator=arguments.accelerator,
        limits_s=limits_s,
        site=site,
        budget=manifest.budget_node_hours if manifest else None,
        until=manifest.until if manifest else None,
        sweeps=_sweeps(found),
        price=price_of(manifest.site) if manifest else None,
    )
    paths: Sequence[Path] = ()
    if not unwritten:
        try:
            paths = write_report(directory, report, kinds)
        except Unwritable as error:
            unwritten = str(error)
    _tell(found, arguments.json)
    if arguments.json:
        from dlperf_hpc.reporting.contents import json_text

        print(json_text(report), end="")
    else:
        from dlperf_hpc.reporting.report_tables import cost_text, print_report

        print_report(report, found.damaged, arguments.all)
        print(found.summary())
        print(cost_text(report), end="")
        print("".join(f"written: {visible(str(path))}\n" for path in paths), end="")
    if unwritten:
        _tell_unwritten(arguments, unwritten)
    return 1 if report.troubles or found.damaged else 0


def _named(path: Path) -> str:
    """A path as it was given; of the current directory, which has no name, all of it."""
    return str(path if path.name else path.absolute())


def _read(arguments: argparse.Namespace, out: Path, cache: ScanCache) -> Gathered:
    from dlperf_hpc.logs.gather import gather
    from dlperf_hpc.logs.interpret.rules import rule

    window_rule, stated = rule(arguments.rule), options.stated_settings(arguments)
    with counting_bar(in_bytes=True) as advance:
        return gather(arguments.paths, window_rule, stated, cache, advance, leave_out=[out])


def _settled(path: Path, found: Gathered) -> bool:
    """Whether runs may have their end only now: of a sweep on this machine that was killed."""
    from dlperf_hpc.model.result import Status
    from dlperf_hpc.records import layout

    statuses = {result.status for result in found.results}
    unclear = statuses & {Status.RUNNING, Status.UNKNOWN}
    if not unclear or found.manifest is None or not os.path.lexists(path / layout.MANIFEST):
        return False
    from dlperf_hpc.engines import get_engine

    if get_engine(found.manifest.engine).detached:
        return False
    from dlperf_hpc.engines.states import current

    current(path)
    return True


def _limits(manifest: Manifest) -> dict[str, int]:
    return {run.id: array.time_limit_s for array in manifest.arrays for run in array.tasks}


def _site(manifest: Manifest) -> str:
    from dlperf_hpc.engines import get_engine

    names = ("partition", "gpu_type", "constraint")
    values = {name.replace("_", " "): manifest.site.get(name) for name in names}
    words = [f"{name} {value}" for name, value in values.items() if value]
    described = [str(manifest.site.get("description") or ""), *words]
    return ", ".join(filter(None, described)) or get_engine(manifest.engine).title


def _sweeps(found: Gathered) -> list[SweepSource]:
    """The sweeps of a report of several, with what their manifests say of where they run."""
    from dlperf_hpc.model.result import SweepSource

    made = []
    for name, sweep in found.sweeps.items():
        plan = _plan(sweep.manifest)
        made.append(SweepSource(name, str(sweep.root), sweep.manifest.base, plan))
    return made


def _plan(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Engine, what is asked of Slurm, and containers, by what they are."""
    site, tables = manifest.site, manifest.site.get("environment")
    found = {name.replace("_", " "): (str(site[name]),) for name in _OF_SITE if site.get(name)}
    images: list[str] = []
    for table in tables.values() if isinstance(tables, Mapping) else ():
        boxes = map(table.get, ("apptainer", "pyxis")) if isinstance(table, Mapping) else ()
        images += [str(box.get("image")) for box in boxes if isinstance(box, Mapping)]
    return {"engine": (manifest.engine,), **found, "container": tuple(images) or ("none",)}


def _kinds(arguments: argparse.Namespace) -> Sequence[str]:
    """The writers asked for; SpecError for a word that names none."""
    from dlperf_hpc.reporting.writers import DEFAULT, writers

    kinds = list(DEFAULT)
    if arguments.write is not None:
        kinds = options.words("--write", arguments.write, list(writers()), "kind ")
        if not kinds:
            raise usage_error("--write", "no kind is named", f"there are {', '.join(writers())}")
    return kinds + [name for name in ("parquet", "sqlite") if getattr(arguments, name)]


def _target(arguments: argparse.Namespace) -> tuple[Path, str]:
    """Where to write, and why nothing is written there, '' if it is: below the one directory that
    is reported on, if it is this user's; else in ./report."""
    if arguments.out is not None:
        return Path(arguments.out), ""
    from dlperf_hpc.records import layout, ownership

    only: Path = arguments.paths[0]
    if len(arguments.paths) > 1 or not only.is_dir():
        return Path(layout.REPORT), ownership.not_mine(Path(layout.REPORT)) or ""
    words = ownership.not_mine(only) or ownership.not_mine(only / layout.REPORT)
    return only / layout.REPORT, words or ""


def _tell_unwritten(arguments: argparse.Namespace, why: str) -> None:
    """Say why there are no files, and how to get some. LedgerError where files were requested by
    name: tables on the screen are not what was wanted then."""
    message = f"{why}; the report's files were not written: name a directory of yours with --out"
    if arguments.out or arguments.write is not None or arguments.parquet or arguments.sqlite:
        raise LedgerError(message)
    messages.say(f"note: {message}")


def _tell(found: Gathered, shortly: bool) -> None:
    """What was not read, to standard error: the report has all of it."""
    # What was not read, but for files of programs whose speed is not read.
    unread = [line for line in found.unread if line.partition(": ")[0] not in found.programs]
    lines = [*_programs(found.programs), *unread]
    lines = [f"not read: {line}" for line in lines]
    for line in at_most(lines, _MOST_REMARKS, " remarks: report.json has them all"):
        messages.say(line)
    if found.unrecognised and not shortly:
        names = ", ".join(found.unrecognised[:3]) + ", ..." * (len(found.unrecognised) > 3)
        count = number_of(len(found.unrecognised), "file")
        messages.say(f"no known format: {count} ({names})")


def _programs(programs: Mapping[str, str]) -> Iterator[str]:
    """A line for each program whose speed is not read, however many files it wrote."""
    from dlperf_hpc.logs.scanned import no_speed

    files: dict[str, list[str]] = {}
    for name, program in programs.items():
        files.setdefault(program, []).append(name)
    for program, (first, *rest) in files.items():
        more = f" and {number_of(len(rest), 'other file')}" if rest else ""
        yield f"{first}{more}: {no_speed(program)}"


def _list_formats() -> int:
    from dlperf_hpc.logs.formats import formats
    from dlperf_hpc.logs.scan.search import programs

    rows = [(each.name, each.evidence.value, each.title) for each in formats()]
    print(messages.in_columns(rows))
    named = ", ".join(each.name for each in programs())
    print(f"\nThese programs are recognised, but no speed is read of them: {named}")
    return 0


def _list_writers() -> int:
    from dlperf_hpc.reporting.writers import writers

    rows = [(each.name, ", ".join(each.files), each.meaning) for each in writers().values()]
    print(messages.in_columns(rows))
    return 0


main = messages.entry(_report, _parser, one_thread=True)
