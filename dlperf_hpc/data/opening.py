"""Which files a ``data_path`` means, and the reader that fits each, by content and not by name.

Megatron's indexed binary is read here: ``NAME.bin`` holds token ids, ``NAME.idx`` where documents
lie. The index, little-endian: ``MMIDIDX`` and two zero bytes; version 1 (uint64); the code of the
tokens' type (uint8); number of sequences S and of document marks D (uint64 each); S lengths in
tokens (int32); S offsets in bytes (int64); D marks (int64), the sequence each document begins with
and S at the end.
"""

from __future__ import annotations

import glob
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dlperf_hpc.data import bert_files, tfrecord
from dlperf_hpc.data.bert_files import Array, Arrays
from dlperf_hpc.errors import DataError, raising
from dlperf_hpc.files import dump_json, open_regular, read_regular
from dlperf_hpc.sweepfile.declarations import SampleLayout

INDEX_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TOKEN_TYPES: dict[int, str] = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_MOST_INDEX = 1 << 36  # bytes
_TOKENS = 2**24  # looked at together while a file is checked


def token_type(vocab: int) -> str:
    """The smallest type Megatron uses for a vocabulary of this size."""
    return "<u2" if vocab < 65500 else "<i4"


def write_indexed(path: Path, documents: Sequence[Array], vocab: int) -> None:
    """``path`` (.bin) and its .idx: one sequence per document."""
    kind = np.dtype(token_type(vocab))
    with open(path, "wb") as file:
        for document in documents:
            file.write(np.asarray(document).astype(kind).tobytes())
    lengths = np.array(list(map(len, documents)), "<i4")
    offsets = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * kind.itemsize
    code = next(code for code, name in _TOKEN_TYPES.items() if np.dtype(name) == kind)
    marks = np.arange(len(documents) + 1, dtype="<i8")
    header = _HEADER.pack(INDEX_MAGIC, 1, code, len(documents), len(marks))
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
        if data[:9] != INDEX_MAGIC or len(data) < _HEADER.size:
            raise DataError(
                f"{index}: found {data[:9]!r}, expected {INDEX_MAGIC!r}: no Megatron index"
            )
        _, version, code, sequences, marks = _HEADER.unpack_from(data)
        if version != 1 or code not in _TOKEN_TYPES:
            text = f"version {version} and type code {code}, expected version 1 and integers"
            raise DataError(f"{index}: found {text} ({sorted(_TOKEN_TYPES)})")
        expected = _HEADER.size + 12 * sequences + 8 * marks
        if len(data) < expected:
            text = f"found {len(data)} bytes, expected {expected} for {sequences} sequences"
            raise DataError(f"{index}: truncated: {text}: copy or prepare it again")
        kind = np.dtype(_TOKEN_TYPES[code])
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


_LOOKED_AT = 4096  # samples read together
_LENGTH_AND_SUM = 12  # a TFRecord's first bytes
_BESIDE = (".json", ".txt", ".md", ".log")
_PREPARE = "`dlperf data prepare` makes files that can be read (docs/data.md)"


class Shard(Protocol):
    """One file of samples: names and shapes are right once it is made, values after ``check``."""

    path: Path
    samples: int

    def check(self) -> None: ...

    def read(self, rows: Array) -> Arrays: ...

    def release(self) -> None: ...


def find(data_path: str, folder: bool = False) -> list[Path]:
    """Files of samples in a directory, or those a pattern matches, by name. DataError if none.
    Environment variables and ~ are expanded; an .idx stands for its .bin. Of a directory: the files
    that its manifest names, or all but hidden ones and those of ``_BESIDE``; with ``folder`` it is
    itself what is found."""
    expanded = os.path.expanduser(os.path.expandvars(data_path))
    if folder:
        return [Path(expanded)]
    if os.path.isdir(expanded):
        found = _lying_in(Path(expanded))
    else:
        matched = map(Path, glob.glob(expanded, recursive=True))
        found = [path for path in matched if path.is_file() and path.name != MANIFEST]
    files = {path.with_suffix(".bin") if path.suffix == ".idx" else path for path in found}
    if not files:
        raise DataError(f"data_path {data_path!r}: no file of samples is there: {_PREPARE}")
    return sorted(files)


def _lying_in(directory: Path) -> list[Path]:
    named = manifest_files(read_manifest(directory))
    if named:
        return [directory / name for name in named]
    paths = [path for path in directory.iterdir() if not path.name.startswith(".")]
    return [path for path in paths if path.is_file() and path.suffix not in _BESIDE]


