"""NVIDIA's HDF5 layout of BERT samples: six datasets, one row a sample, gzip-compressed.

``input_ids`` int32, ``input_mask`` and ``segment_ids`` int8 [N, T]; ``masked_lm_positions`` and
``masked_lm_ids`` int32 [N, M], 0 where a sample has fewer; ``next_sentence_labels`` int8 [N].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dlperf_hpc.data import fields
from dlperf_hpc.data.fields import Array, Arrays
from dlperf_hpc.errors import DataError
from dlperf_hpc.sweepfile.declarations import SampleLayout

MAGIC = b"\x89HDF\r\n\x1a\n"
TYPES = {
    "input_ids": "i4",
    "input_mask": "i1",
    "segment_ids": "i1",
    "masked_lm_positions": "i4",
    "masked_lm_ids": "i4",
    "next_sentence_labels": "i1",
}
_ROWS = 65536  # read at once while a file is checked: 32 MiB of ids at 128 tokens


def _h5py(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"{path}: HDF5 needs h5py, which this Python cannot import ({error}):"
            " pip install 'dlperf_hpc[data]' in the framework's environment"
        ) from error
    return h5py


def write(path: Path, arrays: Arrays) -> None:
    """A file of these samples; ``masked_lm_weights`` is left out, as the layout has none."""
    with _h5py(path).File(path, "w") as file:
        for name, kind in TYPES.items():
            file.create_dataset(name, data=arrays[name], dtype=kind, compression="gzip")


class Hdf5Shard:
    """One file. :meth:`read` keeps it in memory as a whole until :meth:`release`: a compressed
    row cannot be read alone."""

    def __init__(self, path: Path, layout: SampleLayout) -> None:
        """Open and look at names and shapes. DataError if it cannot be this layout."""
        self.path, self.layout = path, layout
        self._held: Arrays | None = None
        with self._open() as file:
            self.samples = self._count(file)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        h5py = _h5py(self.path)
        try:
            file = h5py.File(self.path, "r")
        except OSError as error:
            text = f"{self.path}: not readable as HDF5, truncated or damaged: {error}"
            raise DataError(text) from error
        with file:
            yield file

    def _count(self, file: Any) -> int:
        absent = [name for name in TYPES if name not in file]
        if absent:
            raise fields.missing(str(self.path), absent, list(file))
        rows = {name: self._rows(name, file[name]) for name in TYPES}
        if len(set(rows.values())) != 1:
            raise DataError(f"{self.path}: the keys differ in their number of samples: {rows}")
        return rows["input_ids"]

    def _rows(self, name: str, dataset: Any) -> int:
        where = str(self.path)
        shape = tuple(getattr(dataset, "shape", ()))
        dimensions = 1 if name == fields.LABEL else 2
        if len(shape) != dimensions:
            text = f"found shape {list(shape)}, expected {dimensions} dimensions"
            raise DataError(f"{where}: {name}: {text}")
        if dataset.dtype.kind not in "iu":
            raise DataError(f"{where}: {name}: found {dataset.dtype}, expected integers")
        if dimensions == 2 and shape[1] != fields.width(name, self.layout):
            raise fields.wrong_width(where, name, shape[1], self.layout)
        return int(shape[0])

    def check(self) -> None:
        """Read every value once. DataError for what is damaged or out of range."""
        with self._open() as file:
            for name in TYPES:
                for start in range(0, self.samples, _ROWS):
                    values = self._values(file, name, slice(start, start + _ROWS))
                    fields.check_values(str(self.path), name, values, self.layout)

    def _values(self, file: Any, name: str, rows: slice) -> Array:
        try:
            values: Array = file[name][rows]
        except OSError as error:
            raise DataError(f"{self.path}: {name}: truncated or damaged: {error}") from error
        return values

    def read(self, rows: Array) -> Arrays:
        """Samples by number, as they are stored, and the weights of their masked positions."""
        if self._held is None:
            with self._open() as file:
                self._held = {name: self._values(file, name, slice(None)) for name in TYPES}
        arrays = {name: values[rows] for name, values in self._held.items()}
        arrays[fields.WEIGHTS] = fields.weights_of(arrays["masked_lm_positions"])
        return arrays

    def release(self) -> None:
        """Forget what is held in memory."""
        self._held = None


def largest_id(arrays: Arrays) -> int:
    """The largest token id among the samples."""
    return int(max(np.max(arrays["input_ids"]), np.max(arrays["masked_lm_ids"])))
