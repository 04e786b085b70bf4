"""Equal models as others write them, as workloads: HuggingFace's, and nanoGPT's way.

Each takes our batch in its own form and gives its loss; sizes are the case's. transformers is
imported by the function that needs it; tests and the acceptance pack use its models too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.workloads import bert, gpt2, llama3

NOT_COUNTED = -100
"""The label that a loss leaves out."""
_NOISE = 0.08
"""Added to every weight, so that biases and norms are in a comparison too."""

Arrays = dict[str, Any]
Tensors = dict[str, Tensor]


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


def _causal_batch(ours: Arrays) -> Arrays:
    """Labels not yet shifted, which the model does by itself; so the first is left out."""
    first = np.full_like(ours["labels"][:, :1], NOT_COUNTED)
    shifted = np.concatenate([first, ours["labels"][:, :-1]], axis=1)
    return {"input_ids": ours["input_ids"], "labels": shifted}


def _bert_flops(case: Case) -> float:
    """transformers' BERT scores every token, ours the masked ones only."""
    return bert.flops_per_sample(bert.config_of(case), case.seq_len, case.seq_len)


_WORKLOADS = registry().workloads
_FAMILIES: dict[str, tuple[Any, Any, Any]] = {
    "bert": (bert.config_of, _bert_batch, _bert_flops),
    "gpt2": (gpt2.config_of, _causal_batch, _WORKLOADS["gpt2-tiny"].flops_per_sample),
    "llama": (llama3.config_of, _causal_batch, _WORKLOADS["llama3-tiny"].flops_per_sample),
}
"""Our sizes, our batch in transformers' form, and FLOPs of a sample of its model, by the name that
transformers has for a family, with which the names of ours begin."""


def _family(model: str) -> str:
    return next(name for name in _FAMILIES if model.startswith(name))


def _of_llama(config: Any) -> dict[str, Any]:
    """What transformers wants to know of a Llama alone."""
    if not isinstance(config, llama3.LlamaConfig):
        return {}
    rope = {"rope_type": "llama3", "rope_theta": config.rope_theta, "factor": config.rope_factor}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = config.original_positions
    return {
        "num_key_value_heads": config.key_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tied,
    }


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
    (r"^model\.layers", "layers"),
    (r"^model\.embed_tokens", "word"),
    (r"self_attn\.[qkv]_proj", "attention.qkv"),
    (r"self_attn\.o_proj", "attention.out"),
    (r"post_attention_layernorm", "feed_forward_norm"),
    (r"input_layernorm", "attention_norm"),
    (r"mlp\.(gate|up)_proj", "feed_forward.up"),
    (r"mlp\.down_proj", "feed_forward.down"),
    (r"^model\.norm", "final_norm"),
    (r"^lm_head", "head"),
)
"""Parts of the names of transformers' weights, and ours, replaced in this order. The BERT whose
norms stand before is its RoBERTa-PreLayerNorm."""


def counterpart(case: Case, attention: str) -> Loss:
    """transformers' model of the case's sizes; ``attention`` is its own word: sdpa, or eager, in
    which mask and softmax are written out."""
    import transformers

    family = _family(case.model)
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
        **_of_llama(config),
    )
    causal, pre_training = transformers.AutoModelForCausalLM, transformers.AutoModelForPreTraining
    kind: Any = pre_training if family == "bert" else causal
    return Loss(kind.from_config(settings))


def equal(
    ours: nn.Module, case: Case, arrays: Arrays
) -> tuple[Loss, Arrays, Callable[[list[Tensor]], list[Tensor]]]:
    """transformers' model, whose weights ours gets, and its batch, without the last position, which
    its GPT-2 leaves out; and what puts its gradients in the order of ours."""
    if "labels" in arrays:
        arrays["labels"][:, -1] = NOT_COUNTED
    theirs = counterpart(case, "eager")
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
    named = dict(theirs.model.named_parameters())  # a tied tensor once, under its first name
    ours.load_state_dict(our_weights({name: each.detach() for name, each in named.items()}))

    def ordered(gradients: list[Tensor]) -> list[Tensor]:
        renamed = our_weights(dict(zip(named, gradients)))
        return [renamed[name] for name, _ in ours.named_parameters()]

    return theirs, batch_of(case.model, arrays), ordered


