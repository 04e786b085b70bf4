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
from dlperf_hpc.parsers.demux import Block, first_block, pieces
from dlperf_hpc.parsers.format import Draft, Format, Line
from dlperf_hpc.parsers.prefixes import Launcher, census
from dlperf_hpc.parsers.registry import formats
from dlperf_hpc.records.foreign import Note, ScannedFile, Trouble

HEAD_BYTES = 1 << 16
SETTINGS_BYTES = 1 << 20
"""Settings are printed as a program begins: they are looked for up to here."""

LONGEST_LINE = 1 << 16
MOST_NOTES = 100
_TOO_LONG = f"longer than {LONGEST_LINE} bytes"
_GROUP = 64  # needles that the SIMD prefilter takes at most: more are sought in turns

_NO_DIGITS = bytes(code for code in range(256) if not 48 <= code <= 57)
_NONE: frozenset[int] = frozenset()
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
    (``lost``: though it held a needle), what follows the last line end, lines beyond all measure,
    for each set of needles the last line that held them, and what the formats made of all."""

    lines: int = 0
    seen: int = 0
    cut: int = 0
    lost: bool = False
    rest: bytes = b""
    endless: list[int] = field(default_factory=list)
    last: dict[frozenset[int], bytes] = field(default_factory=dict)
    drafts: dict[str, Draft] = field(default_factory=dict)


class Scanner:
    """Looks for ``formats`` in files, one after another; make it once in a process."""

    def __init__(self, known: Iterable[Format]) -> None:
        known = tuple(known)
        wanting: dict[str, list[Format]] = {needle: [] for needle in troubles.NEEDLES}
        for each in known:
            for needle in dict.fromkeys(each.needles):
                wanting.setdefault(needle, []).append(each)
        always = self._first_fact = len(wanting)
        for each in known:
            for needle in dict.fromkeys(each.facts_needles):
                takers = wanting.setdefault(needle, [])
                if each not in takers:
                    takers.append(each)
        self._needles = list(wanting)
        self._wanting = list(wanting.values())
        self._exact = BytesAhoCorasick([needle.encode() for needle in self._needles])
        self._alone = [frozenset([needle]) for needle in range(len(self._needles))]
        self._takers = functools.lru_cache(maxsize=4096)(self._concerned)
        rows = [needle for needle in wanting if not any(map(str.isalnum, needle))]
        self._rows: list[tuple[set[str], BytesAhoCorasick]] = [
            ({each.name for each in wanting[needle]}, BytesAhoCorasick([needle.encode()]))
            for needle in rows
        ]
        self._always = self._groups(n for n in self._needles[:always] if n not in rows)
        self._settings = self._groups(n for n in self._needles[always:] if n not in rows)

    def _groups(self, needles: Iterable[str]) -> list[BytesAhoCorasick]:
        encoded = [needle.encode() for needle in needles]
        return [
            BytesAhoCorasick(encoded[at : at + _GROUP], MatchKind.LeftmostFirst)
            for at in range(0, len(encoded), _GROUP)
        ]

    def scan(self, path: str, size: int, blocks: Iterable[bytes]) -> ScannedFile:
        """Read a file's ``blocks`` (any cut) to the end. Never raises for what is in them."""
        blocks = iter(blocks)
        head = first_block(blocks)
        launcher = census(head[:HEAD_BYTES])
        told: list[Trouble] = []
        notes: list[Note] = []
        state = _Pass()
        whole = itertools.chain([head], blocks)
        hits = self._tagged(whole, state) if launcher.tagged else self._plain(whole, state)
        for hit in hits:
            text, why = _decoded(hit, self._first_fact)
            if why:
                _add(notes, Note(hit.number, f"{why}: not read"))
            else:
                self._show(hit, text, launcher, state.drafts, told)
        noted = {note.line for note in notes}
        for number in state.endless:
            if number not in noted:
                _add(notes, Note(number, f"{_TOO_LONG}: not read"))
        if state.lost:
            _add(notes, Note(state.cut, "the file ends inside this line: not read"))
        return _scanned(path, size, state, launcher, told, notes)

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
        concerned = self._takers(hit.needles)
        if line.text is not text:  # a needle may have been in what was taken off
            concerned = tuple(each for each in concerned if _holds_one(each, line.text))
        for each in concerned:
            draft = drafts.get(each.name)
            if draft is None:
                draft = drafts[each.name] = Draft(each)
            each.read(line, draft)
        if not concerned and len(told) < troubles.MOST:
            found = troubles.trouble_in(line.number, line.text)
            if found is not None:
                told.append(found)

    def _concerned(self, needles: frozenset[int]) -> tuple[Format, ...]:
        """The formats that asked for lines with one of ``needles``."""
        named = (each for needle in sorted(needles) for each in self._wanting[needle])
        return tuple({each.name: each for each in named}.values())

    def _groups_for(self, state: _Pass) -> list[BytesAhoCorasick]:
        """What to look for from here on. Needles without a letter or a digit (a table's rows)
        are in many progress bars: they are looked for once their format was recognised."""
        groups = self._always + self._settings if state.seen < SETTINGS_BYTES else self._always
        return groups + [row for names, row in self._rows if not names.isdisjoint(state.drafts)]

    def _needles_in(self, line: bytes) -> frozenset[int]:
        """Every needle in a line."""
        found = self._exact.find_matches_as_indexes(line, overlapping=True)
        if len(found) == 1:  # as in most lines
            return self._alone[found[0][0]]
        return frozenset([needle for needle, _, _ in found])

    def _tagged(self, blocks: Iterable[bytes], state: _Pass) -> Iterator[_Hit]:
        """Lines put together from chunks of many ranks."""
        for chunk in pieces(blocks):
            if isinstance(chunk, Block):
                yield from self._in_tagged(chunk, state)
                continue
            state.lines = max(state.lines, chunk.number)
            found = _ends(chunk.data, self._groups_for(state))
            state.seen += len(chunk.data)
            needles = self._needles_in(chunk.data) if found else _NONE
            if chunk.whole or self._is_whole(chunk.data, needles, state):
                if found:
                    yield _Hit(chunk.number, chunk.data, needles, chunk.rank, chunk.host)
                    state.last[needles] = chunk.data
            else:
                state.cut, state.lost = chunk.number, state.lost or bool(needles)

    def _plain(self, blocks: Iterable[bytes], state: _Pass) -> Iterator[_Hit]:
        """Lines of a file that is one stream."""
        block = b"\n"
        for block in _whole_lines(blocks, state):
            yield from self._in_block(block, state)
        if not state.rest and not block.endswith(b"\n"):
            state.lines += 1  # which carriage returns end
        if state.rest:
            state.lines += 1
            needles = self._needles_in(state.rest)
            if self._is_whole(state.rest, needles, state):
                yield _Hit(state.lines, state.rest, needles)
            else:
                state.cut, state.lost = state.lines, bool(needles)

    def _in_tagged(self, block: Block, state: _Pass) -> Iterator[_Hit]:
        """Lines with needles of a block of tagged ones."""
        state.lines = block.number - 1
        for number, line in self._found_lines(block.data, state, returns=False):
            for chunk in block.chunks_of(number, line):
                needles = self._needles_in(chunk.data)
                if needles:
                    yield _Hit(number, chunk.data, needles, chunk.rank, chunk.host)
                    state.last[needles] = chunk.data

    def _in_block(self, block: bytes, state: _Pass) -> Iterator[_Hit]:
        """Lines with needles of a block of whole lines."""
        for number, line in self._found_lines(block, state):
            needles = self._needles_in(line)
            if len(line) > LONGEST_LINE:
                yield _Hit(number, None, needles)
            else:
                yield _Hit(number, line, needles)
                state.last[needles] = line

    def _found_lines(
        self, block: bytes, state: _Pass, returns: bool = True
    ) -> Iterator[tuple[int, bytes]]:
        """The lines of a block in which something was found, with the numbers of the physical
        lines; counts these. ``returns``: a carriage return ends a line too."""
        groups, known = self._groups_for(state), len(state.drafts)
        ends = iter(_ends(block, groups))
        counted = stop = 0
        while (end := next(ends, None)) is not None:
            if end <= stop:
                continue  # in the line before
            start = max(block.rfind(b"\n", stop, end) + 1, stop)
            if returns:
                start = max(block.rfind(b"\r", start, end) + 1, start)
            stop = _end_of_line(block, end, returns)
            state.lines += block.count(b"\n", counted, start)
            counted = start
            yield state.lines + 1, block[start:stop]
            if len(state.drafts) > known:
                before, known = groups, len(state.drafts)
                groups = self._groups_for(state)
                if len(groups) > len(before):
                    ends = iter([stop + end for end in _ends(block[stop:], groups)])
        state.lines += block.count(b"\n", counted)
        state.seen += len(block)

    def _is_whole(self, rest: bytes, needles: frozenset[int], state: _Pass) -> bool:
        """Whether a last line without a newline was written to its end: nobody can tell where a
        number was cut, but what stands behind the last number can be held against lines before."""
        tail, before = _tail(rest), _tail(state.last.get(needles, b""))
        return bool(tail) and tail == before and len(rest) <= LONGEST_LINE


