"""Tiny models compute the same loss and gradients on the device as on a CPU and as transformers',
in half precision and compiled within rounding.

transformers is imported by the function that needs it; benchmarks and tests use its models too.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dlperf_hpc.acceptance.pack import Finding, judged, skipped
from dlperf_hpc.acceptance.training import SMALL, case
from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.device import AUTOCAST
from dlperf_hpc.train.workloads import bert, gpt2

NOT_COUNTED = -100
"""The label that a loss leaves out."""

_BOUNDS = {"fp32": (1e-5, 1e-4), "tf32": (1e-3, 1e-3), "bf16": (2e-2, 2e-2), "fp16": (2e-2, 2e-2)}
"""Relative difference of the loss, and of all gradients by their norm."""
_COMPILER = {"cuda": "inductor", "cpu": "aot_eager"}
"""What compiles: a rehearsal leaves inductor, which compiles C++, to ``matrix`` and ``tuned``."""
_NOISE = 0.08
"""Added to every weight, so that biases and norms are in the comparison too."""

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None

Arrays = dict[str, Any]
Tensors = dict[str, Tensor]
Result = tuple[float, list[Tensor]]


class Loss(nn.Module):
    """A transformers model whose ``forward`` gives its loss, as a workload's model does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.train()
        # DDP would broadcast its buffers, which ours lack; on one rank that is for nothing.
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def forward(self, **batch: Tensor) -> Any:
        return self.model(**batch).loss


def _bert_batch(ours: Arrays) -> Arrays:
    """One label per token, most of them not counted."""
    labels = np.full_like(ours["input_ids"], NOT_COUNTED)
    np.put_along_axis(labels, ours["masked_lm_positions"], ours["masked_lm_ids"], axis=1)
    return {
        "input_ids": ours["input_ids"],
        "token_type_ids": ours["segment_ids"],
        "labels": labels,
        "next_sentence_label": ours["next_sentence_labels"],
    }


def _gpt2_batch(ours: Arrays) -> Arrays:
    """Labels not yet shifted, which the model does by itself; so the first is left out."""
    first = np.full_like(ours["labels"][:, :1], NOT_COUNTED)
    shifted = np.concatenate([first, ours["labels"][:, :-1]], axis=1)
    return {"input_ids": ours["input_ids"], "labels": shifted}


def _bert_flops(case: Case) -> float:
    """transformers' BERT scores every token, ours the masked ones only."""
    return bert.flops_per_sample(bert.config_of(case), case.seq_len, case.seq_len)


_FAMILIES: dict[str, tuple[Any, Any, Any]] = {
    "bert": (bert.config_of, _bert_batch, _bert_flops),
    "gpt2": (gpt2.config_of, _gpt2_batch, registry().workloads["gpt2-tiny"].flops_per_sample),
}
"""Our sizes, our batch in transformers' form, and FLOPs of a sample of its model, by the name that
transformers has for a family, with which the names of ours begin."""

_DROPOUTS: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")  # of BERT
_DROPOUTS += ("resid_pdrop", "embd_pdrop", "attn_pdrop")  # of GPT-2
_NAMES = (
    (r"bert\.encoder\.layer\.|transformer\.h\.", "layers."),
    (r"bert\.embeddings\.LayerNorm", "embeddings.norm"),
    (r"bert\.embeddings\.(word|position)_embeddings", r"embeddings.\1"),
    (r"bert\.embeddings\.token_type_embeddings", "embeddings.segment"),
    (r"transformer\.wte", "word"),
    (r"transformer\.wpe", "position"),
    (r"attention\.self\.(query|key|value)|attn\.c_attn", "attention.qkv"),
    (r"attention\.output\.dense|attn\.c_proj", "attention.out"),
    (r"attention(\.output)?\.LayerNorm|ln_1", "attention_norm"),
    (r"intermediate\.dense|mlp\.c_fc", "feed_forward.up"),
    (r"output\.dense|mlp\.c_proj", "feed_forward.down"),
    (r"(intermediate|output)\.LayerNorm|ln_2", "feed_forward_norm"),
    (r"bert\.LayerNorm|transformer\.ln_f", "final_norm"),
    (r"bert\.pooler\.dense", "pooler"),
    (r"cls\.predictions\.transform\.LayerNorm", "mlm.norm"),
    (r"cls\.predictions\.transform\.dense", "mlm.transform"),
    (r"cls\.predictions", "mlm"),
    (r"cls\.seq_relationship", "nsp"),
)
"""Parts of the names of transformers' weights, and ours, replaced in this order. The BERT whose
norms stand before is its RoBERTa-PreLayerNorm."""


