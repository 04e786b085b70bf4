"""A run as everyone reads it: what was measured, and what became of it.

Built from a log (:mod:`.logfile`), or for a run without a log from the manifest and what the
scheduler said. Everything in :mod:`dlperf_hpc.analysis` starts from these values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, reduce
from math import isfinite
from operator import or_
from typing import Any, Literal

from dlperf_hpc.model.case import RunFacts, known_fields
from dlperf_hpc.model.checks import MOST, each, is_number, misfits, whole


class Status(str, Enum):
    """State of a run; the value is what CSVs, records and logs hold."""

    PENDING = "pending"  # not started, as far as disk and scheduler know
    RUNNING = "running"
    OK = "ok"
    PARTIAL = "partial"  # has iterations, but not the window asked for: outside every median
    FAILED = "failed"  # a rank raised, was killed, hung, or gave a number that may not be reported
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"  # over the run's or the job's time limit
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    NODE_FAILED = "node_failed"
    HELD_BACK = "held-back"  # not begun: another run of its environment died of the environment
    REJECTED = "rejected"  # the scheduler would not take it: it can never run as asked
    UNKNOWN = "unknown"  # neither disk nor scheduler says more; not the same as failed

    @property
    def finished(self) -> bool:
        """Nothing more will come of this attempt."""
        return self not in (Status.PENDING, Status.RUNNING, Status.UNKNOWN)

    @property
    def bad(self) -> bool:
        """Finished without a number that counts."""
        return self.finished and self is not Status.OK


def interruption(seconds: float | None) -> str:
    """The reason of a run that stood still for so long; '' for any other."""
    return f"interrupted for {seconds:.0f} s" if seconds else ""


@dataclass(frozen=True)
class Window:
    """The timed window, over all ranks. Times in seconds unless the name says ms.

    ``elapsed_s`` is the slowest rank's, ``elapsed_min_s`` the fastest's; ``samples`` counts
    sequences over all ranks; ``global_batch`` is samples per optimizer step. Percentiles are over
    the iterations' times, each ending with its slowest rank. A Timer leaves None what is not known
    or would mean nothing: batches that differ have no ``global_batch``. ``exposed_comm``, measured
    after the window, is the share of an optimizer step that goes when gradient synchronisation
    does; noise can make it negative. ``attention`` has the kernels of one iteration of the warm-up,
    joined by ``+``. Of a compiled model ``graphs`` and ``graph_breaks`` are those until the window
    ended, ``recompiles`` those in it: the most of any rank. ``interrupted_s`` is the longest that a
    rank stood still. ``parameter_bytes``, ``gradient_bytes`` (as an optimizer step reads them) and
    ``optimizer_bytes`` are the most that any rank held of these between two iterations;
    ``memory_growth_mb`` is by how much a rank's peak of memory grew in the window, at most, MiB."""

    warmup: int
    iterations: int
    optimizer_steps: int
    skipped_steps: int | None
    accumulation: int | None
    global_batch: int | None
    ranks: int
    samples: int
    elapsed_s: float
    elapsed_min_s: float | None
    step_ms_p5: float
    step_ms_p50: float
    step_ms_p95: float
    step_ms_p99: float
    loss_first: float | None
    loss_last: float | None
    data_wait_s: float | None
    memory_mb: float | None = None
    drift: float | None = None
    steady: bool | None = None
    exposed_comm: float | None = None
    attention: str | None = None
    graphs: int | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    interrupted_s: float | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    memory_growth_mb: float | None = None

    @property
    def samples_per_s(self) -> float:
        """Throughput over all ranks: samples over the slowest rank's time."""
        return self.samples / self.elapsed_s

    @property
    def rank_spread(self) -> float | None:
        """(slowest - fastest) / slowest of the ranks' elapsed times; 0 is perfect."""
        if self.elapsed_min_s is None:
            return None
        return (self.elapsed_s - self.elapsed_min_s) / self.elapsed_s

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Window:
        """From a log's ``summary`` line or a record; TypeError when a figure is missing or none."""
        window = cls(**known_fields(cls, data))
        for name, value in misfits(window):
            raise TypeError(f"{name} is {value!r}")
        if not window.elapsed_s > 0:
            raise TypeError(f"elapsed_s is {window.elapsed_s!r}, not a time")
        return window


