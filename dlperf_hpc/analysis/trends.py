"""Measurements of one case over months: what changed, since when, and what else changed then.

The unit is the **measurement**: what one sweep's runs of a case gave. Its level is their median.
Where the levels change is :mod:`.outcomes`' matter, and what the measurements beside a change tell
of their machine :mod:`.machines`'. A case is known by what :mod:`.comparison` knows it by; all
other settings of it (the window, the optimizer) may change under that name, which is told.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter

from dlperf_hpc.analysis.comparison import Identity, Subject, identity_of, subjects
from dlperf_hpc.analysis.machines import Difference, differences
from dlperf_hpc.analysis.outcomes import Drift, LevelStep, changes, error_of_best, thresholds
from dlperf_hpc.analysis.speedup import chosen, of_one_unit, units_of_all
from dlperf_hpc.model.result import SAMPLES_PER_S, RunResult
from dlperf_hpc.model.statistics import RISK, TOLERANCE, Interval, median_interval

HOSTS = "hosts"
_NOISE_BAND = 0.5  # as a tolerance: from half as noisy to twice as noisy
_OUT_OF_ORDER = timedelta(days=1)  # clocks of two machines are never as far apart
_IN_THE_NAME = ("framework", "model", "precision", "batch_size", "topology", "tags", "environment")


@dataclass(frozen=True)
class Measurement:
    """What the runs of one case in one place gave.

    ``place`` is the directory or archive, ``began`` the start of the first run that counts (ISO
    8601; '' if no log tells it). ``runs`` are the runs that count, by what tells one from any
    other. ``settings`` are those that the case's name does not hold.
    """

    place: str
    began: str
    subject: Subject
    runs: Mapping[tuple[str, str, float], RunResult] = field(default_factory=dict, hash=False)
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)

    def level(self, unit: str) -> float:
        """Median throughput of the runs that count; KeyError if they have none in that unit."""
        return statistics.median(self.subject.speeds[unit])

    def interval(self, unit: str) -> Interval | None:
        """Of that median, from the runs of this measurement alone."""
        return median_interval(self.subject.speeds[unit])

    @property
    def day(self) -> str:
        """``2026-05-14``; '' if it is not known."""
        return self.began[:10]


@dataclass(frozen=True)
class Cause:
    """What the measurements on both sides of a change do not have in common: ``settings`` of the
    case, then ``differences`` of the machine. ``nodes`` are how many nodes both used, of how many
    in all; None where one of them does not tell."""

    settings: tuple[Difference, ...] = ()
    differences: tuple[Difference, ...] = ()
    nodes: tuple[int, int] | None = None


@dataclass(frozen=True)
class Change:
    """A step of a trend with its cause, as far as the logs tell one. ``near`` are the causes at the
    other places at which it may be, by place; without those that tell nothing."""

    step: LevelStep
    cause: Cause
    near: Mapping[int, Cause] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Trend:
    """The measurements of one case in the order of time, with their throughputs in ``unit``.
    ``spikes`` are places in it. ``noises`` are steps of how far the runs of a measurement are apart
    (their standard deviation over their mean), by a factor of two or more."""

    case: Identity
    measurements: tuple[Measurement, ...]
    unit: str = SAMPLES_PER_S
    changes: tuple[Change, ...] = ()
    drifts: tuple[Drift, ...] = ()
    spikes: tuple[int, ...] = ()
    noises: tuple[Change, ...] = ()

    @property
    def levels(self) -> list[float]:
        """The level of each measurement."""
        return [each.level(self.unit) for each in self.measurements]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Of ``slower``, ``faster``, ``suspected``, ``drift``, ``spike``, ``noisier``, ``quieter``
        those that it has, or ``steady``, or ``too few measurements`` to say anything."""
        found = [*map(_direction, self.changes)]
        found += ["drift"] * bool(self.drifts) + ["spike"] * bool(self.spikes)
        found += ["noisier" if each.step.ratio > 1 else "quieter" for each in self.noises]
        few = "steady" if len(self.measurements) >= 3 else "too few measurements"
        return tuple(dict.fromkeys(found or [few]))


def _direction(change: Change) -> str:
    if change.step.suspected:
        return "suspected"
    return "slower" if change.step.ratio < 1 else "faster"


