"""How PyTorch runs a model, as observed: the attention kernel, and what torch.compile made.

Imports torch: never loaded on the login node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

_KERNELS = {
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_attention_math": "math",
}
"""What torch's profiler calls the operators that ``scaled_dot_product_attention`` chooses from."""


def attention_of(work: Callable[[], object]) -> str | None:
    """The attention kernels that a call ran, by the values of :data:`_KERNELS` joined by ``+``.

    None where none was seen: a compiler takes ``math`` apart into products and a softmax. It costs
    a profiler of the host's calls alone, so keep it out of what is timed.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it tells of its beginning and its end
    seen = profile(activities=[ProfilerActivity.CPU])
    try:
        seen.start()
    except RuntimeError:  # another tool may hold the profiler: the run is worth more than this
        work()
        return None
    try:
        work()
    finally:
        seen.stop()
    names = {event.name for event in seen.events() or ()}
    return "+".join(sorted({_KERNELS[name] for name in names & _KERNELS.keys()})) or None


def compiled_so_far() -> tuple[int, int]:
    """(graphs that torch.compile made in this process, graph breaks that it met)."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:  # nothing was compiled: importing it takes a second
        return 0, 0
    counters = dynamo.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