@dataclass(frozen=True)
class Checkpoint:
    """One save and one load of a checkpoint, timed after the window. ``save_s`` and ``load_s`` are
    the slowest rank's, in seconds; ``load_s`` is None where what was saved could not be loaded.
    ``bytes`` is the size of all its files together, ``ranks`` how many processes saved it."""

    save_s: float
    load_s: float | None
    bytes: int
    ranks: int

    @property
    def mb_per_rank(self) -> float:
        """Size of the checkpoint over the number of ranks, MB (10^6 bytes)."""
        return self.bytes / self.ranks / 1e6

    @property
    def save_mb_s(self) -> float:
        """MB/s over all ranks: size of the checkpoint over the slowest rank's time to save."""
        return self.bytes / self.save_s / 1e6

    @property
    def load_mb_s(self) -> float | None:
        """MB/s over all ranks: size of the checkpoint over the slowest rank's time to load."""
        return None if self.load_s is None else self.bytes / self.load_s / 1e6

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkpoint:
        """From a log's ``checkpoint`` line; TypeError when a figure is missing or impossible."""
        checkpoint = cls(**{"load_s": None, **known_fields(cls, data)})
        for name, value in misfits(checkpoint):
            raise TypeError(f"{name} is {value!r}")
        figures = [*vars(checkpoint).values()]
        if not all(value > 0 for value in figures if value is not None):
            raise TypeError(f"{figures} are not times and sizes")
        return checkpoint


@dataclass(frozen=True)
class AllReduces:
    """All-reduces of the gradient's sizes, timed after the window by the back end's own library
    ``by``. ``bytes[0]`` is the whole gradient, the rest sizes of some of its ``buckets``; ``ms``
    has for each size the median over ``iterations`` of the slowest rank's time."""

    by: str
    ranks: int
    buckets: int
    bytes: tuple[int, ...]
    ms: tuple[float, ...]
    iterations: tuple[int, ...]

    @property
    def total_ms(self) -> float:
        """Time of an all-reduce of the whole gradient."""
        return self.ms[0]

    @property
    def total_bus_gb_s(self) -> float:
        """Bus bandwidth of that, GB/s (10^9 bytes)."""
        return self.bus_gb_s[0]

    @property
    def algorithm_gb_s(self) -> tuple[float, ...]:
        """Size / time by size, GB/s (10^9 bytes)."""
        return tuple(size / ms / 1e6 for size, ms in zip(self.bytes, self.ms))

    @property
    def bus_gb_s(self) -> tuple[float, ...]:
        """The above x 2 (n - 1) / n of n ranks, as nccl-tests count it (PERFORMANCE.md)."""
        factor = 2 * (self.ranks - 1) / self.ranks
        return tuple(factor * rate for rate in self.algorithm_gb_s)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AllReduces:
        """From a log's ``allreduce_probe`` line; TypeError when a figure is missing or none."""
        found: dict[str, Any] = {name: data.get(name) for name in (*_COLUMNS, "ranks", "buckets")}
        for name, value in found.items():
            if not (_FIGURES if name in _COLUMNS else whole(1))(value):
                raise TypeError(f"{name} is {value!r}")
        found.update({name: tuple(found[name]) for name in _COLUMNS})
        if len({len(found[name]) for name in _COLUMNS}) > 1:
            raise TypeError("its lists are not equally long")
        return cls(by=str(data.get("by", "")), **found)


_COLUMNS = ("bytes", "ms", "iterations")
_FIGURES = each(lambda value: is_number(value) and 1e-9 <= value <= MOST, least=1)


@dataclass(frozen=True)
class GpuUse:
    """What NVML saw of a run's devices during the window: means over devices of utilisation (%),
    SM clock (MHz) and power (W), the most memory in use on any (MiB, by whomever) and the hottest
    (degrees C), the energy of all together (J), and every throttle reason seen on any (bits).

    The energy rests on ``devices``; ``joules_by`` is ``counter`` (the device's own) or ``power``
    (watts of samples, added up over time), the weaker one of any; ``covered`` is the least share of
    the time that samples stand for, ``gap_s`` the longest time without one, ``watched_s`` the
    longest time that the energy is of (s). The framework's allocator had to give its cache back
    and ask again ``alloc_retries`` times, and held ``reserved_mb`` at most on any (MiB)."""

    util: float | None = None
    memory_mb: float | None = None
    sm_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    joules: float | None = None
    throttle: int | None = None
    devices: int = 0
    joules_by: str = ""
    covered: float | None = None
    gap_s: float | None = None
    watched_s: float | None = None
    alloc_retries: int | None = None
    reserved_mb: float | None = None

    @classmethod
    def of_devices(cls, rows: Sequence[Mapping[str, Any]]) -> GpuUse | None:
        """From the log's ``gpu`` lines of the window; what no line has as a number is None."""
        found = {}
        for name, put_together in _OVER_DEVICES.items():
            values = [row[name] for row in rows if is_number(row.get(name))]
            if values:
                found[name] = put_together(values)
        if not found:
            return None
        known = [row for row in rows if is_number(row.get("joules"))]
        ways = [row.get("joules_by") for row in known]
        weakest = next((way for way in JOULES_BY if way in ways), "")
        return cls(**found, devices=len(known), joules_by=weakest)