def batch_of(model: str, ours: Arrays) -> Arrays:
    """Our batch of a workload in the form of transformers' model."""
    _, batch, _ = _FAMILIES[_family(model)]
    found: Arrays = batch(ours)
    return found


def huggingface(model: str) -> WorkloadDeclaration:
    """A workload of ours with transformers' model in it."""
    ours, (_, _, flops) = _WORKLOADS[model], _FAMILIES[_family(model)]
    return replace(
        ours,
        build=lambda _library, case: counterpart(case, "sdpa"),
        batch=lambda case, rank: batch_of(model, ours.batch(case, rank)),
        flops_per_sample=flops,
    )


def our_weights(state: Mapping[str, Tensor]) -> Tensors:
    """transformers' weights (or their gradients) under our names; queries, keys and values are one
    tensor, and so are both halves of SwiGLU."""
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for name, tensor in state.items():
        if ".c_" in name:  # a layer of transformers' own, whose matrix lies the other way
            tensor = tensor.t()
        for theirs, ours in _NAMES:
            name = re.sub(theirs, ours, name)
        parts[name].append(tensor)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.p = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).contiguous().view(batch, tokens, width)))
        out: Tensor = x + self.drop(self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)))))
        return out


class _Plain(nn.Module):
    """GPT as nanoGPT has it: positions looked up, the loss torch's own over all scores."""

    def __init__(self, config: gpt2.Gpt2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab, config.hidden)
        self.wpe = nn.Embedding(config.max_positions, config.hidden)
        self.drop = nn.Dropout(config.dropout)
        blocks = (_Block(config.hidden, config.heads, config.dropout) for _ in range(config.layers))
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(config.hidden)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=config.init_std)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.drop(self.wte(input_ids) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        scores = self.lm_head(self.ln_f(x))
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))


def nanogpt(_library: str, case: Case) -> nn.Module:
    """A GPT-2 of this size in nanoGPT's manner."""
    return _Plain(gpt2.config_of(case))


class _Scores(nn.Module):
    """A model that gives scores, with torch's own loss over all of them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        scores = self.model(input_ids)
        return F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())


def torchtitan(_library: str, case: Case) -> nn.Module:
    """torchtitan's Llama 3 of this size (0.3), if it is installed; with its SDPA, since its flex
    attention is made for compilation and GPUs."""
    titan, common = (import_module(f"torchtitan.models.{name}") for name in ("llama3", "common"))
    attention = import_module("torchtitan.models.common.attention").ScaledDotProductAttention
    config = llama3.config_of(case)
    rope = common.ComplexRoPE.Config(
        dim=config.hidden // config.heads,
        max_seq_len=config.max_positions,
        theta=config.rope_theta,
        scaling="llama",
        scaling_factor=config.rope_factor,
        original_max_position_embeddings=config.original_positions,
    )
    layers = titan._build_llama3_layers(
        n_layers=config.layers,
        dim=config.hidden,
        n_heads=config.heads,
        n_kv_heads=config.key_heads,
        hidden_dim=config.ffn,
        rope=rope,
        attn_backend="flex",
    )
    for layer in layers:
        layer.attention.inner_attention = attention.Config()
    embedding = titan._EMBEDDING_SKIP_INIT if config.tied else titan._EMBEDDING_INIT
    made = titan.Llama3Model.Config(
        dim=config.hidden,
        vocab_size=config.vocab,
        enable_weight_tying=config.tied,
        tok_embeddings=common.Embedding.Config(
            num_embeddings=config.vocab, embedding_dim=config.hidden, param_init=embedding
        ),
        norm=common.RMSNorm.Config(normalized_shape=config.hidden, param_init=titan._NORM_INIT),
        lm_head=common.Linear.Config(
            in_features=config.hidden,
            out_features=config.vocab,
            param_init=titan._output_linear_init(config.hidden),
        ),
        layers=layers,
    ).build()
    made.init_states()
    return _Scores(made)


def others(model: str) -> dict[str, WorkloadDeclaration]:
    """Whose code there is to compare a workload with, by name; none of models without tokens."""
    if not model.startswith(tuple(_FAMILIES)):
        return {}
    found = {"huggingface": huggingface(model)}
    if model.startswith("gpt2"):
        found["nanogpt"] = replace(_WORKLOADS[model], build=nanogpt)
    if model.startswith("llama3") and find_spec("torchtitan"):
        found["torchtitan"] = replace(_WORKLOADS[model], build=torchtitan)
    return found
