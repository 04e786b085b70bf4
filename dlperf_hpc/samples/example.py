"""``tf.train.Example`` in protobuf's wire format: a flat map from names to integers or floats.

The messages and their field numbers (tensorflow/core/example): Example{features=1},
Features{feature=1, a map entry: key=1, value=2}, Feature{bytes_list=1, float_list=2,
int64_list=3}, each list{value=1}, numbers packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

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


def _packed_varints(data: bytes) -> Array:
    """All varints of ``data`` at once: int64."""
    raw = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(raw < 0x80)
    if not len(last) or last[-1] != len(raw) - 1:
        if not len(raw):
            return np.zeros(0, np.int64)
        raise ValueError("a varint that does not end")
    first = np.concatenate([[0], last[:-1] + 1])
    if int((last - first).max()) > 9:
        raise ValueError("a varint of more than 10 bytes")
    shift = (np.arange(len(raw)) - np.repeat(first, last - first + 1)) * 7
    parts = (raw & 0x7F).astype(np.uint64) << shift.astype(np.uint64)
    values: Array = np.add.reduceat(parts, first).astype(np.int64)
    return values


def _numbers(content: bytes, kind: int) -> Array:
    """The values of a float or integer list, packed or one by one."""
    parts: list[Array] = []
    for number, wire, value in _fields(content):
        if number != 1:
            continue
        if kind == _FLOATS:
            parts.append(np.frombuffer(value, "<f4"))
        elif wire == _BYTES:
            parts.append(_packed_varints(value))
        else:
            parts.append(np.array([value], np.uint64).astype(np.int64))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _feature(content: bytes) -> Array | None:
    for number, _, value in _fields(content):
        if number in (_FLOATS, _INTEGERS):
            return _numbers(value, number)
    return None


def decode(data: bytes) -> dict[str, Array]:
    """Name to int64 or float32 values; features of bytes are left out. ValueError if damaged."""
    found: dict[str, Array] = {}
    try:
        entries = [entry for n, _, features in _fields(data) if n == 1 for entry in _map(features)]
        for name, content in entries:
            values = _feature(content)
            if values is not None:
                found[name] = values
    except (IndexError, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"not a tf.train.Example: {error}") from error
    return found


def _map(features: bytes) -> Iterator[tuple[str, bytes]]:
    for number, _, entry in _fields(features):
        if number == 1:
            parts = {n: value for n, _, value in _fields(entry)}
            yield bytes(parts.get(1, b"")).decode(), parts.get(2, b"")
