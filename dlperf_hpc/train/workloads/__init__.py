"""The workloads, each a module that sets ``WORKLOADS`` (docs/adding-a-workload.md).

Here is what several of them share: how a model is made in a library's form, the random numbers of
synthetic data, and one file of weights for every framework, so that a model begins with the same
numbers in each. The file is NumPy's ``.npz``: a float32 array per weight, under PyTorch's name for
it and in PyTorch's shape (a matrix is [outputs, inputs]). The TensorFlow models give and take their
weights in that form.

Standard library only, importable on Python 3.9: NumPy is imported by the functions that need it.
"""

from __future__ import annotations

import importlib
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import WeightsError, listed
from dlperf_hpc.files import open_regular
from dlperf_hpc.model.case import Case, Option
from dlperf_hpc.sweepfile.declarations import ModelSize

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LIBRARIES = ("torch", "tensorflow")
"""The forms that BERT and GPT-2 have."""
INITIAL_WEIGHTS = Option(
    "initial_weights", "", "file of weights to begin with, the same for every framework"
)
DROPOUT = Option("dropout", 0.1, "probability, hidden states and attention; 0 is off", maximum=0.99)
CHECKPOINT_ACTIVATIONS = Option(
    "checkpoint_activations",
    False,
    "keep each layer's input only and compute the layer again in the backward pass",
)

# What NumPy's and zip's readers raise for a file that is cut short, damaged, or something else
# altogether: a byte may have become a flag for encryption, a place beyond the end, a huge shape.
_UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, IndexError, OverflowError, MemoryError),
    *(RuntimeError, struct.error, zipfile.BadZipFile, zlib.error),
)


WIDENED = 2**26
"""Scores of the vocabulary that a causal model's loss widens to float32 at once: 256 MiB, 1334 rows
of GPT-2. Fewer, and a GPU would spend its time on starting kernels."""


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes that all transformers have."""

    layers: int
    hidden: int
    heads: int
    ffn: int


def size_of(config: TransformerConfig, outside: int, **sizes: int) -> ModelSize:
    """A BERT or GPT-2; ``outside`` are the parameters outside of its layers. A layer keeps the
    inputs of both LayerNorms, and of its products (h, h, h, f for each token), query, key and value
    (3 h), and what goes into gelu (f); fused attention keeps no scores. In 16 bits, with f = 4h and
    masks of dropout: 34 h bytes (Korthikanti et al. 2022, arXiv:2205.05198, section 4.1)."""
    h, f, layers = config.hidden, config.ffn, config.layers
    layer = 4 * h * h + 2 * h * f + 9 * h + f
    computed = (6 * h + 2 * f) * sizes["entry"] // h
    return ModelSize(layers * layer + outside, layer, layers, computed=computed, **sizes)


def builder(
    config_of: Callable[[Case], object], module: str = "models"
) -> Callable[[str, Case], Any]:
    """The ``build`` of a declaration: the model of ``config_of(case)`` in the form of a library
    that it is written for, on the CPU; the same on all ranks. ``module`` of the library makes
    it."""

    def build(library: str, case: Case) -> Any:
        # A framework's models import their configurations from here.
        models = importlib.import_module(f"dlperf_hpc.train.{library}.{module}")
        model = models.build(config_of(case), case)
        path = dict(case.options).get("initial_weights", "")
        if path:
            load(library, model, Path(path))
        return model

    return build


def frozen_random(seed: int) -> np.random.RandomState:
    """A stream of random numbers that is the same with every NumPy."""
    import numpy as np

    # RandomState, not Generator: its stream is frozen, and one sweep may run on several NumPys.
    # SeedSequence makes streams of neighbouring seeds (ranks) independent.
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


def token_batch(tokens: int, case: Case, rank: int) -> dict[str, Any]:
    """A rank's batch of random tokens for a causal language model: the same numbers for every
    framework, and on each rank different samples of the same seed. int64 arrays ``input_ids`` and
    ``labels`` [B, T], cut from runs of T + 1 tokens drawn uniformly below ``tokens``: ``labels[b,
    t]`` is the token that follows ``input_ids[b, t]``. So all T positions are scored, no token is
    special, and nothing is padded."""
    import numpy as np

    size = (case.batch_size, case.seq_len + 1)
    random = frozen_random(case.seed * 1_000_003 + rank)
    drawn = random.randint(0, tokens, size=size, dtype=np.int64)
    return {
        "input_ids": np.ascontiguousarray(drawn[:, :-1]),
        "labels": np.ascontiguousarray(drawn[:, 1:]),
    }


def save(model: Any, path: Path) -> None:
    """Write the weights of a model that lies on the CPU; replaces what ``path`` held, at once."""
    import numpy as np

    arrays: Any = {name: np.asarray(tensor) for name, tensor in model.state_dict().items()}
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:  # a file, not a name: NumPy would add its ending
            np.savez(file, **arrays)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load(library: str, model: Any, path: Path) -> None:
    """Give a model of ``library`` the weights in ``path``. WeightsError if the file cannot be read
    or is not this model's, with the tensor's name."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    arrays: Any = read(path, shapes)
    if library == "torch":
        import torch

        arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
    model.load_state_dict(arrays)


def read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[np.float32]]:
    """The arrays of ``path``: those in ``shapes`` and no other; else WeightsError."""
    import numpy as np

    try:
        with open_regular(path) as raw:
            opened = np.load(raw, allow_pickle=False)
            if not hasattr(opened, "files"):  # a lone .npy
                raise ValueError("one array without a name")
            with opened as file:
                _same_names(path, set(file.files), set(shapes))
                return {name: _checked(path, file, name, shape) for name, shape in shapes.items()}
    except FileNotFoundError:
        raise WeightsError(f"initial_weights {path}: there is no such file on this node") from None
    except _UNREADABLE as error:
        raise WeightsError(
            f"initial_weights {path}: not a readable .npz file ({error}): write it anew"
        ) from error


def _same_names(path: Path, found: set[str], wanted: set[str]) -> None:
    missing = sorted(map(repr, wanted - found))
    foreign = sorted(map(repr, found - wanted))
    said = []
    if missing:
        said.append(f"lacks {listed(missing, 1)}")
    if foreign:
        said.append(f"holds {listed(foreign, 1)}, which the model does not")
    if said:
        raise WeightsError(
            f"initial_weights {path} {' and '.join(said)}: it was written for another model, or for"
            " other options of it"
        )


def _checked(path: Path, file: Any, name: str, shape: tuple[int, ...]) -> Any:
    import numpy as np

    try:
        array = file[name]
    except _UNREADABLE as error:
        raise WeightsError(
            f"initial_weights {path}: {name!r} cannot be read ({error}): write the file anew"
        ) from error
    if array.shape != shape or array.dtype != np.float32:
        raise WeightsError(
            f"initial_weights {path}: {name!r} is {array.dtype} {list(array.shape)}, but the"
            f" model has float32 {list(shape)}: the file was written for another model"
        )
    if not np.isfinite(array).all():
        raise WeightsError(f"initial_weights {path}: {name!r} holds numbers that are not finite")
    return array
