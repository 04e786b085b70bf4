"""What runs of several files say of each other: ranks' files of one run, copies of a log, and
settings that a neighbour states.

Launchers write a file for each rank of a run: copies of its lines, and not its repeats.

| launcher | files |
|---|---|
| paddle.distributed.launch | ``log/workerlog.0`` .. ``workerlog.7`` |
| horovodrun and mpirun ``--output-filename`` | ``out/rank.0/stdout``, ``out/1/rank.00/stdout`` |
| torchrun ``--log-dir`` | ``logs/<id>/attempt_0/0/stdout.log``: restart, then local rank |
| submitit | ``3274571_10_0_log.out``: job, array index, task |
| others | ``train_rank0.log``, ``run.rank_3.log``, ``node_rank1.txt`` |

A name alone proves little (``lora_rank_8.log``): files are one run if their names differ in the
rank, their settings do not contradict each other, and they have the same iterations in the same
minutes. Only the first three names do without a time stamp.

A log that lies there twice (renamed, compressed, or written by ``tee`` beside the launcher's) is
no second run: windows whose lines say the same are one, unless their settings contradict.

A series is what runs have in common but for the topology. Where one log of several does not say its
precision, say, it falls out of its series; a warning names the others and the option that says it.
(A timed loop of a user's own has a launch: its log says what is known, and no option adds to it.)
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dlperf_hpc.errors import LogError
from dlperf_hpc.logs.interpret.segments import UNSURE
from dlperf_hpc.logs.interpret.throughput import OPTIONS
from dlperf_hpc.logs.scan.sources import Source, blocks
from dlperf_hpc.logs.scanned import ScannedFile, Stamps
from dlperf_hpc.model.case import ObservedCase, ObservedRun
from dlperf_hpc.model.result import RunResult, Status

SAME_MINUTES_S = 120.0
"""Ranks of one run print an iteration within so many seconds."""

_STREAM = r"(?:filtered_)?(?:stdout|stderr)(?:\.log|\.txt)?(?:\.gz|\.zst|\.xz|\.bz2)?"
_SURE = (
    re.compile(r"(?P<before>.*/|)workerlog\.(?P<rank>[0-9]{1,6})(?P<after>(?:\.log)?(?:\.gz)?)"),
    re.compile(rf"(?P<before>.*/|)rank[._-]?(?P<rank>[0-9]{{1,6}})(?P<after>/{_STREAM})"),
    re.compile(
        rf"(?P<before>.*/|)attempt_(?P<attempt>[0-9]{{1,4}})/(?P<rank>[0-9]{{1,6}})"
        rf"(?P<after>/{_STREAM})"
    ),
)
_LIKELY = (
    re.compile(
        r"(?P<before>(?:.*[/._-])?)(?:local_?|node_?)?rank[._-]?(?P<rank>[0-9]{1,6})"
        r"(?P<after>(?:[._-][^/]*)?)"
    ),
    re.compile(r"(?P<before>(?:.*/)?[0-9]+(?:_[0-9]+)?)_(?P<rank>[0-9]{1,6})(?P<after>_log\.\w+)"),
)
_OF_STREAM = re.compile(r"(?:filtered_)?(?:stdout|stderr)(?=[^/]*\Z)|_log\.(?:out|err)\Z")


@dataclass(frozen=True)
class RankName:
    """What a path says of the rank that wrote it. ``run`` is the same for all ranks of a run and
    all its restarts, ``bare`` the path without the rank; ``sure``: no other file is called so."""

    run: str
    bare: str
    rank: int
    attempt: int = 0
    sure: bool = False


def rank_name(path: str) -> RankName | None:
    """The rank in a path; None if there is none."""
    for sure, patterns in ((True, _SURE), (False, _LIKELY)):
        for pattern in patterns:
            if match := pattern.fullmatch(path):
                before, after = match["before"], match["after"]
                attempt = int(match.groupdict().get("attempt") or 0)
                run = _OF_STREAM.sub("*", f"{before}*{after}")
                bare = before.rstrip("._-") + (after or "")
                return RankName(run, bare.replace("//", "/"), int(match["rank"]), attempt, sure)
    return None


class FileRuns(NamedTuple):
    """The runs of one file, where that lies, why it has none, and whether its name says which
    repeat."""

    results: tuple[RunResult, ...]
    source: Source
    problems: tuple[str, ...] = ()
    named: bool = False


@dataclass(frozen=True)
class Content:
    """What two files of one run have in common: iterations, minutes and settings."""

    format: str
    first: int
    last: int
    lines: int
    began: float | None
    ended: float | None
    facts: dict[str, Any]


def content_of(file: ScannedFile) -> Content:
    """The iterations, the minutes and the settings of a file."""
    reading = file.readings[0]
    facts = {fact.name: fact.value for fact in reversed(file.facts)}
    if not reading.steps:
        return Content(reading.format, 0, 0, 0, None, None, facts)
    first, last = reading.steps[0], reading.steps[-1]
    began, ended = first.stamp, last.stamp
    if reading.stamps is Stamps.ELAPSED:
        began = ended = None
    count = len(reading.steps)
    return Content(reading.format, first.iteration, last.iteration, count, began, ended, facts)


@dataclass(frozen=True)
class RankFile:
    """A rank's file: what it tells by its own name, and by the name without the rank."""

    name: RankName
    label: str
    file: Content
    named: FileRuns
    bare: FileRuns


