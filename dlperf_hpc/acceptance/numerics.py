"""Tiny models compute the same loss and gradients on the device as on a CPU and as transformers',
in half precision and compiled within rounding.

transformers' models of our sizes are those of ``benchmarks/other_models.py``: a checkout has them.
"""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dlperf_hpc.acceptance.pack import Finding, judged, skipped
from dlperf_hpc.acceptance.training import SMALL, apart, case
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.device import AUTOCAST

_BOUNDS = {"fp32": (1e-5, 1e-4), "tf32": (1e-3, 4e-3), "bf16": (2e-2, 2e-2), "fp16": (2e-2, 2e-2)}
"""Relative difference of the loss, and of all gradients by their norm. tf32 rounds the factors to
2^-11, and a gradient is some ten products deep."""
_COMPILER = {"cuda": "inductor", "cpu": "aot_eager"}  # inductor compiles C++ for a CPU: too long
LACKING = "transformers is not installed, or this is no checkout"

Tensors = dict[str, Tensor]
Result = tuple[float, list[Tensor]]


def transformers_models() -> Any:
    """The module that makes them, or None where it or transformers is not there."""
    if all(map(importlib.util.find_spec, ("transformers", "other_models"))):
        return importlib.import_module("other_models")
    return None


def numerics(device: str) -> Iterator[Finding]:
    """Ours against transformers; then the device against a CPU in fp32, and all else against it."""
    models, precisions = SMALL[1:], ["bf16"]
    if device == "cuda":
        models, precisions = SMALL, ["tf32", *AUTOCAST]
    for model in SMALL:
        yield _beside_transformers(model, device)
    for model in models:
        module, batch = _model(model)
        reference = _result(module, batch, device, "fp32")
        if device == "cuda":
            on_cpu = _result(module, batch, "cpu", "fp32")
            yield _compared(f"{model}: fp32, card against CPU", reference, on_cpu, "fp32")
        for precision in precisions:
            found = _result(module, batch, device, precision)
            yield _compared(f"{model}: {precision} against fp32", found, reference, precision)
        found = _result(module, batch, device, "fp32", compiled=True)
        how = f"compiled ({_COMPILER[device]})"
        yield _compared(f"{model}: {how} against eager, fp32", found, reference, "fp32")
    reference = _result(*_model("gpt2-tiny"), device, "fp32")
    found = _result(*_model("gpt2-tiny", checkpoint_activations=True), device, "fp32")
    yield _compared("gpt2-tiny: activation checkpoints on against off", found, reference, "fp32")


def _model(name: str, **options: Any) -> tuple[nn.Module, Tensors]:
    """A model without dropout, whose random numbers differ from device to device; its batch."""
    on_cpu, workload = case(name, "cpu", dropout=0.0, **options), registry().workloads[name]
    torch.manual_seed(on_cpu.seed)
    module: nn.Module = workload.build("torch", on_cpu).train()
    return module, _tensors(workload.batch(on_cpu, 0))


def _tensors(arrays: Any) -> Tensors:
    return {name: torch.as_tensor(array) for name, array in arrays.items()}


def _beside_transformers(model: str, device: str) -> Finding:
    """Both with transformers' weights, on the same batch."""
    what, other = f"{model}: fp32, ours against transformers", transformers_models()
    if other is None:
        return skipped(what, LACKING)
    ours, batch = _model(model)
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    theirs, their_batch, ordered = other.equal(ours, case(model, "cpu", dropout=0.0), arrays)
    expected, gradients = _result(theirs, _tensors(their_batch), device, "fp32")
    found = _result(ours, batch, device, "fp32")
    return _compared(what, found, (expected, ordered(gradients)), "fp32")


def _result(
    module: nn.Module, batch: Tensors, device: str, precision: str, compiled: bool = False
) -> Result:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.compiler.reset()
    gc.collect()
    model = copy.deepcopy(module).to(device)
    if compiled:
        model.compile(backend=_COMPILER[device])
    kind = AUTOCAST.get(precision)
    with torch.autocast(device, kind or torch.bfloat16, enabled=kind is not None):
        loss = model(**{name: tensor.to(device) for name, tensor in batch.items()})
    # A loss scale, as in training: small gradients of fp16 would be zeros.
    scale = {"fp16": 1024.0}.get(precision, 1.0)
    (loss * scale).backward()
    gradients = [p.grad.double().cpu() / scale for p in model.parameters() if p.grad is not None]
    return loss.item(), gradients


def _compared(what: str, found: Result, reference: Result, precision: str) -> Finding:
    most_loss, most_gradient = _BOUNDS[precision]
    loss = abs(found[0] - reference[0]) / abs(reference[0])
    gradient = apart(found[1], reference[1])
    holds = loss <= most_loss and gradient <= most_gradient and len(found[1]) == len(reference[1])
    value, goal = f"loss {loss:.1e}, gradients {gradient:.1e}", f"{most_loss:g}, {most_gradient:g}"
    return judged(what, value, goal, holds)
