"""The arrays a BERT sample is made of, and the checks that every format's reader makes of them.

Shapes: N samples, T tokens, M masked positions; a value counts as a token id if it indexes the
vocabulary of V. Names are those of NVIDIA's and Google's data sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dlperf_hpc.errors import DataError
from dlperf_hpc.sweepfile.declarations import SampleLayout

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

PER_TOKEN = ("input_ids", "input_mask", "segment_ids")
PER_PREDICTION = ("masked_lm_positions", "masked_lm_ids")
LABEL = "next_sentence_labels"
WEIGHTS = "masked_lm_weights"
IGNORED = -100


def width(name: str, layout: SampleLayout) -> int:
    """Values of one sample under this name."""
    if name in PER_TOKEN:
        return layout.seq_len
    return 1 if name == LABEL else layout.predictions


def limit(name: str, layout: SampleLayout) -> int:
    """Integers under this name are at least 0 and below this."""
    if name in ("input_ids", "masked_lm_ids"):
        return layout.vocab
    return layout.seq_len if name == "masked_lm_positions" else 2


def check_values(where: str, name: str, values: Array, layout: SampleLayout) -> None:
    """DataError if an integer lies outside what ``name`` may hold; ``where`` is the file."""
    if not values.size:
        return
    low, high, end = int(values.min()), int(values.max()), limit(name, layout)
    if low >= 0 and high < end:
        return
    found, cure = (low if low < 0 else high), ""
    if name in ("input_ids", "masked_lm_ids"):
        cure = f" (the model's vocabulary is {layout.vocab}: prepare the text with one that fits)"
    raise DataError(f"{where}: {name}: found {found}, expected 0 to {end - 1}{cure}")


def wrong_width(where: str, name: str, found: object, layout: SampleLayout) -> DataError:
    """The error for samples of another length than the case's."""
    expected = width(name, layout)
    if name in PER_TOKEN:
        cure = f"set seq_len to the data's, or prepare with --seq-len {layout.seq_len}"
    elif name == LABEL:
        cure = "one label per sample"
    else:
        cure = f"prepare with --max-predictions {layout.predictions}"
    return DataError(f"{where}: {name}: found {found} values a sample, expected {expected}: {cure}")


def missing(where: str, names: list[str], present: list[str]) -> DataError:
    """The error for a file without some of the keys."""
    return DataError(
        f"{where}: {', '.join(names)}: not there, found {', '.join(sorted(present)) or 'no key'}:"
        " expected the keys of BERT pre-training data (docs/data.md lists them)"
    )


def weights_of(positions: Array) -> Array:
    """float32 [N, M]: 1 up to the first position 0, then 0.

    NVIDIA's files have no weights: position 0 is [CLS], which is never masked, and ends the list.
    """
    weights: Array = np.cumprod(positions != 0, axis=1).astype(np.float32)
    return weights


def arguments(batch: Arrays) -> Arrays:
    """A batch as the models take it: id -100 where a masked position is unused, and no weights."""
    made = {name: values for name, values in batch.items() if name != WEIGHTS}
    if WEIGHTS in batch:
        made["masked_lm_ids"] = np.where(batch[WEIGHTS] > 0, batch["masked_lm_ids"], IGNORED)
    return made
