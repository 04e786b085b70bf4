"""What the generations of Megatron-LM's output have in common: arguments, sizes, memory.

| line | says |
|---|---|
| ``  micro_batch_size ................................ 2`` | an argument (old: ``batch_size``) |
| ``using world size: 16, data-parallel-size: 16, tensor-model-parallel size: 1, ...`` | devices |
| ``setting number of micro-batches to constant 64`` | accumulation |
| ``[Rank 0] (after 1 iterations) memory (MB) \\| allocated: 1.5 \\| max allocated: 9.5`` | peak |
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Line
from dlperf_hpc.logs.formats._held import hold

FIGURE = r"[-+.0-9a-zA-Z]{1,40}"
"""A number as it is printed, nan and inf too: the draft judges it."""

NEEDLE = "elapsed time per iteration"
FACTS_NEEDLES = (
    "micro_batch_size ..",
    " batch_size ..",
    "seq_length ..",
    "params_dtype ..",
    "using world size: ",
    "batches to constant ",
    " memory (MB) | allocated: ",
)

_ARGUMENT = re.compile(
    r"^ {0,8}(micro_batch_size|batch_size|seq_length|params_dtype) \.{2,60} (\S{1,40})\s*$"
)
_WORLD = re.compile(r"using world size: ([0-9]{1,9})\b")
_MODEL_PARALLEL = re.compile(r"(?:model|context)-parallel size: ([0-9]{1,9})\b")
_ACCUMULATION = re.compile(r"setting number of micro-?batches to constant ([0-9]{1,9})\s*$")
_MEMORY = re.compile(
    r"after (?P<iteration>[0-9]{1,18}) iterations\)? memory \(MB\) \| allocated: [.0-9]{1,40}"
    r" \| max allocated: (?P<peak>[0-9]{1,12}(?:\.[0-9]{1,20})?) \|"
)
_PRECISIONS = {
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float32": "fp32",
    "torch.float": "fp32",
}


def read_setting(line: Line, draft: Draft) -> None:
    """A line that is no iteration's: its facts are held back until an iteration is read."""
    if match := _ARGUMENT.search(line.text):
        _read_argument(line, draft, match[1], match[2])
    elif match := _WORLD.search(line.text):
        sizes = [int(size) for size in _MODEL_PARALLEL.findall(line.text)]
        draft.state["split"] = any(size > 1 for size in sizes)
        hold(line, draft, "devices", match[1])
    elif match := _ACCUMULATION.search(line.text):
        hold(line, draft, "accumulation", match[1])
    elif match := _MEMORY.search(line.text):
        _read_memory(draft, int(match["iteration"]), float(match["peak"]))


def memory_of(draft: Draft, iteration: str) -> float | None:
    """The peak in MB (2**20 bytes) that a rank told of this iteration before its own line came."""
    told, peak = draft.state.get("memory", (None, None))
    return peak if told == int(iteration) else None


def _read_argument(line: Line, draft: Draft, name: str, value: str) -> None:
    if name == "seq_length":
        hold(line, draft, "seq_len", value)
    elif name == "params_dtype":
        hold(line, draft, "precision", _PRECISIONS.get(value))
    elif draft.state.get("split") is False:
        # A micro-batch is one device's only where the model is not split over devices.
        hold(line, draft, "batch_size", value)


def _read_memory(draft: Draft, iteration: int, peak: float) -> None:
    """The line stands after its iteration's, or before where another rank prints that one."""
    last = draft.steps[-1] if draft.steps else None
    if last and last.iteration == iteration:
        peak = max(peak, last.memory_mb or 0.0)
        draft.steps[-1] = last._replace(memory_mb=peak)
    else:
        draft.state["memory"] = (iteration, peak)
