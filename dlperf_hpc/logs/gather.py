"""What `report` and `compare` start from: every run below some paths, whoever wrote it.

A directory with a manifest of ours is a sweep and is read as one. All other files are looked at
for what is in them: a log of ours, one of another program's in a known format, or neither.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import LedgerError, LogError, number_of
from dlperf_hpc.files import open_regular
from dlperf_hpc.logs.interpret.rules import WindowRule
from dlperf_hpc.logs.scan.sources import Source, beginning, blocks, find
from dlperf_hpc.logs.scanned import OUR_OWN, no_speed
from dlperf_hpc.model.result import PROGRAM, RunResult
from dlperf_hpc.records import layout, unpacked

if TYPE_CHECKING:  # a report of nothing but sweeps, or of no sweep, does without
    from dlperf_hpc.logs.crossfiles import FileRuns, RankFile
    from dlperf_hpc.logs.scan.search import OwnFormat, ScanCache, Scanned
    from dlperf_hpc.logs.scanned import ScannedFile
    from dlperf_hpc.records.collect import Collection
    from dlperf_hpc.records.manifest import Manifest

_SHORTER_THAN_A_LINE = 1000
_HELP = "what to do about a log that is not read: docs/external-logs.md"
_OURS = b"dlperf 2"
_RECORD = f'{{\n "schema": "{layout.RECORD_SCHEMA}"'.encode()  # as dump_json begins one
Progress = Callable[[str, int, int], None]
"""Called with files done, bytes done, and bytes in all."""


@dataclass(frozen=True)
class Gathered:
    """Runs found, and what was found of no use. ``unread`` says of a file, or of a line in it, why
    it was not read; ``unrecognised`` are files in no known format, ``programs`` the names of those
    whose lines show a program that is not read; ``damaged`` are logs of ours that do not name their
    run, with the reason; ``manifest`` is the sweep's if there is just one, ``base`` what all sweeps
    agree on if there is nothing else; ``sweeps`` are several, by name, at the paths of the user."""

    results: tuple[RunResult, ...]
    unread: tuple[str, ...] = ()
    unrecognised: tuple[str, ...] = ()
    files: int = 0
    cached: int = 0
    formats: Mapping[str, int] = field(default_factory=dict)
    manifest: Manifest | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    base: str | None = None
    sweeps: Mapping[str, Collection] = field(default_factory=dict)

    def summary(self) -> str:
        """One line: how many files, and what became of the runs in them."""
        parts = [number_of(len(self.results), "run")]
        if self.results:
            counts = sorted(Counter(result.status.value for result in self.results).items())
            parts[0] += f" ({', '.join(f'{count} {status}' for status, count in counts)})"
        if self.files:
            parts.insert(0, number_of(self.files, "file"))
            if self.programs:
                named = ", ".join(dict.fromkeys(self.programs.values()))
                parts.append(f"{len(self.programs)} recognised ({named}), no speed read")
            parts.append(f"{len(self.unrecognised)} in no known format")
        if self.unread:
            parts.append(f"{number_of(len(self.unread), 'remark')} on what was not read")
        return ", ".join(parts)


def gather(
    paths: Sequence[Path],
    rule: WindowRule,
    stated: Mapping[str, Any],
    cache: ScanCache,
    progress: Progress = lambda *_: None,
    leave_out: Iterable[Path] = (),
) -> Gathered:
    """Read everything at and below ``paths`` but for ``leave_out``. LedgerError if a path is not
    there, or if there is no log in a known format. ``stated`` are the user's facts of external
    logs, by their names; ``cache`` knows the user's own format for them."""
    for path in paths:
        _check_is_there(path)
    logs = UnmanagedLogs(rule, stated, cache.own_format)
    once, twice = _each_once(paths)
    with contextlib.ExitStack() as stack:
        places = {stack.enter_context(unpacked(path)): path for path in once}
        found = _gathered(places, logs, cache, progress, leave_out)
        found = replace(found, unread=(*twice, *found.unread))
    for place, path in places.items():
        found = found if place == path else _as_named(found, f"{place}/", f"{path}/")
    return found


