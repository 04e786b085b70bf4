"""Tiny models compute the same loss and gradients on the device as on a CPU and as transformers',
in half precision and compiled within rounding.

transformers is imported by the functions that need it; benchmarks and tests use its models too.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dlperf_hpc.acceptance.pack import Finding, judged, skipped
from dlperf_hpc.acceptance.training import SMALL, case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train import configs
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

Arrays = dict[str, Any]
Tensors = dict[str, Tensor]
Result = tuple[float, list[Tensor]]


class Loss(nn.Module):
    """A transformers model whose ``forward`` gives its loss, as a workload's model does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.train()

    def forward(self, **batch: Tensor) -> Any:
        return self.model(**batch).loss


def has_transformers() -> bool:
    """Whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def huggingface_bert(config: configs.BertConfig, attention: str) -> Loss:
    """BertForPreTraining; ``attention`` is transformers' own word: sdpa, or eager, in which mask
    and softmax are written out."""
    import transformers

    settings = transformers.BertConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.ffn,
        max_position_embeddings=config.max_positions,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        attn_implementation=attention,
    )
    return Loss(transformers.BertForPreTraining(settings))


def bert_batch(ours: Arrays) -> Arrays:
    """Our batch in transformers' form: one label per token, most of them not counted."""
    labels = np.full_like(ours["input_ids"], NOT_COUNTED)
    np.put_along_axis(labels, ours["masked_lm_positions"], ours["masked_lm_ids"], axis=1)
    return {
        "input_ids": ours["input_ids"],
        "token_type_ids": ours["segment_ids"],
        "labels": labels,
        "next_sentence_label": ours["next_sentence_labels"],
    }


def huggingface_gpt2(config: configs.Gpt2Config, attention: str) -> Loss:
    """GPT2LMHeadModel; ``attention`` as in :func:`huggingface_bert`."""
    import transformers

    settings = transformers.GPT2Config(
        vocab_size=config.vocab,
        n_positions=config.max_positions,
        n_embd=config.hidden,
        n_layer=config.layers,
        n_head=config.heads,
        n_inner=config.ffn,
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
        attn_implementation=attention,
    )
    return Loss(transformers.GPT2LMHeadModel(settings))


def gpt2_batch(ours: Arrays) -> Arrays:
    """Our batch in transformers' form: labels not yet shifted, which the model does by itself; so
    the first is left out."""
    first = np.full_like(ours["labels"][:, :1], NOT_COUNTED)
    shifted = np.concatenate([first, ours["labels"][:, :-1]], axis=1)
    return {"input_ids": ours["input_ids"], "labels": shifted}


def huggingface(model: str) -> WorkloadDeclaration:
    """A workload of ours with transformers' model in it. Its BERT scores every token, ours the
    masked ones only."""
    ours = registry().workloads[model]
    if not model.startswith("bert"):
        return replace(
            ours,
            build=lambda _library, case: huggingface_gpt2(gpt2.config_of(case), "sdpa"),
            batch=lambda case, rank: gpt2_batch(gpt2.batch(case, rank)),
        )
    return replace(
        ours,
        build=lambda _library, case: huggingface_bert(bert.config_of(case), "sdpa"),
        batch=lambda case, rank: bert_batch(bert.batch(case, rank)),
        flops_per_sample=lambda case: bert.flops_per_sample(
            bert.config_of(case), case.seq_len, case.seq_len
        ),
    )


def bert_weights(state: Mapping[str, Tensor], config: configs.BertConfig) -> Tensors:
    """transformers' weights (or their gradients) under our names; ValueError if a tensor
    is left over."""
    modules = {
        "embeddings.word": ["bert.embeddings.word_embeddings"],
        "embeddings.position": ["bert.embeddings.position_embeddings"],
        "embeddings.segment": ["bert.embeddings.token_type_embeddings"],
        "embeddings.norm": ["bert.embeddings.LayerNorm"],
        "pooler": ["bert.pooler.dense"],
        "mlm": ["cls.predictions"],
        "mlm.transform": ["cls.predictions.transform.dense"],
        "mlm.norm": ["cls.predictions.transform.LayerNorm"],
        "nsp": ["cls.seq_relationship"],
    }
    norms = ("attention.output", "output")
    if config.layer_norm == "pre":
        norms = ("attention", "intermediate")
        modules["final_norm"] = ["bert.LayerNorm"]
    for i in range(config.layers):
        our, their = f"layers.{i}", f"bert.encoder.layer.{i}"
        qkv = [f"{their}.attention.self.{name}" for name in ("query", "key", "value")]
        modules[f"{our}.attention.qkv"] = qkv
        modules[f"{our}.attention.out"] = [f"{their}.attention.output.dense"]
        modules[f"{our}.feed_forward.up"] = [f"{their}.intermediate.dense"]
        modules[f"{our}.feed_forward.down"] = [f"{their}.output.dense"]
        modules[f"{our}.attention_norm"] = [f"{their}.{norms[0]}.LayerNorm"]
        modules[f"{our}.feed_forward_norm"] = [f"{their}.{norms[1]}.LayerNorm"]
    return _renamed(state, modules)


