"""BERT's training samples: documents to sentence pairs, pairs to arrays with masked tokens.

Devlin et al. 2018 (arXiv:1810.04805). Pairs (section 3.1 task 2, appendix A.2): in half of them the
second run of sentences is taken from another document; sequences are as long as they can be, but
for a tenth that is cut to a random length. The last sentence of a document begins no pair, since
only a random one could follow it and more than half of all would be random.

Masking (section 3.1 task 1): 15 % of the tokens are chosen to be predicted; of these 80 % read
[MASK], 10 % a random token, 10 % stay. Names and shapes as in :mod:`dlperf_hpc.data.bert_files`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dlperf_hpc.data.bert_files import Array, Arrays

Ids = list[int]
Document = list[Ids]
"""A document's sentences, none of them empty."""

SPECIAL_TOKENS = 3  # [CLS] a [SEP] b [SEP]
SHARE = 0.15
_MASK, _RANDOM = 0.8, 0.9  # up to here [MASK]; up to here a random token


@dataclass(frozen=True)
class Pair:
    """Two runs of tokens that fit one sequence; ``is_random``: b does not follow a."""

    a: Ids
    b: Ids
    is_random: bool


def pairs(
    documents: list[Document], seq_len: int, short_probability: float, rng: random.Random
) -> Iterator[Pair]:
    """One pass over the documents; there are at least two."""
    for index in range(len(documents)):
        yield from _of_document(documents, index, seq_len, short_probability, rng)


def _below(rng: random.Random, end: int) -> int:
    """0 to end - 1. Only ``random()`` is promised to give the same numbers in every Python."""
    return int(rng.random() * end)


def _of_document(
    documents: list[Document],
    index: int,
    seq_len: int,
    short_probability: float,
    rng: random.Random,
) -> Iterator[Pair]:
    document, room = documents[index], seq_len - SPECIAL_TOKENS

    def wanted() -> int:
        return 2 + _below(rng, room - 1) if rng.random() < short_probability else room

    at, target = 0, wanted()
    while at < len(document) - 1:
        end = max(at + 2, _reach(document, at, target))
        first_end = at + 1 + _below(rng, end - at - 1)
        a = _joined(document, at, first_end)
        is_random = rng.random() < 0.5
        if is_random:
            b = _elsewhere(documents, index, max(1, target - len(a)), rng)
            end = first_end  # the sentences that were not used begin the next pair
        else:
            b = _joined(document, first_end, end)
        yield Pair(*_fitted(a, b, room, rng), is_random)
        at, target = end, wanted()


def _reach(document: Document, start: int, target: int) -> int:
    """Where a run of sentences from ``start`` on ends that has ``target`` tokens, if there are."""
    tokens, end = 0, start
    while end < len(document) and tokens < target:
        tokens += len(document[end])
        end += 1
    return end


def _joined(document: Document, start: int, end: int) -> Ids:
    return [token for sentence in document[start:end] for token in sentence]


def _elsewhere(documents: list[Document], index: int, target: int, rng: random.Random) -> Ids:
    other = _below(rng, len(documents) - 1)
    document = documents[other + (other >= index)]
    start = _below(rng, len(document))
    return _joined(document, start, _reach(document, start, target))


def _fitted(a: Ids, b: Ids, room: int, rng: random.Random) -> tuple[Ids, Ids]:
    """Both cut until they fit: always the longer one, at its front or back by a coin."""
    cuts = [[0, len(a)], [0, len(b)]]
    while sum(end - start for start, end in cuts) > room:
        longer = max(cuts[::-1], key=lambda cut: cut[1] - cut[0])
        if rng.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    (a_start, a_end), (b_start, b_end) = cuts
    return a[a_start:a_end], b[b_start:b_end]


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
    made.update(_predicted(made, predictions, special, rng))
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


def _predicted(
    made: Arrays, predictions: int, special: Special, rng: np.random.RandomState
) -> Arrays:
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
    random_ids = special.ordinary[rng.randint(0, len(special.ordinary), size=positions.shape)]
    kept = np.take_along_axis(ids, positions, axis=1)
    instead = np.where(draw < _MASK, special.mask, np.where(draw < _RANDOM, random_ids, kept))
    rows = np.broadcast_to(np.arange(len(ids))[:, None], positions.shape)
    ids[rows[used], positions[used]] = instead[used]
