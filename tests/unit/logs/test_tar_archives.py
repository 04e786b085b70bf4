"""Tar archives are not read: the message says so, with the command that unpacks them."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import zstandard
from external_logs import deepspeed

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.logs.gather import Gathered, gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.records.manifest import read_manifest

_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


def packed(folder: Path, name: str) -> Path:
    """A tar archive of one log in a known format, compressed as its name says."""
    log, plain = folder / "a.log", io.BytesIO()
    log.write_text(deepspeed(100.0))
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.add(log, "logs/1n1g/bert_b32_fp32_1.log")
    log.unlink()
    compress = _COMPRESS.get(name.rpartition(".")[2], bytes)
    (folder / name).write_bytes(compress(plain.getvalue()))
    return folder / name


def read(paths: Sequence[Path]) -> Gathered:
    return gather(paths, rule("default"), {"nodes": 1, "gpus_per_node": 1}, ScanCache(None))


@pytest.mark.parametrize("name", ["logs.tar", "logs.tar.gz", "logs.tar.xz", "my logs.tar.zst"])
def test_a_tar_archive_that_is_named(tmp_path: Path, name: str) -> None:
    path = packed(tmp_path, name)
    with pytest.raises(LedgerError, match=r"is a tar archive, and of archives only zip") as wrong:
        read([path])
    shown = f"'{path}'" if " " in name else str(path)
    assert str(wrong.value).endswith(f"tar xf {shown}")
    with pytest.raises(LedgerError, match="is a tar archive"):
        read_manifest(path)


@pytest.mark.parametrize("name", ["renamed.log.gz", "renamed"])
def test_a_tar_archive_by_another_name_is_not_read_as_one_log(tmp_path: Path, name: str) -> None:
    """Its members would be one log, one after another."""
    packed(tmp_path, name)
    (tmp_path / "b.log").write_text(deepspeed(100.0))
    found = read([tmp_path])
    (line,) = [each for each in found.unread if "tar archive" in each]
    assert line.startswith(f"{tmp_path / name}: is a tar archive")
    assert [Path(result.log).name for result in found.results] == ["b.log"]