def _counterpart(case: Case, attention: str) -> Loss:
    """transformers' model of the case's sizes; ``attention`` is its own word: sdpa, or eager, in
    which mask and softmax are written out."""
    import transformers

    family = case.model.partition("-")[0]
    config = _FAMILIES[family][0](case)
    settings = transformers.AutoConfig.for_model(
        family,
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.ffn,
        n_inner=config.ffn,
        max_position_embeddings=config.max_positions,
        attn_implementation=attention,
        **dict.fromkeys(_DROPOUTS, config.dropout),
    )
    return Loss(transformers.AutoModelForPreTraining.from_config(settings))


def huggingface(model: str) -> WorkloadDeclaration:
    """A workload of ours with transformers' model in it."""
    ours, (_, batch, flops) = registry().workloads[model], _FAMILIES[model.partition("-")[0]]
    return replace(
        ours,
        build=lambda _library, case: _counterpart(case, "sdpa"),
        batch=lambda case, rank: batch(ours.batch(case, rank)),
        flops_per_sample=flops,
    )


def our_weights(state: Mapping[str, Tensor]) -> Tensors:
    """transformers' weights (or their gradients) under our names; queries, keys and values are one
    tensor."""
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for name, tensor in state.items():
        if ".c_" in name:  # a layer of transformers' own, whose matrix lies the other way
            tensor = tensor.t()
        for theirs, ours in _NAMES:
            name = re.sub(theirs, ours, name)
        parts[name].append(tensor)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


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


def _tensors(arrays: Arrays) -> Tensors:
    return {name: torch.as_tensor(array) for name, array in arrays.items()}


def _beside_transformers(model: str, device: str) -> Finding:
    """Both with transformers' weights, on the same batch, whose last position GPT-2 leaves out."""
    what = f"{model}: fp32, ours against transformers"
    if not HAS_TRANSFORMERS:
        return skipped(what, "transformers is not installed")
    ours, batch = _model(model)
    if "labels" in batch:
        batch["labels"][:, -1] = NOT_COUNTED
    theirs = _counterpart(case(model, "cpu", dropout=0.0), "eager")
    _, their_form, _ = _FAMILIES[model.partition("-")[0]]
    their_batch = their_form({name: tensor.numpy() for name, tensor in batch.items()})
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
    named = dict(theirs.model.named_parameters())  # a tied tensor once, under its first name
    weights = {name: parameter.detach() for name, parameter in named.items()}
    ours.load_state_dict(our_weights(weights))
    expected, gradients = _result(theirs, _tensors(their_batch), device, "fp32")
    renamed = our_weights(dict(zip(named, gradients)))
    reference = expected, [renamed[name] for name, _ in ours.named_parameters()]
    return _compared(what, _result(ours, batch, device, "fp32"), reference, "fp32")


def _result(
    module: nn.Module, batch: Tensors, device: str, precision: str, compiled: bool = False
) -> Result:
    """The loss, and each parameter's gradient."""
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
    apart = sum(float((a - b).square().sum()) for a, b in zip(found[1], reference[1]))
    whole = sum(float(b.square().sum()) for b in reference[1])
    gradient = (apart / whole) ** 0.5
    holds = loss <= most_loss and gradient <= most_gradient and len(found[1]) == len(reference[1])
    value, goal = f"loss {loss:.1e}, gradients {gradient:.1e}", f"{most_loss:g}, {most_gradient:g}"
    return judged(what, value, goal, holds)
