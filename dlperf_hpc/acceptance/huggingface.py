"""transformers' BERT and GPT-2 in the sizes of ours, and their weights under our names.

transformers is imported by the functions that need it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dlperf_hpc.train.workloads.bert import BertConfig
from dlperf_hpc.train.workloads.gpt2 import Gpt2Config

NOT_COUNTED = -100
"""The label that a loss leaves out."""

Arrays = dict[str, Any]


class Loss(nn.Module):
    """A transformers model whose ``forward`` gives its loss, as a workload's model does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.train()

    def forward(self, **batch: Tensor) -> Any:
        return self.model(**batch).loss


def is_there() -> bool:
    """Whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def bert(config: BertConfig, attention: str) -> Loss:
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
    """Our batch in its form: one label per token, most of them not counted."""
    labels = np.full_like(ours["input_ids"], NOT_COUNTED)
    np.put_along_axis(labels, ours["masked_lm_positions"], ours["masked_lm_ids"], axis=1)
    return {
        "input_ids": ours["input_ids"],
        "token_type_ids": ours["segment_ids"],
        "labels": labels,
        "next_sentence_label": ours["next_sentence_labels"],
    }


def gpt2(config: Gpt2Config, attention: str) -> Loss:
    """GPT2LMHeadModel; ``attention`` as in :func:`bert`."""
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
    """Our batch in its form: labels not yet shifted, which the model does by itself; so the first
    is left out."""
    first = np.full_like(ours["labels"][:, :1], NOT_COUNTED)
    shifted = np.concatenate([first, ours["labels"][:, :-1]], axis=1)
    return {"input_ids": ours["input_ids"], "labels": shifted}


def bert_weights(state: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """transformers' weights (or their gradients) under our names; ValueError if a tensor
    is left over."""
    left = dict(state)
    ours: dict[str, Tensor] = {}

    def take(name: str, *theirs: str) -> None:
        for kind in ("weight", "bias"):
            parts = [left.pop(f"{their}.{kind}") for their in theirs]
            ours[f"{name}.{kind}"] = torch.cat(parts)

    pre = config.layer_norm == "pre"
    for name in ("word", "position", "token_type"):
        our_name = "segment" if name == "token_type" else name
        ours[f"embeddings.{our_name}.weight"] = left.pop(
            f"bert.embeddings.{name}_embeddings.weight"
        )
    take("embeddings.norm", "bert.embeddings.LayerNorm")
    for i in range(config.layers):
        our, their = f"layers.{i}", f"bert.encoder.layer.{i}"
        qkv = [f"{their}.attention.self.{name}" for name in ("query", "key", "value")]
        take(f"{our}.attention.qkv", *qkv)
        take(f"{our}.attention.out", f"{their}.attention.output.dense")
        take(f"{our}.feed_forward.up", f"{their}.intermediate.dense")
        take(f"{our}.feed_forward.down", f"{their}.output.dense")
        norms = ("attention", "intermediate") if pre else ("attention.output", "output")
        take(f"{our}.attention_norm", f"{their}.{norms[0]}.LayerNorm")
        take(f"{our}.feed_forward_norm", f"{their}.{norms[1]}.LayerNorm")
    if pre:
        take("final_norm", "bert.LayerNorm")
    take("pooler", "bert.pooler.dense")
    take("mlm.transform", "cls.predictions.transform.dense")
    take("mlm.norm", "cls.predictions.transform.LayerNorm")
    ours["mlm.bias"] = left.pop("cls.predictions.bias")
    take("nsp", "cls.seq_relationship")
    if left:
        raise ValueError(f"not mapped: {sorted(left)}")
    return ours


def gpt2_weights(state: Mapping[str, Tensor], config: Gpt2Config) -> dict[str, Tensor]:
    """transformers' weights (or their gradients) under our names; ValueError if a tensor
    is left over."""
    left = dict(state)
    ours: dict[str, Tensor] = {}

    def take(name: str, theirs: str, *, transposed: bool) -> None:
        weight = left.pop(f"transformer.{theirs}.weight")
        ours[f"{name}.weight"] = weight.t() if transposed else weight
        ours[f"{name}.bias"] = left.pop(f"transformer.{theirs}.bias")

    ours["word.weight"] = left.pop("transformer.wte.weight")
    ours["position.weight"] = left.pop("transformer.wpe.weight")
    for i in range(config.layers):
        our, their = f"layers.{i}", f"h.{i}"
        take(f"{our}.attention_norm", f"{their}.ln_1", transposed=False)
        take(f"{our}.attention.qkv", f"{their}.attn.c_attn", transposed=True)
        take(f"{our}.attention.out", f"{their}.attn.c_proj", transposed=True)
        take(f"{our}.feed_forward_norm", f"{their}.ln_2", transposed=False)
        take(f"{our}.feed_forward.up", f"{their}.mlp.c_fc", transposed=True)
        take(f"{our}.feed_forward.down", f"{their}.mlp.c_proj", transposed=True)
    take("final_norm", "ln_f", transposed=False)
    if left:
        raise ValueError(f"not mapped: {sorted(left)}")
    return ours
