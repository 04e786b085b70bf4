"""Two sets of measurements, matched case by case, and what is said of each pair.

A side is a list of :class:`Subject`: the cases of one or several directories, or published
figures. A published figure has no runs. It is a point: the interval of a ratio to it is that of
the other side alone, and what its own noise was, nobody knows. When a ratio is a difference is
decided in :mod:`dlperf_hpc.analysis.outcomes`.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from operator import attrgetter

from dlperf_hpc.analysis.flags import both_units
from dlperf_hpc.analysis.machines import (
    HARDWARE,
    Difference,
    Setup,
    differences,
    same_hardware,
    setup_of,
    together,
)
from dlperf_hpc.analysis.outcomes import (
    RatioOutcome,
    band,
    error_of,
    outcome_of,
    pair_interval,
    point_interval,
    rank_interval,
)
from dlperf_hpc.analysis.speedup import (
    OptionPair,
    chosen,
    of_one_unit,
    of_whole_windows,
    units_of_all,
)
from dlperf_hpc.model.case import CaseFacts, Topology
from dlperf_hpc.model.result import SAMPLES_PER_S, RunResult, Status
from dlperf_hpc.model.statistics import (
    RISK,
    TARGET_COVERAGE,
    TOLERANCE,
    Interval,
    median_interval,
    ratio_interval,
)
from dlperf_hpc.published import SAMPLES_PER_S as PUBLISHED_SPEED
from dlperf_hpc.published import Published, framework_name, model_name
from dlperf_hpc.records.layout import shared_job

KEYS = ("framework", "model", "precision", "batch_size", "topology", "tags")
"""What makes two cases the same case, but for keys that the user looks across."""


@dataclass(frozen=True)
class Identity:
    """What a case is, as far as its side says; None or '' is unknown, and equals only itself."""

    framework: str
    model: str
    precision: str
    batch_size: int | None
    topology: Topology
    tags: tuple[str, ...]

    def text(self, key: str) -> str:
        """One of :data:`KEYS` as people write it; '?' if unknown, '' for no tags."""
        if key == "tags":
            return "-".join(self.tags)
        value = getattr(self, key)
        return "?" if value is None or value == "" else str(value)

    @property
    def series(self) -> str:
        """The case without its topology, in the manner of a sweep's own series."""
        variant = "-".join([self.text("precision"), *self.tags])
        name = f"{self.text('framework')}/{self.text('model')}"
        return f"{name}/bz{self.text('batch_size')}/{variant}"

    def matching(self, across: Collection[str] = ()) -> tuple[object, ...]:
        """What must be equal for two cases to be compared; names that mean the same are equal."""
        framework, tags = framework_name(self.framework), {*self.tags}
        if "ngc" in tags:  # a folder's name may tell apart what a format's own name does
            tags.remove("ngc")
            framework = "ngc-" + framework.replace("ngc-", "")
        values = {
            "framework": framework,
            "model": model_name(self.model),
            "precision": self.precision,
            "batch_size": self.batch_size,
            "topology": self.topology,
            "tags": tuple(sorted(tags)),
        }
        return tuple(values[key] for key in KEYS if key not in across)


Speeds = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Subject:
    """One case on one side.

    ``speeds`` are the throughputs over all devices of the runs that count, by each unit that all of
    these have, of ``runs`` known of; ``statuses`` says what became of all. ``published`` is the row
    of a published figure, whose one speed it is, and None for measured runs. ``setup`` is what the
    runs that count were made on and with. ``turns`` has, in the order of the speeds, what a run
    shares with those that were measured beside it: directory, job and repeat; '' for a run alone.
    """

    case: Identity
    speeds: Speeds = field(hash=False)
    runs: int = 1
    statuses: str = ""
    published: Published | None = None
    setup: Setup = field(default_factory=dict, hash=False)
    turns: tuple[str, ...] = ()

    @property
    def counted(self) -> int:
        """How many runs count."""
        return max(map(len, self.speeds.values()), default=0)

    def median(self, unit: str) -> float | None:
        """Of the runs that count; None if they have no throughput in that unit."""
        return statistics.median(self.speeds[unit]) if unit in self.speeds else None


