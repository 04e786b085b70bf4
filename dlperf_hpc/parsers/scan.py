"""The shared scanner: one pass over a file's bytes, looking for every format at once.

A log is mostly noise. The fixed strings of all formats (their needles) are sought together by an
Aho-Corasick automaton with a SIMD prefilter, at about the speed of reading; only a line that holds
one is decoded, stripped of its launcher's prefix and shown to the formats that asked for it. What
a line costs is thus independent of the number of formats, and memory of the file's size.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from dlperf_hpc.parsers import troubles
from dlperf_hpc.parsers.demux import demultiplex, first_block
from dlperf_hpc.parsers.format import Draft, Format, Line
from dlperf_hpc.parsers.prefixes import Launcher, census
from dlperf_hpc.parsers.registry import formats
from dlperf_hpc.records.foreign import Note, ScannedFile, Trouble

HEAD_BYTES = 1 << 16
SETTINGS_BYTES = 1 << 20
"""Settings are printed as a program begins: they are looked for up to here."""

LONGEST_LINE = 1 << 16
_GROUP = 64  # needles that the SIMD prefilter takes at most: more are sought in turns

_NO_DIGITS = bytes(code for code in range(256) if not 48 <= code <= 57)
_BROKEN = re.compile("[0-9.]\ufffd|\ufffd[0-9.]")


class _Hit(NamedTuple):
    """A whole line with needles in it, as found; ``data`` is None if it is too long to be one."""

    number: int
    data: bytes | None
    needles: frozenset[int]
    rank: int | None = None
    host: str | None = None


@dataclass
class _Pass:
    """How far a pass has come: lines and bytes (``seen``) so far, the line that the file's end cut
    (``lost``: though it held a needle), what follows the last line end, and for each set of
    needles the last line that held them."""

    lines: int = 0
    seen: int = 0
    cut: int = 0
    lost: bool = False
    rest: bytes = b""
    last: dict[frozenset[int], bytes] = field(default_factory=dict)


class Scanner:
    """Looks for ``formats`` in files, one after another; make it once in a process."""

    def __init__(self, known: Iterable[Format]) -> None:
        known = tuple(known)
        wanting: dict[str, list[Format]] = {needle: [] for needle in troubles.NEEDLES}
        for each in known:
            for needle in dict.fromkeys(each.needles):
                wanting.setdefault(needle, []).append(each)
        always = len(wanting)
        for each in known:
            for needle in dict.fromkeys(each.facts_needles):
                takers = wanting.setdefault(needle, [])
                if each not in takers:
                    takers.append(each)
        self._needles = list(wanting)
        self._wanting = list(wanting.values())
        self._touching = [
            [other for other, it in enumerate(self._needles) if it == needle or _touch(needle, it)]
            for needle in self._needles
        ]
        self._always = self._groups(0, always)
        self._settings = self._groups(always, len(self._needles))

    def _groups(self, first: int, end: int) -> list[tuple[int, BytesAhoCorasick]]:
        encoded = [needle.encode() for needle in self._needles]
        return [
            (at, BytesAhoCorasick(encoded[at : min(at + _GROUP, end)], MatchKind.LeftmostFirst))
            for at in range(first, end, _GROUP)
        ]

    def scan(self, path: str, size: int, blocks: Iterable[bytes]) -> ScannedFile:
        """Read a file's ``blocks`` (any cut) to the end. Never raises for what is in them."""
        blocks = iter(blocks)
        head = first_block(blocks)
        launcher = census(head[:HEAD_BYTES])
        drafts: dict[str, Draft] = {}
        told: list[Trouble] = []
        notes: list[Note] = []
        state = _Pass()
        whole = itertools.chain([head], blocks)
        hits = self._tagged(whole, state) if launcher.tagged else self._plain(whole, state)
        for hit in hits:
            text, why = _decoded(hit.data)
            if why:
                _add(notes, Note(hit.number, f"{why}: not read"))
            else:
                self._show(hit, text, launcher, drafts, told)
        if state.lost:
            _add(notes, Note(state.cut, "the file ends inside this line: not read"))
        return _scanned(path, size, state, launcher, drafts, told, notes)

    def _show(
        self,
        hit: _Hit,
        text: str,
        launcher: Launcher,
        drafts: dict[str, Draft],
        told: list[Trouble],
    ) -> None:
        """Give a line to the formats that have a needle in it."""
        prefixed = launcher.strip(text)
        rank = prefixed.rank if hit.rank is None else hit.rank
        line = Line(hit.number, prefixed.text, rank, hit.host or prefixed.host)
        concerned = self._concerned(hit.needles, line.text)
        for each in concerned:
            each.read(line, drafts.setdefault(each.name, Draft(each)))
        if not concerned and len(told) < troubles.MOST:
            found = troubles.trouble_in(line.number, line.text)
            if found is not None:
                told.append(found)

    def _concerned(self, needles: frozenset[int], text: str) -> list[Format]:
        """The formats to show a line to. The automaton tells of needles that do not overlap: one
        that another hides is looked for by name."""
        touched = {other for needle in needles for other in self._touching[needle]}
        named = (
            each
            for needle in sorted(touched)
            if self._wanting[needle] and self._needles[needle] in text
            for each in self._wanting[needle]
        )
        return list({each.name: each for each in named}.values())

    def _found(self, data: bytes, head: bool) -> list[tuple[int, int]]:
        """(where it ends, which needle) for every needle in ``data``, ascending."""
        groups = self._always + self._settings if head else self._always
        found = [
            (end, first + needle)
            for first, group in groups
            for needle, _, end in group.find_matches_as_indexes(data)
        ]
        if len(groups) > 1:
            found.sort()
        return found

    def _tagged(self, blocks: Iterable[bytes], state: _Pass) -> Iterator[_Hit]:
        """Lines put together from chunks of many ranks."""
        for chunk in demultiplex(blocks):
            state.lines = max(state.lines, chunk.number)
            state.seen += len(chunk.data)
            found = self._found(chunk.data, state.seen <= SETTINGS_BYTES)
            needles = frozenset(needle for _, needle in found)
            if chunk.whole or self._is_whole(chunk.data, needles, state):
                if found:
                    yield _Hit(chunk.number, chunk.data, needles, chunk.rank, chunk.host)
                    state.last[needles] = chunk.data
            else:
                state.cut, state.lost = chunk.number, state.lost or bool(needles)

    def _plain(self, blocks: Iterable[bytes], state: _Pass) -> Iterator[_Hit]:
        """Lines of a file that is one stream."""
        for block in _whole_lines(blocks, state):
            yield from self._in_block(block, state)
        if state.rest:
            state.lines += 1
            needles = frozenset(needle for _, needle in self._found(state.rest, head=True))
            if self._is_whole(state.rest, needles, state):
                yield _Hit(state.lines, state.rest, needles)
            else:
                state.cut, state.lost = state.lines, bool(needles)

    def _in_block(self, block: bytes, state: _Pass) -> Iterator[_Hit]:
        """Lines with needles of a block of whole lines; counts them."""
        found = self._found(block, state.seen < SETTINGS_BYTES)
        state.seen += len(block)
        counted = stop = position = 0
        while position < len(found):
            end = found[position][0]
            newline = max(block.rfind(b"\n", stop, end), stop - 1)
            start = max(newline, block.rfind(b"\r", newline + 1, end)) + 1
            stop = _end_of_line(block, end)
            first = position
            while position < len(found) and found[position][0] <= stop:
                position += 1
            state.lines += block.count(b"\n", counted, start)
            counted = start
            data = block[start:stop] if stop - start <= LONGEST_LINE else None
            needles = frozenset(needle for _, needle in found[first:position])
            yield _Hit(state.lines + 1, data, needles)
            if data:
                state.last[needles] = data
        state.lines += block.count(b"\n", counted)

    def _is_whole(self, rest: bytes, needles: frozenset[int], state: _Pass) -> bool:
        """Whether a last line without a newline was written to its end: nobody can tell where a
        number was cut, but what stands behind the last number can be held against lines before."""
        tail, before = _tail(rest), _tail(state.last.get(needles, b""))
        return bool(tail) and tail == before and len(rest) <= LONGEST_LINE


