"""OneFlow GPT (2021; ``Metric`` of OneFlow-Benchmark's LanguageModeling/GPT/oneflow_gpt/util.py).

| since | print |
|---|---|
| 2021-04 | a table: ``| batches  | micro_batches   | samples         | throughput | ...`` |
| 2021-05 | its first column is ``step`` |
| both, ``--metric-print-format normal`` | ``step=10,micro_batches=320,samples=5120,`` |
|  | ``throughput=35.88042,latency=14.26962,loss=11.23708,`` in one line |

A row says nothing without its head, which is printed anew after nvidia-smi's reading. The first
column counts optimizer steps from 1; the throughput is samples/s of all devices since the line
before. The latency of the last row is wrong where the run does not end on a printed step; it is
not read. Under model parallelism ``micro_batch_size`` is no batch per device, so it is no fact.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._numbers import NUMBER
from dlperf_hpc.logs.formats._oneflow import aside, memory_mb
from dlperf_hpc.logs.scanned import Evidence

_PAIRS = re.compile(
    rf"\bstep=(?P<done>[0-9]+),micro_batches=[0-9]+,samples=[0-9]+,throughput=(?P<rate>{NUMBER}),"
    rf"latency={NUMBER},(?:loss=(?P<loss>{NUMBER}),)?"
)
_HEADS = ("batches", "step")
_ARGUMENT = re.compile(r"\s*(?P<name>[a-z_]+) \.+ (?P<value>[0-9]+)\s*$")
_FACTS = {
    "global_batch_size": "global_batch",
    "num_gpus_per_node": "gpus_per_node",
    "num_nodes": "nodes",
}


def read(line: Line, draft: Draft) -> None:
    """A step, the head of a table, or a setting."""
    if match := _PAIRS.search(line.text):
        _step(line, draft, match["done"], match["rate"], match["loss"])
    elif match := _ARGUMENT.match(line.text):
        if match["name"] in _FACTS:
            draft.fact(line, _FACTS[match["name"]], match["value"])
    elif "|" in line.text:
        _row(line, draft, [cell.strip() for cell in line.text.split("|")[1:-1]])
    elif not aside(line, draft) and "step=" in line.text:
        draft.note(line, "a step of OneFlow GPT, but not whole")


def _row(line: Line, draft: Draft, cells: list[str]) -> None:
    if "micro_batches" in cells and "throughput" in cells and cells[0] in _HEADS:
        draft.state["head"] = cells
        return
    head: list[str] | None = draft.state.get("head")
    if head is None or not cells or not cells[0].isdigit():
        return
    if len(cells) != len(head):
        draft.note(line, f"{len(cells)} cells under a head of {len(head)}")
        return
    named = dict(zip(head, cells))
    _step(line, draft, cells[0], named["throughput"], named.get("loss"))


def _step(line: Line, draft: Draft, done: str, rate: str, loss: str | None) -> None:
    draft.step(line, done, printed=rate, loss=loss, memory_mb=memory_mb(draft))


FORMAT = Format(
    name="oneflow_gpt",
    title="OneFlow GPT (table)",
    framework="oneflow",
    evidence=Evidence.REAL,
    source="Oneflow-Inc/OneFlow-Benchmark LanguageModeling/GPT/oneflow_gpt/util.py",
    # Rows are numbers and bars. A column of 15 places holds a count of 7 at most in earnest.
    needles=("        | ", "micro_batches"),
    read=read,
    facts_needles=(*(f"{name} ...." for name in _FACTS), " %, "),
)
