"""Which node is slow: a row for each node (``nodes.csv``), tables for the terminal, and JSON."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.analysis.slow_nodes import DeviceTime, NodeEffect, NodeFindings
from dlperf_hpc.errors import number_of
from dlperf_hpc.reporting.table import (
    Column,
    Table,
    figures,
    print_tables,
    rows,
    signed_percent,
    words,
)

SCHEMA = "dlperf-nodes/1"
_MOST_DEVICES = 8
_IN_JSON = {"peers_mhz": "others_mhz"}


@dataclass(frozen=True)
class NodeRow:
    """One node: what runs on different nodes tell of it, and its slowest device."""

    node: str
    effect: NodeEffect | None
    device: DeviceTime | None

    @property
    def slow(self) -> bool:
        """Whether it is named, by either way."""
        return any(each.slow for each in (self.effect, self.device) if each is not None)

    @property
    def together_with(self) -> str:
        """Nodes that were in the very same runs."""
        nodes = self.effect.nodes if self.effect else ()
        return " ".join(node for node in nodes if node != self.node)


NODE_COLUMNS: tuple[Column[NodeRow], ...] = (
    Column("node", "text", "", "hostname, as the log of a run tells it", "node"),
    Column("slow", "boolean", "", "whether the node is named: by its runs, or by a device's own "
           "times", "slow"),
    Column("together_with", "text", "", "nodes that were in the very same runs: nothing tells them "
           "apart", "together_with"),
    Column("runs", "integer", "", "runs with the node that count, of cases whose runs were on "
           "different nodes; where there is no such case, of all", "effect.runs"),
    Column("runs_without", "integer", "", "runs of those cases without the node",
           "effect.runs_without"),
    Column("difference", "number", "fraction", "how much faster the runs with the node are than "
           "the lower median of their case's runs without it, median; below 0: slower",
           "effect.difference"),
    Column("errors", "number", "", "the same difference (of logarithms) in its standard errors",
           "effect.errors"),
    Column("p", "number", "fraction", "how often chance alone gives some node a difference as "
           "large; only of the slowest, and of the next ones behind one that is named", "effect.p"),
    Column("missing", "text", "", "why the runs say nothing of the node", "effect.missing"),
    Column("device", "text", "", "the node's slowest device by its ranks' own times",
           "device.name"),
    Column("device_uuid", "text", "", "UUID of that device", "device.uuid"),
    Column("device_runs", "integer", "", "runs that tell that device's own time", "device.runs"),
    Column("device_slowest", "integer", "", "in how many of them it was the slowest of all devices",
           "device.slowest"),
    Column("device_excess", "number", "fraction", "how much longer its ranks take for a step in "
           "which no rank waits for another than the (lower) median rank of the run; median of the "
           "runs", "device.excess"),
    Column("device_sm_mhz", "number", "MHz", "its SM clock in the windows, median of the runs",
           "device.sm_mhz"),
    Column("others_sm_mhz", "number", "MHz", "that of the other devices of these runs",
           "device.peers_mhz"),
    Column("device_throttle", "integer", "bits", "every throttle reason that NVML gave of it",
           "device.throttle"),
    Column("device_slow", "boolean", "", "whether the device is named: more than 3 % longer, and "
           "than 4.5 times the usual deviation, in every run of 2 or more", "device.slow"),
)  # fmt: skip
"""One row per node: ``nodes.csv``."""


def nodes_of(found: NodeFindings) -> list[NodeRow]:
    """A row for each node, those that are named first."""
    effects = {node: effect for effect in found.effects for node in effect.nodes}
    slowest = {device.host: device for device in reversed(found.devices)}
    hosts = dict.fromkeys([*effects, *(device.host for device in found.devices)])
    made = [NodeRow(node, effects.get(node), slowest.get(node)) for node in hosts]
    return sorted(made, key=lambda row: not row.slow)


def nodes_json(found: NodeFindings) -> dict[str, Any]:
    """Plain JSON values: null for what is not known, never NaN."""
    return {
        "schema": SCHEMA,
        "runs": found.runs,
        "compared": found.compared,
        "tolerance": found.tolerance,
        "risk": found.risk,
        "slow": list(found.slow_nodes),
        "nodes": rows(NODE_COLUMNS, nodes_of(found)),
        "devices": list(map(_device_json, found.devices)),
        "no_rank_times": [{"why": why, "runs": runs} for why, runs in found.missing.items()],
    }


def _device_json(device: DeviceTime) -> dict[str, Any]:
    values = {_IN_JSON.get(name, name): value for name, value in vars(device).items()}
    return {**values, "name": device.name, "throttled": device.throttled or None}


def sentences(found: NodeFindings, place: str = "DIR") -> list[str]:
    """What is named, and on what it rests; what nothing can be said of; what to do about it.
    ``place`` is the sweep's directory, as one would type it."""
    lines = [_named(effect) for effect in found.effects if effect.slow]
    lines += [f"slow: {device_text(device)}" for device in found.devices if device.slow]
    lines = lines or [_nothing(found)]
    lines += [_suspicion(effect, found) for effect in found.suspected]
    why: dict[str, list[str]] = {}
    for effect in found.effects:
        if effect.missing and effect not in found.suspected:
            why.setdefault(effect.missing, []).append(_or(effect))
    lines += [f"{', '.join(names)}: {reason}" for reason, names in why.items()]
    for reason, runs in found.missing.items():
        lines.append(f"no rank's own times of {number_of(runs, 'run')}: {reason}")
    if found.slow_nodes:
        nodes = shlex.quote(",".join(found.slow_nodes))  # other people's words, to be pasted
        out = f"dlperf rerun {place} --exclude-nodes {nodes}"
        lines.append("to be sure: dlperf doctor --pairs 3 measures pairs of nodes")
        lines.append(f"to leave out: {out} (runs that failed), or exclude in the site profile")
    return lines