@dataclass(frozen=True)
class History:
    """All trends, in the order in which their cases first appear, and what had to be left out or
    is odd. ``dated`` is false where no log tells a date, and the order is that of the places."""

    trends: tuple[Trend, ...]
    remarks: tuple[str, ...] = ()
    tolerance: float = TOLERANCE
    risk: float = RISK
    dated: bool = True


def measurements(place: str, results: Sequence[RunResult]) -> list[Measurement]:
    """What one sweep, archive or directory gave of each case; cases of which no run counts are
    left out."""
    by_case: dict[Identity, list[RunResult]] = {}
    for result in chosen(results):
        by_case.setdefault(identity_of(result), []).append(result)
    made = (_measurement(place, group) for group in by_case.values())
    return [each for each in made if each.subject.speeds]


def _measurement(place: str, results: Sequence[RunResult]) -> Measurement:
    (subject,) = subjects(results)
    counted, _ = of_one_unit(results)
    runs = {(r.run.id, r.started, next(iter(r.rates.values()))): r for r in counted}
    began = min((each.started for each in counted if each.started), default="")
    settings = _settings(counted[0]) if counted else {}
    return Measurement(place, began, subject, runs, settings)


def _settings(result: RunResult) -> dict[str, str]:
    """What of a run's case and window is not in the case's name."""
    names = getattr(result.run.case, "__dataclass_fields__", ())
    values = {name: getattr(result.run.case, name) for name in names if name not in _IN_THE_NAME}
    window, external = result.window, result.external
    if window is not None:
        values |= {"measure.warmup": window.warmup, "measure.iterations": window.iterations}
    if external is not None:
        values["rule"] = external.rule
    return {name: str(value) for name, value in values.items() if value not in (None, "", ())}


def history(
    found: Iterable[Measurement],
    now: datetime,
    tolerance: float = TOLERANCE,
    risk: float = RISK,
) -> History:
    """The trends of all cases.

    ``now`` is aware of its time zone. ValueError for a tolerance that is no fraction.
    """
    remarks: list[str] = []
    by_case: dict[object, list[Measurement]] = {}
    for each in found:
        by_case.setdefault(each.subject.case.matching(), []).append(each)
    ordered = [_in_order(_once(group, remarks), now, remarks) for group in by_case.values()]
    plain = [_trend(_in_one_unit(group, remarks)) for group in ordered if group]
    risks = thresholds([error_of_best(trend.levels) for trend in plain], risk)
    apart = thresholds([*map(error_of_best, map(_noises, plain))], risk)
    trends = [_with_changes(trend, tolerance, *each) for trend, *each in zip(plain, risks, apart)]
    for trend in trends:
        remarks += _resettings(trend)
    dated = any(each.began for trend in trends for each in trend.measurements)
    return History(tuple(trends), tuple(dict.fromkeys(remarks)), tolerance, risk, dated)


def _trend(group: Sequence[Measurement]) -> Trend:
    unit = units_of_all([each.subject.speeds for each in group])[0]
    return Trend(group[-1].subject.case, tuple(group), unit)


def _noises(trend: Trend) -> list[float]:
    """The noise of each measurement; none where one has none, or fewer than three runs."""
    speeds = [each.subject.speeds[trend.unit] for each in trend.measurements]
    if min(map(len, speeds)) < 3:
        return []
    noises = [statistics.stdev(each) / statistics.fmean(each) for each in speeds]
    return noises * all(noises)


def _with_changes(trend: Trend, tolerance: float, risk: float, risk_of_noise: float) -> Trend:
    found = changes(trend.levels, tolerance, risk)
    steps = changes(_noises(trend), _NOISE_BAND, risk_of_noise).steps
    return replace(
        trend,
        changes=tuple(_with_cause(step, trend.measurements) for step in found.steps),
        drifts=found.drifts,
        spikes=found.spikes,
        noises=tuple(_with_cause(s, trend.measurements) for s in steps if not s.suspected),
    )


def _with_cause(step: LevelStep, measured: Sequence[Measurement]) -> Change:
    at = {place: cause(*measured[place - 1 : place + 1]) for place in (step.at, *step.near)}
    known = {place: found for place, found in at.items() if found.settings or found.differences}
    return Change(step, at[step.at], {place: known[place] for place in step.near if place in known})


