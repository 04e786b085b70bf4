"""A sweep's directory as one file: a zip archive, to keep, to send, to read as it is.

``<sweep>/manifest.json`` and everything beside it, so that unpacked it is the directory again.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import read_manifest

_LEFT_OUT = {layout.LOCK}


def pack(root: Path, target: Path) -> int:
    """Write the archive of a sweep's directory; how many files it holds.

    LedgerError if ``root`` holds no sweep, if ``target`` is there already, or if something cannot
    be read or written: then nothing is left.
    """
    read_manifest(root)
    if target.exists():
        raise LedgerError(f"{target}: is there already; give another name with --out")
    held = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    paths = sorted(p for p in root.rglob("*") if p.is_file() and p.name not in _LEFT_OUT)
    try:
        with zipfile.ZipFile(held, "x", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for path in paths:
                archive.write(path, f"{root.name}/{path.relative_to(root)}")
        os.link(held, target)  # over nothing, also if somebody was quicker
    except OSError as error:
        told = f"{error.filename or target}: {error.strerror}"
        raise LedgerError(f"{told}; no archive was written") from error
    finally:
        held.unlink(missing_ok=True)
    return len(paths)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The sweep's directory in an archive, for as long as the context lasts; any other path as it
    is. LedgerError for an archive that is damaged."""
    top = _top(path)
    if top is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="dlperf-") as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        except (OSError, RuntimeError, zipfile.BadZipFile) as error:
            raise LedgerError(f"{path}: cannot be unpacked: {error}") from error
        yield Path(folder, top)


def _top(path: Path) -> str | None:
    """The archive's one directory, if ``path`` is an archive with a manifest in it."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return None  # whoever reads logs says what is wrong with it
    tops = {name.split("/")[0] for name in names}
    (top, *others) = tops or {""}
    return top if not others and f"{top}/{layout.MANIFEST}" in names else None
