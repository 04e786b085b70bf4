"""Which node is slow: a row for each node (``nodes.csv``), tables for the terminal, and JSON."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.analysis.costs import Cost
from dlperf_hpc.analysis.nodes import DeviceTime, NodeEffect, NodeFindings
from dlperf_hpc.errors import number_of
from dlperf_hpc.reporting.table import (
    Column,
    PartOf,
    Table,
    figures,
    part,
    print_tables,
    rows,
    words,
)
from dlperf_hpc.reporting.text import number, signed_percent

SCHEMA = "dlperf-nodes/1"
_MOST_DEVICES = 8


@dataclass(frozen=True)
class NodeRow:
    """One node: what runs on different nodes tell of it, and its slowest device."""

    node: str
    effect: NodeEffect | None
    device: DeviceTime | None

    @property
    def slow(self) -> bool:
        """Whether it is named, by either way."""
        named = self.effect is not None and self.effect.slow
        return named or (self.device is not None and self.device.slow)


_effect: PartOf[NodeEffect, NodeRow] = part(lambda row: row.effect)
_device: PartOf[DeviceTime, NodeRow] = part(lambda row: row.device)


def _together(row: NodeRow) -> str:
    nodes = row.effect.nodes if row.effect else ()
    return " ".join(node for node in nodes if node != row.node)


NODE_COLUMNS: tuple[Column[NodeRow], ...] = (
    Column("node", "text", "", "hostname, as the log of a run tells it", lambda r: r.node),
    Column("slow", "boolean", "", "whether the node is named: by its runs, or by a device's own "
           "times", lambda r: r.slow),
    Column("together_with", "text", "", "nodes that were in the very same runs: nothing tells them "
           "apart", _together),
    Column("runs", "integer", "", "runs with the node that count, of cases whose runs were on "
           "different nodes; where there is no such case, of all", _effect(lambda e: e.runs)),
    Column("runs_without", "integer", "", "runs of those cases without the node",
           _effect(lambda e: e.others)),
    Column("difference", "number", "fraction", "how much faster the runs with the node are than "
           "those without it, each against the median of its case; below 0: slower",
           _effect(lambda e: e.difference)),
    Column("errors", "number", "", "the same difference (of logarithms) in its standard errors",
           _effect(lambda e: e.errors)),
    Column("p", "number", "fraction", "how often chance alone gives some node a difference as "
           "large; only of the slowest, and of the next ones behind one that is named",
           _effect(lambda e: e.p)),
    Column("missing", "text", "", "why the runs say nothing of the node",
           _effect(lambda e: e.missing)),
    Column("device", "text", "", "the node's slowest device by its ranks' own times",
           _device(lambda d: d.name)),
    Column("device_uuid", "text", "", "UUID of that device", _device(lambda d: d.uuid)),
    Column("device_runs", "integer", "", "runs that tell that device's own time",
           _device(lambda d: d.runs)),
    Column("device_slowest", "integer", "", "in how many of them it was the slowest of all devices",
           _device(lambda d: d.slowest)),
    Column("device_excess", "number", "fraction", "how much longer its ranks take for a step in "
           "which no rank waits for another than the (lower) median rank of the run; median of the "
           "runs", _device(lambda d: d.excess)),
    Column("device_sm_mhz", "number", "MHz", "its SM clock in the windows, median of the runs",
           _device(lambda d: d.sm_mhz)),
    Column("others_sm_mhz", "number", "MHz", "that of the other devices of these runs",
           _device(lambda d: d.others_mhz)),
    Column("device_throttle", "integer", "bits", "every throttle reason that NVML gave of it",
           _device(lambda d: d.throttle)),
    Column("device_slow", "boolean", "", "whether the device is named: more than 3 % longer, and "
           "than 4.5 times the usual deviation, in every run of 2 or more",
           _device(lambda d: d.slow)),
)  # fmt: skip
"""One row per node: ``nodes.csv``."""


def nodes_of(found: NodeFindings) -> list[NodeRow]:
    """A row for each node, those that are named first."""
    effects = {node: effect for effect in found.effects for node in effect.nodes}
    slowest: dict[str, DeviceTime] = {}
    for device in found.devices:
        slowest.setdefault(device.host, device)
    made = [
        NodeRow(node, effects.get(node), slowest.get(node))
        for node in dict.fromkeys([*effects, *slowest])
    ]
    return sorted(made, key=lambda row: not row.slow)


def node_rows(found: NodeFindings) -> list[dict[str, Any]]:
    """Cells by the names of :data:`NODE_COLUMNS`, those of nodes that are named first."""
    return rows(NODE_COLUMNS, nodes_of(found))


def nodes_json(found: NodeFindings) -> dict[str, Any]:
    """Plain JSON values: null for what is not known, never NaN."""
    return {
        "schema": SCHEMA,
        "runs": found.runs,
        "compared": found.compared,
        "tolerance": found.tolerance,
        "risk": found.risk,
        "slow": list(found.slow_nodes),
        "nodes": node_rows(found),
        "devices": [
            {**vars(device), "name": device.name, "throttled": device.throttled or None}
            for device in found.devices
        ],
        "no_rank_times": [{"why": why, "runs": runs} for why, runs in found.missing.items()],
    }


def sentences(found: NodeFindings, place: str = "DIR") -> list[str]:
    """What is named, and on what it rests; what nothing can be said of; what to do about it.
    ``place`` is the sweep's directory, as one would type it."""
    lines = [*_named(found), *_devices(found)]
    if not lines:
        lines = [_nothing(found)]
    lines += _unsaid(found)
    lines += [f"no rank's own times of {number_of(runs, 'run')}: {why}"
              for why, runs in found.missing.items()]  # fmt: skip
    if found.slow_nodes:
        listed = shlex.quote(",".join(found.slow_nodes))  # other people's words, to be pasted
        out = f"dlperf rerun {place} --exclude-nodes {listed}"
        lines.append("to be sure: dlperf doctor --pairs 3 measures pairs of nodes")
        lines.append(f"to leave out: {out} (runs that failed), or exclude in the site profile")
    return lines