def gpt2_weights(state: Mapping[str, Tensor], config: configs.Gpt2Config) -> Tensors:
    """transformers' weights (or their gradients) under our names; ValueError if a tensor
    is left over."""
    parts = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.up": "mlp.c_fc",
        "feed_forward.down": "mlp.c_proj",
    }
    modules = {"word": ["wte"], "position": ["wpe"], "final_norm": ["ln_f"]}
    for i in range(config.layers):
        modules.update({f"layers.{i}.{our}": [f"h.{i}.{their}"] for our, their in parts.items()})
    left = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    for name, tensor in left.items():
        if ".c_" in name:  # a layer of transformers' own, whose matrix lies the other way
            left[name] = tensor.t()
    return _renamed(left, modules)


def _renamed(state: Mapping[str, Tensor], modules: Mapping[str, list[str]]) -> Tensors:
    """Weights and biases under our modules' names, those of several modules as one tensor."""
    left, ours = dict(state), Tensors()
    for our, theirs in modules.items():
        for kind in ("weight", "bias"):
            names = [f"{their}.{kind}" for their in theirs]
            if names[0] in left:
                ours[f"{our}.{kind}"] = torch.cat([left.pop(name) for name in names])
    if left:
        raise ValueError(f"not mapped: {sorted(left)}")
    return ours


def numerics(device: str) -> Iterator[Finding]:
    """Ours against transformers; then the device against a CPU in fp32, and all else against it."""
    for model in SMALL:
        yield _beside_transformers(model, device)
    for model in SMALL if device == "cuda" else ("gpt2-tiny",):
        module, batch = _model(model)
        reference = _result(module, batch, device, "fp32")
        if device == "cuda":
            on_cpu = _result(module, batch, "cpu", "fp32")
            yield _compared(f"{model}: fp32, card against CPU", reference, on_cpu, "fp32")
        for precision in ("tf32", "bf16", "fp16") if device == "cuda" else ("bf16",):
            found = _result(module, batch, device, precision)
            yield _compared(f"{model}: {precision} against fp32", found, reference, precision)
        found = _result(module, batch, device, "fp32", compiled=True)
        how = f"compiled ({_COMPILER[device]})"
        yield _compared(f"{model}: {how} against eager, fp32", found, reference, "fp32")
    module, batch = _model("gpt2-tiny", checkpoint_activations=True)
    reference = _result(_model("gpt2-tiny")[0], batch, device, "fp32")
    found = _result(module, batch, device, "fp32")
    yield _compared("gpt2-tiny: activation checkpoints on against off", found, reference, "fp32")


def _model(name: str, **options: Any) -> tuple[nn.Module, Tensors]:
    """Without dropout, whose random numbers differ from device to device."""
    asked, workload = case(name, "cpu", dropout=0.0, **options), registry().workloads[name]
    torch.manual_seed(asked.seed)
    module: nn.Module = workload.build("torch", asked).train()
    return module, {k: torch.as_tensor(v) for k, v in workload.batch(asked, 0).items()}


def _beside_transformers(model: str, device: str) -> Finding:
    """Both with transformers' weights, on the same batch, whose last position GPT-2 leaves out."""
    what = f"{model}: fp32, ours against transformers"
    if not has_transformers():
        return skipped(what, "transformers is not installed")
    ours, batch = _model(model)
    theirs, their_batch, renamed = _of_transformers(model, batch)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
    named = dict(theirs.model.named_parameters())  # a tied tensor once, under its first name
    ours.load_state_dict(renamed({name: tensor.detach() for name, tensor in named.items()}))
    expected, gradients = _result(theirs, their_batch, device, "fp32")
    under_our_names = renamed(dict(zip(named, gradients)))
    reference = expected, [under_our_names[name] for name, _ in ours.named_parameters()]
    return _compared(what, _result(ours, batch, device, "fp32"), reference, "fp32")


def _of_transformers(
    model: str, batch: Tensors
) -> tuple[Loss, Tensors, Callable[[Mapping[str, Tensor]], Tensors]]:
    """transformers' model, our batch in its form, and what puts its weights under our names."""
    asked = case(model, "cpu", dropout=0.0)
    arrays: Arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    if model.startswith("bert"):
        config = bert.config_of(asked)
        made, theirs = huggingface_bert(config, "eager"), bert_batch(arrays)
        renamed = functools.partial(bert_weights, config=config)
    else:
        batch["labels"][:, -1] = NOT_COUNTED
        shape = gpt2.config_of(asked)
        made, theirs = huggingface_gpt2(shape, "eager"), gpt2_batch(arrays)
        renamed = functools.partial(gpt2_weights, config=shape)
    return made, {name: torch.as_tensor(array) for name, array in theirs.items()}, renamed


def _result(
    module: nn.Module, batch: Tensors, device: str, precision: str, compiled: bool = False
) -> Result:
    """The loss, and each parameter's gradient."""
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


def _compared(what: str, found: Result, reference: Result, precision: str) -> Finding:
    most_loss, most_gradient = _BOUNDS[precision]
    loss = abs(found[0] - reference[0]) / abs(reference[0])
    apart = sum(float((a - b).square().sum()) for a, b in zip(found[1], reference[1]))
    whole = sum(float(b.square().sum()) for b in reference[1])
    gradient = (apart / whole) ** 0.5
    holds = loss <= most_loss and gradient <= most_gradient and len(found[1]) == len(reference[1])
    value, goal = f"loss {loss:.1e}, gradients {gradient:.1e}", f"{most_loss:g}, {most_gradient:g}"
    return judged(what, value, goal, holds)
