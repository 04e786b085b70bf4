"""What mode ``tuned`` adds to ``compile``: attention kernels in an order, and a bf16 stream.

Imports torch: never loaded on the login node.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

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
