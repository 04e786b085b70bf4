"""BERT samples in TFRecord files, Google's seven features each.

int64 ``input_ids``, ``input_mask``, ``segment_ids`` [T], ``masked_lm_positions``, ``masked_lm_ids``
[M], ``next_sentence_labels`` [1]; float ``masked_lm_weights`` [M].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dlperf_hpc.errors import DataError
from dlperf_hpc.samples import example, fields, tfrecord
from dlperf_hpc.samples.fields import Array, Arrays
from dlperf_hpc.spec.declarations import SampleLayout

FEATURES = (*fields.PER_TOKEN, *fields.PER_PREDICTION, fields.WEIGHTS, fields.LABEL)


def write(path: Path, arrays: Arrays) -> None:
    """A file of these samples."""
    rows = range(len(arrays["input_ids"]))
    flat = {name: arrays[name].reshape(len(rows), -1) for name in FEATURES}
    records = [example.encode({name: flat[name][row] for name in FEATURES}) for row in rows]
    tfrecord.write(path, records)


class RecordShard:
    """One file, read record by record as they are asked for."""

    def __init__(self, path: Path, layout: SampleLayout) -> None:
        """Find the records and look at the first. DataError if it cannot be this layout."""
        self.path, self.layout = path, layout
        self._file = tfrecord.TFRecordFile(path)
        self.samples = len(self._file)
        if self.samples:
            self._sample(0)

    def _sample(self, number: int) -> Arrays:
        where = f"{self.path}: record {number}"
        try:
            features = example.decode(self._file[number])
        except ValueError as error:
            raise DataError(f"{where}: {error}: the file is damaged") from error
        absent = [name for name in FEATURES if name not in features]
        if absent:
            raise fields.missing(where, absent, list(features))
        for name in FEATURES:
            values = features[name]
            if len(values) != fields.width(name, self.layout):
                raise fields.wrong_width(where, name, len(values), self.layout)
            wanted = "f" if name == fields.WEIGHTS else "i"
            if values.dtype.kind != wanted:
                raise DataError(f"{where}: {name}: found {values.dtype}, expected another type")
        return features

    def check(self) -> None:
        """Every checksum, feature and value. DataError for what is damaged or out of range."""
        self._file.check()
        for number in range(self.samples):
            features, where = self._sample(number), f"{self.path}: record {number}"
            for name in FEATURES:
                if name != fields.WEIGHTS:
                    fields.check_values(where, name, features[name], self.layout)
            weights = features[fields.WEIGHTS]
            if not np.isin(weights, (0.0, 1.0)).all():
                text = f"{fields.WEIGHTS}: found {weights.tolist()}, expected 1 or 0 each"
                raise DataError(f"{where}: {text}")

    def read(self, rows: Array) -> Arrays:
        """Samples by number."""
        samples = [self._sample(int(row)) for row in rows]
        arrays = {name: np.stack([sample[name] for sample in samples]) for name in FEATURES}
        arrays[fields.LABEL] = arrays[fields.LABEL][:, 0]
        return arrays

    def release(self) -> None:
        """Nothing is held: the file is mapped."""
