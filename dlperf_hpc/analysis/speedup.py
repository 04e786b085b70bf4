"""From runs to one summary per case: median, its interval, speedup, efficiency, flags.

Speedup is the ratio of the medians of one throughput, never a mean of ratios (Hoefler & Belli,
SC'15, rule 4), and names what it refers to (rule 1). The throughput is in samples/s, else in what
all cases of a series have: tokens/s, or a rate of the program's own. What is not known is None.

Option pairs are cases that differ in a single tag, side by side. A tag is an option that left its
default (``xla``): the case without it is the one to hold it against. Others' logs say on and off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean, median
from typing import Any, Optional, TypeVar

from dlperf_hpc.analysis import flags
from dlperf_hpc.analysis.costs import Peak, Price, does_not_fit, measured, needed, of_energy
from dlperf_hpc.analysis.flags import DROP, Flag
from dlperf_hpc.analysis.machines import chips, device_names
from dlperf_hpc.model.case import CaseFacts, Topology, value_at
from dlperf_hpc.model.result import SAMPLES_PER_S, RunResult, Status, kernels
from dlperf_hpc.model.statistics import Interval, Sample, describe, ratio_interval, usual_distance
from dlperf_hpc.records.nccl import in_words

DEFAULT_BASE = Topology(1, 1)
Pool = Callable[[Iterable[float]], float]
SampleOf = Callable[[Sequence[float]], Optional[Sample]]
Item = TypeVar("Item")


def series_name(case: CaseFacts, sweep: str) -> str:
    """``ddp/bert-base/bz32/fp32``, and the sweep that measured it, of several."""
    return f"{case.series} of sweep {sweep}" if sweep else case.series


@dataclass(frozen=True)
class CaseSummary:
    """What the runs of one case say.

    ``samples`` describe the throughputs, over all devices, of the runs that count (status ok, and a
    positive finite throughput), by each unit that all of these have; ``unit`` is the one that
    ``speedup`` is made of. ``base_samples`` are those of ``base``, the topology of the same series
    that ``speedup`` refers to; the base itself has speedup 1 and no interval. ``efficiency`` is
    speedup / (devices / base devices), 1 = linear. ``speedup_missing`` says why ``speedup`` is
    None, else ''. ``scaling`` is ``weak`` (global batch grows with the devices), ``strong`` (it is
    fixed), ``mixed``, or None for a series with one device count or unknown batches.

    What runs measure is None where none does. Of the windows that count: ``optimizer_steps`` is the
    fewest in any, ``skipped_steps`` (per window), ``rank_spread`` (fraction) and ``memory_mb`` (MB
    per device) the most in any; ``exposed_comm`` and ``allreduce_bus_gb_s`` are medians,
    ``attention`` has the kernels that any of them saw, joined by ``+``. ``gpu_util`` (%, mean),
    ``gpu_memory_mb`` (MiB, the most) and ``joules_per_sample`` (median) are NVML's.
    ``checkpoint_*`` are medians: seconds, MB (10^6 bytes) and MB/s. ``accumulation`` and
    ``global_batch`` (samples per optimizer step) are the windows' if those agree, else the case's.
    ``tflops_per_device`` and ``mfu`` (share of the accelerator's dense peak) are of the median.
    ``devices`` are the chips, or ``cpu``, that logs name. ``iteration_ms`` is the median of the
    windows' time / iterations, ``step_ms_p50`` that of our runs' own median step times, both ms.
    ``transports`` are the ways that NCCL's own lines tell. ``sweep`` is that of the runs: a case
    that two sweeps measured has two. ``price`` is a node-hour's; ``evidence`` has each flag.
    """

    case: CaseFacts
    runs: int
    statuses: tuple[tuple[Status, int], ...]
    samples: Mapping[str, Sample]
    accumulation: int | None
    global_batch: int | None
    unit: str = SAMPLES_PER_S
    base: Topology | None = None
    base_samples: Mapping[str, Sample] = field(default_factory=dict)
    speedup: float | None = None
    speedup_interval: Interval | None = None
    efficiency: float | None = None
    efficiency_interval: Interval | None = None
    speedup_missing: str = ""
    scaling: str | None = None
    optimizer_steps: int | None = None
    skipped_steps: int | None = None
    rank_spread: float | None = None
    memory_mb: float | None = None
    exposed_comm: float | None = None
    attention: str | None = None
    allreduce_bus_gb_s: float | None = None
    checkpoint_save_s: float | None = None
    checkpoint_load_s: float | None = None
    checkpoint_mb_per_rank: float | None = None
    checkpoint_save_mb_s: float | None = None
    checkpoint_load_mb_s: float | None = None
    gpu_util: float | None = None
    gpu_memory_mb: float | None = None
    joules_per_sample: float | None = None
    tflops_per_device: float | None = None
    mfu: float | None = None
    devices: frozenset[str] = frozenset()
    iteration_ms: float | None = None
    step_ms_p50: float | None = None
    transports: tuple[str, ...] = ()
    sweep: str = ""
    price: Price | None = None
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: tuple[Flag, ...] = ()

    @property
    def speedup_note(self) -> str:
        """The note that says why there is no speedup."""
        return f"no speedup: {self.speedup_missing}"

    @property
    def series(self) -> str:
        """The name of the speedup curve that it is a point of: the case's, and its sweep's."""
        return series_name(self.case, self.sweep)

    @property
    def sample(self) -> Sample | None:
        """What the runs that count say in ``unit``."""
        return self.samples.get(self.unit)

    @property
    def base_sample(self) -> Sample | None:
        """What the base's runs that count say in ``unit``."""
        return self.base_samples.get(self.unit)

    @property
    def ok(self) -> int:
        """Runs that count."""
        return 0 if self.sample is None else self.sample.n

    @property
    def speed(self) -> float | None:
        """Median over the runs that count, over all devices, in ``unit``."""
        return self.median(self.unit)

    @property
    def samples_per_s(self) -> float | None:
        """Median over the runs that count, over all devices."""
        return self.median(SAMPLES_PER_S)

    def median(self, unit: str) -> float | None:
        """Median over the runs that count, over all devices; None if ``unit`` is not known."""
        return self.samples[unit].median if unit in self.samples else None

    def per_device(self, unit: str) -> float | None:
        """That of one device."""
        total = self.median(unit)
        return None if total is None else total / self.case.topology.devices

    @property
    def status_text(self) -> str:
        """``ok 5, failed 2``: every run is accounted for."""
        return ", ".join(f"{status.value} {count}" for status, count in self.statuses)


def summarise(
    results: Sequence[RunResult], base: str | None = None, accelerator: str | None = None,
    sample_of: SampleOf = describe, bases: Mapping[str, str | None] | None = None,
) -> list[CaseSummary]:  # fmt: skip
    """One summary per case, in order of first appearance. ``base`` is a topology such as ``1n8g``;
    without one each sweep has its own of ``bases``, by its name, else 1n1g. A series that lacks it
    has no speedups, and a reason that says what to write: no smaller topology is taken in silence.
    ``accelerator`` names the accelerator where the logs do not; ``sample_of`` makes a sample
    of the throughputs of a case's repeats, in their order. ValueError if a base is no topology."""
    wanted = DEFAULT_BASE if base is None else Topology.parse(base)
    groups: dict[tuple[str, str], list[RunResult]] = {}
    for result in results:
        groups.setdefault((result.sweep, result.run.case.id), []).append(result)
    found, done = dict[tuple[str, str], list[Flag]](), dict[tuple[str, str], CaseSummary]()
    series: dict[str, list[CaseSummary]] = {}
    for name, group in groups.items():
        summary, found[name] = _alone(group, accelerator, sample_of)
        series.setdefault(summary.series, []).append(summary)
    peaks = [Peak(s.sweep, s.case, s.memory_mb) for members in series.values() for s in members]
    for peak in peaks:
        if does_not_fit(groups[peak.sweep, peak.case.id]):
            found[peak.sweep, peak.case.id].append(Flag("does-not-fit", needed(peak, peaks)))
    alike = [*map(_in_one_unit, series.values())]
    usual = usual_distance(member.sample for members in alike for member in members)
    for members in alike:
        scaling = _scaling(members)
        members = [replace(each, scaling=scaling) for each in members]
        own = None if base else (bases or {}).get(members[0].sweep)
        at = Topology.parse(own) if own else wanted
        compared = [_compared(each, members, at, bool(base or own)) for each in members]
        for member in compared:
            name = member.sweep, member.case.id
            found[name] += flags.of_sample(member.sample, member.unit, usual)
            done[name] = _with_flags(member, found[name] + _of_series(member, compared))
    return [done[name] for name in groups]


def chosen(results: Iterable[RunResult]) -> list[RunResult]:
    """One result per run: its first ok attempt, else the first that counts, else the last; order
    kept."""
    taken: dict[tuple[str, str], RunResult] = {}
    for result in results:
        name = result.sweep, result.run.id
        if _rank(result) < _rank(taken.setdefault(name, result)):
            taken[name] = result
    return list(taken.values())


def _rank(result: RunResult) -> tuple[int, int]:
    if not result.counts:
        return 2, -result.attempt
    return int(result.status is Status.PARTIAL), result.attempt


def units_of_all(known: Iterable[Collection[str]]) -> tuple[str, ...]:
    """The units that all have: samples/s first, then in the order of the first."""
    first, *rest = [*known] or [()]
    shared = [unit for unit in first if all(unit in each for each in rest)]
    return tuple(sorted(shared, key=_rank_of_unit))


def of_one_unit(
    items: Iterable[Item], rates: Callable[[Item], Collection[str]] = attrgetter("rates")
) -> tuple[list[Item], tuple[str, ...]]:
    """The runs (or what else has ``rates``) that have a number, as far as there is one unit for
    them, and the units that all of these have. If no unit is common to all, samples/s counts, else
    what the first run has."""
    measured = [item for item in items if rates(item)]
    if measured and not units_of_all(map(rates, measured)):
        unit = min((unit for item in measured for unit in rates(item)), key=_rank_of_unit)
        measured = [item for item in measured if unit in rates(item)]
    return measured, units_of_all(map(rates, measured))


def _rank_of_unit(unit: str) -> bool:
    return unit != SAMPLES_PER_S


def of_whole_windows(runs: Sequence[RunResult]) -> Sequence[RunResult]:
    """The runs that measured a whole window, if one did; else all: logs that end early count only
    where there is nothing better."""
    whole = [each for each in runs if each.rates and each.status is not Status.PARTIAL]
    return whole or runs


def _alone(
    group: Sequence[RunResult], accelerator: str | None, sample_of: SampleOf
) -> tuple[CaseSummary, list[Flag]]:
    """What one case's runs say by themselves, without a base."""
    case = min(group, key=lambda each: each.run.case.sought).run.case
    runs = sorted(chosen(group), key=lambda each: each.run.repeat)
    counted, units = of_one_unit(of_whole_windows(runs))
    samples = {unit: sample_of([each.rates[unit] for each in counted]) for unit in units}
    windows = [result.window for result in counted if result.window is not None]
    statuses = [result.status for result in runs]
    measures: Any = {n: _pooled(how, of, counted) for n, (how, of) in _MEASURES.items()}
    summary = CaseSummary(
        case=case,
        sweep=group[0].sweep,
        runs=len(runs),
        statuses=tuple((s, statuses.count(s)) for s in Status if s in statuses),
        samples={unit: sample for unit, sample in samples.items() if sample is not None},
        unit=units[0] if units else SAMPLES_PER_S,
        accumulation=_agreed([w.accumulation for w in windows], case.accumulation),
        global_batch=_agreed([w.global_batch for w in windows], case.global_batch),
        devices=chips({name for result in counted for name in device_names(result)}),
        attention=kernels(w.attention for w in windows),
        transports=tuple(sorted({way for r in counted if (way := in_words(r.facts))})),
        **measures,
    )
    numberless = [r.run.id for r in runs if r.status is Status.OK and not r.rates]
    left_out = [r.rates for r in runs if r.rates and not set(units) <= r.rates.keys()]
    found = flags.of_results(group, numberless) + flags.of_windows(case, windows)
    found += flags.of_gpus(counted) + flags.of_transport(counted)
    found += flags.of_external([r.external for r in counted if r.external is not None])
    found += flags.of_launches(counted) + flags.of_left_out(units, left_out) + of_energy(counted)
    summary, impossible = _with_flops(summary, counted, accelerator)
    return summary, found + impossible


def _pooled(
    how: Pool, of: Callable[[RunResult], Any], counted: Sequence[RunResult]
) -> float | None:
    """One figure of those runs that have it; None where none has."""
    values = [value for value in map(of, counted) if value is not None]
    return how(values) if values else None


def _iteration_ms(result: RunResult) -> float | None:
    window, external = result.window, result.external
    if window is not None:
        return 1000 * window.elapsed_s / window.iterations if window.iterations else None
    if external is None or not external.elapsed_s or None in (external.first, external.last):
        return None
    iterations = (external.last or 0) - (external.first or 0)
    return 1000 * external.elapsed_s / iterations if iterations > 0 else None


def _joules_per_sample(result: RunResult) -> float | None:
    gpu, (_, samples) = result.gpu, measured(result)
    if gpu is None or gpu.joules is None or not samples:
        return None
    return gpu.joules / samples


_MEASURES: Mapping[str, tuple[Pool, Callable[[RunResult], Any]]] = {
    "iteration_ms": (median, _iteration_ms),
    "step_ms_p50": (median, value_at("window.step_ms_p50")),
    "optimizer_steps": (min, value_at("window.optimizer_steps", "external.optimizer_steps")),
    "skipped_steps": (max, value_at("window.skipped_steps")),
    "rank_spread": (max, value_at("window.rank_spread")),
    "memory_mb": (max, value_at("window.memory_mb", "external.memory_mb")),
    "exposed_comm": (median, value_at("window.exposed_comm")),
    "allreduce_bus_gb_s": (median, value_at("allreduces.total_bus_gb_s")),
    "gpu_util": (fmean, value_at("gpu.util")),
    "gpu_memory_mb": (max, value_at("gpu.memory_mb")),
    "joules_per_sample": (median, _joules_per_sample),
    **{
        f"checkpoint_{name}": (median, value_at(f"checkpoint.{name}"))
        for name in ("save_s", "load_s", "mb_per_rank", "save_mb_s", "load_mb_s")
    },
}
"""What the runs that count measure, by the summary's fields: which of their figures it is."""


def _with_flops(
    summary: CaseSummary, counted: Sequence[RunResult], accelerator: str | None
) -> tuple[CaseSummary, list[Flag]]:
    """With what the samples/s mean in FLOPS, and whether that is possible."""
    sample, case = summary.samples.get(SAMPLES_PER_S), summary.case
    if sample is None:
        return summary, []
    from dlperf_hpc.analysis import flops

    accelerator = flops.accelerator_of(counted, accelerator)
    work = flops.flops_of_runs(counted)
    summary = replace(
        summary,
        tflops_per_device=flops.tflops_per_device(case, sample.median, work),
        mfu=flops.mfu(case, sample.median, accelerator, work),
    )
    # Every run must be possible, so the fastest is held against the accelerator.
    return summary, flops.of_physics(case, sample.maximum, accelerator, work)


def _agreed(seen: Sequence[int | None], configured: int | None) -> int | None:
    return seen[0] if len(set(seen)) == 1 else configured


def _in_one_unit(members: Sequence[CaseSummary]) -> list[CaseSummary]:
    """The cases of a series, each in the unit that all have of which runs count; in its own where
    there is none."""
    units = units_of_all([member.samples for member in members if member.samples])
    return [replace(member, unit=units[0]) if units else member for member in members]


def _scaling(members: Sequence[CaseSummary]) -> str | None:
    """How the global batch goes with the devices over a series."""
    if len({m.case.topology.devices for m in members}) < 2:
        return None
    batches = [(m.global_batch, m.case.topology.devices) for m in members if m.global_batch]
    if len(batches) < len(members):
        return None
    if len({batch for batch, _ in batches}) == 1:
        return "strong"
    per_device = {batch / devices for batch, devices in batches}
    return "weak" if len(per_device) == 1 else "mixed"


def _compared(
    member: CaseSummary, members: Sequence[CaseSummary], wanted: Topology, named: bool
) -> CaseSummary:
    """``member`` with its speedup over ``wanted`` of the same series, or why there is none."""
    base = next((m for m in members if m.case.topology == wanted), None)
    if base is None:
        return replace(member, speedup_missing=_no_base(members, wanted, named))
    member = replace(member, base=wanted, base_samples=base.samples)
    sample, base_sample = member.sample, member.base_sample
    if sample is None or base_sample is None:
        return replace(member, speedup_missing=_no_ratio(member, base))
    growth = member.case.topology.devices / wanted.devices
    speedup = sample.median / base_sample.median
    member = replace(member, speedup=speedup, efficiency=speedup / growth)
    # the base over itself is 1 by definition: an interval would only repeat the base's own noise
    interval = ratio_interval(sample.interval, base_sample.interval)
    if member.case.topology == wanted or interval is None:
        return member
    of_linear = Interval(interval.low / growth, interval.high / growth, interval.coverage)
    return replace(member, speedup_interval=interval, efficiency_interval=of_linear)


def _no_ratio(member: CaseSummary, base: CaseSummary) -> str:
    topology = base.case.topology
    if member.sample is None:
        return f"no run counts ({member.status_text})"
    if not base.samples:
        return f"no run of the base {topology} counts ({base.status_text})"
    why = flags.both_units([member.unit, base.unit])
    return f"this is in {member.unit}, the base {topology} in {base.unit}: {why}"


def _no_base(members: Sequence[CaseSummary], wanted: Topology, named: bool) -> str:
    here = sorted((m.case.topology for m in members), key=lambda t: (t.devices, t))
    listed = ", ".join(map(str, here))
    if named:
        return (
            f"the base {wanted} has no run in this series ({listed}), as where --only leaves it"
            f" out: run it too, or name a base that has runs: --base {here[0]}"
        )
    says = f"the default base {wanted} is not in this series ({listed})"
    return f'{says}: name one that is, as base "{here[0]}"'


def _of_series(member: CaseSummary, members: Sequence[CaseSummary]) -> list[Flag]:
    """Flags that need the base or the other topologies of the series."""
    units = {str(each.case.topology): each.unit for each in members if each.samples}
    found = flags.of_mixed_series(units)
    if member.base is None or member.efficiency is None:
        return found
    growth = member.case.topology.devices / member.base.devices
    found += flags.of_efficiency(member.efficiency, member.efficiency_interval, growth)
    below = [
        (m.efficiency, m.case.topology)
        for m in members
        if m.case.topology.devices < member.case.topology.devices and m.efficiency is not None
    ]
    most = max((topology.devices for _, topology in below), default=0)
    next_smaller = [each for each in below if each[1].devices == most]
    value, name = min(next_smaller, key=lambda each: each[0], default=(0.0, None))
    if value - member.efficiency > DROP:
        note = f"efficiency falls from {value:.3f} on {name} to {member.efficiency:.3f}"
        found.append(Flag("efficiency-drop", note))
    return found


def _with_flags(summary: CaseSummary, found: Sequence[Flag]) -> CaseSummary:
    order = {name: place for place, name in enumerate(flags.FLAGS)}
    found = sorted(found, key=lambda flag: order[flag.name])
    names = tuple(dict.fromkeys(flag.name for flag in found))
    notes = [flag.note for flag in found]
    if summary.skipped_steps and "all-steps-skipped" not in names:
        notes.append(
            f"up to {summary.skipped_steps} optimizer steps of a window were skipped; a skipped "
            "step is faster than a real one"
        )
    if summary.speedup_missing:
        notes.append(summary.speedup_note)
    return replace(summary, flags=names, notes=tuple(notes), evidence=tuple(found))


@dataclass(frozen=True)
class OptionPair:
    """Case ``on`` has the tag ``name``, case ``off`` lacks it, and all else is the same.

    ``ratio`` is the speed on / off, of the medians, in ``unit``: samples/s if both sides have it;
    or that of ``pairs``. ``memory_mb`` is on - off of a device's peak, None if one is not known.
    """

    name: str
    off: CaseSummary
    on: CaseSummary
    unit: str
    ratio: float
    interval: Interval | None
    memory_mb: float | None
    pairs: int = 0


def option_pairs(summaries: Sequence[CaseSummary]) -> list[OptionPair]:
    """Every such pair of which runs count on both sides, in the order of the cases. Cases that were
    measured on different devices, or in different units, are no pair."""
    counted = [summary for summary in summaries if summary.sample is not None]
    by_variant = {_variant(summary, _tags(summary)): summary for summary in counted}
    pairs = []
    for on in counted:
        tags = _tags(on)
        for name in sorted(tags):
            off = by_variant.get(_variant(on, tags - {name}))
            if off is None or (off.devices and on.devices and off.devices != on.devices):
                continue
            if units := units_of_all([off.samples, on.samples]):
                pairs.append(_pair(name, off, on, units[0]))
    return pairs


def _tags(summary: CaseSummary) -> frozenset[str]:
    return frozenset(summary.case.tags) - {"off"}


def _variant(summary: CaseSummary, tags: frozenset[str]) -> tuple[object, ...]:
    case = summary.case
    shape = (case.batch_size, case.seq_len, case.precision, case.topology)
    return summary.sweep, case.framework, case.model, *shape, tags


def _pair(name: str, off: CaseSummary, on: CaseSummary, unit: str) -> OptionPair:
    before, after = off.samples[unit], on.samples[unit]
    memory = None
    if on.memory_mb is not None and off.memory_mb is not None:
        memory = on.memory_mb - off.memory_mb
    interval = ratio_interval(after.interval, before.interval)
    return OptionPair(name, off, on, unit, after.median / before.median, interval, memory)
