"""What OneFlow's programs print beside their iterations.

At the start ``print_args`` prints an argument a line: ``batch_size_per_device = 24``,
``gpu_num_per_node = 1``, ``num_nodes = 1``. Where a program calls nvidia-smi (at iteration 10), a
row per GPU of the machine follows: ``100 %, 13858 MiB``. That is the memory in use at one moment,
by whomever: no peak.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Line

_FACTS = {
    "batch_size_per_device": "batch_size",
    "gpu_num_per_node": "gpus_per_node",
    "num_nodes": "nodes",
}
_ARGUMENT = re.compile(r"\s*(?P<name>[a-z_]+) = (?P<value>[0-9]+)\s*$")
_MEMORY = re.compile(r"\s*[0-9]+ %, (?P<mib>[0-9]+) MiB\s*$")

END = r"(?: (?P<stamp>[0-9]{10}\.[0-9]{2,}))?"
"""``time.time()`` as some versions print it after the line; one that was cut is none."""

ASIDE_NEEDLES = (*(f"{name} = " for name in _FACTS), " %, ")


def aside(line: Line, draft: Draft) -> bool:
    """Take a setting or a memory reading out of the line; whether it was one."""
    memory = _MEMORY.match(line.text)
    if memory and len(memory["mib"]) < 12:
        draft.state["mib"] = max(draft.state.get("mib", 0), int(memory["mib"]))
        return True
    argument = _ARGUMENT.match(line.text)
    if argument is None or argument["name"] not in _FACTS:
        return False
    draft.fact(line, _FACTS[argument["name"]], argument["value"])
    return True


def memory_mb(draft: Draft) -> float | None:
    """The fullest GPU of the readings since the last iteration that was printed."""
    reading: int | None = draft.state.pop("mib", None)
    return reading


def stamp(text: str | None) -> float | None:
    """Seconds since the epoch."""
    return float(text) if text else None
