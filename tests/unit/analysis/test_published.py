"""The published results that ship with the package: what they are, and their own arithmetic."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from enum import Enum

import pytest
from places import ROOT

from dlperf_hpc.analysis.dlperf_rule import round2
from dlperf_hpc.model.case import Topology
from dlperf_hpc.published import (
    FILTERS,
    FRAMEWORKS,
    MODELS,
    Published,
    framework_name,
    model_name,
    published,
    select,
    values_of,
)

REPOSITORY = ROOT
FILE = REPOSITORY / "dlperf_hpc" / "published" / "published.csv"

# --- speedups computed once more from the values beside them: equal, or how they differ -----------

# The rule of every table: speedup = value / value of the same table's 1n1g, rounded to 2 digits (to
# 1 in the pictures). DLPerf's own scripts divide medians that they have rounded to 2 digits
# (analysis/dlperf_rule.py), so that its printed figures are all it takes.
BASE = Topology(1, 1)


class Match(str, Enum):
    """How a printed speedup relates to the one that the printed values give."""

    EQUAL = "equal"
    ROUNDING = "within rounding"  # of the two values as they are printed
    CUT = "cut"  # digits were dropped, not rounded
    COARSE = "of coarser values"  # the values were rounded to 1 digit before they were divided
    DIFFERS = "differs"  # none of these


@dataclass(frozen=True)
class Recomputed:
    """A printed speedup beside ``computed``, the unrounded ratio of the two printed values."""

    row: Published
    base: Published
    printed: float
    computed: float
    match: Match


def recomputed(rows: Iterable[Published]) -> list[Recomputed]:
    """Every row with a printed speedup, in the order given.

    ValueError if a table that prints speedups has no 1n1g, or more than one.
    """
    rows = tuple(rows)
    bases: dict[object, list[Published]] = {}
    for row in rows:
        if row.topology == BASE:
            bases.setdefault(row.series, []).append(row)
    found = []
    for row in rows:
        if row.speedup is None:
            continue
        of_table = bases.get(row.series, [])
        if len(of_table) != 1:
            raise ValueError(f"{row.source}: {len(of_table)} rows of 1n1g in its table")
        (base,) = of_table
        ratio = row.value / base.value
        found.append(Recomputed(row, base, row.speedup, ratio, match_of(row, base, row.speedup)))
    return found


def match_of(row: Published, base: Published, printed: float) -> Match:
    ratio = row.value / base.value
    digits, half = (1, 0.5) if row.kind == "image" else (2, 0.005)
    # numpy's rounding and Python's: of DLPerf's half-way cells some follow one, some the other
    if any(same(printed, shown) for shown in (round2(ratio), round(ratio, digits))):
        return Match.EQUAL
    slack = 0.5 * 10**-digits
    low = (row.value - half) / (base.value + half) - slack
    high = (row.value + half) / (base.value - half) + slack
    if low <= printed <= high:
        return Match.ROUNDING
    if any(same(printed, math.floor(ratio * 10**kept) / 10**kept) for kept in (1, 2)):
        return Match.CUT
    if same(printed, round2(round(row.value, 1) / round(base.value, 1))):
        return Match.COARSE
    return Match.DIFFERS


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=0, abs_tol=1e-9)


# where (file and line, or the picture's case), printed, computed
UNEQUAL = {
    Match.DIFFERS: [("MxNet/BERT/README.md:359", 27.33, 27.2314)],
    Match.COARSE: [("bert_base_fp32_report_0822.md:63", 29.75, 29.7382)],
    Match.CUT: [
        ("OneFlow/Recognition/insightface/README.md:280", 7.55, 7.5590),
        ("OneFlow/Recognition/insightface/README.md:369", 7.79, 7.7976),
        ("PaddlePaddle/resnet50v1.5/README.md:301", 10.2, 10.2772),
    ],
    Match.ROUNDING: [
        ("bert_base_fp32_report_0822.md:96", 25.59, 25.5842),
        ("bert_base_oneflow_v0.2_report_1009.md:84", 10.75, 10.7450),
        ("deepspeed-throughput-seq128.png adam-4k 4n16g", 53.0, 52.9250),
        ("deepspeed-throughput-seq128.png lamb-16k 2n16g", 29.9, 29.9550),
        ("deepspeed-throughput-seq128.png lamb-16k 4n16g", 57.4, 57.5000),
        ("deepspeed-throughput-seq512.png adam-4k 1n16g", 15.8, 15.6053),
        ("deepspeed-throughput-seq512.png adam-4k 2n16g", 31.2, 30.9474),
        ("deepspeed-throughput-seq512.png adam-4k 4n16g", 62.1, 61.4737),
        ("deepspeed-throughput-seq512.png lamb-16k 1n16g", 15.7, 15.5000),
        ("deepspeed-throughput-seq512.png lamb-16k 2n16g", 31.3, 31.0000),
        ("deepspeed-throughput-seq512.png lamb-16k 4n16g", 61.6, 60.9474),
    ],
}


def where(row: Published) -> str:
    if row.line is None:
        return f"{row.path.rpartition('/')[2]} {row.options[0]} {row.topology}"
    return f"{row.path}:{row.line}"


def test_what_there_is() -> None:
    rows = published()
    assert len(rows) == 1600
    assert Counter(row.kind for row in rows) == {"table": 1394, "run": 190, "image": 16}
    assert Counter(row.metric for row in rows) == {
        "samples_per_s": 1372,
        "iteration_ms": 192,
        "tflops_per_device": 36,
    }
    assert set(Counter(row.repository for row in rows)) == {
        "Oneflow-Inc/DLPerf",
        "PaddlePaddle/Perf",
        "microsoft/DeepSpeed",
    }
    assert {row.precision for row in rows} == {"fp32", "fp16"}
    assert FILE.stat().st_size < 320_000


def test_every_fact_stands_once() -> None:
    facts = Counter(
        astuple(replace(row, path="", line=None, ref="", hardware=row.hardware.split("-")[0]))
        for row in published()
        if row.kind != "run"  # two runs may well have the same speed
    )
    assert [fact for fact, count in facts.items() if count > 1] == []


def test_rows_are_clean_and_sorted() -> None:
    rows = published()
    first = [(row.repository, row.framework, row.model, row.precision) for row in rows]
    assert first == sorted(first)
    for row in rows:
        assert re.fullmatch(r"[a-z0-9-]+", row.framework) and re.fullmatch(
            r"[a-z0-9.-]+", row.model
        )
        assert all(re.fullmatch(r"[A-Za-z0-9_.=-]+", option) for option in row.options)
        assert row.batch_size or row.global_batch
        assert row.line is not None or row.kind == "image"


def test_a_row() -> None:
    wanted = {"framework": "DeepSpeed", "precision": "fp32", "topology": "4n8g", "batch_size": "32"}
    (row,) = select(published(), {key: [value] for key, value in wanted.items()})
    assert (row.value, row.speedup, row.options) == (4899.37, 33.15, ())
    assert row.source == (
        "Oneflow-Inc/DLPerf DeepSpeed/bert/README.md:377 (add_framwork_deepspeed)"
    )


def test_selecting() -> None:
    rows = published()
    assert all(values_of(rows, key) for key in FILTERS)
    assert {row.topology.nodes for row in select(rows, {"topology": ["1n8g", "2n8g"]})} == {1, 2}
    assert all("A100" in row.hardware for row in select(rows, {"hardware": ["a100"]}))
    assert all("xla" in row.options for row in select(rows, {"tag": ["xla"]}))
    assert select(rows, {"framework": ["caffe"]}) == []
    with pytest.raises(KeyError):
        select(rows, {"colour": ["red"]})


def test_other_names_lead_to_names_that_are_there() -> None:
    rows = published()
    assert set(MODELS.values()) <= set(values_of(rows, "model"))
    assert set(FRAMEWORKS.values()) <= set(values_of(rows, "framework"))
    assert model_name("BERT_base") == model_name("bert") == "bert-base"
    assert model_name("my_model") == "my-model" and framework_name("DDP") == "ddp"


def unequal() -> list[Recomputed]:
    return [found for found in recomputed(published()) if found.match is not Match.EQUAL]


def test_686_of_702_printed_speedups_come_out_and_the_others_are_these() -> None:
    found = recomputed(published())
    assert Counter(each.match for each in found) == {
        Match.EQUAL: 686,
        Match.ROUNDING: 11,
        Match.CUT: 3,
        Match.COARSE: 1,
        Match.DIFFERS: 1,
    }
    assert sum(each.row.topology.devices == 1 for each in found) == 155  # 1 by definition
    for match, expected in UNEQUAL.items():
        told = {
            where(each.row): (each.printed, round(each.computed, 4))
            for each in found
            if each.match is match
        }
        assert len(told) == len(expected)
        for place, printed, computed in expected:
            (name,) = [name for name in told if name.endswith(place)]
            assert told[name] == (printed, computed)


def test_the_pages_list_them_all() -> None:
    pages = ("docs/comparing.md", "dlperf_hpc/published/README.md")
    lines = [
        line
        for page in pages
        for line in (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
    ]
    rows = [line.split("|") for line in lines if line.startswith("| `") and line.count("|") == 6]
    for each in unequal():
        file = each.row.path.rpartition("/")[2]
        line = "" if each.row.line is None else f":{each.row.line}"
        (row,) = [
            cells
            for cells in rows
            if f"{file}{line}`" in cells[1] and float(cells[3]) == each.printed
            and float(cells[4]) == round(each.computed, 3)
        ]  # fmt: skip
        assert each.match.value in row[5]
    assert len(rows) == len(unequal())
    for framework in values_of(published(), "framework"):
        models = Counter(row.model for row in published() if row.framework == framework)
        told = ", ".join(f"{model} {count}" for model, count in sorted(models.items()))
        assert f"| {framework} | {told} |" in lines


def test_a_table_without_its_base_is_told() -> None:
    rows = [row for row in published() if row.path == "DeepSpeed/bert/README.md"]
    lone = [row for row in rows if row.topology.devices > 1]
    with pytest.raises(ValueError, match=r"bert/README.md:[0-9]+ .*: 0 rows of 1n1g"):
        recomputed(lone)


def test_listed_runs_have_the_printed_medians() -> None:
    """Two OneFlow reports print every run: all 24 figures of their tables are medians of 7."""
    runs: dict[tuple[object, ...], list[float]] = {}
    for row in published():
        if row.kind == "run":
            key = (row.path, row.batch_size, row.topology, row.options)
            runs.setdefault(key, []).append(row.value)
    tables = {
        (row.path, row.batch_size, row.topology): row.value
        for row in published()
        if row.kind == "table" and any(row.path == path for path, *_ in runs)
    }
    medians = {(*key[:3], statistics.median(values)) for key, values in runs.items()}
    assert len(tables) == 24
    assert {(*key, value) for key, value in tables.items()} <= medians
    assert Counter(len(values) for values in runs.values()) == {7: 27, 1: 1}
