"""Which files a ``data_path`` means, and the reader that fits each, by content and not by name."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from dlperf_hpc.data import bert_records, hdf5, indexed, manifest, tfrecord
from dlperf_hpc.data.fields import Array, Arrays
from dlperf_hpc.errors import DataError
from dlperf_hpc.files import open_regular
from dlperf_hpc.sweepfile.declarations import SampleLayout

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


def find(data_path: str) -> list[Path]:
    """Files of samples in a directory, or those a pattern matches, by name. DataError if none.

    Environment variables and ~ are expanded; an .idx stands for its .bin. Of a directory it is the
    files its manifest names, or all but hidden ones and what may lie beside samples (``_BESIDE``).
    """
    expanded = os.path.expanduser(os.path.expandvars(data_path))
    whole = Path(expanded)
    if whole.is_dir():
        named = manifest.files(manifest.read(whole))
        found = [whole / name for name in named] if named else _lying_in(whole)
    else:
        matched = [Path(name) for name in glob.glob(expanded, recursive=True)]
        found = [path for path in matched if path.is_file() and path.name != manifest.NAME]
    files = {path.with_suffix(".bin") if path.suffix == ".idx" else path for path in found}
    if not files:
        raise DataError(f"data_path {data_path!r}: no file of samples is there: {_PREPARE}")
    return sorted(files)


def _lying_in(directory: Path) -> list[Path]:
    paths = [path for path in directory.iterdir() if not path.name.startswith(".")]
    return [path for path in paths if path.is_file() and path.suffix not in _BESIDE]


def format_of(path: Path) -> str | None:
    """ "hdf5", "tfrecord" or "megatron", by the file's first bytes; None for anything else."""
    with open_regular(path) as file:
        head = file.read(_LENGTH_AND_SUM)
    if head.startswith(hdf5.MAGIC):
        return "hdf5"
    if head.startswith(indexed.MAGIC) or (path.suffix == ".bin" and _index_of(path).is_file()):
        return "megatron"
    return "tfrecord" if tfrecord.begins(head) else None


def _index_of(path: Path) -> Path:
    return path.with_suffix(".idx")


_READERS: dict[str, tuple[str, Callable[[Path, SampleLayout], Shard]]] = {
    "hdf5": ("bert", hdf5.Hdf5Shard),
    "tfrecord": ("bert", bert_records.RecordShard),
    "megatron": ("gpt2", indexed.IndexedShard),
}


def open_shard(path: Path, layout: SampleLayout) -> Shard:
    """The layout's own reader, or the one that fits the file's content.

    DataError if none does, or if the file holds another model's samples.
    """
    try:
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
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def unpadded(shards: list[Shard], layout: SampleLayout) -> bool:
    """Whether no sample of these files is padded, so that a model needs no mask of its tokens.

    By the manifest where it vouches for a file, else by looking, up to the first padded sample.
    """
    manifests = {folder: manifest.read(folder) for folder in {s.path.parent for s in shards}}
    for shard in shards:
        content = manifests[shard.path.parent]
        if manifest.vouches(content, shard.path, layout.vocab):
            tokens = manifest.files(content)[shard.path.name].get("tokens")
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
    manifests = {folder: manifest.read(folder) for folder in {s.path.parent for s in shards}}
    for shard in shards:
        if not manifest.vouches(manifests[shard.path.parent], shard.path, layout.vocab):
            shard.check()
            shard.release()
