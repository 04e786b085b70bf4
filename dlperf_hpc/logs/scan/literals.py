"""Many fixed strings sought at once, at about the speed of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ahocorasick_rs import BytesAhoCorasick, MatchKind

_MOST = 64  # strings that the SIMD prefilter takes: more are sought in turns
_BUCKETS = 16  # into which it puts more than 32 of them; fewer into half as many


@dataclass(frozen=True)
class Search:
    """Literals, by their numbers, that are sought in a file: ``passes`` find the lines that may
    hold one, ``exact`` finds each literal in a line."""

    literals: frozenset[int]
    passes: Sequence[BytesAhoCorasick]
    exact: BytesAhoCorasick

    def find(self, data: bytes, begin: int, end: int) -> list[int]:
        """Where a string that a pass seeks ends in a part of ``data``, in rising order."""
        part = data if end - begin == len(data) else memoryview(data)[begin:end]
        ends = [
            begin + stop
            for each in self.passes
            for _, _, stop in each.find_matches_as_indexes(part)
        ]
        if len(self.passes) > 1:
            ends.sort()
        return ends

    def of(self, line: bytes) -> frozenset[int]:
        """The literals in a line, also those that overlap."""
        found = self.exact.find_matches_as_indexes(line, overlapping=True)
        return self.literals.intersection([number for number, _, _ in found])


class Literals:
    """Fixed strings, known by their numbers: the order in which they are given.

    ``shared`` are strings that several literals have in common, and hardly any line that holds none
    of these. One is sought in place of all literals that it is in.
    """

    def __init__(self, texts: Iterable[str], shared: Iterable[str] = ()) -> None:
        self._strings = list(texts)
        self._texts = [text.encode() for text in self._strings]
        self._sharing = {
            part: frozenset(n for n, text in enumerate(self._texts) if part in text)
            for part in (text.encode() for text in shared)
        }
        self._exact = BytesAhoCorasick(self._texts)

    def search(self, literals: Iterable[int]) -> Search:
        """A search for these literals, in as few passes as take all."""
        numbers = frozenset(literals)
        sought, passes = self._sought(numbers), []
        count = -(-len(sought) // _MOST)
        for part in range(count):
            strings = sought[part * len(sought) // count : (part + 1) * len(sought) // count]
            passes.append(BytesAhoCorasick(_in_buckets(strings), MatchKind.LeftmostFirst))
        return Search(numbers, passes, self._exact)

    def _sought(self, literals: frozenset[int]) -> list[bytes]:
        """The strings to look for: what several literals share, in place of these."""
        found, left = [], set(literals)
        for text, sharing in self._sharing.items():
            those = sharing & left
            if len(those) > 1:
                found.append(text)
                left -= those
        return sorted([*found, *(self._texts[literal] for literal in left)])

    def all_in(self, text: str, numbers: Iterable[int]) -> bool:
        """Whether each of these literals is in ``text``."""
        return all([self._strings[number] in text for number in numbers])


def _in_buckets(sought: Sequence[bytes]) -> list[bytes]:
    """Strings in an order that lets the prefilter (Teddy, of the crate aho-corasick) skip more: it
    puts each into the bucket of its place in turn, and looks closer wherever the beginnings of all
    strings of a bucket, mixed with each other, would fit. Alike ones belong into the same."""
    buckets = _BUCKETS if len(sought) > _MOST // 2 else _BUCKETS // 2
    alike = sorted(sought, key=lambda each: ([code >> 4 for code in each[:4]], each))
    larger = len(alike) % buckets
    rows, at, cut = [], 0, len(alike) // buckets
    for bucket in range(buckets):
        count = cut + (bucket < larger)
        rows.append(alike[at : at + count])
        at += count
    return [row[place] for place in range(cut + 1) for row in rows if place < len(row)]
