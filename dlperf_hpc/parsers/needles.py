"""An automaton that finds the lines with fixed strings in them, at the speed of a memory read.

``aho-corasick``'s prefilter (Teddy) looks at the first four bytes of up to 64 strings at once: it
deals them into 16 buckets, the ``i``-th string into bucket ``i % 16``, and stops wherever the low
and high halves of four bytes each fit one of a bucket. How often it stops in vain decides its
speed, so we choose what it looks at: of each string a part that begins with bytes which are rare in
logs, and an order that puts those into one bucket which add little to each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ahocorasick_rs import BytesAhoCorasick, MatchKind

MOST = 64
"""Needles that the prefilter takes at most: with more it is four times as slow."""

_BUCKETS = 16
_LOOKED_AT = 4
_SHORTEST = 5  # what is left of a needle at least
_LONG = 8  # shorter parts are in many other lines: they have to be worth it
_WORTH = 30.0

# The bytes of logs by how often they occur; about so.
_COMMON = b" e0otirs:anl1.2cpd_86,3/59m4u'g-7]fhbyk[wv=IN()FOPGxCSURzjTABML*"
_SHARE = [0.0003] * 256
for _rank, _byte in enumerate(_COMMON):
    _SHARE[_byte] = 0.04 * 0.94**_rank
_SHARE[_COMMON[0]] = 0.12


def finder(needles: Iterable[str]) -> BytesAhoCorasick:
    """Finds, of up to ``MOST`` needles, a part of each: a line without one holds no needle."""
    parts = sorted({_rarest(needle.encode()) for needle in needles})
    return BytesAhoCorasick(_dealt(parts), MatchKind.LeftmostFirst)


def _rarest(needle: bytes) -> bytes:
    """The needle from its rarest place on."""

    def cost(part: bytes) -> float:
        return _stops([part]) * (1.0 if len(part) >= _LONG else _WORTH)

    return min((needle[at:] for at in range(max(1, len(needle) - _SHORTEST + 1))), key=cost)


def _dealt(parts: Sequence[bytes]) -> list[bytes]:
    """In an order such that the buckets seldom stop in vain; the most common choose first."""
    buckets: list[list[bytes]] = [[] for _ in range(_BUCKETS)]
    room = [len(range(bucket, len(parts), _BUCKETS)) for bucket in range(_BUCKETS)]
    for part in sorted(parts, key=lambda part: -_stops([part])):
        free = [b for b in range(_BUCKETS) if len(buckets[b]) < room[b]]
        best = min(free, key=lambda b: _stops([*buckets[b], part]) - _stops(buckets[b]))
        buckets[best].append(part)
    return [buckets[i % _BUCKETS][i // _BUCKETS] for i in range(len(parts))]


def _stops(bucket: Sequence[bytes]) -> float:
    """How often a bucket stops, per byte of a log."""
    if not bucket:
        return 0.0
    looked_at = range(min(_LOOKED_AT, *map(len, bucket)))
    return math.prod(_fit({part[place] for part in bucket}) for place in looked_at)


def _fit(codes: set[int]) -> float:
    """The share of bytes whose halves are each a half of one of ``codes``."""
    highs, lows = {code & 0xF0 for code in codes}, {code & 0x0F for code in codes}
    return sum(_SHARE[high | low] for high in highs for low in lows)
