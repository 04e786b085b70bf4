"""The back ends, each a module that sets ``BACKENDS``, and what several of them declare.

What a rank holds for certain is what an optimizer step needs (Rajbhandari et al. 2020,
arXiv:1910.02054, section 3); an estimate adds activations, as autograd keeps them in eager mode on
a GPU. CUDA's own memory, NCCL's, workspaces and fragmentation are in neither.
"""

from __future__ import annotations

from typing import Any

from dlperf_hpc.model.case import OPTIMIZERS, Case, Optimizer, Option
from dlperf_hpc.sweepfile.declarations import Memory, ModelSize

ALIKE: dict[str, Any] = {
    "precisions": ("fp32", "tf32", "bf16", "fp16"),
    "optimizers": OPTIMIZERS,
    "data_sources": ("synthetic", "real"),
}
"""Fields of :class:`.BackendDeclaration` with one value in all back ends."""

XLA = Option("xla", False, "XLA compiles what is a device's own work, not all-reduce")
BIND = Option(
    "bind",
    "none",
    "gpu: a rank runs only on those of its cores that are next to its GPU, and fails where the"
    " machine does not tell which; none: wherever the launcher lets it",
    choices=("none", "gpu"),
)


def width(case: Case) -> int:
    """Bytes of a number in the precision in which matrix products are computed."""
    return 2 if case.precision in ("bf16", "fp16") else 4


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of fp32 state for each parameter: two moments; of SGD its momentum, if it has one."""
    return 4 * (optimizer.beta1 != 0) if optimizer.name == "sgd" else 8


def activations(case: Case, size: ModelSize, stream: int) -> int:
    """Bytes kept for the backward pass, ``stream`` for each number of the residual stream. Dropout
    has two masks in a layer; of layers that are computed twice, inputs and one layer are kept."""
    own, options = width(case), dict(case.options)
    layer = size.entry * 2 * (stream + bool(options.get("dropout"))) + size.computed * own
    kept = size.layers * layer
    if options.get("checkpoint_activations"):
        kept = size.layers * size.entry * stream + layer
    return kept + size.entry * (stream + own) + size.scores * own + 4 * size.widened


def replicated(case: Case, size: ModelSize, parts: int = 1, buckets: bool = False) -> Memory:
    """What a rank needs that has whole fp32 parameters and gradients, and one of ``parts`` of the
    optimizer state. With ``buckets`` gradients are held from one step to the next. Autocast makes
    copies of the weights; the stream stays fp32. LAMB makes two more numbers for each parameter."""
    number = size.parameters
    certain = 8 * number + state_bytes(case.optimizer) * number // parts
    beside = 2 * number * (width(case) == 2) - 4 * number * (not buckets)
    lamb = 8 * number // parts * case.optimizer.name.startswith("lamb")
    return Memory(certain, certain + max(lamb, beside + activations(case, size, 4)))
