"""TFRecord files without TensorFlow: the framing, and its masked CRC-32C.

A record is its length (uint64), the masked CRC of those 8 bytes (uint32), the data, the masked CRC
of the data (uint32); little-endian throughout. Masked: rotated right by 15 bits, plus 0xa282ead8.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlperf_hpc.errors import DataError

UInt32s = npt.NDArray[np.uint32]

_LENGTH = struct.Struct("<Q")
_CHECK = struct.Struct("<I")
_AROUND = 12 + 4  # bytes before and after the data
_TOGETHER = 1024  # records whose sums are computed side by side


def _table() -> UInt32s:
    """CRC-32C (Castagnoli, reflected 0x82f63b78) of each byte."""
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(0x82F63B78), values >> 1)
    return values.astype(np.uint32)


_TABLE = _table()


def crc32c(messages: Sequence[bytes]) -> UInt32s:
    """CRC-32C of each message, all at once: one pass over byte positions, vectors over messages.

    Messages are padded on the left to one length: with a register of 0, leading zeros change
    nothing. The register's true initial value, all ones, is the same as inverting the first four
    bytes. Messages have at least 4 bytes.
    """
    longest = max(map(len, messages))
    padded = np.zeros((len(messages), longest), np.uint8)
    for row, message in zip(padded, messages):
        start = longest - len(message)
        row[start:] = np.frombuffer(message, np.uint8)
        row[start : start + 4] ^= 0xFF
    register = np.zeros(len(messages), np.uint32)
    for column in np.ascontiguousarray(padded.T):
        register = _TABLE[(register ^ column) & 0xFF] ^ (register >> np.uint32(8))
    return ~register


def masked(sums: UInt32s) -> UInt32s:
    """CRCs as the files hold them."""
    rotated = (sums >> np.uint32(15)) | (sums << np.uint32(17))
    return rotated + np.uint32(0xA282EAD8)


def write(path: Path, records: Sequence[bytes]) -> None:
    """A file of these records, each of at least 4 bytes."""
    with open(path, "wb") as file:
        for start in range(0, len(records), _TOGETHER):
            part = records[start : start + _TOGETHER]
            lengths = [_LENGTH.pack(len(record)) for record in part]
            ahead, behind = masked(crc32c(lengths)), masked(crc32c(part))
            for length, first, record, last in zip(lengths, ahead, part, behind):
                file.write(length + _CHECK.pack(first) + record + _CHECK.pack(last))


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
        for first in range(0, len(self), _TOGETHER):
            numbers = range(first, min(first + _TOGETHER, len(self)))
            records = [self[number] for number in numbers]
            lengths = [_LENGTH.pack(len(record)) for record in records]
            ahead, behind = masked(crc32c(lengths)), masked(crc32c(records))
            for number, one, other in zip(numbers, ahead, behind):
                if (int(one), int(other)) != self._sums(number):
                    raise DataError(
                        f"{self.path}: record {number}: its checksum is wrong, the file is"
                        " damaged: copy or prepare it again"
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
    return int(masked(crc32c([head[:8]]))[0]) == found
