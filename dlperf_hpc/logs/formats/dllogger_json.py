"""dllogger's file, whichever of NVIDIA's programs wrote it: ``DLLL`` and a JSON object per line.

``DLLL {"timestamp": "1570716921.842053", "datetime": "2019-10-10 14:15:21.842053", "elapsedtime":
"5.7", "type": "LOG", "step": [0, 5], "data": {"train.loss": 8.56, "train.total_ips": 545.27}}``:
the times are strings, a step is a list, a number, or "PARAMETER" (arguments); METADATA records
have the units. The metrics tell the program, and with it what its numbers mean: see the modules of
the same programs' text, whose metrics and steps these are, in full precision. A record that has
none of a program's metrics (its validation, its verbose part) is left. Of PyTorch's ResNet-50 real
lines were read, of the others' files only their text's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import (
    dllogger_mxnet_resnet,
    dllogger_pytorch_bert,
    dllogger_pytorch_resnet,
    ngc_tf1_bert,
    ngc_tf1_resnet,
)
from dlperf_hpc.logs.formats._dllogger import Program, Record, tell
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Evidence

_WRITERS: tuple[tuple[Program, Format], ...] = tuple(
    (module.PROGRAM, module.FORMAT)
    for module in (
        dllogger_pytorch_resnet,
        dllogger_mxnet_resnet,
        dllogger_pytorch_bert,
        ngc_tf1_bert,
        ngc_tf1_resnet,
    )
)
_SAMPLES = {"img/s", "images/s", "seq/s", "sequences/s"}
_LATEST = 1e11  # seconds since the epoch: no clock shows the year 5138
_MOST_UNITS = 1000
_MOST_PARAMETERS = 50


def read(line: Line, draft: Draft) -> None:
    """One record."""
    start = line.text.find("DLLL {")
    stated = _decoded(line.text[start + 5 :]) if start >= 0 else None
    if stated is None:
        draft.note(line, "DLLL, but no JSON object that can be read")
    elif stated.get("type") == "METADATA":
        _metadata(draft, stated)
    elif isinstance(stated.get("data"), dict):
        _log(line, draft, stated["data"], _record(stated))


def _log(line: Line, draft: Draft, data: Mapping[str, Any], record: Record) -> None:
    program: Program | None = draft.state.get("program") or _recognised(line, draft, data)
    if program is not None:
        if not tell(program, line, draft, record):
            draft.note(line, "a step that no program writes")
    elif record.parameters:
        # The arguments come before anything that tells whose they are.
        waiting = draft.state.setdefault("waiting", [])
        if len(waiting) < _MOST_PARAMETERS:
            waiting.append((line._replace(text=""), record))


def _recognised(line: Line, draft: Draft, data: Mapping[str, Any]) -> Program | None:
    found = next((each for each in _WRITERS if _wrote(each[0], data)), None)
    if found is None:
        return None
    program, written = found
    draft.state["program"] = program
    draft.framework = written.framework
    draft.printed = written.printed
    draft.counter = written.counter
    units = draft.state.get("units", {})
    for metric in sorted({*program.rates, *program.totals} & units.keys()):
        if units[metric] not in _SAMPLES:
            draft.note(line, f"{metric} is in {units[metric][:40]!r}, which is taken for samples/s")
    for asked, parameters in draft.state.pop("waiting", []):
        tell(program, asked, draft, parameters)
    return program


def _wrote(program: Program, data: Mapping[str, Any]) -> bool:
    return any(metric in data for metric in (*program.marks, *program.totals))


def _record(stated: Mapping[str, Any]) -> Record:
    step = stated.get("step")
    text = str(stated["data"].get("Config", "")) if step == "PARAMETER" else ""
    return Record(_stamp(stated), _step(step), stated["data"], step == "PARAMETER", text)


def _step(step: Any) -> tuple[int, ...] | None:
    """A list of numbers, or one of them; None for anything else."""
    numbers = step if isinstance(step, list) else [step]
    if not all(type(number) is int and 0 <= number < 10**15 for number in numbers):
        return None
    return tuple(numbers)


def _stamp(stated: Mapping[str, Any]) -> float | None:
    """``timestamp``, or else ``datetime`` (older files of some programs have no zone in it)."""
    try:
        seconds = float(stated.get("timestamp"))  # type: ignore[arg-type]  # None: below
    except (TypeError, ValueError, OverflowError):
        return full_stamp(str(stated.get("datetime"))[:40])
    return seconds if math.isfinite(seconds) and 0 < seconds < _LATEST else None


def _metadata(draft: Draft, stated: Mapping[str, Any]) -> None:
    units = draft.state.setdefault("units", {})
    metadata = stated.get("metadata")
    unit = metadata.get("unit") if isinstance(metadata, dict) else None
    if isinstance(unit, str) and len(units) < _MOST_UNITS:
        units[str(stated.get("metric"))] = unit


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        stated, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return stated if isinstance(stated, dict) else None


def _bounded(digits: str) -> float:
    return int(digits) if len(digits) <= 18 else float(digits)


_DECODER = json.JSONDecoder(parse_int=_bounded)

FORMAT = Format(
    name="dllogger_json",
    title="NVIDIA dllogger (DLLL JSON stream)",
    framework="ngc-pytorch",
    evidence=Evidence.REAL,
    source="NVIDIA/dllogger dllogger/logger.py (JSONStreamBackend)",
    needles=("DLLL {",),
    read=read,
)
