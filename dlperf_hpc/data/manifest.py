"""The manifest beside prepared data: what made it, and what every file of it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import DataError
from dlperf_hpc.files import dump_json, read_regular

NAME = "manifest.json"
VERSION = 1


def write(directory: Path, content: Mapping[str, Any]) -> None:
    """Into ``directory``; ``files`` maps names to bytes, samples and largest token id."""
    text = dump_json({"manifest_version": VERSION, **content})
    (directory / NAME).write_text(text, encoding="utf-8")


def read(directory: Path) -> dict[str, Any]:
    """The manifest of prepared data; empty if there is none, or not one of this version."""
    try:
        found = json.loads(read_regular(directory / NAME))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("manifest_version") == VERSION else {}


def files(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a manifest says of each file, by name; nothing if it has no such table, or if a name in
    it is that of something in another directory."""
    named: Any = content.get("files")
    if not isinstance(named, dict) or any(name != Path(name).name for name in named):
        return {}
    return named


def vouches(content: Mapping[str, Any], file: Path, vocab: int) -> bool:
    """True if the manifest speaks for this file as it is, and its ids are below ``vocab``.

    It does if the file is no younger than the manifest, which is written last; otherwise every
    value has to be looked at. DataError if the file has not the size that the manifest names: a
    TFRecord file that was cut between two records looks whole.
    """
    entry = files(content).get(file.name)
    if not isinstance(entry, dict):
        return False
    status, own = file.stat(), (file.parent / NAME).stat()
    if entry.get("bytes") != status.st_size:
        raise DataError(
            f"{file}: found {status.st_size} bytes, expected {entry.get('bytes')} by {NAME} beside"
            f" it: truncated or another's: copy or prepare it again, or remove {NAME}"
        )
    largest = entry.get("largest_id")
    return status.st_mtime_ns <= own.st_mtime_ns and isinstance(largest, int) and largest < vocab
