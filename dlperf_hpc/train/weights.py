"""One file of weights for every framework: a model begins with the same numbers in each.

The file is NumPy's ``.npz``: a float32 array per weight, under PyTorch's name for it and in
PyTorch's shape (a matrix is [outputs, inputs]). The TensorFlow models give and take their weights
in that form. NumPy is imported by the functions that need it.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import WeightsError
from dlperf_hpc.files import open_regular
from dlperf_hpc.model.case import Case, Option

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Arrays = dict[str, npt.NDArray[np.float32]]

INITIAL_WEIGHTS = Option(
    "initial_weights", "", "file of weights to begin with, the same for every framework"
)

# What NumPy's and zip's readers raise for a file that is cut short, damaged, or something else
# altogether: a byte may have become a flag for encryption, a place beyond the end, a huge shape.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    MemoryError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def initialise(library: str, model: Any, case: Case) -> Any:
    """The model, with the weights of ``initial_weights`` where the case names a file."""
    path = dict(case.options).get("initial_weights", "")
    if path:
        load(library, model, Path(path))
    return model


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
    """Give a model of ``library`` the weights in ``path``.

    WeightsError if the file cannot be read or is not this model's, with the tensor's name.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    arrays: Any = read(path, shapes)
    if library == "torch":
        import torch

        arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
    model.load_state_dict(arrays)


def read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
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
    missing, foreign = sorted(wanted - found), sorted(found - wanted)
    if missing or foreign:
        said = [f"lacks {_some(missing)}"] if missing else []
        said += [f"holds {_some(foreign)}, which the model does not"] if foreign else []
        raise WeightsError(
            f"initial_weights {path} {' and '.join(said)}: it was written for another model, or for"
            " other options of it"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


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
