"""Many fixed strings sought at once, at about the speed of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from dlperf_hpc.logs.scan.rows import MASK

_GROUP = 64  # needles that the SIMD prefilter takes at most: more are sought in turns

Hit = tuple[int, int]
"""Where a needle ends, and which it is."""


class Group(NamedTuple):
    """Needles that are sought in one pass, and their numbers."""

    search: BytesAhoCorasick
    numbers: Sequence[int]


class Needles:
    """Fixed strings, known by their numbers: the order in which they are given."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._strings = list(texts)
        self._texts = [text.encode() for text in self._strings]
        self._exact = BytesAhoCorasick(self._texts)
        self._single = [frozenset([number]) for number in range(len(self._texts))]
        self._beginning = defaultdict[int, list[bytes]](list)
        for text in self._texts:
            self._beginning[text[0]].append(text)
        with_digits = [text for text in self._texts if any(map(str.isdigit, text.decode()))]
        self._masked = BytesAhoCorasick([text.translate(MASK) for text in with_digits])
        self._hidden = [self._overlapping(text) for text in self._texts]

    def groups(self, *sets: Sequence[int]) -> list[Group]:
        """Groups of needles to look for together. The sets are kept apart if one pass cannot take
        all needles: mixed otherwise, a pass may take three times as long. A set that is too large
        for one pass is sorted: needles that begin alike let the prefilter skip more, so that two
        passes for 100 needles take 0.8 of the time that they take in any order."""
        together = [number for each in sets for number in each]
        parts: list[Sequence[int]] = []
        for each in [together] if len(together) <= _GROUP else sets:
            passes = -(-len(each) // _GROUP)
            size = -(-len(each) // passes) if passes else 1
            ordered = sorted(each, key=self._texts.__getitem__) if passes > 1 else each
            parts += [ordered[at : at + size] for at in range(0, len(each), size)]
        return [
            Group(BytesAhoCorasick([self._texts[n] for n in part], MatchKind.LeftmostFirst), part)
            for part in parts
        ]

    def find(self, data: bytes, begin: int, end: int, groups: Sequence[Group]) -> list[Hit]:
        """The needles in a part of ``data``, in the order of their ends; one of those that overlap
        within a group."""
        part = data if end - begin == len(data) else memoryview(data)[begin:end]
        hits = [
            (begin + stop, numbers[index])
            for search, numbers in groups
            for index, _, stop in search.find_matches_as_indexes(part)
        ]
        if len(groups) > 1:
            hits.sort()
        return hits

    def among(self, data: bytes, hits: Sequence[Hit], line: bytes) -> frozenset[int]:
        """The needles of a line in which ``hits`` were found, with those that overlap the hits."""
        if len(hits) == 1:  # as in most lines
            end, number = hits[0]
            if not data.startswith(self._hidden[number], end):
                return self._single[number]
            return self.of(line)
        for end, number in hits:
            if data.startswith(self._hidden[number], end):
                return self.of(line)
        return frozenset([number for _, number in hits])

    def all_in(self, text: str, numbers: Iterable[int]) -> bool:
        """Whether each of these needles is in ``text``."""
        return all([self._strings[number] in text for number in numbers])

    def found_in(self, line: bytes, groups: Sequence[Group]) -> frozenset[int]:
        """The needles of a line by which it is found."""
        hits = self.find(line, 0, len(line), groups)
        return self.among(line, hits, line) if hits else frozenset()

    def are_certain(self, line: bytes) -> bool:
        """Whether every line has the same needles that differs from this one in digits only."""
        return not self._masked.find_matches_as_indexes(line.translate(MASK))

    def of(self, line: bytes) -> frozenset[int]:
        """Every needle in a line."""
        found = self._exact.find_matches_as_indexes(line, overlapping=True)
        if len(found) == 1:
            return self._single[found[0][0]]
        return frozenset([number for number, _, _ in found])

    def _overlapping(self, text: bytes) -> tuple[bytes, ...]:
        """The rest of each needle that begins within ``text``; b"" for one that also ends there."""
        rests = {
            other[len(text) - at :]
            for at in range(len(text))
            for other in self._beginning[text[at]]
            if other != text and (other.startswith(text[at:]) or text.startswith(other, at))
        }
        return tuple(rests)