def kernels(names: Iterable[str | None]) -> str | None:
    """All kernels of several windows, or ranks, whose names are joined by ``+``; None for none."""
    found = {name for each in names if each for name in each.split("+")}
    return "+".join(sorted(found)) or None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _any_bit(values: Sequence[float]) -> int:
    return reduce(or_, map(int, values))


_OVER_DEVICES: dict[str, Callable[[Sequence[float]], Any]] = {
    "util": _mean,
    "memory_mb": max,
    "sm_mhz": _mean,
    "watts": _mean,
    "celsius": max,
    "joules": sum,
    "throttle": _any_bit,
    "covered": min,
    "gap_s": max,
    "watched_s": max,
    "alloc_retries": lambda values: int(sum(values)),
    "reserved_mb": max,
}
JOULES_BY = ("power", "counter")
"""How a device's energy may be known, the weaker way first."""

THROTTLES = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
"""nvml.h, nvmlClocksThrottleReasons: those that mean heat or power, not a limit that was set."""


def throttle_words(bits: int) -> str:
    """What of :data:`THROTTLES` these bits say; '' for none."""
    return ", ".join(text for bit, text in THROTTLES.items() if bits & bit)


@dataclass(frozen=True)
class RankTime:
    """What one rank took for an optimizer step in which it waited for no other: the median, ms.
    ``gpu``: it computed on one, that of its ``local_rank`` on ``host``; clock (MHz) and throttle
    reasons (bits) are those that NVML saw during the window. ``wait_ms`` is for how long it waited
    for input in a step of the window, on average; None where its log does not tell."""

    host: str
    local_rank: int
    ms: float
    gpu: bool = False
    uuid: str = ""
    sm_mhz: float | None = None
    throttle: int | None = None
    wait_ms: float | None = None


SAMPLES_PER_S = "samples/s"
TOKENS_PER_S = "tokens/s"
PROGRAM = "program"
"""The fact, and a log's event, that says which user's program ran, and how its lines are read."""

Rates = Mapping[str, float]
"""Throughputs of one run over all devices, by their units: what was measured first, then what
follows from it. A program that counts something else has that unit here."""


def own_unit(rates: Collection[str]) -> str:
    """The unit of a figure that is neither in samples/s nor in tokens/s; '' if there is none."""
    return next((unit for unit in rates if unit not in (SAMPLES_PER_S, TOKENS_PER_S)), "")


def rates_of(samples_per_s: float, seq_len: int | None) -> Rates:
    """Samples/s, and tokens/s where samples are sequences of a known length, padding included. A
    model without sequences has the length 0; in sweeps of earlier versions 1."""
    rates = {SAMPLES_PER_S: samples_per_s}
    if seq_len and seq_len > 1:
        rates[TOKENS_PER_S] = samples_per_s * seq_len
    return rates


FEW_CORES = 4
"""Cores below which a process that feeds a GPU is likely to be what the GPU waits for: it launches
kernels from one, reads data ahead on another, and NCCL and the framework have threads besides."""

REST_DIFFERS = 0.04
"""A run whose speed behind the window is off by more is told: the window does not stand for it."""


MOST_LOSSES = 60
"""Of a window, kept over time: of more, the last of each of as many pieces."""


@dataclass(frozen=True)
class ExternalWindow:
    """What an external log gives by ``rule``: throughput over all devices, and how it was found.

    ``rates`` are in samples/s if the settings for that are known, else in tokens/s or the other
    rate that the program prints alone. The first is ``speed``, in ``speed_unit``. ``basis`` is
    ``clock`` (samples over the difference of two time stamps), ``printed`` (the program's figures),
    ``total`` (its one figure for the whole run) or, of a program under a sweep, ``arrival`` (of its
    lines) or ``timer`` (its Timer's). ``factor`` is what the log's figures were multiplied by:
    samples per iteration for the clock, ``speed_unit`` per printed ``unit`` else. The window lies
    after ``first`` iterations, up to ``last``. ``check`` is the throughput in ``speed_unit`` on
    another basis, ``check_basis``; ``rest`` that of the iterations behind the window, if there are
    half as many. ``optimizer_steps`` is None where the accumulation is not known. ``content`` is
    alike in copies of a log (:func:`dlperf_hpc.logs.interpret.segments.content_of`). ``losses``
    are those of the window's lines with their iterations, at most :data:`MOST_LOSSES`."""

    rates: Rates
    rule: str
    basis: str
    unit: str
    factor: float
    format: str
    evidence: str
    first: int | None = None
    last: int | None = None
    elapsed_s: float | None = None
    check: float | None = None
    check_basis: str = ""
    rest: float | None = None
    optimizer_steps: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    memory_mb: float | None = None
    drift: float | None = None
    steady: bool | None = None
    content: str = ""
    losses: tuple[tuple[int, float], ...] = ()

    @property
    def samples_per_s(self) -> float | None:
        """Samples/s over all devices, where they are known."""
        return self.rates.get(SAMPLES_PER_S)

    @property
    def speed_unit(self) -> str:
        """What the window was measured in."""
        return next(iter(self.rates))

    @property
    def speed(self) -> float:
        """Throughput over all devices, in ``speed_unit``."""
        return self.rates[self.speed_unit]


