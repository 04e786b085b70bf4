"""Where the time of a step goes: a table for the page and Markdown, sentences, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from dlperf_hpc.analysis.step_parts import (
    DEVICE,
    EXCHANGE,
    INPUT,
    PARTS,
    REST,
    SLOWEST,
    Loss,
    StepParts,
    loss_of,
)
from dlperf_hpc.errors import at_most
from dlperf_hpc.reporting.table import Cell, Column, Table, figures, number, percent, words

_LEAST, _FAR = 0.005, 0.05  # of a step: what is less is not worth a look; no noise of a quiet node
_LOSSES = {DEVICE: "a longer step of each device", REST: "a time that is not explained"}
_LOOK: Mapping[str, str] = {
    DEVICE: "look at the clocks, the cores and the memory of a rank (few-cores, far-memory)",
    EXCHANGE: "look at how NCCL talks (nccl_transport, `dlperf doctor --pairs 3`)",
    SLOWEST: "look at `dlperf nodes`, and measure without that node (`rerun --exclude-nodes`)",
    INPUT: "look at the file system and at the processes that read ahead",
    REST: "look at a run's iterations, and time the exchange (`measure.communication_steps`)",
}


def step_table(found: Mapping[str, Sequence[StepParts]], most: int = 1000) -> Table[StepParts]:
    """A row for each case, each part in ms and in per cent; beneath, a sentence for so many series,
    those that lose most first, and what to look at next."""
    columns: list[Column[StepParts]] = [
        words("series", "summary.series"),
        words("topology", lambda each: str(each.summary.case.topology), rank=0),
        figures("step", "ms", unit="ms, optimizer step"),
        *(_part(name, text) for name, text in PARTS.items()),
        words("slowest device", "slowest.name", rank=1),
        figures(
            "checkpoint", "checkpoint_steps", unit="steps that a save takes as long as", rank=1
        ),
    ]
    losses = [loss for cases in found.values() if (loss := loss_of(cases))]
    losses.sort(key=lambda loss: -loss.parts[loss.largest] / loss.case.ms)
    beneath = at_most([*map(_sentence, losses)], most, " series: report.md has them all")
    gravest = dict.fromkeys(loss.largest for loss in losses if _matters(loss))
    beneath += [f"{PARTS[name]}: {_LOOK[name]}" for name in gravest]
    rows, title = [*chain(*found.values())], "Every case: what its step is made of"
    return Table(title, columns[len(found) == 1 :], rows, beneath, name="time").without_empty()


def _part(name: str, text: str) -> Column[StepParts]:
    def cell(each: StepParts) -> Cell | None:
        ms = each.parts.get(name)
        return None if ms is None else Cell(f"{number(ms)} ({percent(ms / each.ms)})", ms)

    return figures(text, cell, unit="ms", rank=1)


def loss_sentence(cases: Sequence[StepParts]) -> str:
    """What the case on the most devices loses, the largest loss, where it arises and what to look
    at next; '' where nothing that tells was measured."""
    loss = loss_of(cases)
    if loss is None:
        return ""
    return _sentence(loss) + f": {_LOOK[loss.largest]}" * _matters(loss)


def _matters(loss: Loss) -> bool:
    return loss.parts[loss.largest] >= _LEAST * loss.case.ms


def _sentence(loss: Loss) -> str:
    case, largest, ms = loss.case, loss.largest, loss.parts[loss.largest]
    head = f"{case.summary.series} {case.summary.case.topology}: {_lost(loss)}"
    if not _matters(loss):
        return f"{head}; no part is above {percent(_LEAST)} of the step"
    name = _LOSSES.get(largest, PARTS[largest])
    size = f"{ms:.2f} ms, {percent(ms / case.ms)} of the step"
    return f"{head}; the largest loss is {name} ({size}){_where(largest, case)}"


def _lost(loss: Loss) -> str:
    case, base = loss.case, loss.base
    text = f"a step takes {case.ms:.2f} ms"
    if base is not None and case.summary.efficiency is not None:
        lost = sum(loss.parts.values())
        than = f"{'more' if lost >= 0 else 'less'} than that of {base.summary.case.topology}"
        than += " for as many samples of a device" * (loss.work != 1)
        text += f", {abs(lost):.2f} ms {than} (efficiency {percent(case.summary.efficiency)})"
    known = sorted(loss.parts.items(), key=lambda part: -part[1])
    parts = (f"{PARTS[name]} {ms:+.2f}" for name, ms in known if abs(ms) >= _LEAST * case.ms)
    longer = " (the steps timed later took longer)" * (case.parts[REST] < -_FAR * case.ms)
    return ": ".join(filter(None, [text, ", ".join(parts)])) + longer


def _where(largest: str, case: StepParts) -> str:
    """The device at which it arises, and whether that waits for input or computes longer."""
    device, parts = case.slowest, case.parts
    if largest == EXCHANGE and case.summary.transports:
        return f", by {case.summary.transports[0]}"
    if largest not in (SLOWEST, INPUT) or device is None or SLOWEST not in parts:
        return ""
    if largest == INPUT and device.excess * parts[DEVICE] < parts[INPUT] / 2:
        return ", on all ranks alike"
    where = f", at {device.name} (slowest in {device.slowest} of {device.runs} runs), which"
    if largest == INPUT:
        return f"{where} waits for input"
    return f"{where} computes longer" + " and does not wait for input" * (parts.get(INPUT) == 0)


def step_parts_json(found: Mapping[str, Sequence[StepParts]]) -> list[dict[str, Any]]:
    """For each series its cases with the parts of their steps in ms, and its sentence."""
    return [
        {
            "series": series,
            "sentence": loss_sentence(cases) or None,
            "cases": [
                {
                    "topology": str(each.summary.case.topology),
                    "step_ms": each.ms,
                    "parts_ms": dict(each.parts),
                    "device_of": each.alone and str(each.alone),
                    "slowest_device": each.slowest and each.slowest.name,
                    "checkpoint_steps": each.checkpoint_steps,
                }
                for each in cases
            ],
        }
        for series, cases in found.items()
    ]
