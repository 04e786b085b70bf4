"""Throughput on more nodes, predicted: tables for terminal, page and Markdown, sentences, JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dlperf_hpc.analysis.prediction import (
    CALIBRATED_ON,
    MEASURED,
    NodeCount,
    Prediction,
    half_width,
    loss_of,
    steep_loss,
)
from dlperf_hpc.errors import number_of
from dlperf_hpc.reporting.table import (
    Cell,
    Column,
    Table,
    figures,
    hundredths,
    number,
    percent,
    print_tables,
    speed_heading,
    words,
)

if TYPE_CHECKING:
    from dlperf_hpc.analysis.beyond import Component

SCHEMA = "dlperf-predict/1"
BEYOND_SCHEMA = "dlperf-predict-beyond/1"
_BASES = {
    "ring": "ring: the exchange adds c (N - 1) / N to a step, as a ring does",
    "another batch": "another batch: the exchange adds as many ms as to a step of the nearest"
    " batch size that was measured there",
    "probe": "probe: a step takes longer by rho of what the all-reduce of the gradient, timed alone"
    " there, does: at least as on the measured counts, and more where the backward pass, two thirds"
    " of the computation, cannot hide it; no published table tests it",
    "gamma": "gamma: the exchange adds c (1 - N^-gamma) / gamma, from 0, a tree's, to 1, a ring's",
}


def predictions_json(found: Iterable[Prediction]) -> dict[str, Any]:
    """Plain JSON values: null for what is not known, never NaN."""
    return {
        "schema": SCHEMA,
        "calibrated_on": CALIBRATED_ON,
        "series": [
            {
                "series": each.series,
                "loss": None if each.why_not else loss_of(each.steps),
                "node_counts": [*map(_count_json, each.counts)],
                "not_predicted": each.why_not or None,
                "refused": [{"nodes": nodes, "why": why} for nodes, why in each.refused.items()],
            }
            for each in found
        ],
    }


def _count_json(row: NodeCount) -> dict[str, Any]:
    values = {name: value for name, value in vars(row).items() if name != "series"}
    at = row.topology
    return {**values, "topology": str(at), "nodes": at.nodes, "devices": at.devices}


def beyond_json(found: Mapping[str, Sequence[Component]]) -> dict[str, Any]:
    """The components of each series as plain JSON values: null for what is not known."""
    rows = [{"series": name, **vars(row)} for name, made in found.items() for row in made]
    return {"schema": BEYOND_SCHEMA, "components": rows}


# --- for people


def _rough(value: float | None) -> str:
    """A predicted figure with four digits, which is more than is known of it."""
    return "" if value is None else f"{float(f'{value:.4g}'):.10g}"


def _form(row: NodeCount) -> Callable[[float | None], str]:
    return number if row.basis == MEASURED else _rough


def _speed(row: NodeCount, heading: str) -> Cell:
    unit = f" {row.unit}" if row.unit != heading else ""
    return Cell(_form(row)(row.throughput) + unit, row.throughput)


def _range(low: float | None, high: float | None, form: Callable[[float | None], str]) -> str:
    return "" if low is None else f"{form(low)}-{form(high)}"


def _columns(found: Sequence[NodeCount]) -> tuple[Column[NodeCount], ...]:
    unit = speed_heading(row.unit for row in found)
    return (
        words("case", lambda r: Cell(str(r.topology), r.topology.nodes)),
        figures(unit, lambda r: _speed(r, unit)),
        figures("interval", lambda r: _range(r.low, r.high, _form(r)), rank=1),
        figures("+- %", "half_width", form=hundredths, rank=4),
        figures("eff. %", "efficiency", form=hundredths, rank=2),
        words("by", "basis"),
        figures("tree-ring", lambda r: _range(r.tree, r.ring, _rough), rank=3),
    )


def loss_sentence(found: Prediction) -> str:
    """Why the interval is as wide as it is, and what distance makes of it; '' without a point."""
    if not found.something:
        return ""
    last = max(found.steps)
    text = (
        f"{percent(loss_of(found.steps))} of a device's throughput is lost from {min(found.steps)}"
        f" to {number_of(last, 'node')}: with each doubling beyond, confidence falls, and the half"
        f" width of the interval grows by {percent(half_width(found.steps, 2 * last))} of the"
        " prediction"
    )
    if lost := steep_loss(found.steps):
        text += f"; so steep a loss ({percent(lost)} at once) makes even twice as far a rough guess"
    return text


def sentences(found: Prediction) -> list[str]:
    """The loss of confidence, and what is not predicted, with what to measure instead."""
    lines = [loss_sentence(found), found.why_not and f"not predicted: {found.why_not}"]
    refused: dict[str, list[str]] = {}
    for nodes, why in found.refused.items():
        refused.setdefault(why, []).append(str(nodes))
    lines += [f"not predicted for nodes = {', '.join(n)}: {why}" for why, n in refused.items()]
    return [*filter(None, lines)]


def _on_all(found: Sequence[Prediction]) -> list[str]:
    """What is said once: what each basis means, and of the interval."""
    used = {row.basis for each in found for row in each.counts} - {MEASURED}
    if not used:
        return []
    lines = [text for basis, text in _BASES.items() if any(u.startswith(basis) for u in used)]
    return [*lines, CALIBRATED_ON]


def page_table(found: Sequence[Prediction]) -> Table[NodeCount]:
    """All series in one table, with what is said of each, for page and Markdown."""
    made = [row for each in found for row in each.counts]
    lines = [f"{each.series}: {text}" for each in found for text in sentences(each)]
    columns = (words("series", "series"), *_columns(made))
    title, beneath = "Measured and predicted, on full nodes", [*lines, *_on_all(found)]
    return Table(title, columns, made, beneath, name="predictions").without_empty()


def print_predictions(found: Sequence[Prediction]) -> None:
    """Print a table for each series, what belongs to it, and what is said once, to standard output.
    A narrow terminal gets fewer columns."""
    from rich.console import Console

    width, tables = Console().width, []
    for each in found:
        columns = _columns(each.counts)
        whole = Table(each.series, columns, each.counts, sentences(each)).without_empty()
        table = whole.fitting(width)
        left_out = [f"no room for {name}: --json has it" for name in whole.dropped(table)]
        tables.append(replace(table, beneath=[*table.beneath, *left_out]))
    print_tables(tables, _on_all(found))


_APART = (
    "each line is by itself: they depend on each other, and no measured figure says how, so that"
    " their product is no prediction",
)


def print_beyond(found: Mapping[str, Sequence[Component]]) -> None:
    """Print what each component leaves on each count of nodes, a table for each series."""
    columns: tuple[Column[Component], ...] = (
        words("nodes", lambda r: Cell(str(r.nodes), r.nodes)),
        words("component", "name"),
        figures("leaves %", _range_of),
    )
    tables = []
    for name, rows in found.items():
        bases = [f"{row.name}: {row.basis}" for row in rows if row.basis]
        missing = [f"{row.name} on {row.nodes}: {row.why_not}" for row in rows if row.why_not]
        beneath = [*dict.fromkeys(bases), *missing]
        tables.append(Table(name, columns, rows, beneath))
    print_tables(tables, _APART)


def _range_of(row: Component) -> str:
    if row.low is None or row.high is None:
        return "-"
    low, high = f"{100 * row.low:.1f}", f"{100 * row.high:.1f}"
    return low if low == high else f"{low}-{high}"
