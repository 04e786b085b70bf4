"""Where the time of an optimizer step goes: its parts, as far as runs measured them, and the rest.

What each rank takes for a step without the exchange of gradients, and for how long it waits for
input, tell the step of one device (the median rank's computing) from what the slowest rank adds;
steps with and without the exchange tell what of it no computation hides. What was not measured is
absent, and :data:`REST` is what remains of the step. Noise makes a part a little less than 0.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dlperf_hpc.analysis.slow_nodes import DeviceTime, device_times
from dlperf_hpc.analysis.speedup import CaseSummary, chosen
from dlperf_hpc.model.case import Topology
from dlperf_hpc.model.result import SAMPLES_PER_S, RunResult

DEVICE, EXCHANGE, SLOWEST, INPUT, REST = "device", "exchange", "slowest_rank", "input", "rest"
PARTS: Mapping[str, str] = {
    DEVICE: "step of one device",
    EXCHANGE: "exposed exchange",
    SLOWEST: "waiting for the slowest rank",
    INPUT: "waiting for input",
    REST: "not explained",
}
"""The parts of a step, in the order in which they are drawn."""


@dataclass(frozen=True)
class StepParts:
    """The step of one case: ``ms`` is the median of its runs, ``parts`` are ms by names of
    :data:`PARTS`, each the median of the runs that measured it; together they are ``ms``. ``alone``
    is the topology that the step of one device was measured on, where no rank of this case told it.
    ``slowest`` is the device whose own step is the longest."""

    summary: CaseSummary
    ms: float
    parts: Mapping[str, float]
    alone: Topology | None = None
    slowest: DeviceTime | None = None

    @property
    def tells(self) -> bool:
        """Whether anything but the step of a device by itself is known."""
        return self.alone is not None or any(map(self.parts.get, (EXCHANGE, SLOWEST, INPUT)))

    @property
    def checkpoint_steps(self) -> float | None:
        """Steps that take as long as to save a checkpoint, which no step of the window does."""
        seconds = self.summary.checkpoint_save_s
        return None if seconds is None else 1000 * seconds / self.ms


@dataclass(frozen=True)
class Loss:
    """What is lost in the step of ``case``: ms by names of :data:`PARTS`, ``largest`` among them.
    With a ``base`` they are what the case has more than the base would take for as many samples of
    a device, ``work`` times its own; without one, all but the step of one device."""

    case: StepParts
    base: StepParts | None
    parts: Mapping[str, float]
    work: float = 1.0

    @property
    def largest(self) -> str:
        """The name of the largest part."""
        return max(self.parts, key=self.parts.__getitem__)


def step_parts(
    series: Mapping[str, Sequence[CaseSummary]], results: Iterable[RunResult]
) -> dict[str, tuple[StepParts, ...]]:
    """The steps of the cases of each series of which any tells a part, in the order of ``series``;
    ``results`` are the runs of all cases."""
    runs: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    for result in chosen(results):
        if result.rates:
            runs[result.sweep, result.run.case.id].append(result)
    found = {}
    for name, members in series.items():
        made = [_of_case(each, runs[each.sweep, each.case.id]) for each in members]
        whole = tuple(_with_rest(each, made) for each in made if each is not None)
        if any(each.tells for each in whole):
            found[name] = whole
    return found


def _of_case(summary: CaseSummary, runs: Sequence[RunResult]) -> StepParts | None:
    """Without the rest; None for a case without the time of a step."""
    ms = _step_ms(summary)
    if not ms:
        return None
    measured = [_of_run(result, ms) for result in runs]
    values = {name: [each[name] for each in measured if name in each] for name in PARTS}
    parts = {name: statistics.median(known) for name, known in values.items() if known}
    if summary.case.topology.devices == 1:
        parts = {DEVICE: ms - parts.get(INPUT, 0.0), **parts}
    return StepParts(summary, ms, parts, slowest=next(iter(device_times(runs)), None))


def _step_ms(summary: CaseSummary) -> float | None:
    """Of an optimizer step; of an iteration where it is not known how many make a step."""
    samples, speed = _samples(summary), summary.per_device(SAMPLES_PER_S)
    if summary.iteration_ms is not None:
        return summary.iteration_ms * (summary.accumulation or 1)
    return 1000 * samples / speed if samples and speed else None


def _samples(summary: CaseSummary) -> float | None:
    """Samples of one device in such a step; None if they are not known."""
    batch = summary.global_batch or summary.case.micro_batch
    return batch / summary.case.topology.devices if batch else None


def _of_run(result: RunResult, step_ms: float) -> dict[str, float]:
    """The parts that a run measured, ms; ``step_ms`` is its case's step."""
    window, found = result.window, {}
    if window is None:
        return {}
    if window.data_wait_s is not None:
        found[INPUT] = step_ms * window.data_wait_s / window.elapsed_s
    if window.exposed_comm is not None:
        found[EXCHANGE] = step_ms * window.exposed_comm
    if len(result.rank_times) > 1:
        found |= _of_ranks(result, found.get(INPUT, 0.0))
    return found


def _of_ranks(result: RunResult, waited_ms: float) -> dict[str, float]:
    """What the slowest rank's own step is made of. Where ranks do not tell how long each waits for
    input, though one does, nothing tells waiting from computing: all of it is the device's."""
    times = result.rank_times
    worst = max(times, key=lambda time: time.ms)
    if worst.wait_ms is None and waited_ms > 0:
        return {DEVICE: worst.ms - waited_ms}
    computing = [time.ms - (time.wait_ms or 0.0) for time in times]
    longest = worst.ms - (worst.wait_ms or 0.0)
    device = min(statistics.median(computing), longest)
    known = {} if worst.wait_ms is None else {INPUT: worst.wait_ms}
    return {DEVICE: device, SLOWEST: longest - device, **known}


def _with_rest(found: StepParts, series: Sequence[StepParts | None]) -> StepParts:
    """With the step of one device by itself where ranks do not tell theirs, and with the rest."""
    parts, alone = dict(found.parts), None
    if DEVICE not in parts:
        single = (each for each in series if each and each.summary.case.topology.devices == 1)
        base = next(single, None)
        if base is not None and _work(found.summary, base.summary) == 1:
            alone = base.summary.case.topology
            parts = {DEVICE: base.parts[DEVICE], **parts}
    parts[REST] = found.ms - math.fsum(parts.values())
    return replace(found, parts=parts, alone=alone)


def _work(one: CaseSummary, base: CaseSummary) -> float | None:
    """How many times the samples of the base a device does in a step; None if it is not known."""
    ours, theirs = _samples(one), _samples(base)
    return ours / theirs if ours and theirs else None


def loss_of(series: Sequence[StepParts]) -> Loss | None:
    """What is lost on the most devices of a series; None where nothing was measured that tells."""
    if not series or not series[-1].tells:
        return None
    last, parts = series[-1], dict(series[-1].parts)
    for base in series[:-1]:
        work = _work(last.summary, base.summary)
        if work and base.summary.case.topology == last.summary.base:
            parts = {name: ms - work * base.parts.get(name, 0.0) for name, ms in parts.items()}
            # What the base alone measured lies in what the last one does not explain.
            parts[REST] += work * (
                math.fsum(base.parts[name] for name in parts.keys() & base.parts.keys()) - base.ms
            )
            return Loss(last, base, parts, work)
    parts.pop(DEVICE, None)
    return Loss(last, None, parts)
