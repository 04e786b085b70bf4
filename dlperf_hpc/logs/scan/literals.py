"""Many fixed strings sought at once, at about the speed of memory."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

_GROUP = 64  # strings that the SIMD prefilter takes at most: more are sought in turns
_BUCKETS = 16  # into which it puts more than 32 of them; fewer into half as many

Hit = tuple[int, int]
"""Where a literal ends, and which it is."""


class Group(NamedTuple):
    """Literals that are sought in one pass. ``numbers`` are those of the strings that the search
    finds: a literal's own or, from the number of literals on, that of a string that stands for
    several."""

    search: BytesAhoCorasick
    numbers: Sequence[int]
    literals: frozenset[int]

    def hits(self, data: bytes | memoryview) -> list[int]:
        """Which strings the search finds, one after the other."""
        return [index for index, _, _ in self.search.find_matches_as_indexes(data)]


class Literals:
    """Fixed strings, known by their numbers: the order in which they are given.

    ``shared`` are strings that several literals have in common, and hardly any line that holds none
    of these. One is sought in place of all literals that it is in: they are looked for, each by
    itself, in the lines where it is found. (A literal that is a part of another must not hide such
    a string in it: none does.)
    """

    def __init__(self, texts: Iterable[str], shared: Iterable[str] = ()) -> None:
        self._strings = list(texts)
        self._texts = [text.encode() for text in self._strings]
        self._shared = [text.encode() for text in shared]
        self._sharing = {
            part: frozenset(n for n, text in enumerate(self._texts) if part in text)
            for part in self._shared
        }
        self._exact = BytesAhoCorasick(self._texts)
        self._single = [frozenset([number]) for number in range(len(self._texts))]
        self._beginning = defaultdict[int, list[bytes]](list)
        for text in self._texts:
            self._beginning[text[0]].append(text)
        self._hidden = list(map(self._overlapping, self._texts))
        self._group = functools.lru_cache(maxsize=256)(self._made)

    def groups(self, *sets: Sequence[int]) -> list[Group]:
        """Groups of literals to look for together. The sets are kept apart if one pass cannot take
        all literals: what all files are searched for is then one group for all of them."""
        parts: list[Sequence[int]] = []
        together = [number for each in sets for number in each]
        for each in [together] if len(self._sought(together)) <= _GROUP else sets:
            passes = -(-len(self._sought(each)) // _GROUP)
            ordered = sorted(each, key=self._texts.__getitem__) if passes > 1 else each
            for left in range(passes, 0, -1):
                size = -(-len(ordered) // left)
                while left > 1 and len(self._sought(ordered[:size])) > _GROUP:
                    size -= 1
                parts.append(ordered[:size])
                ordered = ordered[size:]
        return [self._group(tuple(part)) for part in parts]

    def _sought(self, literals: Sequence[int]) -> list[tuple[bytes, int]]:
        found, left = [], dict.fromkeys(literals)
        for number, text in enumerate(self._shared, len(self._texts)):
            those = self._sharing[text] & left.keys()
            if len(those) > 1:
                found.append((text, number))
                for literal in those:
                    del left[literal]
        return [*found, *((self._texts[literal], literal) for literal in left)]

    def _made(self, literals: tuple[int, ...]) -> Group:
        sought = _in_buckets(self._sought(literals))
        search = BytesAhoCorasick([text for text, _ in sought], MatchKind.LeftmostFirst)
        return Group(search, [number for _, number in sought], frozenset(literals))

    def find(self, data: bytes, begin: int, end: int, groups: Sequence[Group]) -> list[Hit]:
        """The literals in a part of ``data`` that is whole lines, in the order of their ends; one
        of those that overlap within a group."""
        part = data if end - begin == len(data) else memoryview(data)[begin:end]
        hits = [
            (begin + stop, numbers[index])
            for search, numbers, _ in groups
            for index, _, stop in search.find_matches_as_indexes(part)
        ]
        if len(groups) > 1:
            hits.sort()
        count = len(self._texts)
        places = [stop for stop, number in hits if number >= count]
        return self._looked_up(data, begin, end, groups, hits, places) if places else hits

    def _looked_up(
        self,
        data: bytes,
        begin: int,
        end: int,
        groups: Sequence[Group],
        hits: list[Hit],
        places: Sequence[int],
    ) -> list[Hit]:
        """The hits, but of each line with one of ``places``, at which a string ends that stands for
        several literals, all literals of the groups that are in it, whether they overlap or not."""
        literals = frozenset[int]().union(*(group.literals for group in groups))
        found: list[Hit] = []
        at, done = 0, begin  # hits before ``at``, in lines before ``done``, are dealt with
        for place in places:
            if place <= done:
                continue
            start = max(begin, data.rfind(b"\n", begin, place) + 1)
            stop = data.find(b"\n", place, end)
            done = end if stop < 0 else stop
            first = bisect_left(hits, (start + 1, 0))
            found += hits[at:first]
            at = bisect_left(hits, (done + 1, 0))
            exact = self._exact.find_matches_as_indexes(data[start:done], overlapping=True)
            found += sorted((start + last, each) for each, _, last in exact if each in literals)
        return [*found, *hits[at:]]

    def among(self, data: bytes, hits: Sequence[Hit], line: bytes) -> frozenset[int]:
        """The literals of a line in which ``hits`` were found, with those that overlap the hits."""
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
        """Whether each of these literals is in ``text``."""
        return all([self._strings[number] in text for number in numbers])

    def found_in(self, line: bytes, groups: Sequence[Group]) -> frozenset[int]:
        """The literals of a line by which it is found."""
        hits = self.find(line, 0, len(line), groups)
        return self.among(line, hits, line) if hits else frozenset()

    def of(self, line: bytes) -> frozenset[int]:
        """Every literal in a line."""
        found = self._exact.find_matches_as_indexes(line, overlapping=True)
        if len(found) == 1:
            return self._single[found[0][0]]
        return frozenset([number for number, _, _ in found])

    def _overlapping(self, text: bytes) -> tuple[bytes, ...]:
        """The rest of each literal that begins within ``text``; b"" for one that ends there."""
        rests = {
            other[len(text) - at :]
            for at in range(len(text))
            for other in self._beginning[text[at]]
            if other != text and (other.startswith(text[at:]) or text.startswith(other, at))
        }
        return tuple(rests)


def _in_buckets(sought: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Strings in an order that lets the prefilter (Teddy, of the crate aho-corasick) skip more: it
    puts each into the bucket of its place in turn, and looks closer wherever the beginnings of all
    strings of a bucket, mixed with each other, would fit. Alike ones belong into the same."""
    buckets = _BUCKETS if len(sought) > _GROUP // 2 else _BUCKETS // 2
    alike = sorted(sought, key=lambda each: ([code >> 4 for code in each[0][:4]], each))
    larger = len(alike) % buckets
    rows, at, cut = [], 0, len(alike) // buckets
    for bucket in range(buckets):
        count = cut + (bucket < larger)
        rows.append(alike[at : at + count])
        at += count
    return [row[place] for place in range(cut + 1) for row in rows if place < len(row)]
