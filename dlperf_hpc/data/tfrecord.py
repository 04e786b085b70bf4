"""TFRecord files and the ``tf.train.Example`` in each record, without TensorFlow.

A record is its length (uint64), the masked CRC-32C of those 8 bytes (uint32), the data, the masked
CRC-32C of the data (uint32); little-endian throughout. Masked: rotated right by 15 bits, plus
0xa282ead8.

An Example is a flat map from names to integers or floats in protobuf's wire format. The messages
and their field numbers (tensorflow/core/example): Example{features=1}, Features{feature=1, a map
entry: key=1, value=2}, Feature{bytes_list=1, float_list=2, int64_list=3}, each list{value=1},
numbers packed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlperf_hpc.errors import DataError

_LENGTH = struct.Struct("<Q")
_CHECK = struct.Struct("<I")
_AROUND = 12 + 4  # bytes before and after the data


def _checksum(data: bytes) -> int:
    """The masked CRC-32C (Castagnoli) of ``data``. DataError without the library."""
    try:
        import google_crc32c
    except ImportError as error:
        raise needs_library("TFRecord", "google-crc32c", error) from error
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def needs_library(what: object, library: str, error: ImportError) -> DataError:
    """The error for a library of the extra ``data`` that is missing."""
    return DataError(
        f"{what} needs {library}, which this Python cannot import ({error}):"
        " pip install 'dlperf_hpc[data]' in the framework's environment"
    )


def write(path: Path, records: Iterable[bytes]) -> None:
    """A file of these records."""
    with open(path, "wb") as file:
        for record in records:
            length = _LENGTH.pack(len(record))
            ahead, behind = _CHECK.pack(_checksum(length)), _CHECK.pack(_checksum(record))
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
            if (_checksum(_LENGTH.pack(len(record))), _checksum(record)) != self._sums(number):
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
    return _checksum(head[:8]) == found


Array = npt.NDArray[Any]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOATS, _INTEGERS = 2, 3


@lru_cache(maxsize=1 << 17)  # token ids, positions: the same few over and over
def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _varint(len(content)) + content


def encode(features: Mapping[str, Array]) -> bytes:
    """One Example. Integers must not be negative; floats are stored as float32."""
    entries = []
    for name, values in features.items():
        if values.dtype.kind == "f":
            packed, kind = values.astype("<f4").tobytes(), _FLOATS
        else:
            packed, kind = b"".join(map(_varint, values.tolist())), _INTEGERS
        feature = _field(kind, _field(1, packed))
        entries.append(_field(1, _field(1, name.encode()) + _field(2, feature)))
    return _field(1, b"".join(entries))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a varint of more than 10 bytes")


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """(number, wire type, content) of a message's fields."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _read_varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _read_varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(data):
            raise ValueError("a field longer than its message")
        yield number, wire, data[at : at + size]
        at += size


def _varints(data: bytes) -> Array:
    """All varints of ``data`` at once: int64. The last of them is whole."""
    raw = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(raw < 0x80)
    if len(last) == len(raw):
        return raw.astype(np.int64)
    first = np.concatenate([[0], last[:-1] + 1])
    if int((last - first).max()) > 9:
        raise ValueError("a varint of more than 10 bytes")
    shift = (np.arange(len(raw)) - np.repeat(first, last - first + 1)) * 7
    parts = (raw & 0x7F).astype(np.uint64) << shift.astype(np.uint64)
    values: Array = np.add.reduceat(parts, first).astype(np.int64)
    return values


def _integers(lists: Sequence[bytes]) -> Iterator[Array]:
    """The values of each list of varints. Decoded together: there are many, and they are short."""
    if any(content and content[-1] >= 0x80 for content in lists):
        raise ValueError("a varint that does not end")
    data = b"".join(lists)
    ends = np.cumsum([0, *map(len, lists)])
    counted = np.concatenate([[0], np.cumsum(np.frombuffer(data, np.uint8) < 0x80)])[ends]
    values = _varints(data)
    for start, end in zip(counted, counted[1:]):
        yield values[start:end]


def _numbers(content: bytes, kind: int) -> bytes:
    """A float or integer list as packed bytes, whether it is packed or not."""
    parts = []
    for number, wire, value in _fields(content):
        if number == 1:
            parts.append(_varint(value) if kind == _INTEGERS and wire == _VARINT else value)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _lists(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """(name, kind of list, packed values) of an Example's features, those of bytes left out."""
    for number, _, features in _fields(data):
        for key, _, entry in _fields(features) if number == 1 else ():
            parts = {n: value for n, _, value in _fields(entry)} if key == 1 else {}
            for kind, _, content in _fields(parts.get(2, b"")):
                if kind in (_FLOATS, _INTEGERS):
                    yield bytes(parts.get(1, b"")).decode(), kind, _numbers(content, kind)


def decode(examples: Sequence[bytes]) -> list[dict[str, Array]]:
    """Of each Example name to int64 or float32 values, no bytes; ValueError for a damaged one."""
    try:
        found = [list(_lists(data)) for data in examples]
        packed = [content for lists in found for _, kind, content in lists if kind == _INTEGERS]
        integers = _integers(packed)
        return [
            {
                name: np.frombuffer(content, "<f4") if kind == _FLOATS else next(integers)
                for name, kind, content in lists
            }
            for lists in found
        ]
    except (IndexError, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"not a tf.train.Example: {error}") from error