@dataclass(frozen=True)
class Contradiction:
    """Two statements about a run that cannot both be true: two lines or figures of its log, or one
    of its log and one of its record. ``text`` says which, and how far they are apart; ``doubt``:
    samples/s may be wrong by it."""

    between: Literal["log", "record"]
    text: str
    doubt: bool


@dataclass(frozen=True)
class SweepSource:
    """One of several sweeps that were read together, by the ``name`` in its results. ``base`` is
    the topology of its speedups, None for 1n1g; ``plan`` what its manifest says of the site."""

    name: str
    path: str
    base: str | None = None
    plan: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunResult:
    """One run and its end.

    ``source`` is what this rests on: ``log``, ``record``, ``scheduler`` or ``manifest``. ``window``
    is there if, and only if, the log holds a complete summary; a number counts in a median only if
    ``status`` is ok. ``facts`` are the log's tables ``provenance`` and ``world``, as written, and
    ``flops_per_sample``, ``framework_name``, ``framework_version`` and the GPUs' ``drivers``. A log
    of another program has ``external`` in place of ``window``; a program under a sweep that has a
    Timer has both. ``launch`` is :func:`dlperf_hpc.records.layout.launch_id`. ``to_do`` is what a
    user can do about a run that does not start or end, with DIR in it for the sweep's directory.
    ``contradictions`` are those of :mod:`dlperf_hpc.records.record`. ``whole``: the window was
    complete before the run was ended from outside, or what a short log holds is steady: it counts.
    ``sweep`` names the sweep where several were read together: their runs are no repeats.
    ``rank_times`` are each rank's own times, or ``rank_times_missing`` says why there are none.
    ``decided_by`` and ``cause`` are those of :class:`dlperf_hpc.records.failures.Verdict`, as far
    as the reading of its lines decided."""

    run: RunFacts
    status: Status
    reason: str = ""
    attempt: int = 1
    source: str = "manifest"
    window: Window | None = None
    started: str = ""
    ended: str = ""
    log: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    external: ExternalWindow | None = None
    launch: str = ""
    gpu: GpuUse | None = None
    checkpoint: Checkpoint | None = None
    allreduces: AllReduces | None = None
    to_do: str = ""
    contradictions: tuple[Contradiction, ...] = ()
    whole: bool = False
    sweep: str = ""
    rank_times: tuple[RankTime, ...] = ()
    rank_times_missing: str = ""
    decided_by: str = ""
    cause: str = ""

    @property
    def title(self) -> str:
        """The run's id, with its sweep in front where another sweep has a run of that id."""
        return f"{self.sweep}: {self.run.id}" if self.sweep else self.run.id

    @property
    def counts(self) -> bool:
        """Whether its window may count: the run ended ok, or was ended behind a whole window."""
        return self.status is Status.OK or self.whole

    @cached_property
    def rates(self) -> Rates:
        """Throughputs of a run that counts, if positive finite numbers: none is invented."""
        found: Rates = {}
        if self.counts and self.window is not None and self.window.elapsed_s > 0:
            found = rates_of(self.window.samples_per_s, self.run.case.seq_len)
        elif self.counts and self.external is not None:
            found = self.external.rates
        return {unit: value for unit, value in found.items() if isfinite(value) and value > 0}

    @property
    def samples_per_s(self) -> float | None:
        """Samples/s of a run that counts, where these are known."""
        return self.rates.get(SAMPLES_PER_S)

    def as_named(self, place: str, path: str) -> RunResult:
        """With files below ``place`` told of as below ``path``; both end with a slash."""
        return replace(
            self,
            log=self.log.replace(place, path),
            reason=self.reason.replace(place, path),
            warnings=tuple(line.replace(place, path) for line in self.warnings),
        )