def format_of(path: Path) -> str | None:
    """ "hdf5", "tfrecord" or "megatron", by the file's first bytes; None for anything else."""
    with open_regular(path) as file:
        head = file.read(_LENGTH_AND_SUM)
    if head.startswith(bert_files.HDF5_MAGIC):
        return "hdf5"
    indexed = path.suffix == ".bin" and path.with_suffix(".idx").is_file()
    if indexed or head.startswith(INDEX_MAGIC):
        return "megatron"
    return "tfrecord" if tfrecord.begins(head) else None


_READERS: dict[str, tuple[str, Callable[[Path, SampleLayout], Shard]]] = {
    "hdf5": ("bert", bert_files.Hdf5Shard),
    "tfrecord": ("bert", bert_files.RecordShard),
    "megatron": ("gpt2", IndexedShard),
}


def open_shard(path: Path, layout: SampleLayout) -> Shard:
    """The layout's own reader, or the one that fits the file's content. DataError if none does, or
    if the file holds another model's samples."""
    with raising(DataError, f"{path}: cannot be read"):
        if layout.reader is not None:
            shard: Shard = layout.reader(path, layout)
            return shard
        kind = format_of(path)
        if kind is None:
            raise DataError(
                f"{path}: neither HDF5, TFRecord nor Megatron's indexed binary (.bin beside .idx):"
                f" wrong layout, empty or damaged: {_PREPARE}"
            )
        family, reader = _READERS[kind]
        if family != layout.kind:
            raise DataError(
                f"{path}: {kind} holds {family} samples, the model needs {layout.kind}: {_PREPARE}"
            )
        return reader(path, layout)


def unpadded(shards: list[Shard], layout: SampleLayout) -> bool:
    """Whether no sample of these files is padded, so that a model needs no mask of its tokens. By
    the manifest where it vouches for a file, else by looking, up to the first padded sample."""
    if not layout.seq_len:
        return True
    manifests = {folder: read_manifest(folder) for folder in {s.path.parent for s in shards}}
    for shard in shards:
        content = manifests[shard.path.parent]
        if vouches(content, shard.path, layout.vocab):
            tokens = manifest_files(content)[shard.path.name].get("tokens")
            if tokens != shard.samples * layout.seq_len:
                return False
        elif any(not mask.all() for mask in _masks(shard)):
            shard.release()
            return False
        shard.release()
    return True


def _masks(shard: Shard) -> Iterator[Array]:
    for first in range(0, shard.samples, _LOOKED_AT):
        rows = np.arange(first, min(first + _LOOKED_AT, shard.samples))
        arrays = shard.read(rows)
        if "input_mask" not in arrays:
            return  # of a family of models that has none
        yield arrays["input_mask"]


def check(shards: list[Shard], layout: SampleLayout) -> None:
    """Look at every value of these files, unless a manifest vouches for them. DataError if bad."""
    manifests = {folder: read_manifest(folder) for folder in {s.path.parent for s in shards}}
    for shard in shards:
        if not vouches(manifests[shard.path.parent], shard.path, layout.vocab):
            shard.check()
            shard.release()


# --- the manifest beside prepared data: what made it, and what every file of it holds


MANIFEST = "manifest.json"
_VERSION = 1


def write_manifest(directory: Path, content: Mapping[str, Any]) -> None:
    """Into ``directory``; ``files`` maps names to bytes, samples and largest token id."""
    text = dump_json({"manifest_version": _VERSION, **content})
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of prepared data; empty if there is none, or not one of this version."""
    try:
        found = json.loads(read_regular(directory / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(found, dict) and found.get("manifest_version") == _VERSION:
        return found
    return {}


def manifest_files(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a manifest says of each file, by name; nothing if it has no such table, or if a name in
    it is that of something in another directory."""
    named: Any = content.get("files")
    if not isinstance(named, dict) or any(name != Path(name).name for name in named):
        return {}
    return named


def vouches(content: Mapping[str, Any], file: Path, vocab: int) -> bool:
    """True if the manifest speaks for this file as it is, and its ids are below ``vocab``. It does
    if the file is no younger than the manifest, which is written last; otherwise every value has to
    be looked at. DataError if the file has not the size that the manifest names: a TFRecord file
    that was cut between two records looks whole."""
    entry = manifest_files(content).get(file.name)
    if not isinstance(entry, dict):
        return False
    status, own = file.stat(), (file.parent / MANIFEST).stat()
    if entry.get("bytes") != status.st_size:
        raise DataError(
            f"{file}: found {status.st_size} bytes, expected {entry.get('bytes')} by {MANIFEST}"
            f" beside it: truncated or another's: copy or prepare it again, or remove {MANIFEST}"
        )
    largest = entry.get("largest_id")
    return status.st_mtime_ns <= own.st_mtime_ns and isinstance(largest, int) and largest < vocab