_LEAST_CHANCE = 1e-3  # below it a probability is that of a model's tails, which nobody has seen


def _chance(p: float | None) -> str:
    return f"<{_LEAST_CHANCE:g}" if p is not None and p < _LEAST_CHANCE else f"{p:.2g}"


def _named(effect: NodeEffect) -> str:
    runs = f"{effect.runs} and {effect.runs_without} runs, p: {_chance(effect.p)}"
    return (
        f"slow: {_or(effect)}: runs with it are {signed_percent(effect.difference)} off those"
        f" without ({runs})"
    )


def _suspicion(effect: NodeEffect, found: NodeFindings) -> str:
    """What would settle it: so many runs, or pairs with other nodes, by a command to be pasted."""
    rest = [e for e in reversed(found.effects) if not (e.slow or e.needed or e.missing)]
    healthy = [node for each in rest for node in each.nodes]
    nodes = shlex.quote(",".join([*effect.nodes, *healthy[:3]]))
    return (
        f"suspected: {_or(effect)}, {signed_percent(effect.difference)} in "
        f"{number_of(effect.runs, 'run')}: {effect.needed} runs as slow on it would settle it, or: "
        f"dlperf doctor --pairs 3 --nodelist {nodes}"
    )


def device_text(device: DeviceTime) -> str:
    """``n7 GPU 3, +6.1 %, 3 of 3 runs on it; 1410 MHz, the others 1755; throttled: heat``."""
    runs = f"{device.slowest} of {number_of(device.runs, 'run')} on it"
    text = f"{device.name}, {signed_percent(device.excess)}, slowest in {runs}"
    if device.sm_mhz is not None:
        text += f"; {device.sm_mhz:.0f} MHz"
        if device.peers_mhz is not None:
            text += f", the others {device.peers_mhz:.0f}"
    return text + (f"; throttled: {device.throttled}" if device.throttled else "")


def _nothing(found: NodeFindings) -> str:
    for worst in found.effects:
        if worst.p is not None:
            chance = f"chance alone gives as much in {100 * worst.p:.0f} % of cases"
            gap = signed_percent(worst.difference)
            return f"no node is named; the lowest is {_or(worst)}, {gap} ({chance})"
    return "no node is named, and none can be: too few runs were on different nodes"


def _or(effect: NodeEffect) -> str:
    return " or ".join(effect.nodes) + " (always together)" * (len(effect.nodes) > 1)


def print_nodes(found: NodeFindings, place: str = "DIR") -> None:
    """Print the tables and the sentences to standard output."""
    print_tables(nodes_tables(found), sentences(found, place))


_EFFECT_COLUMNS: tuple[Column[NodeEffect], ...] = (
    words("node", lambda e: _or(e), long=True),
    figures("runs", "runs", form=str),
    figures("without", "runs_without", form=str),
    figures("difference", "difference", form=signed_percent),
    figures("errors", "errors", form="{:+.1f}".format),
    figures("p", "p", form=_chance),
    words("outcome", lambda e: "slow" * e.slow),
)
_DEVICE_COLUMNS: tuple[Column[DeviceTime], ...] = (
    words("device", "name", long=True),
    figures("own time", "excess", form=signed_percent),
    figures("slowest in", lambda d: f"{d.slowest} of {d.runs}"),
    figures("clock", "sm_mhz", form="{:.0f} MHz".format),
    words("throttled", "throttled", long=True),
    words("outcome", lambda d: "slow" * d.slow),
)


def nodes_tables(found: NodeFindings) -> list[Table[Any]]:
    """A table of nodes, and one of the slowest devices; fits 80 columns."""
    tables: list[Table[Any]] = []
    effects = [effect for effect in found.effects if effect.errors is not None]
    if effects:
        title = f"nodes, by {found.compared} runs of cases that were on different nodes"
        tables.append(Table(title, _EFFECT_COLUMNS, effects, bad=lambda e: e.slow))
    if found.devices:
        title = "slowest devices, by steps in which no rank waits for another"
        more = len(found.devices) - _MOST_DEVICES
        if more > 0:
            title += f" ({more} more: --json)"
        slowest = found.devices[:_MOST_DEVICES]
        tables.append(Table(title, _DEVICE_COLUMNS, slowest, bad=lambda d: d.slow))
    return tables
