"""BERT samples in TFRecord files, Google's seven features each.

int64 ``input_ids``, ``input_mask``, ``segment_ids`` [T], ``masked_lm_positions``, ``masked_lm_ids``
[M], ``next_sentence_labels`` [1]; float ``masked_lm_weights`` [M].
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dlperf_hpc.data import fields, tfrecord
from dlperf_hpc.data.fields import Array, Arrays
from dlperf_hpc.errors import DataError
from dlperf_hpc.sweepfile.declarations import SampleLayout

_TOGETHER = 1024  # records decoded at once while a file is checked

FEATURES = (*fields.PER_TOKEN, *fields.PER_PREDICTION, fields.WEIGHTS, fields.LABEL)


def write(path: Path, arrays: Arrays) -> None:
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
            raise fields.missing(where, absent, list(features))
        for name in FEATURES:
            values = features[name]
            if len(values) != fields.width(name, self.layout):
                raise fields.wrong_width(where, name, len(values), self.layout)
            kind = np.dtype(np.float32 if name == fields.WEIGHTS else np.int64)
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
            if name != fields.WEIGHTS:
                fields.check_values(where, name, together, self.layout)
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
        arrays[fields.LABEL] = arrays[fields.LABEL][:, 0]
        return arrays

    def release(self) -> None:
        """Nothing is held: the file is mapped."""
