"""TFRecord files without TensorFlow: the framing, and its masked CRC-32C.

A record is its length (uint64), the masked CRC of those 8 bytes (uint32), the data, the masked CRC
of the data (uint32); little-endian throughout. Masked: rotated right by 15 bits, plus 0xa282ead8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dlperf_hpc.errors import DataError

_LENGTH = struct.Struct("<Q")
_CHECK = struct.Struct("<I")
_AROUND = 12 + 4  # bytes before and after the data


def _crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli). DataError without the library."""
    try:
        import google_crc32c
    except ImportError as error:
        raise DataError(
            f"TFRecord needs google-crc32c, which this Python cannot import ({error}):"
            " pip install 'dlperf_hpc[data]' in the framework's environment"
        ) from error
    return int(google_crc32c.value(data))


def _masked(data: bytes) -> int:
    """The CRC of ``data`` as the files hold it."""
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write(path: Path, records: Iterable[bytes]) -> None:
    """A file of these records."""
    with open(path, "wb") as file:
        for record in records:
            length = _LENGTH.pack(len(record))
            ahead, behind = _CHECK.pack(_masked(length)), _CHECK.pack(_masked(record))
            file.write(length + ahead + record + behind)


class TFRecordFile:
    """Random access to the records of one file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Find where records begin. DataError if the lengths do not add up to the file."""
        self.path = path
        self._data: Any = np.memmap(path, np.uint8, "r") if path.stat().st_size else b""
        self._starts, self._ends = self._walk()

    def _walk(self) -> tuple[list[int], list[int]]:
        view, size = memoryview(self._data), len(self._data)
        starts: list[int] = []
        ends: list[int] = []
        at = 0
        while at < size:
            end = at + 12 + _LENGTH.unpack_from(view, at)[0] if at + _AROUND <= size else size
            if end + 4 > size:
                raise DataError(
                    f"{self.path}: truncated or no TFRecord: record {len(starts)} begins at byte"
                    f" {at} and ends beyond the file's {size} bytes: copy or prepare it again"
                )
            starts.append(at + 12)
            ends.append(end)
            at = end + 4
        return starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._data[self._starts[index] : self._ends[index]])

    def check(self) -> None:
        """DataError unless every checksum is right."""
        for number in range(len(self)):
            record = self[number]
            if (_masked(_LENGTH.pack(len(record))), _masked(record)) != self._sums(number):
                raise DataError(
                    f"{self.path}: record {number}: its checksum is wrong, the file is damaged:"
                    " copy or prepare it again"
                )

    def _sums(self, number: int) -> tuple[int, int]:
        view = memoryview(self._data)
        ahead = _CHECK.unpack_from(view, self._starts[number] - 4)[0]
        return ahead, _CHECK.unpack_from(view, self._ends[number])[0]


def begins(head: bytes) -> bool:
    """True if a file that begins with these 12 bytes begins with a record's length and sum."""
    if len(head) < 12:
        return False
    found: int = _CHECK.unpack_from(head, 8)[0]
    return _masked(head[:8]) == found
