"""From sentence pairs to BERT's arrays, with tokens masked: 15 % of them, by 80/10/10.

Devlin et al. 2018, section 3.1 task 1: of the tokens chosen to be predicted 80 % read [MASK], 10 %
a random token, 10 % stay. Names and shapes as in :mod:`dlperf_hpc.samples.fields`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlperf_hpc.preparing.pairs import SPECIAL_TOKENS, Pair
from dlperf_hpc.samples.fields import Array, Arrays

SHARE = 0.15
_MASKED, _RANDOM = 0.8, 0.9  # up to here [MASK]; up to here a random token


@dataclass(frozen=True)
class Special:
    """Token ids with a meaning; ``ordinary`` are all others, what a random token is drawn from."""

    pad: int
    cls: int
    sep: int
    mask: int
    ordinary: Array


def arrays(
    pairs: Sequence[Pair],
    seq_len: int,
    predictions: int,
    special: Special,
    rng: np.random.RandomState,
) -> Arrays:
    """All pairs as samples of ``seq_len`` tokens with up to ``predictions`` of them masked."""
    made = _laid_out(pairs, seq_len, special)
    made.update(_masked(made, predictions, special, rng))
    made["next_sentence_labels"] = np.array([pair.is_random for pair in pairs], np.int64)
    return made


def _laid_out(pairs: Sequence[Pair], seq_len: int, special: Special) -> Arrays:
    """``[CLS] a [SEP] b [SEP]`` and padding, its mask and its segments."""
    shape = (len(pairs), seq_len)
    ids = np.full(shape, special.pad, np.int64)
    mask, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, pair in enumerate(pairs):
        middle, end = len(pair.a) + 2, len(pair.a) + len(pair.b) + SPECIAL_TOKENS
        ids[row, :end] = [special.cls, *pair.a, special.sep, *pair.b, special.sep]
        mask[row, :end] = 1
        segments[row, middle:end] = 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def _masked(made: Arrays, predictions: int, special: Special, rng: np.random.RandomState) -> Arrays:
    """Chooses what is to be predicted, and writes over it in ``input_ids``."""
    ids, lengths = made["input_ids"], made["input_mask"].sum(axis=1)
    fixed = (made["input_mask"] == 0) | (ids == special.cls) | (ids == special.sep)
    keys = rng.random_sample(ids.shape)
    keys[fixed] = 2.0  # behind every token that may be chosen
    # Google's count: of all tokens, special ones too, and one at the least.
    wanted = np.clip(np.floor(lengths * SHARE + 0.5), 1, predictions).astype(np.int64)
    wanted = np.minimum(wanted, (~fixed).sum(axis=1))
    chosen = np.argsort(keys, axis=1, kind="stable")[:, :predictions]
    used = np.arange(predictions) < wanted[:, None]
    positions = np.sort(np.where(used, chosen, ids.shape[1]), axis=1)
    positions[~used] = 0
    labels = np.where(used, np.take_along_axis(ids, positions, axis=1), 0)
    _write_over(ids, positions, used, special, rng)
    return {
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": used.astype(np.float32),
    }


def _write_over(
    ids: Array, positions: Array, used: Array, special: Special, rng: np.random.RandomState
) -> None:
    draw = rng.random_sample(positions.shape)
    others = special.ordinary[rng.randint(0, len(special.ordinary), size=positions.shape)]
    kept = np.take_along_axis(ids, positions, axis=1)
    instead = np.where(draw < _MASKED, special.mask, np.where(draw < _RANDOM, others, kept))
    rows = np.broadcast_to(np.arange(len(ids))[:, None], positions.shape)
    ids[rows[used], positions[used]] = instead[used]