def _decoded(data: bytes | None) -> tuple[str, str]:
    """A line's text, or why it is not to be read: damage that may lie within a number."""
    if data is None:
        return "", f"longer than {LONGEST_LINE} bytes"
    if b"\0" in data:
        return "", "holds NUL bytes"
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        text = data.decode("utf-8", errors="replace")
    return ("", "a number is cut by bytes that are no text") if _BROKEN.search(text) else (text, "")


def _touch(needle: str, other: str) -> bool:
    """Whether the two can share bytes of a line, so that one may hide the other."""
    if needle in other or other in needle:
        return True
    sizes = range(1, min(len(needle), len(other)))
    return any(needle[-n:] == other[:n] or other[-n:] == needle[:n] for n in sizes)


def _tail(line: bytes) -> bytes:
    """What follows the last digit."""
    return line[len(line.rstrip(_NO_DIGITS)) :] if line else b""


def _end_of_line(block: bytes, start: int) -> int:
    newline = block.find(b"\n", start)
    newline = len(block) if newline < 0 else newline
    carriage_return = block.find(b"\r", start, newline)
    return newline if carriage_return < 0 else carriage_return


def _whole_lines(blocks: Iterable[bytes], state: _Pass) -> Iterator[bytes]:
    """The same bytes, cut at line ends. Of a line beyond all measure (no terminator in 1 MiB)
    only the beginning is given, too long to be read, so that no number is read across a cut."""
    rest, skipping = b"", False
    for block in blocks:
        if skipping:
            ends = [at for at in (block.find(b"\n"), block.find(b"\r")) if at >= 0]
            if not ends:
                continue
            block, skipping = block[min(ends) :], False
        cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if cut:
            yield rest + block[:cut] if rest else block[:cut]
            rest = block[cut:]
        else:
            rest += block
        if len(rest) > 16 * LONGEST_LINE:
            yield rest
            rest, skipping = b"", True
    if skipping:
        state.cut = state.lines + 1
    state.rest = rest