def _as_named(found: Gathered, place: str, path: str) -> Gathered:
    """With places of logs as the user finds them: in the archive, not where it was unpacked."""
    return replace(
        found,
        results=tuple(result.as_named(place, path) for result in found.results),
        unread=tuple(line.replace(place, path) for line in found.unread),
        damaged={log.replace(place, path): why for log, why in found.damaged.items()},
    )


def _check_is_there(path: Path) -> None:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LedgerError(f"{path}: {_missing(path)}") from error
    except (OSError, ValueError) as error:  # NULs in a name are no OSError
        why = getattr(error, "strerror", None) or error
        raise LedgerError(f"{path}: cannot be read: {why}") from error


def _gathered(
    places: Mapping[Path, Path], logs: UnmanagedLogs, cache: ScanCache, progress: Progress,
    leave_out: Iterable[Path],
) -> Gathered:  # fmt: skip
    """What lies at and below ``places``, which are where paths of the user's were unpacked."""
    roots, unread = _each_once(sweeps_below(places))
    sweeps, named, remarks = read_sweeps(roots, places)
    unread += remarks
    rest = [path for path in places if path not in roots]
    sources: list[Source] = []
    for found in find(rest, leave_out=[*roots, *leave_out]):
        if isinstance(found, Source):
            sources.append(found)
        else:
            unread.append(f"{found.path}: {found.why}")
    unread += _empty(places, [*roots, *(Path(source.path) for source in sources)])
    cached = _scan(sources, logs, cache, progress)
    results: list[RunResult] = []
    for sweep in sweeps:
        unread += sweep.unreadable
        results += sweep.results
    results = logs.with_figures(results)
    unread += _without_figure(results)
    results += logs.results
    unread += [*logs.unfitting(results), *logs.unread]
    if not results and not sweeps:
        known = sum(logs.formats.values())
        raise LedgerError(_nothing([*places], len(sources), known, unread))
    only_sweeps = [] if logs.results else sweeps
    bases = {sweep.manifest.base for sweep in only_sweeps}
    return Gathered(
        results=tuple(results),
        unread=tuple(unread),
        unrecognised=tuple(logs.unrecognised),
        files=len(sources),
        cached=cached,
        formats=logs.formats,
        manifest=only_sweeps[0].manifest if len(only_sweeps) == 1 else None,
        base=bases.pop() if len(bases) == 1 else None,
        damaged=logs.damaged,
        programs=logs.programs,
        sweeps={name: replace(s, root=_as_given(s.root, places)) for name, s in named.items()},
    )