@dataclass(frozen=True)
class Compared:
    """One case of both sides; ``a`` or ``b`` is None if that side does not know the case.

    ``ratio`` is that of the medians, B / A, in ``unit``; ``interval`` is the one of
    :func:`rank_interval`, which decides. ``of_medians`` is the conservative one of the ratio of
    medians: wider, and valid whatever the two shapes. Each is None where a side has too few runs to
    have one. Where ``pairs`` were measured in turn by the same jobs, ``ratio`` and ``interval`` are
    those of :func:`pair_interval`. ``note`` says in words what the outcome alone does not;
    ``differences`` are hardware, hosts and versions that are not alike.
    """

    a: Subject | None
    b: Subject | None
    outcome: RatioOutcome
    ratio: float | None = None
    interval: Interval | None = None
    of_medians: Interval | None = None
    note: str = ""
    differences: tuple[Difference, ...] = ()
    unit: str = SAMPLES_PER_S
    tolerance: float = TOLERANCE
    pairs: int = 0

    @property
    def one(self) -> bool:
        """Whether the runs of both sides are as fast to the last digit: those of one measurement,
        its archive or a copy."""
        return bool(self.a and self.b and self.a.counted and self.a.speeds == self.b.speeds)

    @property
    def sides(self) -> dict[str, Subject]:
        """The sides that know the case, by their names."""
        return {name: side for name, side in (("A", self.a), ("B", self.b)) if side is not None}

    @property
    def error(self) -> float | None:
        """How often such an outcome is wrong at most; None without an interval."""
        return None if self.interval is None else error_of(self.interval)


@dataclass(frozen=True)
class Comparison:
    """All cases of both sides, in A's order, then what only B has.

    Published figures without a partner are not listed: ``unmatched_published`` counts them.
    """

    cases: tuple[Compared, ...]
    tolerance: float
    risk: float
    across: tuple[str, ...] = ()
    unmatched_published: int = 0

    def count(self, outcome: RatioOutcome) -> int:
        """How many cases have that outcome."""
        return sum(case.outcome is outcome for case in self.cases)


def subjects(results: Sequence[RunResult]) -> list[Subject]:
    """The cases of one directory, in order of first appearance; one result per run counts."""
    groups: dict[Identity, list[RunResult]] = {}
    for result in chosen(results):
        groups.setdefault(identity_of(result), []).append(result)
    return [_subject(case, group) for case, group in groups.items()]


def pooled(parts: Iterable[Iterable[Subject]]) -> list[Subject]:
    """The cases of several directories as one side: runs of one case are put together.

    Published figures are not: each stays a subject of its own.
    """
    groups: dict[object, list[Subject]] = {}
    for part in parts:
        for subject in part:
            groups.setdefault(subject.published or subject.case, []).append(subject)
    return list(map(_pooled, groups.values()))


FILTERS = ("framework", "model", "precision", "batch_size", "topology", "tag")
"""What a selection of measured cases may ask for; ``tag`` is one of the case's tags."""


def texts(subject: Subject, key: str) -> list[str]:
    """What a case has under a key of :data:`FILTERS`."""
    return list(subject.case.tags) if key == "tag" else [subject.case.text(key)]


def published_subjects(rows: Iterable[Published]) -> list[Subject]:
    """Published throughputs, one subject each; runs behind them and other metrics are left out."""
    return [
        Subject(
            Identity(
                row.framework, row.model, row.precision, row.batch_size, row.topology, row.options
            ),
            speeds={SAMPLES_PER_S: (row.value,)},
            published=row,
            setup={HARDWARE: (row.hardware,)} if row.hardware else {},
        )
        for row in rows
        if row.metric == PUBLISHED_SPEED and row.kind != "run"
    ]


def compare(
    a: Sequence[Subject],
    b: Sequence[Subject],
    tolerance: float = TOLERANCE,
    risk: float = RISK,
    across: Collection[str] = (),
) -> Comparison:
    """Every case of ``a`` with its like in ``b``.

    ``across`` names :data:`KEYS` that need not be equal: then a case has as many partners as are
    like it but for those, itself excepted. ValueError for a key that is none, or for a tolerance
    or risk that cannot be.
    """
    strange = sorted(set(across) - set(KEYS))
    if strange:
        raise ValueError(f"no key of a case: {', '.join(strange)}")
    if not 0 < risk < 0.5:
        raise ValueError(f"the risk {risk!r} is not between 0 and 0.5")
    band(tolerance)
    cases: list[Compared] = []
    unmatched, met = 0, set()
    for subject, like in zip(a, _partners(a, b, across)):
        cases += [_compared(subject, b[place], tolerance, risk) for place in like]
        met.update(like)
        if not like and subject.published:
            unmatched += 1
        elif not like:
            cases.append(_missing(subject, None))
    for place, subject in enumerate(b):
        if place not in met and subject.published:
            unmatched += 1
        elif place not in met:
            cases.append(_missing(None, subject))
    ordered = tuple(key for key in KEYS if key in across)
    return Comparison(tuple(cases), tolerance, risk, ordered, unmatched)


