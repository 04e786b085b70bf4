"""From a figure as a log has it to samples/s over all devices: one factor, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.logs.interpret.figures import Figure, NoFigure
from dlperf_hpc.logs.interpret.settings import accumulation_of, batch_size_of, devices_of
from dlperf_hpc.logs.scanned import Counter, Scope, Unit

OPTIONS: Mapping[str, str] = {
    "devices": "--devices",
    "batch_size": "--batch-size",
    "seq_len": "--seq-len",
    "accumulation": "--accumulation",
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "precision": "--precision",
}
"""Facts that a user can give, and how."""

_NAMES = {
    "devices": "number of devices",
    "batch_size": "batch size per device",
    "seq_len": "sequence length",
    "accumulation": "gradient accumulation",
    "nodes": "number of nodes",
}
_PER_PRINTED = {Unit.MS_PER_ITERATION: 1000.0}


class MissingFact(ValueError):
    """A figure cannot be converted; the message names the facts and the options for them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        told = " and ".join(f"the {_NAMES[name]} ({OPTIONS[name]})" for name in names)
        verb = "is" if len(names) == 1 else "are"
        super().__init__(f"{told} {verb} not known")


@dataclass(frozen=True)
class Converted:
    """A figure over all devices. ``factor`` times the printed figure, or over a printed time, is
    samples/s; ``assumed`` says what nobody stated."""

    samples_per_s: float
    factor: float
    assumed: tuple[str, ...] = ()


def converted(
    figure: Figure, values: Mapping[str, Any], counter: Counter, processes: int
) -> Converted:
    """``figure`` in samples/s over all devices.

    MissingFact if a setting for it is not known, NoFigure if no setting would help.

    ``processes`` is how many were seen to print; 1 may mean that only one of all prints.
    """
    assumed: list[str] = []
    if figure.unit is Unit.ITERATIONS_PER_S:
        # all devices do an iteration together, whoever prints its time
        factor = samples_per_iteration(values, counter, assumed)
    else:
        factor = _over(figure.printed.scope, values, processes, figure.rule.per_node)
        if figure.unit is Unit.TOKENS_PER_S:
            factor /= _need(values, "seq_len")
    per_printed = factor * figure.printed.scale
    if figure.printed.unit in (Unit.MS_PER_ITERATION, Unit.S_PER_ITERATION):
        per_printed = factor * _PER_PRINTED.get(figure.printed.unit, 1.0) / figure.printed.scale
    return Converted(figure.value * factor, per_printed, tuple(assumed))


def samples_per_iteration(values: Mapping[str, Any], counter: Counter, assumed: list[str]) -> float:
    """Samples over all devices in what the log counts as one iteration; MissingFact."""
    accumulation = accumulation_of(values)
    if counter is Counter.OPTIMIZER_STEPS and "global_batch" in values:
        return float(values["global_batch"])
    batch, devices = batch_size_of(values), devices_of(values)
    if batch is None or devices is None:
        if counter is Counter.MICRO_STEPS and "global_batch" in values and accumulation:
            return float(values["global_batch"]) / accumulation
        facts = (("batch_size", batch), ("devices", devices))
        raise MissingFact([name for name, value in facts if value is None])
    if counter is Counter.MICRO_STEPS:
        return float(batch * devices)
    if accumulation is None:
        assumed.append("no gradient accumulation is stated: 1 is taken (--accumulation)")
    return float(batch * devices * (accumulation or 1))


def _over(scope: Scope, values: Mapping[str, Any], processes: int, per_node: bool) -> float:
    """By how much a speed of ``scope`` is to be multiplied to be that of all devices."""
    if scope is Scope.ALL:
        return 1.0
    if scope is Scope.PROCESS and per_node:
        return _need(values, "nodes")
    devices = _devices(values)
    if scope is Scope.DEVICE or devices == 1:
        return devices
    if processes > 1 and processes in (devices, values.get("nodes")):
        return float(processes)
    raise NoFigure(
        f"the printed speed is of one process; {processes} of them print, and how many ran on "
        f"the {devices:.0f} devices is not known"
    )


def _devices(values: Mapping[str, Any]) -> float:
    devices = devices_of(values)
    if devices is None:
        raise MissingFact(["devices"])
    return float(devices)


def _need(values: Mapping[str, Any], name: str) -> float:
    if name not in values:
        raise MissingFact([name])
    return float(values[name])


def optimizer_steps(
    values: Mapping[str, Any], counter: Counter, first: int | None, last: int | None
) -> int | None:
    """Optimizer steps that end in the window after ``first`` up to ``last``; None if not known."""
    if first is None or last is None or counter is Counter.BLOCKS:
        return None
    if counter is Counter.OPTIMIZER_STEPS:
        return last - first
    accumulation = accumulation_of(values)
    return None if accumulation is None else last // accumulation - first // accumulation