def _each_once(paths: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Each file and directory by its first path, and a remark on each of the other paths."""
    found, remarks = dict[tuple[int, int], Path](), list[str]()
    for path in paths:
        seen = os.stat(path)
        if found.setdefault((seen.st_dev, seen.st_ino), path) is not path:
            remarks.append(f"{path}: is given twice; it is read once")
    return [*found.values()], remarks


def _empty(places: Mapping[Path, Path], read: Sequence[Path]) -> Iterator[str]:
    """A remark on each of several paths at and below which nothing was read."""
    for place, path in places.items() if read else ():
        if not any(each == place or place in each.parents for each in read):
            yield f"{path}: holds neither a sweep nor a log; give a sweep's directory or archive"


def _scan(
    sources: Sequence[Source], logs: UnmanagedLogs, cache: ScanCache, progress: Progress
) -> int:
    """Add what the files tell to ``logs``; how many of them the cache knew."""
    if not sources:
        return 0
    from dlperf_hpc.logs.scan.search import scan_all

    total = sum(source.size for source in sources)
    size = cached = 0
    for done, scanned in enumerate(scan_all(sources, cache), 1):
        size += scanned.source.size
        progress(f"{done} files", size, total)
        logs.take(scanned)
        cached += scanned.cached
    logs.finish()
    return cached


class UnmanagedLogs:
    """Logs that no manifest speaks for, one after another."""

    def __init__(
        self, rule: WindowRule, stated: Mapping[str, Any], own_format: OwnFormat | None
    ) -> None:
        self.results: list[RunResult] = []
        self.unread: list[str] = []
        self.unrecognised: list[str] = []
        self.damaged: dict[str, str] = {}
        self.formats: Counter[str] = Counter()
        self.programs: dict[str, str] = {}
        self.own_format = own_format
        self._rule, self._stated = rule, stated
        self._runs: list[FileRuns] = []
        self._ranks: list[RankFile] = []

    def take(self, scanned: Scanned) -> None:
        """Add what one file tells."""
        name, file = scanned.source.name, scanned.file
        for note in file.notes:
            if not note.line:
                self.unread.append(f"{name}: {note.text.removeprefix(f'{name}: ')}")
            elif file.readings:
                self.unread.append(f"{name}:{note.line}: {note.text}")
        if file.readings and _is_ours(scanned):
            self.formats[OUR_OWN] += 1
            self._own(scanned.source)
        elif file.readings:
            self.formats[file.readings[0].format] += 1
            self._take_runs(scanned)
        elif not _is_record(scanned.source):  # what that says stands in the log beside it
            self._unread(scanned)

    def _take_runs(self, scanned: Scanned) -> None:
        from dlperf_hpc.logs.crossfiles import RankFile, content_of, rank_name
        from dlperf_hpc.logs.interpret.segments import parts_of

        source = scanned.source
        where = f"{source.path}/{source.member}"
        label, rank = "/".join(source.name.split("/")[-2:]), rank_name(where.rstrip("/"))
        for part in parts_of(scanned.file):
            found = self._runs_of(part, source, where)
            if rank is None:
                self.unread += found.problems
                self._runs.append(found)
            else:
                bare = self._runs_of(part, source, rank.bare)
                self._ranks.append(RankFile(rank, label, content_of(part), found, bare))

    def _unread(self, scanned: Scanned) -> None:
        name, file = scanned.source.name, scanned.file
        if _begins_as_ours(scanned.source):
            self._no_run(name, f"{name}: a log of this tool, cut in its first line")
        elif file.program:
            self.programs[name] = file.program
            self.unread.append(f"{name}: {no_speed(file.program)}")
        else:
            self.unrecognised.append(name)
            if file.nearest:
                self.unread.append(f"{name}: no known format; {file.nearest}")

    def finish(self) -> None:
        """Add what is known at the end: runs of several files, each once, and lost series."""
        from dlperf_hpc.logs import crossfiles

        of_ranks, remarks = crossfiles.each_run_once(self._ranks)
        runs, copies = crossfiles.without_copies([*self._runs, *of_ranks])
        results = [*self.results, *crossfiles.numbered(runs)]
        self.results = crossfiles.with_missing_settings(results)
        self.unread += [*remarks, *copies]

    def _runs_of(self, file: ScannedFile, source: Source, where: str) -> FileRuns:
        """The runs of a file by the settings in a path, and what keeps it from having any."""
        from dlperf_hpc.logs.crossfiles import FileRuns
        from dlperf_hpc.logs.interpret.interpretation import interpret
        from dlperf_hpc.logs.names import facts_of_path, variant_of_path

        named = facts_of_path(where)
        found = interpret(file, named, variant_of_path(where), self._stated, self._rule)
        parts = [note.text for note in file.notes if not note.line and note.partly]
        problems = tuple(": ".join([source.name, *parts, each]) for each in found.problems)
        repeat = any(fact.name == "repeat" for fact in named)
        return FileRuns(found.results, source, problems, repeat)

    def _own(self, source: Source) -> None:
        from dlperf_hpc.records import logfile, record, store

        try:
            data = b"".join(blocks(source))
            result = record.reconcile(logfile.result_of_log(Path(source.name), data))
        except LogError as error:
            self._no_run(source.name, str(error))
            return
        self.results += self.with_figures([store.with_life(result, Path(source.name))], data)

    def with_figures(self, results: list[RunResult], data: bytes | None = None) -> list[RunResult]:
        """The results, with the figures of users' programs where there are any among them;
        ``data`` is the content of their log."""
        if not any(PROGRAM in result.facts for result in results):
            return results
        from dlperf_hpc.logs.program_figures import with_figures

        return with_figures(results, self._rule, data, self.own_format)

    def unfitting(self, results: Iterable[RunResult]) -> Iterator[str]:
        """That no file has a line as the user's own format says."""
        if self.own_format is None:
            return
        from dlperf_hpc.logs.tableformat import own_name

        name = self.own_format[0]
        read = {result.external.format for result in results if result.external is not None}
        if own_name(name) not in (*self.formats, *read):
            yield f"no line of any file fits a pattern of {name}, as --format-file tells it"

    def _no_run(self, name: str, why: str) -> None:
        self.unread.append(why)
        self.damaged[name] = why.removeprefix(f"{name}: ")


def _is_ours(scanned: Scanned) -> bool:
    """Whether a file is a log of ours, also if it has lines of several formats: that of a user's
    program."""
    formats = [reading.format for reading in scanned.file.readings]
    if formats[0] == OUR_OWN or OUR_OWN not in formats:
        return formats[0] == OUR_OWN
    first_line = beginning(scanned.source).partition(b"\n")[0]
    return first_line.startswith(_OURS) and b" begin format=" in first_line


def _without_figure(results: Iterable[RunResult]) -> list[str]:
    silent = [result for result in results if PROGRAM in result.facts and not result.rates]
    if not silent:
        return []
    from dlperf_hpc.logs.program_figures import NO_FIGURE

    return [
        f"{result.log}: {line}"
        for result in silent
        for line in result.warnings
        if line.startswith(NO_FIGURE)
    ]


def _is_record(source: Source) -> bool:
    return source.name.endswith(".json") and beginning(source).startswith(_RECORD)


def _begins_as_ours(source: Source) -> bool:
    """Whether a file that no format knows is the first bytes of a log of ours."""
    if source.size > _SHORTER_THAN_A_LINE:
        return False
    head = beginning(source)
    return head.startswith(_OURS) and b"\n" not in head


def _missing(path: Path) -> str:
    """What to say of a path that is not there: the one beside it whose name is most like it."""
    import difflib

    gone = next(
        each for each in reversed([path, *path.parents]) if not each.exists() or each == path
    )
    try:
        near = difflib.get_close_matches(gone.name, os.listdir(gone.parent), n=1)
    except OSError:
        near = []
    meant = [gone.with_name(name) / path.relative_to(gone) for name in near]
    hint = f" (did you mean {meant[0]}?)" if meant and meant[0].exists() else ""
    return f"no such file or directory{hint}"


def _nothing(paths: Sequence[Path], files: int, known: int, unread: Sequence[str]) -> str:
    where, logs = ", ".join(map(str, paths)), number_of(known, "log")
    listed = "".join(f"\n  {line}" for line in unread[:10])
    if known:
        return f"{where}: no run can be told of {logs} in known formats ({_HELP}):{listed}"
    give = "give a sweep's directory (logs/<sweep>), or logs"
    if not files and unread:
        return f"{where}: nothing was read:{listed}"
    if not files:
        return f"{where}: there is no file that may be a log; {give}"
    return (
        f"{where}: no {layout.MANIFEST}, and no log in a known format among"
        f" {number_of(files, 'file')}; {give} in one of the formats that `dlperf report --formats`"
        f" lists ({_HELP}){listed}"
    )


# --- sweeps of ours: where they are, and how the runs of several are told apart


def sweeps_below(paths: Iterable[Path]) -> list[Path]:
    """Directories at and below ``paths`` with a manifest of ours, not looking inside them."""
    found: list[Path] = []
    for path in paths:
        for folder, folders, names in os.walk(path):
            folders.sort()
            if layout.MANIFEST in names and _is_manifest(Path(folder, layout.MANIFEST)):
                found.append(Path(folder))
                folders.clear()
    return found


def _is_manifest(manifest: Path) -> bool:
    try:
        with open_regular(manifest) as file:
            return layout.MANIFEST_SCHEMA.split("/")[0].encode() in file.read(4096)
    except OSError:
        return False


def read_sweeps(
    roots: Iterable[Path], places: Mapping[Path, Path]
) -> tuple[list[Collection], Mapping[str, Collection], list[str]]:
    """Sweeps; each of several by the name in its results; and remarks on copies, which add what
    their original lacks, and on what cannot be read: LedgerError if of ``places``."""
    damaged, copies = [], []
    firsts: dict[str, Collection] = {}
    for root in roots:
        from dlperf_hpc.records.collect import full_results

        try:
            sweep = full_results(root)
        except LedgerError as error:
            if root in places:
                raise
            damaged.append(str(error))
            continue
        arrays = sweep.manifest.arrays
        name = arrays[0].token if arrays else str(sweep.root)  # a copy has its original's tokens
        if (first := firsts.setdefault(name, sweep)) is not sweep:
            here, there = _as_given(root, places), _as_given(first.root, places)
            copies.append(f"{here}: is a copy of {there}, whose runs are the same")
            firsts[name] = _with_copy(first, sweep)
    sweeps = [*firsts.values()]
    if len(sweeps) < 2 or _are_parts(sweeps):
        return sweeps, {}, damaged + copies
    names = _names(sweeps, places)
    named = dict(zip(names, map(_named, sweeps, names)))
    return [*named.values()], named, damaged + copies


def _are_parts(sweeps: Sequence[Collection]) -> bool:
    """Whether sweeps have parts of the same series, as topologies, and no case twice: one curve."""
    runs = [{result.run.case.id: result.run.case.series for result in s.results} for s in sweeps]
    ids, series = [*chain(*runs)], [*chain(*(set(each.values()) for each in runs))]
    return len(set(series)) < len(series) and len(set(ids)) == len(ids)


def _with_copy(sweep: Collection, copy: Collection) -> Collection:
    """The sweep with what only its copy has: runs, and results that count where its own do not. Of
    two results that count and are of different launches both stay: they are two measurements."""
    results = {result.run.id: result for result in sweep.results}
    more = []
    for result in copy.results:
        own = results.setdefault(result.run.id, result)
        if result.counts and not own.counts:
            results[result.run.id] = result
        elif result.counts and own.launch != result.launch:
            more.append(result)
    return replace(sweep, results=(*results.values(), *more))


def _named(sweep: Collection, name: str) -> Collection:
    """The sweep, with its name in its results: of several sweeps each has series of its own, since
    neither their repeats nor their bases are one measurement."""
    return replace(sweep, results=tuple(replace(each, sweep=name) for each in sweep.results))


def _names(sweeps: Sequence[Collection], places: Mapping[Path, Path]) -> list[str]:
    """The sweeps' names; of those that have one name as much of their paths as tells them apart."""
    own = [sweep.manifest.sweep for sweep in sweeps]
    paths = [_as_given(sweep.root, places).absolute().parts for sweep in sweeps]
    names, length = own, 0
    while len(set(names)) < len(names) and length < max(map(len, paths)):
        length += 1
        ends = ["/".join(parts[-length:]) for parts in paths]
        names = [end if own.count(name) > 1 else name for name, end in zip(own, ends)]
    return names


def _as_given(root: Path, places: Mapping[Path, Path]) -> Path:
    """Where the user finds a sweep that may have been unpacked."""
    for place, path in places.items():
        if root == place or place in root.parents:
            return path / root.relative_to(place)
    return root
