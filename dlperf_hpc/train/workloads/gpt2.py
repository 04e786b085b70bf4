"""GPT-2 pre-training: shapes, sizes, arithmetic and synthetic data, for every framework alike.

The models themselves lie in ``train/torch/models.py`` and ``train/tensorflow/models.py``.

Letters used for shapes: B sequences, T tokens per sequence, L layers, h hidden size,
f feed-forward size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import ModelSize, SampleLayout, WorkloadDeclaration
from dlperf_hpc.train import workloads
from dlperf_hpc.train.workloads import (
    CHECKPOINT_ACTIVATIONS,
    DROPOUT,
    INITIAL_WEIGHTS,
    TransformerConfig,
)

TOKENS = 50257
"""Tokens of GPT-2's byte-pair encoding, <|endoftext|> (50256) among them."""


@dataclass(frozen=True)
class Gpt2Config(TransformerConfig):
    """One GPT-2: LayerNorm before each sublayer and once after the last, learned positions.
    ``vocab`` is 50257 padded to a multiple of 128, as tensor cores like it; the last 47 rows are
    never in the data. ``dropout`` is that of embeddings, attention probabilities and the sublayers'
    outputs. ``checkpoint_activations`` keeps only the input of each layer for the backward pass,
    which computes it again: less memory, and a third more arithmetic in the layers."""

    vocab: int = 50304
    max_positions: int = 1024
    dropout: float = 0.1
    init_std: float = 0.02
    layer_norm_eps: float = 1e-5
    checkpoint_activations: bool = False


# Radford et al. 2019, table 2; tiny is for CPUs, with the same tokens so that it reads the same
# data.
SIZES: dict[str, Gpt2Config] = {
    "gpt2-small": Gpt2Config(layers=12, hidden=768, heads=12, ffn=3072),
    "gpt2-medium": Gpt2Config(layers=24, hidden=1024, heads=16, ffn=4096),
    "gpt2-large": Gpt2Config(layers=36, hidden=1280, heads=20, ffn=5120),
    "gpt2-xl": Gpt2Config(layers=48, hidden=1600, heads=25, ffn=6400),
    "gpt2-tiny": Gpt2Config(layers=2, hidden=128, heads=2, ffn=512),
}


def flops_per_sample(config: Gpt2Config, seq_len: int) -> float:
    """Model FLOPs of one sequence, forward and backward, every position scored. ``6 * [L * (4*h^2 +
    2*h*f) + V*h] * T + 12 * L * h * T^2``: two FLOPs for each multiply-add, and a backward pass
    that costs twice the forward (PaLM, arXiv:2204.02311, appendix B). V is the vocabulary as
    published: its padding is 0.03 % more work and no more model. Attention is not halved for the
    causal mask, and recomputation adds nothing."""
    h = config.hidden
    weights = config.layers * (4 * h * h + 2 * h * config.ffn) + min(config.vocab, TOKENS) * h
    return float(6 * weights * seq_len + 12 * config.layers * h * seq_len * seq_len)


def config_of(case: Case) -> Gpt2Config:
    """The model of a case."""
    names = ("dropout", "checkpoint_activations")
    return replace(SIZES[case.model], **{name: case.option(name) for name in names})


def batch(case: Case, rank: int) -> dict[str, Any]:
    """A rank's synthetic batch of published tokens, as :func:`workloads.token_batch` has it."""
    return workloads.token_batch(min(config_of(case).vocab, TOKENS), case, rank)


def _flops(case: Case) -> float:
    return flops_per_sample(config_of(case), case.seq_len)


def _layout(case: Case) -> SampleLayout:
    return SampleLayout("gpt2", config_of(case).vocab, case.seq_len)


def size(case: Case) -> ModelSize:
    """The model in memory."""
    config, tokens = config_of(case), case.batch_size * case.seq_len
    outside = (config.vocab + config.max_positions + 2) * config.hidden
    entry, scores = tokens * config.hidden, tokens * config.vocab
    sizes = {"entry": entry, "scores": scores, "widened": min(scores, workloads.WIDENED)}
    return workloads.size_of(config, outside, **sizes)


_OPTIONS = (DROPOUT, CHECKPOINT_ACTIVATIONS, INITIAL_WEIGHTS)

WORKLOADS = tuple(
    WorkloadDeclaration(
        name=name,
        doc=f"GPT-2 pre-training (causal language model), {config.layers} layers",
        libraries=workloads.LIBRARIES,
        default_seq_len=64 if name == "gpt2-tiny" else 1024,
        max_seq_len=config.max_positions,
        build=workloads.builder(config_of),
        batch=batch,
        flops_per_sample=_flops,
        layout=_layout,
        size=size,
        options=_OPTIONS,
    )
    for name, config in SIZES.items()
)