def _partners(
    a: Iterable[Subject], b: Sequence[Subject], across: Collection[str]
) -> Iterator[list[int]]:
    """Of each case of ``a`` the places of its like in ``b``."""
    places: dict[object, list[int]] = {}
    for place, subject in enumerate(b):
        places.setdefault(subject.case.matching(across), []).append(place)
    for subject in a:
        like = places.get(subject.case.matching(across), ())
        yield [place for place in like if not (across and b[place] == subject)]


def nearest(a: Iterable[Subject], b: Iterable[Subject]) -> dict[tuple[str, ...], int]:
    """How many cases of ``a`` would have a partner if these keys need not be equal.

    Of the smallest sets of keys, up to 3, that give any; empty if there are none. No partner is of
    another model or on other hardware, as far as both are known: their ratio would mean nothing.
    """
    a, b = tuple(a), tuple(b)
    for size in (1, 2, 3):
        found = Counter(
            keys
            for keys in combinations(KEYS, size)
            for subject, like in zip(a, _partners(a, b, keys))
            if any(_alike(subject, b[place]) for place in like)
        )
        if found:
            return dict(found)
    return {}


def _alike(a: Subject, b: Subject) -> bool:
    models = {model_name(subject.case.model) for subject in (a, b) if subject.case.model}
    return len(models) < 2 and same_hardware(a.setup, b.setup)


def identity_of(result: RunResult) -> Identity:
    """What the case of a run is."""
    return _identity(result.run.case)


def _identity(case: CaseFacts) -> Identity:
    shape = (case.precision, case.batch_size, case.topology)
    return Identity(case.framework, case.model, *shape, tuple(case.tags))


def _subject(case: Identity, results: Sequence[RunResult]) -> Subject:
    measured, units = of_one_unit(of_whole_windows(results))
    statuses = [result.status for result in results]
    counted = ", ".join(f"{s.value} {statuses.count(s)}" for s in Status if s in statuses)
    speeds = {unit: tuple(result.rates[unit] for result in measured) for unit in units}
    turns = tuple(map(_turn, measured))
    return Subject(case, speeds, len(results), counted, setup=setup_of(measured), turns=turns)


def _turn(result: RunResult) -> str:
    """What runs of one sweep have in common that a job measured as their repeat of one number, one
    after the other; '' for a run that had its job for itself. Two schedulers, or two sweeps on one
    machine, may have given one number to their jobs."""
    job, root = shared_job(result.launch), result.log.partition(f"/{result.run.id}")[0]
    return "" if job is None else f"{os.path.abspath(root)} {job} {result.run.repeat}"


def _pooled(group: Sequence[Subject]) -> Subject:
    if len(group) == 1 or group[0].published:  # the same figure, chosen twice
        return group[0]
    known, units = of_one_unit(group, attrgetter("speeds"))
    return Subject(
        case=group[0].case,
        speeds={unit: tuple(chain(*(each.speeds[unit] for each in known))) for unit in units},
        turns=tuple(chain(*(each.turns for each in known))),
        runs=sum(subject.runs for subject in group),
        statuses="; ".join(subject.statuses for subject in group),
        setup=together(subject.setup for subject in group),
    )


def _missing(a: Subject | None, b: Subject | None) -> Compared:
    outcome, known = RatioOutcome.MISSING_IN_B, a
    if a is None or not a.speeds:
        outcome, known = RatioOutcome.MISSING_IN_A, b
    unit = next(iter(known.speeds if known else ()), SAMPLES_PER_S)
    return Compared(a, b, outcome, note="; ".join(_lost(a, b)), unit=unit)


def _compared(a: Subject, b: Subject, tolerance: float, risk: float) -> Compared:
    if not a.speeds or not b.speeds:
        return _missing(a, b)
    units = units_of_all([a.speeds, b.speeds])
    if not units:
        return _in_other_units(a, b)
    unit = units[0]
    of_a, of_b = a.speeds[unit], b.speeds[unit]
    pairs = _pairs(a, b, unit)
    if pairs:
        ratio, interval = pair_interval([y / x for x, y in pairs], risk)
    else:
        ratio = statistics.median(of_b) / statistics.median(of_a)
        interval = _interval(a, b, unit, risk)
    outcome = outcome_of(ratio, interval, tolerance, risk)
    notes = [*_lost(a, b), *_unknown(a, b), *_in_pairs(a, b, len(pairs))]
    if outcome is RatioOutcome.TOO_FEW:
        notes.append(_too_few(a, b, interval, risk, len(pairs)))
    if outcome is RatioOutcome.SAME and interval and not interval.low <= 1 <= interval.high:
        notes.append(_small(interval))
    return Compared(
        a=a,
        b=b,
        outcome=outcome,
        ratio=ratio,
        interval=interval,
        of_medians=ratio_interval(median_interval(of_b), median_interval(of_a)),
        note="; ".join(notes),
        differences=differences(a.setup, b.setup),
        unit=unit,
        tolerance=tolerance,
        pairs=len(pairs),
    )


