"""Megatron's indexed binary: ``NAME.bin`` holds token ids, ``NAME.idx`` where documents lie.

The index, little-endian: ``MMIDIDX`` and two zero bytes; version 1 (uint64); the code of the
tokens' type (uint8); number of sequences S and of document marks D (uint64 each); S lengths in
tokens (int32); S offsets in bytes (int64); D marks (int64), the sequence each document begins
with and S at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dlperf_hpc.data.bert_files import Array, Arrays
from dlperf_hpc.errors import DataError
from dlperf_hpc.files import read_regular
from dlperf_hpc.sweepfile.declarations import SampleLayout

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES: dict[int, str] = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_MOST_INDEX = 1 << 36  # bytes
_TOKENS = 2**24  # looked at together while a file is checked


def token_type(vocab: int) -> str:
    """The smallest type Megatron uses for a vocabulary of this size."""
    return "<u2" if vocab < 65500 else "<i4"


def write(path: Path, documents: Sequence[Array], vocab: int) -> None:
    """``path`` (.bin) and its .idx: one sequence per document."""
    kind = np.dtype(token_type(vocab))
    with open(path, "wb") as file:
        for document in documents:
            file.write(np.asarray(document).astype(kind).tobytes())
    lengths = np.array([len(document) for document in documents], "<i4")
    offsets = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * kind.itemsize
    code = next(code for code, name in _TYPES.items() if np.dtype(name) == kind)
    marks = np.arange(len(documents) + 1, dtype="<i8")
    header = _HEADER.pack(MAGIC, 1, code, len(documents), len(marks))
    parts = (header, lengths.tobytes(), offsets.astype("<i8").tobytes(), marks.tobytes())
    path.with_suffix(".idx").write_bytes(b"".join(parts))


class IndexedShard:
    """One pair of files as a stream of tokens, cut into samples of T tokens and their successors.
    Documents follow each other as they lie in the file, so a sample may span several; sample k
    begins at token k * T, and the last token of its labels is the first of sample k + 1."""

    def __init__(self, path: Path, layout: SampleLayout) -> None:
        """``path`` is the .bin. Reads the index. DataError if the two do not belong together."""
        self.path, self.layout = path, layout
        kind, tokens = self._index()
        size = path.stat().st_size
        if size != tokens * kind.itemsize:
            raise DataError(
                f"{path}: found {size} bytes, expected {tokens * kind.itemsize} ({tokens} tokens of"
                f" {kind.itemsize} bytes, as {path.with_suffix('.idx').name} says):"
                " truncated, or of another index: copy or prepare both again"
            )
        self._tokens: Any = np.memmap(path, kind, "r") if size else np.zeros(0, kind)
        self.samples = max(0, (tokens - 1) // layout.seq_len)

    def _index(self) -> tuple[np.dtype[Any], int]:
        """Type and number of tokens. The sequences must lie one behind the other."""
        index = self.path.with_suffix(".idx")
        try:
            data = read_regular(index, _MOST_INDEX)
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: its index {index.name} is not beside it") from error
        if data[:9] != MAGIC or len(data) < _HEADER.size:
            raise DataError(f"{index}: found {data[:9]!r}, expected {MAGIC!r}: no Megatron index")
        _, version, code, sequences, marks = _HEADER.unpack_from(data)
        if version != 1 or code not in _TYPES:
            text = f"version {version} and type code {code}, expected version 1 and integers"
            raise DataError(f"{index}: found {text} ({sorted(_TYPES)})")
        expected = _HEADER.size + 12 * sequences + 8 * marks
        if len(data) < expected:
            text = f"found {len(data)} bytes, expected {expected} for {sequences} sequences"
            raise DataError(f"{index}: truncated: {text}: copy or prepare it again")
        kind = np.dtype(_TYPES[code])
        lengths = np.frombuffer(data, "<i4", sequences, _HEADER.size).astype(np.int64)
        offsets = np.frombuffer(data, "<i8", sequences, _HEADER.size + 4 * sequences)
        ends = np.cumsum(lengths)
        if (lengths < 0).any() or (offsets != (ends - lengths) * kind.itemsize).any():
            raise DataError(f"{index}: the sequences are not contiguous: copy or prepare it again")
        return kind, int(ends[-1]) if sequences else 0

    def check(self) -> None:
        """Look at every token. DataError for one that is beyond the vocabulary."""
        for start in range(0, len(self._tokens), _TOKENS):
            part = self._tokens[start : start + _TOKENS]
            low, high = int(part.min()), int(part.max())
            if low < 0 or high >= self.layout.vocab:
                raise DataError(
                    f"{self.path}: tokens: found {min(low, 0) or high}, expected 0 to"
                    f" {self.layout.vocab - 1}: prepare the text with a vocabulary that fits"
                )

    def read(self, rows: Array) -> Arrays:
        """Samples by number: ``input_ids`` and ``labels`` [n, T]."""
        at = np.asarray(rows)[:, None] * self.layout.seq_len + np.arange(self.layout.seq_len + 1)
        tokens = self._tokens[at]
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}

    def release(self) -> None:
        """Nothing is held: the file is mapped."""
