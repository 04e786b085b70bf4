"""Llama 3 pre-training: shapes, sizes, arithmetic and synthetic data (arXiv:2407.21783).

The model itself lies in ``train/torch/llama.py``; it has no form for TensorFlow.

Letters used for shapes: B sequences, T tokens per sequence, L layers, h hidden size, H heads of
size d = h / H, K of keys and values, f feed-forward size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dlperf_hpc.model.case import Case, Option
from dlperf_hpc.sweepfile.declarations import ModelSize, SampleLayout, WorkloadDeclaration
from dlperf_hpc.train import workloads
from dlperf_hpc.train.workloads import (
    CHECKPOINT_ACTIVATIONS,
    INITIAL_WEIGHTS,
    WIDENED,
    TransformerConfig,
    token_batch,
)

_ORDINARY = 128_000
"""Tokens of the byte-pair encoding; the 256 behind them are special, and no text holds them."""


@dataclass(frozen=True)
class LlamaConfig(TransformerConfig):
    """One Llama 3: RMSNorm before each sublayer and once after the last, rotary positions, SwiGLU,
    no biases, no ``dropout``. ``key_heads`` heads of keys and values serve all ``heads`` of
    queries. ``tied``: the head is the word embedding's own weight. ``rope_factor`` and
    ``original_positions`` are the scaling with which a model first trained on so many positions was
    brought to ``max_positions``; ``checkpoint_activations`` is as GPT-2 has it."""

    key_heads: int = 8
    tied: bool = False
    rope_factor: float = 8.0
    original_positions: int = 8192
    max_positions: int = 131_072
    vocab: int = 128_256
    rope_theta: float = 500_000.0
    rms_norm_eps: float = 1e-5
    init_std: float = 0.02
    dropout: float = 0.0
    checkpoint_activations: bool = False


# config.json of meta-llama/Llama-3.2-1B and Llama-3.1-8B; tiny is for CPUs, with the same tokens so
# that it reads the same data.
SIZES: dict[str, LlamaConfig] = {
    "llama3-1b": LlamaConfig(16, 2048, 32, 8192, tied=True, rope_factor=32.0),
    "llama3-8b": LlamaConfig(32, 4096, 32, 14_336),
    "llama3-tiny": LlamaConfig(
        2, 128, 4, 384, key_heads=2, tied=True, original_positions=256, max_positions=2048
    ),
}


def flops_per_sample(config: LlamaConfig, seq_len: int) -> float:
    """Model FLOPs of one sequence, forward and backward, every position scored. Without attention
    ``6 * [L * (2*h^2 + 2*h*K*d + 3*h*f) + V*h] * T``, which attention adds ``12 * L * h * T^2`` to:
    two FLOPs for each multiply-add, and a backward pass that costs twice the forward (PaLM,
    arXiv:2204.02311, appendix B). Attention is not halved for the causal mask, and recomputation
    adds nothing."""
    h = config.hidden
    keys = h * config.key_heads // config.heads
    layer = 2 * h * h + 2 * h * keys + 3 * h * config.ffn
    weights = config.layers * layer + config.vocab * h
    return float(6 * weights * seq_len + 12 * config.layers * h * seq_len * seq_len)


def config_of(case: Case) -> LlamaConfig:
    """The model of a case."""
    again = case.option("checkpoint_activations")
    return replace(SIZES[case.model], checkpoint_activations=again)


def batch(case: Case, rank: int) -> dict[str, Any]:
    """A rank's synthetic batch of ordinary tokens, as :func:`.token_batch` has it."""
    return token_batch(_ORDINARY, case, rank)


def check(case: Case) -> Iterator[tuple[str, str]]:
    """What Llama cannot do of a case."""
    if case.option("dropout"):
        yield "dropout", f"must be 0 (its default here): {case.model} is trained without dropout"


def _flops(case: Case) -> float:
    return flops_per_sample(config_of(case), case.seq_len)


def _layout(case: Case) -> SampleLayout:
    # Megatron's files of tokens, which GPT-2 reads too.
    return SampleLayout("gpt2", config_of(case).vocab, case.seq_len)


def size(case: Case) -> ModelSize:
    """The model in memory. A layer keeps the inputs of both norms, and of its products: their
    inputs (h, h, h, f for each token), queries and keys as turned (h + K d), the product that the
    values are a part of (h + 2 K d), both halves of SwiGLU and the first one's silu (3 f). In fp32
    keys and values are repeated for every head of queries (2 h), and that product goes."""
    config, tokens = config_of(case), case.batch_size * case.seq_len
    h, f, layers = config.hidden, config.ffn, config.layers
    keys, scores = h * config.key_heads // config.heads, tokens * config.vocab
    values = h + 2 * keys if case.precision in ("bf16", "fp16") else 2 * h
    layer = 2 * h * h + 2 * h * keys + 3 * h * f + 2 * h
    number = layers * layer + h + config.vocab * h * (2 - config.tied)
    computed = tokens * (4 * h + keys + values + 4 * f)
    return ModelSize(number, layer, layers, tokens * h, computed, scores, min(scores, WIDENED))


_OPTIONS = (
    Option("dropout", 0.0, "0, since Llama is trained without", maximum=0.99),
    CHECKPOINT_ACTIVATIONS,
    INITIAL_WEIGHTS,
)

WORKLOADS = tuple(
    WorkloadDeclaration(
        name=name,
        doc=f"Llama 3 pre-training (causal language model), {config.layers} layers",
        libraries=("torch",),
        default_seq_len=64 if name == "llama3-tiny" else config.original_positions,
        max_seq_len=config.max_positions,
        build=workloads.builder(config_of, "llama"),
        batch=batch,
        flops_per_sample=_flops,
        layout=_layout,
        size=size,
        options=_OPTIONS,
        check=check,
    )
    for name, config in SIZES.items()
)
