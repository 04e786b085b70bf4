"""Tiny models compute the same loss and gradients on the device as on a CPU and as transformers',
in half precision and compiled within rounding."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dlperf_hpc.acceptance import huggingface
from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import Finding, judged, skipped
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.device import AUTOCAST
from dlperf_hpc.train.workloads import bert, gpt2

_BOUNDS = {"fp32": (1e-5, 1e-4), "tf32": (1e-3, 1e-3), "bf16": (2e-2, 2e-2), "fp16": (2e-2, 2e-2)}
"""Relative difference of the loss, and of all gradients by their norm."""

_COMPILER = {"cuda": "inductor", "cpu": "aot_eager"}
"""What compiles: a rehearsal leaves inductor, which compiles C++, to ``matrix`` and ``tuned``."""

_NOISE = 0.08
"""Added to every weight, so that biases and norms are in the comparison too."""

Loss = tuple[float, list[torch.Tensor]]


def run(device: str) -> Iterator[Finding]:
    """Ours against transformers; then the device against a CPU in fp32, and all else against it."""
    for model in tiny.SMALL:
        yield _beside_huggingface(model, device)
    for model in tiny.SMALL if device == "cuda" else ("gpt2-tiny",):
        module, batch = _model(model)
        on_cpu = _loss(module, batch, "cpu", "fp32")
        reference = _loss(module, batch, device, "fp32")
        if device == "cuda":
            yield _compared(f"{model}: fp32, card against CPU", reference, on_cpu, "fp32")
        for precision in ("tf32", "bf16", "fp16") if device == "cuda" else ("bf16",):
            found = _loss(module, batch, device, precision)
            yield _compared(f"{model}: {precision} against fp32", found, reference, precision)
        found = _loss(module, batch, device, "fp32", compiled=True)
        how = f"compiled ({_COMPILER[device]})"
        yield _compared(f"{model}: {how} against eager, fp32", found, reference, "fp32")
    module, batch = _model("gpt2-tiny", checkpoint_activations=True)
    reference = _loss(_model("gpt2-tiny")[0], batch, device, "fp32")
    found = _loss(module, batch, device, "fp32")
    yield _compared("gpt2-tiny: activation checkpoints on against off", found, reference, "fp32")


def _model(name: str, **options: Any) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Without dropout, whose random numbers differ from device to device."""
    case, workload = tiny.case(name, "cpu", dropout=0.0, **options), registry().workloads[name]
    torch.manual_seed(case.seed)
    module: torch.nn.Module = workload.build("torch", case).train()
    return module, {k: torch.as_tensor(v) for k, v in workload.batch(case, 0).items()}


def _beside_huggingface(model: str, device: str) -> Finding:
    """Both with transformers' weights, on the same batch, whose last position GPT-2 leaves out."""
    what = f"{model}: fp32, ours against transformers"
    if not huggingface.is_there():
        return skipped(what, "transformers is not installed")
    ours, batch = _model(model)
    theirs, their_batch, renamed = _of_transformers(model, batch)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
    named = dict(theirs.model.named_parameters())  # a tied tensor once, under its first name
    ours.load_state_dict(renamed({name: tensor.detach() for name, tensor in named.items()}))
    expected, gradients = _loss(theirs, their_batch, device, "fp32")
    under_our_names = renamed(dict(zip(named, gradients)))
    reference = expected, [under_our_names[name] for name, _ in ours.named_parameters()]
    return _compared(what, _loss(ours, batch, device, "fp32"), reference, "fp32")


def _of_transformers(
    model: str, batch: dict[str, torch.Tensor]
) -> tuple[huggingface.Loss, dict[str, torch.Tensor], Callable[..., dict[str, torch.Tensor]]]:
    """transformers' model, our batch in its form, and what puts its weights under our names."""
    case = tiny.case(model, "cpu", dropout=0.0)
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    if model.startswith("bert"):
        config = bert.config_of(case)
        made, theirs = huggingface.bert(config, "eager"), huggingface.bert_batch(arrays)
        renamed = functools.partial(huggingface.bert_weights, config=config)
    else:
        batch["labels"][:, -1] = huggingface.NOT_COUNTED
        shape = gpt2.config_of(case)
        made, theirs = huggingface.gpt2(shape, "eager"), huggingface.gpt2_batch(arrays)
        renamed = functools.partial(huggingface.gpt2_weights, config=shape)
    return made, {name: torch.as_tensor(array) for name, array in theirs.items()}, renamed


def _loss(
    module: torch.nn.Module,
    batch: dict[str, torch.Tensor],
    device: str,
    precision: str,
    compiled: bool = False,
) -> Loss:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.compiler.reset()
    gc.collect()
    model = copy.deepcopy(module).to(device)
    called = torch.compile(model, backend=_COMPILER[device]) if compiled else model
    kind = AUTOCAST.get(precision)
    with torch.autocast(device, kind or torch.bfloat16, enabled=kind is not None):
        loss = called(**{name: tensor.to(device) for name, tensor in batch.items()})
    # As a loss scale does: small gradients of fp16 would be zeros.
    scale = 1024.0 if precision == "fp16" else 1.0
    (loss * scale).backward()
    gradients = [p.grad.double().cpu() / scale for p in model.parameters() if p.grad is not None]
    return float(loss), gradients


def _compared(what: str, found: Loss, reference: Loss, precision: str) -> Finding:
    most_loss, most_gradient = _BOUNDS[precision]
    loss = abs(found[0] - reference[0]) / abs(reference[0])
    apart = sum(float((a - b).square().sum()) for a, b in zip(found[1], reference[1]))
    whole = sum(float(b.square().sum()) for b in reference[1])
    gradient = (apart / whole) ** 0.5
    holds = loss <= most_loss and gradient <= most_gradient and len(found[1]) == len(reference[1])
    value, goal = f"loss {loss:.1e}, gradients {gradient:.1e}", f"{most_loss:g}, {most_gradient:g}"
    return judged(what, value, goal, holds)