def _named(found: NodeFindings) -> list[str]:
    return [
        f"slow: {_or(effect)}: runs with it are {signed_percent(effect.difference)} off those"
        f" without ({effect.runs} and {effect.others} runs, p = {effect.p:.2g})"
        for effect in found.effects
        if effect.slow and effect.p is not None
    ]


def _devices(found: NodeFindings) -> list[str]:
    return [f"slow: {device_text(device)}" for device in found.devices if device.slow]


def device_text(device: DeviceTime) -> str:
    """``n7 GPU 3, +6.1 %, 3 of 3 runs on it; 1410 MHz, the others 1755; throttled: heat``."""
    runs = f"{device.slowest} of {number_of(device.runs, 'run')} on it"
    text = f"{device.name}, {signed_percent(device.excess)}, slowest in {runs}"
    if device.sm_mhz is not None:
        others = "" if device.others_mhz is None else f", the others {device.others_mhz:.0f}"
        text += f"; {device.sm_mhz:.0f} MHz{others}"
    return text + (f"; throttled: {device.throttled}" if device.throttled else "")


def _nothing(found: NodeFindings) -> str:
    worst = next((each for each in found.effects if each.p is not None), None)
    if worst is not None and worst.p is not None:
        chance = f"chance alone gives as much in {100 * worst.p:.0f} % of cases"
        gap = signed_percent(worst.difference)
        return f"no node is named; the lowest is {_or(worst)}, {gap} ({chance})"
    return "no node is named, and none can be: too few runs were on different nodes"


def _unsaid(found: NodeFindings) -> list[str]:
    """Nodes of which nothing can be said, by the reason; and what always is together."""
    why: dict[str, list[str]] = {}
    for effect in found.effects:
        if effect.missing:
            why.setdefault(effect.missing, []).append(_or(effect))
    return [f"{', '.join(names)}: {reason}" for reason, names in why.items()]


def _or(effect: NodeEffect) -> str:
    together = " (always together)" if len(effect.nodes) > 1 else ""
    return f"{' or '.join(effect.nodes)}{together}"


def print_nodes(found: NodeFindings, place: str = "DIR") -> None:
    """Print the tables and the sentences to standard output."""
    print_tables(nodes_tables(found), sentences(found, place))


_EFFECT_COLUMNS: tuple[Column[NodeEffect], ...] = (
    words("node", lambda e: _or(e), long=True),
    figures("runs", lambda e: str(e.runs)),
    figures("without", lambda e: str(e.others)),
    figures("difference", lambda e: e.difference, form=signed_percent),
    figures("errors", lambda e: e.errors, form=lambda errors: f"{errors:+.1f}"),
    figures("p", lambda e: e.p, form=lambda p: f"{p:.2g}"),
    words("outcome", lambda e: "slow" if e.slow else ""),
)
_DEVICE_COLUMNS: tuple[Column[DeviceTime], ...] = (
    words("device", lambda d: d.name, long=True),
    figures("own time", lambda d: d.excess, form=signed_percent),
    figures("slowest in", lambda d: f"{d.slowest} of {d.runs}"),
    figures("clock", lambda d: d.sm_mhz, form=lambda mhz: f"{mhz:.0f} MHz"),
    words("throttled", lambda d: d.throttled, long=True),
    words("outcome", lambda d: "slow" if d.slow else ""),
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


def cost_text(found: Cost | None) -> str:
    """One line on the node-hours of a sweep; '' where no log tells how long a run took."""
    if found is None:
        return ""
    asked = "" if found.asked is None else f" of {found.asked:.3g} asked for"
    share = "" if found.window_share is None else f", {100 * found.window_share:.0f} % window"
    rate = found.samples_per_node_hour
    gave = "" if rate is None else f", {number(rate)} samples per node-hour"
    lacking = f"; {number_of(found.unknown, 'run')} not counted" if found.unknown else ""
    runs = number_of(found.runs, "run")
    return f"node-hours: {found.used:.3g} used{asked} by {runs}{share}{gave}{lacking}\n"