def one_run(one: RankFile, other: RankFile) -> bool:
    """Whether two files whose names differ in the rank alone are of one run, by their content."""
    a, b = one.file, other.file
    if one.name.attempt != other.name.attempt or a.format != b.format or a.first != b.first:
        return False
    if any(b.facts.get(name, value) != value for name, value in a.facts.items()):
        return False
    # A rank may be cut off a few lines before another.
    if abs(a.last - b.last) > 2 * max(1, (a.last - a.first) // max(1, a.lines - 1)):
        return False
    pairs = [(a.began, b.began), *([(a.ended, b.ended)] if a.last == b.last else [])]
    apart = [abs(x - y) for x, y in pairs if x is not None and y is not None]
    if not apart:
        return one.name.sure and a.lines > 0
    return max(apart) <= SAME_MINUTES_S


def runs_of(files: Iterable[RankFile]) -> Iterator[tuple[list[list[RankFile]], bool]]:
    """The files of each run: of each of its attempts a list, and whether there is more than one
    file. The first of a list is the one that counts."""
    by_run: dict[str, list[RankFile]] = {}
    for each in files:
        by_run.setdefault(each.name.run, []).append(each)
    for group in by_run.values():
        clusters: list[list[RankFile]] = []
        for each in sorted(group, key=lambda each: (each.name.attempt, each.name.rank)):
            home = next((found for found in clusters if one_run(found[0], each)), None)
            if home is None:
                clusters.append([each])
            else:
                home.append(each)
        for cluster in clusters:
            cluster.sort(key=_merit)
        attempts = {cluster[0].name.attempt for cluster in clusters}
        if 1 < len(clusters) == len(attempts):  # restarts of one run
            yield clusters, True
        else:
            yield from (([cluster], len(cluster) > 1) for cluster in clusters)


def _merit(each: RankFile) -> tuple[bool, bool, int, int]:
    """Which file of a run counts: one in which it broke, then one with a number and most lines."""
    results = each.bare.results
    broken = any(result.status.bad and result.status is not Status.PARTIAL for result in results)
    numbers = any(result.rates for result in results)
    return (not broken, not numbers, -each.file.lines, each.name.rank)


def _merged(cluster: Sequence[RankFile]) -> FileRuns:
    """What the file that counts tells, with a remark of which files the run has."""
    best = cluster[0]
    if len(cluster) == 1:
        return best.bare
    ranks = sorted(cluster, key=lambda each: each.name.rank)
    remark = (
        f"one run of {len(cluster)} files, one per rank ({ranks[0].label} to {ranks[-1].label}): "
        f"that of rank {best.name.rank} counts"
    )
    results = [replace(each, warnings=(*each.warnings, remark)) for each in best.bare.results]
    return best.bare._replace(results=tuple(results))


def each_run_once(files: Sequence[RankFile]) -> tuple[list[FileRuns], list[str]]:
    """The runs of all rank files, each once, and the remarks on files that tell of none."""
    runs: list[FileRuns] = []
    remarks: list[str] = []
    for attempts, several in runs_of(files):
        if not several:
            ((alone,),) = attempts
            runs.append(alone.named)
            remarks += alone.named.problems
            continue
        found = list(map(_merged, attempts))
        made: list[RunResult] = []
        for each in found:
            made += [replace(one, attempt=len(made) + n) for n, one in enumerate(each.results, 1)]
            if not each.results:
                remarks += each.problems
        runs.append(found[0]._replace(results=tuple(made)))
    return runs, remarks


# --- copies


def without_copies(files: Sequence[FileRuns]) -> tuple[list[FileRuns], list[str]]:
    """The runs of all files, those that lie there several times once, and a remark on each copy.
    Of two copies that one counts in which the run broke, else that with more runs or settings."""
    kept, remarks = list(files), []
    first: dict[str, RunResult] = {}
    known = Counter(_content(result) for file in files for result in file.results)
    for at in sorted(range(len(files)), key=lambda at: _completeness(files[at])):
        own = []
        for result in files[at].results:
            content = _content(result)
            if content.startswith(UNSURE) and known[content] > 1:
                content += _digest(files[at].source)
            other = first.setdefault(content, result)
            if not content or other.log == result.log:
                own.append(result)
            elif _contradict(result, other):
                doubt = f"its lines are those of {other.log} too, whose settings are others"
                own.append(replace(result, warnings=(*result.warnings, doubt)))
            else:
                remarks.append(f"{result.log}: is a copy of {other.log}, whose run is the same")
        kept[at] = files[at]._replace(results=tuple(own))
    return kept, remarks


def _content(result: RunResult) -> str:
    return result.external.content if result.external else ""


def _completeness(file: FileRuns) -> tuple[bool, int, int]:
    """Which of two copies counts: the lesser."""
    broken, settings = False, 0
    for result in file.results:
        broken = broken or (result.status.bad and result.status is not Status.PARTIAL)
        settings += len(result.facts)
    return not broken, -len(file.results), -settings


def _contradict(one: RunResult, other: RunResult) -> bool:
    """Whether a setting of one run is another one in the other. Tags are any words of a name."""
    mine, theirs = vars(one.run.case), vars(other.run.case)
    names = mine.keys() - {"tags"}
    return any(mine[name] and theirs[name] not in (mine[name], None, "") for name in names)


def _digest(source: Source) -> str:
    """A digest of a log's bytes, not compressed; its name, if they cannot be read to their end."""
    digest = hashlib.sha256()
    try:
        for block in blocks(source):
            digest.update(block)
    except LogError:  # which is told already
        return source.name
    return digest.hexdigest()


def numbered(files: Sequence[FileRuns]) -> list[RunResult]:
    """The runs of all files. Those whose repeat no name tells are counted in their order."""
    taken: Counter[str] = Counter()
    results: list[RunResult] = []
    for file in files:
        if file.named or not file.results:
            results += file.results
            continue
        case = file.results[0].run.case.id
        taken[case] += 1
        for result in file.results:
            assert isinstance(result.run, ObservedRun), "of a log of another program"
            results.append(replace(result, run=replace(result.run, repeat=taken[case])))
    return results


# --- settings that other logs state

_PARTS = {"model": "model", "batch_size": "batch size per device", "precision": "precision"}
_NAMED = 5  # rows that are named at most


def with_missing_settings(results: Sequence[RunResult]) -> list[RunResult]:
    """The results, those that fall out of a series with a warning that says why."""
    stated: dict[tuple[str, tuple[Any, ...]], set[ObservedCase]] = {}
    for case in filter(None, map(_case, results)):
        for part in _PARTS:
            if getattr(case, part):
                stated.setdefault((part, _but(case, part)), set()).add(case)
    completed = list(results)
    for at, result in enumerate(results):
        own = _case(result)
        if own is not None:
            lacking = [(part, _but(own, part)) for part in _PARTS if not getattr(own, part)]
            gaps = [_gap(key[0], stated[key]) for key in lacking if key in stated]
            completed[at] = replace(result, warnings=(*result.warnings, *gaps))
    return completed


def _case(result: RunResult) -> ObservedCase | None:
    if isinstance(result.run, ObservedRun) and not result.launch:
        return result.run.case
    return None


def _but(case: ObservedCase, part: str) -> tuple[Any, ...]:
    parts = [getattr(case, name) for name in _PARTS if name != part]
    return (case.framework, *parts, case.tags)


def _gap(part: str, cases: Iterable[ObservedCase]) -> str:
    rows = sorted({(case.topology, getattr(case, part)) for case in cases}, key=str)
    named = ", ".join(f"{topology} ({value})" for topology, value in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    option = OPTIONS.get(part, f"--{part}")
    return (
        f"neither the log nor its name states the {_PARTS[part]}, which {named}{more} state: the "
        f"run is in a series of its own ({option})"
    )
