"""The arrays a BERT sample is made of, and the checks that every format's reader makes of them.

Shapes: N samples, T tokens, M masked positions; a value counts as a token id if it indexes the
vocabulary of V. Names are those of NVIDIA's and Google's data sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlperf_hpc.data import tfrecord
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
    found, cure = min(low, 0) or high, ""
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
    """float32 [N, M]: 1 up to the first position 0, then 0. NVIDIA's files have no weights:
    position 0 is [CLS], which is never masked, and ends the list."""
    return np.cumprod(positions != 0, axis=1).astype(np.float32)


def arguments(batch: Arrays) -> Arrays:
    """A batch as the models take it: id -100 where a masked position is unused, and no weights."""
    made = {name: values for name, values in batch.items() if name != WEIGHTS}
    if WEIGHTS in batch:
        made["masked_lm_ids"] = np.where(batch[WEIGHTS] > 0, batch["masked_lm_ids"], IGNORED)
    return made


# --- NVIDIA's HDF5


HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
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
        raise tfrecord.needs_library(f"{path}: HDF5", "h5py", error) from error
    return h5py


def write_hdf5(path: Path, arrays: Arrays) -> None:
    """A file of these samples; ``masked_lm_weights`` is left out, as the layout has none."""
    with _h5py(path).File(path, "w") as file:
        for name, kind in TYPES.items():
            file.create_dataset(name, data=arrays[name], dtype=kind, compression="gzip")


class Hdf5Shard:
    """One file. :meth:`read` keeps all of it until :meth:`release`: compressed rows go together."""

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
            raise missing(str(self.path), absent, list(file))
        rows = {name: self._rows(name, file[name]) for name in TYPES}
        if len(set(rows.values())) != 1:
            raise DataError(f"{self.path}: the keys differ in their number of samples: {rows}")
        return rows["input_ids"]

    def _rows(self, name: str, dataset: Any) -> int:
        where = str(self.path)
        shape = tuple(getattr(dataset, "shape", ()))
        dimensions = 1 if name == LABEL else 2
        if len(shape) != dimensions:
            text = f"found shape {list(shape)}, expected {dimensions} dimensions"
            raise DataError(f"{where}: {name}: {text}")
        if dataset.dtype.kind not in "iu":
            raise DataError(f"{where}: {name}: found {dataset.dtype}, expected integers")
        if dimensions == 2 and shape[1] != width(name, self.layout):
            raise wrong_width(where, name, shape[1], self.layout)
        return int(shape[0])

    def check(self) -> None:
        """Read every value once. DataError for what is damaged or out of range."""
        with self._open() as file:
            for name in TYPES:
                for start in range(0, self.samples, _ROWS):
                    values = self._values(file, name, slice(start, start + _ROWS))
                    check_values(str(self.path), name, values, self.layout)

    def _values(self, file: Any, name: str, rows: slice) -> Array:
        try:
            return np.asarray(file[name][rows])
        except OSError as error:
            raise DataError(f"{self.path}: {name}: truncated or damaged: {error}") from error

    def read(self, rows: Array) -> Arrays:
        """Samples by number, as they are stored, and the weights of their masked positions."""
        if self._held is None:
            with self._open() as file:
                self._held = {name: self._values(file, name, slice(None)) for name in TYPES}
        arrays = {name: values[rows] for name, values in self._held.items()}
        arrays[WEIGHTS] = weights_of(arrays["masked_lm_positions"])
        return arrays

    def release(self) -> None:
        """Forget what is held in memory."""
        self._held = None


def largest_id(arrays: Arrays) -> int:
    """The largest token id among the samples."""
    return int(max(np.max(arrays["input_ids"]), np.max(arrays["masked_lm_ids"])))


# --- Google's TFRecord


_TOGETHER = 1024  # records decoded at once while a file is checked

FEATURES = (*PER_TOKEN, *PER_PREDICTION, WEIGHTS, LABEL)


def write_records(path: Path, arrays: Arrays) -> None:
    """A file of these samples."""
    rows = range(len(arrays["input_ids"]))
    flat = {name: arrays[name].reshape(len(rows), -1) for name in FEATURES}
    records = [tfrecord.encode({name: flat[name][row] for name in FEATURES}) for row in rows]
    tfrecord.write(path, records)


class RecordShard:
    """One file, read record by record as they are asked for."""

    def __init__(self, path: Path, layout: SampleLayout) -> None:
        """Find the records and look at the first. DataError if it cannot be this layout."""
        self.path, self.layout = path, layout
        self._file = tfrecord.TFRecordFile(path)
        self.samples = len(self._file)
        if self.samples:
            self._samples([0])

    def _samples(self, numbers: Sequence[int]) -> list[Arrays]:
        try:
            samples = tfrecord.decode([self._file[number] for number in numbers])
        except ValueError as error:
            if len(numbers) > 1:  # which one?
                return [sample for number in numbers for sample in self._samples([number])]
            text = f"{self.path}: record {numbers[0]}: {error}: the file is damaged"
            raise DataError(text) from error
        for number, features in zip(numbers, samples):
            self._look(f"{self.path}: record {number}", features)
        return samples

    def _look(self, where: str, features: Arrays) -> None:
        absent = [name for name in FEATURES if name not in features]
        if absent:
            raise missing(where, absent, list(features))
        for name in FEATURES:
            values = features[name]
            if len(values) != width(name, self.layout):
                raise wrong_width(where, name, len(values), self.layout)
            kind = np.dtype(np.float32 if name == WEIGHTS else np.int64)
            if values.dtype != kind:
                raise DataError(f"{where}: {name}: found {values.dtype}, expected {kind}")

    def check(self) -> None:
        """Every checksum, feature and value. DataError for what is damaged or out of range."""
        self._file.check()
        for first in range(0, self.samples, _TOGETHER):
            numbers = range(first, min(first + _TOGETHER, self.samples))
            samples = self._samples(numbers)
            for name in FEATURES:
                self._check_values(name, numbers, [sample[name] for sample in samples])

    def _check_values(self, name: str, numbers: Sequence[int], values: list[Array]) -> None:
        """All records together; one by one to name the first that is wrong."""
        together, where = np.concatenate(values), f"{self.path}: record {numbers[0]}"
        try:
            if name != WEIGHTS:
                check_values(where, name, together, self.layout)
            elif not np.isin(together, (0.0, 1.0)).all():
                raise DataError(f"{where}: {name}: found {together}, expected 1 or 0 each")
        except DataError:
            if len(numbers) == 1:
                raise
            for number, own in zip(numbers, values):
                self._check_values(name, [number], [own])

    def read(self, rows: Array) -> Arrays:
        """Samples by number."""
        samples = self._samples(rows.tolist())
        arrays = {name: np.stack([sample[name] for sample in samples]) for name in FEATURES}
        arrays[LABEL] = arrays[LABEL][:, 0]
        return arrays

    def release(self) -> None:
        """Nothing is held: the file is mapped."""
