"""From runs to one summary per case: median, its interval, speedup, efficiency, flags.

Speedup is the ratio of the medians of one throughput, never a mean of ratios (Hoefler & Belli,
SC'15, rule 4), and names what it refers to (rule 1). The throughput is in samples/s, else in what
all cases of a series have: tokens/s, or a rate of the program's own. Where there is no number there
is None, and a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from dlperf_hpc.analysis import flags, flops
from dlperf_hpc.analysis.costs import of_energy
from dlperf_hpc.analysis.flags import DROP, Flag
from dlperf_hpc.analysis.memory import Peak, does_not_fit, needed
from dlperf_hpc.analysis.setups import chips, device_names
from dlperf_hpc.model.case import CaseFacts, Topology
from dlperf_hpc.model.result import (
    SAMPLES_PER_S,
    Checkpoint,
    ExternalWindow,
    RunResult,
    Status,
    Window,
    kernels,
)
from dlperf_hpc.model.statistics import Interval, Sample, describe, ratio_interval
from dlperf_hpc.records.nccl import in_words

DEFAULT_BASE = Topology(1, 1)


def series_name(case: CaseFacts, sweep: str) -> str:
    """``ddp/bert-base/bz32/fp32``, and which sweep measured it where several did."""
    return f"{case.series} of sweep {sweep}" if sweep else case.series


@dataclass(frozen=True)
class CaseSummary:
    """What the runs of one case say.

    ``samples`` describe the throughputs, over all devices, of the runs that count (status ok, and a
    positive finite throughput), by each unit that all of these have. ``unit`` is the one that
    ``speedup`` is made of, and ``sample`` what is said in it. ``base_samples`` are those of
    ``base``, the topology of the same series that ``speedup`` refers to; the base itself has
    speedup 1 and no interval. ``efficiency`` is
    speedup / (devices / base devices), 1 = linear. ``speedup_missing`` says why ``speedup`` is
    None, else ''. ``scaling`` is ``weak`` (global batch grows with the devices), ``strong`` (it is
    fixed), ``mixed``, or None for a series with one device count or unknown batches.

    Of the windows that count: ``optimizer_steps`` is the fewest in any, ``skipped_steps`` (per
    window), ``rank_spread`` (fraction) and ``memory_mb`` (MB per device) the most in any, all None
    if there is no window; ``exposed_comm`` is the median of those that have it, and ``attention``
    has the kernels that any of them saw, joined by ``+``. ``gpu_util`` (%, mean), ``gpu_memory_mb``
    (MiB, the most) and ``joules_per_sample`` (median) are NVML's, None without it. ``checkpoint_*``
    are medians over the runs that timed a checkpoint: seconds, MB (10^6 bytes) and MB/s.
    ``accumulation`` and ``global_batch`` (samples per optimizer step) are the windows' if those
    agree, else what the case asks for. ``tflops_per_device`` and ``mfu`` (share of the
    accelerator's dense peak) are of the median; None where model, length, precision or accelerator
    is not known. ``devices`` are the chips, or ``cpu``, that the logs of the runs that count name.
    ``iteration_ms`` is the median over the runs of the window's time / its iterations,
    ``step_ms_p50`` that of the runs' own median step times, both ms, and the latter None where no
    run of ours counts. ``transports`` are the ways that NCCL's own lines in the logs of these runs
    tell, each once. ``sweep`` is that of the runs (see :class:`.RunResult`): a case that two sweeps
    measured has two summaries. ``evidence`` has each flag with its sentence.
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

    @property
    def samples_per_s_per_device(self) -> float | None:
        """Median over the runs that count, of one device."""
        return self.per_device(SAMPLES_PER_S)

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
    results: Sequence[RunResult], base: str | None = None, accelerator: str | None = None
) -> list[CaseSummary]:
    """One summary per case, in order of first appearance.

    ``base`` is a topology such as ``1n8g``; without one it is 1n1g. A series that lacks the base
    has no speedups, and a reason that says what to write: a smaller topology is never taken in its
    stead in silence. ``accelerator`` names the accelerator where the logs do not. ValueError if
    ``base`` is not a topology.
    """
    wanted = DEFAULT_BASE if base is None else Topology.parse(base)
    groups: dict[tuple[str, str], list[RunResult]] = {}
    for result in results:
        groups.setdefault((result.sweep, result.run.case.id), []).append(result)
    found: dict[tuple[str, str], list[Flag]] = {}
    series: dict[str, list[CaseSummary]] = {}
    for name, group in groups.items():
        summary, found[name] = _alone(group, accelerator)
        series.setdefault(summary.series, []).append(summary)
    too_large = _too_large(groups, [each for members in series.values() for each in members])
    done: dict[tuple[str, str], CaseSummary] = {}
    for members in map(_in_one_unit, series.values()):
        scaling = _scaling(members)
        compared = [
            replace(_compared(member, members, wanted, named=base is not None), scaling=scaling)
            for member in members
        ]
        for member in compared:
            extra = flags.of_sample(member.sample, member.unit) + _of_series(member, compared)
            name = member.sweep, member.case.id
            done[name] = _with_flags(member, found[name] + extra + too_large.get(name, []))
    return [done[name] for name in groups]