def _pairs(a: Subject, b: Subject, unit: str) -> list[tuple[float, float]]:
    """The speeds of runs of A and B that one job measured one after the other."""
    if a.case == b.case:
        return []
    of_b = {turn: speed for turn, speed in zip(b.turns, b.speeds[unit]) if turn}
    return [(x, of_b[turn]) for turn, x in zip(a.turns, a.speeds[unit]) if turn in of_b]


def in_pairs(options: Iterable[OptionPair], results: Sequence[RunResult]) -> Iterator[OptionPair]:
    """Cases that differ in one option, with the ratio and the interval (95 %) of pairs where one
    job measured both in turn; ``results`` are those of the cases."""
    sides = {
        (sweep, subject.case): subject
        for sweep in {each.sweep for each in results}
        for subject in subjects([each for each in results if each.sweep == sweep])
    }
    for option in options:
        off, on = (sides[each.sweep, _identity(each.case)] for each in (option.off, option.on))
        ratios = [y / x for x, y in _pairs(off, on, option.unit)]
        if ratios:
            ratio, interval = pair_interval(ratios, (1 - TARGET_COVERAGE) / 2)
            option = replace(option, ratio=ratio, interval=interval, pairs=len(ratios))
        yield option


def _in_pairs(a: Subject, b: Subject, pairs: int) -> list[str]:
    """How many pairs there are, and what was left out of them."""
    if not pairs:
        return []
    left = [f"{side.counted - pairs} of {name}" for name, side in (("A", a), ("B", b))]
    lost = max(a.counted, b.counted) > pairs
    out = f"; runs that count, but have no partner in their job: {', '.join(left)}" * lost
    return [f"in pairs: {pairs} of A and B were measured in turn by one job{out}"]


def _small(interval: Interval) -> str:
    """Of a difference that is there, but within the tolerance: from how much to how much."""
    least, most = sorted(100 * abs(1 - end) for end in (interval.low, interval.high))
    word = "slower" if interval.high < 1 else "faster"
    return f"{word} by {least:.2g} to {most:.2g} %, within the tolerance"


def _in_other_units(a: Subject, b: Subject) -> Compared:
    units = [" and ".join(side.speeds) for side in (a, b)]
    text = f"A has {units[0]}, B {units[1]}: {both_units([*a.speeds, *b.speeds])}"
    return Compared(a, b, RatioOutcome.OTHER_UNIT, note="; ".join([*_lost(a, b), text]))


def _interval(a: Subject, b: Subject, unit: str, risk: float) -> Interval | None:
    of_a, of_b = a.speeds[unit], b.speeds[unit]
    if a.published and b.published:
        return None
    if b.published:
        return point_interval(of_a, of_b[0], risk)
    if a.published:
        inverse = point_interval(of_b, of_a[0], risk)
        return inverse and Interval(1 / inverse.high, 1 / inverse.low, inverse.coverage)
    return rank_interval(of_a, of_b, risk)


def _lost(a: Subject | None, b: Subject | None) -> list[str]:
    """Runs that do not count, so that nobody takes a case that failed for one never tried."""
    return [
        f"{subject.counted} of {subject.runs} runs of {side} count ({subject.statuses})"
        for side, subject in (("A", a), ("B", b))
        if subject and subject.counted < subject.runs
    ]


def _unknown(a: Subject, b: Subject) -> list[str]:
    keys = [key for key in KEYS if a.case.text(key) == "?" == b.case.text(key)]
    return [f"neither side tells the {' nor the '.join(keys)}"] if keys else []


def _too_few(a: Subject, b: Subject, interval: Interval | None, risk: float, pairs: int) -> str:
    if a.published and b.published:
        return "two single figures: nothing tells noise from difference"
    if interval is None:
        return "one pair has no interval" if pairs else "one run has no interval"
    error = 100 * error_of(interval)
    return f"an outcome could be wrong {error:.3g} % of the time, over {100 * risk:.3g} %"
