"""BERT pre-training: shapes, sizes, arithmetic and synthetic data, for every framework alike.

The models themselves lie in ``train/torch/models.py`` and ``train/tensorflow/models.py``.

Letters used for shapes: B sequences, T tokens per sequence, M masked positions per sequence,
L layers, h hidden size, f feed-forward size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlperf_hpc.model.case import Case, Option
from dlperf_hpc.sweepfile.declarations import ModelSize, SampleLayout, WorkloadDeclaration
from dlperf_hpc.train import workloads
from dlperf_hpc.train.workloads import DROPOUT, INITIAL_WEIGHTS, TransformerConfig, frozen_random

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray = npt.NDArray[np.int64]

# Places in the vocabulary of Google's uncased BERT. What lies below the first ordinary token is
# padding, unused entries and the special tokens.
CLS, SEP, MASK = 101, 102, 103
FIRST_ORDINARY_TOKEN = 104
LAYER_NORMS = ("post", "pre")


@dataclass(frozen=True)
class BertConfig(TransformerConfig):
    """One BERT. ``layer_norm`` is "post" (after each residual sum: Google, NVIDIA) or "pre" (before
    attention and feed-forward, and once after the last layer: DeepSpeed's ``bing_bert``).
    ``dropout`` is the probability for hidden states and for attention probabilities alike.
    ``vocab`` is 30522 padded to a multiple of 8, as tensor cores like it."""

    vocab: int = 30528
    max_positions: int = 512
    types: int = 2
    layer_norm: str = "post"
    dropout: float = 0.1
    init_std: float = 0.02
    layer_norm_eps: float = 1e-12


# Devlin et al. 2018 (arXiv:1810.04805), section 3, for base and large; tiny is for CPUs.
SIZES: dict[str, BertConfig] = {
    "bert-base": BertConfig(layers=12, hidden=768, heads=12, ffn=3072),
    "bert-large": BertConfig(layers=24, hidden=1024, heads=16, ffn=4096),
    "bert-tiny": BertConfig(layers=2, hidden=128, heads=2, ffn=512),
}


def predictions_per_sequence(seq_len: int) -> int:
    """Masked positions kept per sequence: 5/32 of them rounded up, so 20 of 128 and 80 of 512, the
    ``max_predictions_per_seq`` of Google's and NVIDIA's data sets."""
    return (5 * seq_len + 31) // 32


def flops_per_sample(config: BertConfig, seq_len: int, predictions: int) -> float:
    """Model FLOPs of one sequence, forward and backward, with the MLM head on M positions. ``6 * [L
    * (4*h^2 + 2*h*f) * T + (h^2 + V*h) * M] + 12 * L * h * T^2``: two FLOPs for each multiply-add,
    and a backward pass that costs twice the forward (PaLM, arXiv:2204.02311, appendix B; with f =
    4h the terms of Narayanan et al. 2021, arXiv:2104.04473, without recomputation, but for the
    head). Only matrix products count. By convention pooler and NSP head (6 * (h^2 + 2*h), below
    0.01 %), embeddings, LayerNorm, softmax and gelu are left out, and recomputation adds
    nothing."""
    h = config.hidden
    encoder = config.layers * (4 * h * h + 2 * h * config.ffn) * seq_len
    head = (h * h + config.vocab * h) * predictions
    attention = 12 * config.layers * h * seq_len * seq_len
    return float(6 * (encoder + head) + attention)


def synthetic_batch(
    config: BertConfig, batch_size: int, seq_len: int, predictions: int, seed: int
) -> dict[str, IntArray]:
    """One batch of random pre-training data: the same numbers for every framework. int64 arrays:
    ``input_ids`` and ``segment_ids`` [B, T], ``masked_lm_positions`` and ``masked_lm_ids`` [B, M],
    ``next_sentence_labels`` [B]. A sequence is ``[CLS] a.. [SEP] b.. [SEP]`` with ordinary tokens
    drawn uniformly, and full: no padding, so there is no ``input_mask``. Masked positions are
    distinct, sorted and never a special token; all of them read ``[MASK]`` in ``input_ids`` (not
    BERT's 80/10/10: that changes what is learnt, not what is computed), and ``masked_lm_ids`` holds
    what stood there."""
    import numpy as np

    rng = frozen_random(seed)
    shape = (batch_size, seq_len)
    input_ids = rng.randint(FIRST_ORDINARY_TOKEN, config.vocab, size=shape, dtype=np.int64)
    segment_ids, special = _segments(rng, shape)
    input_ids[special] = SEP
    input_ids[:, 0] = CLS

    sort_keys = rng.random_sample(shape)
    sort_keys[special] = 2.0  # above every random key, so never among the first M
    chosen = np.argsort(sort_keys, axis=1, kind="stable")[:, :predictions]
    positions = np.sort(chosen, axis=1).astype(np.int64)
    targets = np.take_along_axis(input_ids, positions, axis=1)
    np.put_along_axis(input_ids, positions, MASK, axis=1)
    return {
        "input_ids": input_ids,
        "segment_ids": segment_ids,
        "masked_lm_positions": positions,
        "masked_lm_ids": targets,
        "next_sentence_labels": rng.randint(0, 2, size=batch_size, dtype=np.int64),
    }


def _segments(
    rng: np.random.RandomState, shape: tuple[int, int]
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Segment ids [B, T] (0 then 1, split at random) and where [CLS] and [SEP] stand [B, T]."""
    import numpy as np

    batch_size, seq_len = shape
    last_of_first = rng.randint(1, seq_len - 1, size=(batch_size, 1), dtype=np.int64)
    column = np.arange(seq_len)[None, :]
    special = (column == 0) | (column == last_of_first) | (column == seq_len - 1)
    return (column > last_of_first).astype(np.int64), special


def config_of(case: Case) -> BertConfig:
    """The model of a case."""
    options = {name: case.option(name) for name in ("layer_norm", "dropout")}
    return replace(SIZES[case.model], **options)


def batch(case: Case, rank: int) -> dict[str, IntArray]:
    """A rank's synthetic batch: ranks see different samples of the same seed."""
    predictions = predictions_per_sequence(case.seq_len)
    seed = case.seed * 1_000_003 + rank
    return synthetic_batch(config_of(case), case.batch_size, case.seq_len, predictions, seed)


def _flops(case: Case) -> float:
    return flops_per_sample(config_of(case), case.seq_len, predictions_per_sequence(case.seq_len))


def _layout(case: Case) -> SampleLayout:
    return SampleLayout(
        "bert", config_of(case).vocab, case.seq_len, predictions_per_sequence(case.seq_len)
    )


def size(case: Case) -> ModelSize:
    """The model in memory. Its loss has the scores in float32 twice."""
    config, tokens = config_of(case), case.batch_size * case.seq_len
    h, final_norm = config.hidden, 2 * config.hidden * (config.layer_norm == "pre")
    embeddings = (config.vocab + config.max_positions + config.types + 2) * h
    heads = 2 * (h * h + h) + 2 * h + config.vocab + 2 * h + 2  # pooler and MLM, NSP
    scores = case.batch_size * predictions_per_sequence(case.seq_len) * config.vocab
    sizes = {"entry": tokens * h, "scores": scores, "widened": 2 * scores}
    return workloads.size_of(config, embeddings + heads + final_norm, **sizes)


_OPTIONS = (
    Option("layer_norm", "post", "post (Google, NVIDIA) or pre (DeepSpeed)", LAYER_NORMS),
    DROPOUT,
    INITIAL_WEIGHTS,
)

WORKLOADS = tuple(
    WorkloadDeclaration(
        name=name,
        doc=f"BERT pre-training (masked language model + next sentence), {config.layers} layers",
        libraries=workloads.LIBRARIES,
        default_seq_len=64 if name == "bert-tiny" else 128,
        max_seq_len=config.max_positions,
        min_seq_len=4,
        build=workloads.builder(config_of),
        batch=batch,
        flops_per_sample=_flops,
        layout=_layout,
        size=size,
        options=_OPTIONS,
    )
    for name, config in SIZES.items()
)
