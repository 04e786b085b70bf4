"""Published results that ship with the package: ``published.csv`` as typed rows.

Facts of public reports, each with its source; how the table was made is in ``README.md``.
A published figure is one number without its runs: nothing is known of its noise.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, TypeVar

from dlperf_hpc.model.case import Topology, known_fields

SAMPLES_PER_S = "samples_per_s"

MODELS: Mapping[str, str] = {
    "bert": "bert-base",
    "bert-base-adam-training": "bert-base",
    "bert-base-lamb-training": "bert-base",
    **dict.fromkeys(("rn50", "r50", "resnet50", "resnet50v1.5", "rn50v1.5"), "resnet50-v1.5"),
    **dict.fromkeys(("resnet50v1b", "rn50v1b"), "resnet50-v1b"),
    "r100": "insightface-r100",
    "y1": "insightface-y1",
}
"""Models as file names and other reports write them (lower case, '-' for '_') -> the name here."""

FRAMEWORKS: Mapping[str, str] = {
    "paddlepaddle": "paddle",
    "megatron-lm": "megatron",
    "tensorflow2": "tensorflow",
}
"""Other names of frameworks -> the name here."""


def model_name(written: str) -> str:
    """The name here of a model as anybody writes it; its own if it has none here."""
    plain = written.lower().replace("_", "-")
    return MODELS.get(plain, plain)


def framework_name(written: str) -> str:
    """The name here of a framework as anybody writes it; its own if it has none here."""
    return FRAMEWORKS.get(written.lower(), written.lower())


@dataclass(frozen=True)
class Published:
    """One published figure and where it stands. ``value`` is in ``metric``: ``samples_per_s`` (over
    all devices), ``iteration_ms``, or ``tflops_per_device``. ``batch_size`` is per device,
    ``global_batch`` over all; what the source does not say is None. ``speedup`` is as printed, over
    1n1g of the same table. ``kind`` is ``table`` (a figure for the case), ``run`` (one of the runs
    behind it) or ``image`` (read from a picture). ``memory_mb`` is of one device. ``ref`` is a
    branch or commit of ``repository``."""

    framework: str
    model: str
    precision: str
    options: tuple[str, ...]
    batch_size: int | None
    global_batch: int | None
    topology: Topology
    metric: str
    value: float
    speedup: float | None
    memory_mb: float | None
    hardware: str
    kind: str
    repository: str
    path: str
    line: int | None
    ref: str

    @property
    def series(self) -> tuple[object, ...]:
        """Equal for the figures of one table that differ in topology only."""
        return (
            *(self.repository, self.path, self.ref, self.kind, self.metric, self.framework),
            *(self.model, self.precision, self.options, self.batch_size, self.global_batch),
        )

    @property
    def source(self) -> str:
        """``Oneflow-Inc/DLPerf DeepSpeed/bert/README.md:374 (a branch)``."""
        line = "" if self.line is None else f":{self.line}"
        return f"{self.repository} {self.path}{line} ({self.ref})"


@lru_cache(maxsize=1)
def published() -> tuple[Published, ...]:
    """Every row of the table, in its order."""
    text = resources.files("dlperf_hpc.published").joinpath("published.csv").read_text("ascii")
    return tuple(map(_row, csv.DictReader(text.splitlines())))


def _row(cells: Mapping[str, str]) -> Published:
    """One line of the file; KeyError or ValueError if it is not one."""
    nodes, devices = int(cells["nodes"]), int(cells["devices"])
    value = float(cells["value"])
    if devices % nodes or not (math.isfinite(value) and value > 0):
        raise ValueError(f"not a published result: {dict(cells)}")
    made: dict[str, Any] = {**cells, "topology": Topology(nodes, devices // nodes), "value": value}
    made["options"] = tuple(filter(None, cells["options"].split(";")))
    for name, kind in _NUMBERS.items():
        made[name] = kind(cells[name]) if cells[name] else None
    return Published(**known_fields(Published, made))


_NUMBERS: Mapping[str, Callable[[str], float]] = {
    **dict.fromkeys(("batch_size", "global_batch", "line"), int),
    **dict.fromkeys(("speedup", "memory_mb"), float),
}
"""The cells of numbers, which may be empty."""


FILTERS: Mapping[str, str] = {
    "framework": "oneflow, deepspeed, tensorflow, ngc-pytorch, ...",
    "model": "bert-base, resnet50-v1.5, gpt2-small, ...",
    "precision": "fp32 or fp16",
    "batch_size": "per device",
    "topology": "as 1n8g",
    "tag": "an option that the row has: xla, no-clip, dali, zero-stage-1, ...",
    "hardware": "part of the text: A100, V100-SXM2-16GB, ...",
    "repository": "part of the text: DLPerf, PaddlePaddle/Perf, microsoft/DeepSpeed",
    "path": "part of the text: a file of that repository",
    "ref": "part of the text: a branch or commit",
}
"""What a selection of published results may ask for, and how its values look."""

Row = TypeVar("Row")
Texts = Callable[[Any, str], list[str]]
_PARTS = ("hardware", "repository", "path", "ref")


def _texts(row: Published, key: str) -> list[str]:
    if key not in FILTERS:
        raise KeyError(key)
    if key == "tag":
        return list(row.options)
    value = getattr(row, key)
    return [] if value is None else [str(value)]


def select(
    rows: Iterable[Row], wanted: Mapping[str, Sequence[str]], texts: Texts = _texts
) -> list[Row]:
    """The rows that have, for every key of ``wanted``, one of its values. Case does not matter.
    ``texts`` gives what a row has under a key: of published ones a key of :data:`FILTERS`, KeyError
    for any other."""
    lowered = {key: [value.lower() for value in values] for key, values in wanted.items()}
    return [row for row in rows if all(_has(texts(row, key), key, lowered[key]) for key in lowered)]


def values_of(rows: Iterable[Row], key: str, texts: Texts = _texts) -> list[str]:
    """What the rows hold under a key, each once, sorted as text; ``texts`` as in
    :func:`select`."""
    return sorted({text for row in rows for text in texts(row, key)})


def _has(found: Iterable[str], key: str, values: Sequence[str]) -> bool:
    texts = [text.lower() for text in found]
    if key in _PARTS:
        return any(value in text for text in texts for value in values)
    return any(text in values for text in texts)
