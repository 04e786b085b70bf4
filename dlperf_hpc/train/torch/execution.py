"""How PyTorch runs a model: the attention kernel and what torch.compile made, as observed; and what
mode ``tuned`` adds to ``compile``: attention kernels in an order, and a bf16 stream.

Imports torch: never loaded on the login node.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
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


_HOPPER = (9, 0)


def attention_kernels(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, ``scaled_dot_product_attention`` takes the first kernel of an order that can do what
    is asked: cuDNN's before flash on Hopper and later, flash before cuDNN's elsewhere, then
    efficient, and math, which can do everything.

    PyTorch before 2.6 keeps its own order.
    """
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER:
        order.reverse()
    order += [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    ordered = "set_priority" in inspect.signature(sdpa_kernel).parameters
    found: AbstractContextManager[Any] = sdpa_kernel(
        order, **({"set_priority": True} if ordered else {})
    )
    return found


def narrow_stream(module: nn.Module) -> None:
    """Keep what flows from layer to layer in bf16: what LayerNorms and dropouts, which both begin
    and join that stream, give is rounded to it. Weights and their gradients stay fp32."""
    for part in module.modules():
        if isinstance(part, (nn.LayerNorm, nn.Dropout)):
            part.register_forward_hook(_in_bf16)


def _in_bf16(_: nn.Module, given: Any, out: torch.Tensor) -> torch.Tensor:
    return out.to(torch.bfloat16)


def compiler_options(device: torch.device) -> dict[str, Any]:
    """What torch.compile is given besides the model: a GPU's kernels are chosen by trying them."""
    return {"mode": "max-autotune-no-cudagraphs"} if device.type == "cuda" else {}