def _too_large(
    groups: Mapping[tuple[str, str], Sequence[RunResult]], summaries: Sequence[CaseSummary]
) -> dict[tuple[str, str], list[Flag]]:
    """By sweep and case, flags of those that do not fit."""
    peaks = {(s.sweep, s.case.id): Peak(s.sweep, s.case, s.memory_mb) for s in summaries}
    return {
        name: [Flag("does-not-fit", needed(peaks[name], [*peaks.values()]))]
        for name, group in groups.items()
        if does_not_fit(group)
    }


def chosen(results: Iterable[RunResult]) -> list[RunResult]:
    """One result per run: its first ok attempt, else its last attempt; order kept."""
    taken: dict[tuple[str, str], RunResult] = {}
    for result in results:
        name = result.sweep, result.run.id
        other = taken.setdefault(name, result)
        if _rank(result) < _rank(other):
            taken[name] = result
    return list(taken.values())


def _rank(result: RunResult) -> tuple[bool, int]:
    ok = result.counts
    return not ok, result.attempt if ok else -result.attempt


def units_of_all(known: Iterable[Collection[str]]) -> tuple[str, ...]:
    """The units that all have: samples/s first, then in the order of the first."""
    first, *others = [*known] or [()]
    shared = [unit for unit in first if all(unit in other for other in others)]
    return tuple(sorted(shared, key=_rank_of_unit))


def of_one_unit(results: Iterable[RunResult]) -> tuple[list[RunResult], tuple[str, ...]]:
    """The runs that have a number, as far as there is one unit for them, and the units that all of
    these have. If no unit is common to all, samples/s counts, else what the first run has."""
    measured = [result for result in results if result.rates]
    if measured and not units_of_all([result.rates for result in measured]):
        unit = first_unit([result.rates for result in measured])
        measured = [result for result in measured if unit in result.rates]
    return measured, units_of_all([result.rates for result in measured])


def first_unit(known: Iterable[Iterable[str]]) -> str:
    """Samples/s if some have it, else the first unit that one has."""
    return min((unit for units in known for unit in units), key=_rank_of_unit)


def _rank_of_unit(unit: str) -> bool:
    return unit != SAMPLES_PER_S


def _alone(group: Sequence[RunResult], accelerator: str | None) -> tuple[CaseSummary, list[Flag]]:
    """What one case's runs say by themselves, without a base."""
    case = group[0].run.case
    runs = chosen(group)
    counted, units = of_one_unit(runs)
    described = ((unit, describe([result.rates[unit] for result in counted])) for unit in units)
    samples = {unit: sample for unit, sample in described if sample is not None}
    numberless = [r.run.id for r in runs if r.status is Status.OK and not r.rates]
    left_out = [r.rates for r in runs if r.rates and not set(units) <= r.rates.keys()]
    windows = [result.window for result in counted if result.window is not None]
    external = [result.external for result in counted if result.external is not None]
    statuses = [result.status for result in runs]
    summary = CaseSummary(
        case=case,
        sweep=group[0].sweep,
        runs=len(runs),
        statuses=tuple((s, statuses.count(s)) for s in Status if s in statuses),
        samples=samples,
        unit=next(iter(samples), SAMPLES_PER_S),
        accumulation=_agreed([w.accumulation for w in windows], case.accumulation),
        global_batch=_agreed([w.global_batch for w in windows], case.global_batch),
    )
    found = flags.of_results(group, numberless) + flags.of_windows(case, windows)
    found += flags.of_gpus(counted) + flags.of_transport(counted)
    found += flags.of_external(external) + flags.of_launches(counted)
    found += flags.of_left_out(units, left_out) + of_energy(counted)
    summary, impossible = _with_flops(summary, counted, accelerator)
    found += impossible
    summary = _with_checkpoints(_with_gpus(summary, counted), counted)
    return _with_windows(summary, windows, external), found


def _with_flops(
    summary: CaseSummary, counted: Sequence[RunResult], accelerator: str | None
) -> tuple[CaseSummary, list[Flag]]:
    """With what the samples/s mean in FLOPS, and whether that is possible."""
    summary = replace(
        summary, devices=chips({name for result in counted for name in device_names(result)})
    )
    sample, case = summary.samples.get(SAMPLES_PER_S), summary.case
    if sample is None:
        return summary, []
    accelerator = flops.accelerator_of(counted, accelerator)
    work = flops.flops_of_runs(counted)
    summary = replace(
        summary,
        tflops_per_device=flops.tflops_per_device(case, sample.median, work),
        mfu=flops.mfu(case, sample.median, accelerator, work),
    )
    # Every run must be possible, so the fastest is held against the accelerator.
    return summary, flops.of_physics(case, sample.maximum, accelerator, work)