def cause(before: Measurement, after: Measurement) -> Cause:
    """What two measurements do not have in common."""
    one, two = before.subject.setup, after.subject.setup
    hosts = set(one.get(HOSTS, ())), set(two.get(HOSTS, ()))
    return Cause(
        settings=_differing(before.settings, after.settings),
        differences=tuple(each for each in differences(one, two) if each.what != HOSTS),
        nodes=(len(hosts[0] & hosts[1]), len(hosts[0] | hosts[1])) if all(hosts) else None,
    )


def _differing(one: Mapping[str, str], two: Mapping[str, str]) -> tuple[Difference, ...]:
    return tuple(
        Difference(name, (one.get(name, "not set"),), (two.get(name, "not set"),))
        for name in sorted({*one, *two})
        if one.get(name) != two.get(name)
    )


# --- what measurements may be held against each other


def _once(group: Sequence[Measurement], remarks: list[str]) -> list[Measurement]:
    """Each run once: an archive beside its sweep, or one sweep by two names, is one measurement."""
    kept: list[Measurement] = []
    for each in sorted(group, key=lambda m: -len(m.runs)):
        same = next((known for known in kept if each.runs.keys() & known.runs.keys()), None)
        if same is None:
            kept.append(each)
            continue
        part = "the" if each.runs.keys() <= same.runs.keys() else "some of the"
        remarks.append(f"{each.place}: has {part} runs of {same.place} and was counted once")
        together = {**each.runs, **same.runs}
        if len(together) > len(same.runs):
            kept[kept.index(same)] = _measurement(same.place, [*together.values()])
    places = [each.place for each in group]
    return sorted(kept, key=lambda each: places.index(each.place))


def _in_one_unit(group: Sequence[Measurement], remarks: list[str]) -> list[Measurement]:
    """Those that have a unit of throughput in common."""
    kept, (unit, *_) = of_one_unit(group, attrgetter("subject.speeds"))
    for each in group:
        if unit not in each.subject.speeds:
            remarks.append(
                f"{each.place}: {each.subject.case.series} is left out: it has"
                f" {' and '.join(each.subject.speeds)}, others have {unit}"
            )
    return kept


def _in_order(group: Sequence[Measurement], now: datetime, remarks: list[str]) -> list[Measurement]:
    """By the start of their first runs; as they were given if none of them tells a date. One
    without a date among others, and one whose date cannot be, are left out."""
    if not any(each.began for each in group):
        return list(group)
    why = [_no_date(each.began, now) for each in group]
    remarks += [
        f"{each.place}: {each.subject.case.series} is left out: {reason}"
        for each, reason in zip(group, why)
        if reason
    ]
    kept = [each for each, reason in zip(group, why) if not reason]
    return sorted(kept, key=lambda each: (moment(each.began), each.place))


def _no_date(began: str, now: datetime) -> str:
    if not began:
        return "no log tells when it was measured"
    try:
        began_at = moment(began)
    except ValueError:
        return f"{began!r} is no date"
    if began_at > now + _OUT_OF_ORDER:
        return f"its clock says {began}, which is yet to come"
    return ""


def moment(text: str) -> datetime:
    """The time that a stamp tells. ValueError if it is no ISO 8601 time with a zone."""
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError(text)
    return found


def _resettings(trend: Trend) -> list[str]:
    """Settings that changed under one name, each time they did."""
    return [
        f"{trend.case.series} {trend.case.topology}: {each.what} is {each.a[0]} in"
        f" {before.place} and {each.b[0]} in {after.place}: under one name these are two"
        " measurements of different things"
        for before, after in zip(trend.measurements, trend.measurements[1:])
        for each in _differing(before.settings, after.settings)
    ]


def since(found: History, day: str) -> History:
    """The history with only those changes that came on ``day`` (``2026-05-14``) or later; all of
    it for ''. The measurements stay: they are what the changes are held against."""
    return replace(found, trends=tuple(_since(trend, day) for trend in found.trends))


def _since(trend: Trend, day: str) -> Trend:
    days = [each.day for each in trend.measurements]
    return replace(
        trend,
        changes=tuple(change for change in trend.changes if days[change.step.at] >= day),
        drifts=tuple(drift for drift in trend.drifts if days[drift.last] >= day),
        spikes=tuple(place for place in trend.spikes if days[place] >= day),
        noises=tuple(change for change in trend.noises if days[change.step.at] >= day),
    )