def _decoded(hit: _Hit, first_fact: int) -> tuple[str, str]:
    """A line's text, or why it is not to be read: there is damage that may lie within a number.

    In a line of settings it may lie in anything, even in what is only counted.
    """
    data = hit.data
    if data is None:
        return "", _TOO_LONG
    if b"\0" in data:
        return "", "holds NUL bytes"
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        text = data.decode("utf-8", errors="replace")
    if min(hit.needles) >= first_fact or _BROKEN.search(text):
        return "", "holds bytes that are no text"
    return text, ""


def _ends(data: bytes, groups: list[BytesAhoCorasick]) -> list[int]:
    """Where needles end in ``data``, ascending; of those of a group that overlap, one."""
    found = [end for group in groups for _, _, end in group.find_matches_as_indexes(data)]
    if len(groups) > 1:
        found.sort()
    return found


def _holds_one(each: Format, text: str) -> bool:
    return any(needle in text for needle in (*each.needles, *each.facts_needles))


def _tail(line: bytes) -> bytes:
    """What follows the last digit."""
    return line[len(line.rstrip(_NO_DIGITS)) :] if line else b""


def _end_of_line(block: bytes, start: int, returns: bool) -> int:
    newline = block.find(b"\n", start)
    newline = len(block) if newline < 0 else newline
    if not returns:
        return newline
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
            if len(state.endless) < MOST_NOTES:
                state.endless.append(state.lines + 1)
    if skipping:
        state.cut = state.lines + 1
    state.rest = rest


def _add(notes: list[Note], note: Note) -> None:
    if len(notes) < MOST_NOTES:
        notes.append(note)


def _scanned(
    path: str,
    size: int,
    state: _Pass,
    launcher: Launcher,
    told: list[Trouble],
    notes: list[Note],
) -> ScannedFile:
    made = [(draft, draft.reading()) for draft in state.drafts.values()]
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