def _with_checkpoints(summary: CaseSummary, counted: Sequence[RunResult]) -> CaseSummary:
    saved = [result.checkpoint for result in counted if result.checkpoint is not None]

    def middle(of: Callable[[Checkpoint], float | None]) -> float | None:
        values = [value for value in map(of, saved) if value is not None]
        return median(values) if values else None

    return replace(
        summary,
        checkpoint_save_s=middle(lambda c: c.save_s),
        checkpoint_load_s=middle(lambda c: c.load_s),
        checkpoint_mb_per_rank=middle(lambda c: c.mb_per_rank),
        checkpoint_save_mb_s=middle(lambda c: c.save_mb_s),
        checkpoint_load_mb_s=middle(lambda c: c.load_mb_s),
    )


def _with_gpus(summary: CaseSummary, counted: Sequence[RunResult]) -> CaseSummary:
    used = [result.gpu for result in counted if result.gpu is not None]
    util = [gpu.util for gpu in used if gpu.util is not None]
    memory = [gpu.memory_mb for gpu in used if gpu.memory_mb is not None]
    energy = [
        result.gpu.joules / result.window.samples
        for result in counted
        if result.window is not None and result.gpu is not None and result.gpu.joules is not None
    ]
    return replace(
        summary,
        gpu_util=fmean(util) if util else None,
        gpu_memory_mb=max(memory) if memory else None,
        joules_per_sample=median(energy) if energy else None,
        transports=tuple(sorted({told for r in counted if (told := in_words(r.facts))})),
    )


def _with_windows(
    summary: CaseSummary, windows: Sequence[Window], external: Sequence[ExternalWindow]
) -> CaseSummary:
    both: list[Window | ExternalWindow] = [*windows, *external]
    memory = [w.memory_mb for w in both if w.memory_mb is not None]
    steps = [w.optimizer_steps for w in both if w.optimizer_steps is not None]
    skipped = [w.skipped_steps for w in windows if w.skipped_steps is not None]
    spreads = [w.rank_spread for w in windows if w.rank_spread is not None]
    exposed = [w.exposed_comm for w in windows if w.exposed_comm is not None]
    times = [1000 * w.elapsed_s / w.iterations for w in windows if w.iterations]
    times += [
        1000 * w.elapsed_s / (w.last - w.first)
        for w in external
        if w.elapsed_s and w.first is not None and w.last is not None and w.last > w.first
    ]
    return replace(
        summary,
        iteration_ms=median(times) if times else None,
        step_ms_p50=median(w.step_ms_p50 for w in windows) if windows else None,
        optimizer_steps=min(steps, default=None),
        skipped_steps=max(skipped, default=None),
        rank_spread=max(spreads, default=None),
        memory_mb=max(memory, default=None),
        exposed_comm=median(exposed) if exposed else None,
        attention=kernels(w.attention for w in windows),
    )


def _agreed(seen: Sequence[int | None], asked: int | None) -> int | None:
    return seen[0] if len(set(seen)) == 1 else asked


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
    if member.sample is None:
        return replace(member, speedup_missing=f"no run counts ({member.status_text})")
    if not base.samples:
        reason = f"no run of the base {wanted} counts ({base.status_text})"
        return replace(member, speedup_missing=reason)
    if member.base_sample is None:
        why = flags.both_units([member.unit, base.unit])
        reason = f"this is in {member.unit}, the base {wanted} in {base.unit}: {why}"
        return replace(member, speedup_missing=reason)
    growth = member.case.topology.devices / wanted.devices
    speedup = member.sample.median / member.base_sample.median
    # the base over itself is 1 by definition: an interval would only repeat the base's own noise
    itself = member.case.topology == wanted
    interval = (
        None if itself else ratio_interval(member.sample.interval, member.base_sample.interval)
    )
    efficiency_interval = None
    if interval is not None:
        low, high = interval.low / growth, interval.high / growth
        efficiency_interval = Interval(low, high, interval.coverage)
    return replace(
        member,
        speedup=speedup,
        speedup_interval=interval,
        efficiency=speedup / growth,
        efficiency_interval=efficiency_interval,
    )


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
    smaller = _next_smaller(member, members)
    if smaller and min(smaller.values()) - member.efficiency > DROP:
        name, value = min(smaller.items(), key=lambda item: item[1])
        note = f"efficiency falls from {value:.3f} on {name} to {member.efficiency:.3f}"
        found.append(Flag("efficiency-drop", note))
    return found


def _next_smaller(member: CaseSummary, members: Sequence[CaseSummary]) -> Mapping[str, float]:
    """Efficiency of the topologies with the next smaller device count that have one."""
    below = [
        (m.case.topology, m.efficiency)
        for m in members
        if m.case.topology.devices < member.case.topology.devices and m.efficiency is not None
    ]
    most = max((topology.devices for topology, _ in below), default=0)
    return {str(t): efficiency for t, efficiency in below if t.devices == most}


def _with_flags(summary: CaseSummary, found: Sequence[Flag]) -> CaseSummary:
    order = list(flags.FLAGS)
    found = sorted(found, key=lambda flag: order.index(flag.name))
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