def _add(notes: list[Note], note: Note) -> None:
    if len(notes) < 100:
        notes.append(note)


def _scanned(
    path: str,
    size: int,
    state: _Pass,
    launcher: Launcher,
    drafts: dict[str, Draft],
    told: list[Trouble],
    notes: list[Note],
) -> ScannedFile:
    made = [(draft, draft.reading()) for draft in drafts.values()]
    readings = [reading for _, reading in made if reading is not None]
    # Of formats that share a needle each is told; only a format that read something is believed.
    told_facts = {fact for draft, reading in made if reading is not None for fact in draft.facts}
    facts = sorted(told_facts, key=lambda fact: (fact.line, fact.name, str(fact.value)))
    # A format that read nothing only shares words with this file: its notes would be noise.
    remarks = [note for draft, reading in made if reading is not None for note in draft.notes]
    return ScannedFile(
        path=path,
        size=size,
        end_line=max(state.lines, state.cut),
        cut=bool(state.cut),
        readings=tuple(sorted(readings, key=lambda r: (-len(r.steps), -len(r.totals), r.format))),
        facts=tuple(facts),
        troubles=tuple(told),
        notes=tuple(sorted([*notes, *remarks])),
        launcher=launcher.name,
    )


@functools.lru_cache(maxsize=1)
def scanner() -> Scanner:
    """The process's scanner of every format there is."""
    return Scanner(formats())
