"""How far the pass over one file has come, what was found in it so far, and where its lines end.

Of the last line of a file, which has no newline, it is looked whether it was written to its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dlperf_hpc.logs.format import ReadingBuilder
from dlperf_hpc.logs.scan.launchers import LAUNCH, LinePrefixes
from dlperf_hpc.logs.scan.literals import Search
from dlperf_hpc.logs.scanned import Fact, Note, Reading, ScannedFile, Trouble
from dlperf_hpc.records.failures import INTERRUPTED
from dlperf_hpc.records.nccl import Connections

LONGEST_LINE = 1 << 16
_MOST_NOTES = 100
_NO_DIGITS = bytes(code for code in range(256) if not 48 <= code <= 57)
_LAST_NUMBER = re.compile(rb"(?<![0-9.eE+-])[0-9]{1,15}\.([0-9]{2,4})\Z")
_TOO_LONG = f"longer than {LONGEST_LINE} bytes: not read"


@dataclass
class State:
    """How far the pass over one file has come.

    ``lines`` and ``seen`` (bytes) are counted so far. ``cut`` is the line that the file's end cuts,
    ``lost`` if it held a literal, and ``rest`` what follows the last line end. ``endless`` are the
    numbers of lines too long to be read, and ``last`` has for each set of literals the last line
    that held them, ``before`` the one before it. Lines that hold a set of literals in ``settled``
    can be read many at once: no builder begins with them. ``search`` seeks the literals, those of
    formats ``known`` from the beginning on.
    """

    launcher: LinePrefixes
    search: Search
    known: frozenset[str] = frozenset()
    lines: int = 0
    seen: int = 0
    cut: int = 0
    lost: bool = False
    rest: bytes = b""
    endless: list[int] = field(default_factory=list)
    last: dict[frozenset[int], bytes] = field(default_factory=dict)
    before: dict[frozenset[int], bytes] = field(default_factory=dict)
    builders: dict[str, ReadingBuilder] = field(default_factory=dict)
    settled: set[frozenset[int]] = field(default_factory=set)
    troubles: list[Trouble] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    connections: Connections = field(default_factory=Connections)

    @property
    def has_steps(self) -> bool:
        """Whether a step was read."""
        return any([builder.steps for builder in self.builders.values()])

    def keep(self, literals: frozenset[int], line: bytes) -> None:
        """Remember a line as the last that held these literals."""
        if literals in self.last:
            self.before[literals] = self.last[literals]
        self.last[literals] = line

    def is_whole(self, line: bytes, literals: frozenset[int]) -> bool:
        """Whether a line without an end was written to it, by those before it that are alike."""
        earlier, before = self.last.get(literals, b""), self.before.get(literals, b"")
        return len(line) <= LONGEST_LINE and _is_whole(line, earlier, before, bool(literals))

    def note(self, line: int, text: str) -> None:
        """Keep why a line was not read, unless that is known of many."""
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(Note(line, text))

    def keep_trouble(self, found: Trouble) -> None:
        """Keep what broke; of a program that was interrupted not the traceback that comes of it."""
        before = [each for each in self.troubles if each.cause != INTERRUPTED][-1:]
        if found.cause == INTERRUPTED and before and "Traceback (" in before[0].text:
            self.troubles.remove(before[0])
        self.troubles.append(found)

    def note_too_long(self, line: int) -> None:
        """Keep that a line is too long to be read."""
        self.note(line, _TOO_LONG)

    def scanned(self, path: str, size: int) -> ScannedFile:
        """What was found in a file that was read to its end."""
        self._note_last_lines()
        readings: list[Reading] = []
        stated: set[Fact] = set()
        notes = self.notes
        # Formats that share a literal are shown the same lines: only those with a figure count, and
        # notes of the rest would be noise.
        for builder in self.builders.values():
            reading = builder.reading()
            if reading is not None:
                readings.append(reading)
                stated.update(builder.facts)
                notes = notes + builder.notes
        if readings and LAUNCH.name in self.builders:
            stated.update(self.builders[LAUNCH.name].facts)
        return ScannedFile(
            path=path,
            size=size,
            end_line=max(self.lines, self.cut),
            cut=bool(self.cut),
            readings=tuple(
                sorted(readings, key=lambda r: (-len(r.steps), -len(r.totals), r.format))
            ),
            facts=tuple(sorted(stated, key=lambda fact: (fact.line, fact.name, str(fact.value)))),
            troubles=tuple(self.troubles),
            notes=tuple(sorted(notes)),
            launcher=self.launcher.name,
            nccl=self.connections.facts(),
            nearest="" if readings else _nearest(self.builders.values()),
        )

    def _note_last_lines(self) -> None:
        """Keep what can be said of lines only at the end."""
        noted = {note.line for note in self.notes}
        for number in self.endless:
            if number not in noted:
                self.note_too_long(number)
        if self.lost:
            self.note(self.cut, "the file ends inside this line: not read")


def whole_lines(blocks: Iterable[bytes], state: State) -> Iterator[tuple[bytes, int, int]]:
    """The bytes of ``blocks`` in parts that end with a line: a block, and where in it the part
    begins and ends. Of a line without an end in 1 MiB only the beginning is given, which is too
    long to be read, so that no number is read across a cut."""
    rest, skipping = b"", False
    for block in blocks:
        begin = 0
        if skipping:
            begin = end_of_line(block, 0, len(block))
            skipping = begin == len(block)
            if skipping:
                continue
        cut = block.rfind(b"\n", begin) + 1
        cut = block.rfind(b"\r", cut or begin) + 1 or cut
        if not cut:
            rest += block[begin:]
        else:
            if rest:
                first = end_of_line(block, begin, cut) + 1
                yield rest + block[begin:first], 0, len(rest) + first - begin
                begin = first
            if begin < cut:
                yield block, begin, cut
            rest = block[cut:]
        if len(rest) > 16 * LONGEST_LINE:
            yield rest, 0, len(rest)
            rest, skipping = b"", True
            if len(state.endless) < _MOST_NOTES:
                state.endless.append(state.lines + 1)
    if skipping:
        state.cut = state.lines + 1
    state.rest = rest


def end_of_line(block: bytes, start: int, end: int) -> int:
    """Where the line feed or carriage return stands behind ``start``; ``end`` if there is none."""
    newline = block.find(b"\n", start, end)
    newline = end if newline < 0 else newline
    carriage_return = block.find(b"\r", start, newline)
    return newline if carriage_return < 0 else carriage_return


def behind_line(block: bytes, at: int, end: int) -> int:
    """Where the line that follows the one begins that ``at`` lies in."""
    return (block.find(b"\n", at, end) + 1 or end) if at < end else end


def _nearest(builders: Iterable[ReadingBuilder]) -> str:
    """The format of whose lines most were seen in a file without a reading, by the first of them;
    "" if there are none."""
    noted = [builder for builder in builders if builder.notes]
    if not noted:
        return ""
    builder = max(noted, key=lambda builder: len(builder.notes))
    first = builder.notes[0]
    return f"line {first.line} is nearest to {builder.format.name}: {first.text}"


# --- the last line


def _is_whole(line: bytes, earlier: bytes, before: bytes, is_known: bool) -> bool:
    """Whether a line was written to its end, by the last two lines that hold the same literals:
    ``earlier``, and ``before`` it.

    Where a number was cut cannot be seen, but the text behind the last number can be compared with
    earlier lines. A line that ends with a dictionary is whole if all that it opened is closed and
    it holds a literal (``is_known``); one that ends with a number, if it is the same figure as that
    of the two lines before it, with as many decimals.
    """
    tail = _tail(line)
    if tail:
        return tail == _tail(earlier) or (is_known and _is_closed(line))
    places = _places(line)
    return places is not None and places == _places(earlier) == _places(before)


def _tail(line: bytes) -> bytes:
    return line[len(line.rstrip(_NO_DIGITS)) :] if line else b""


def _is_closed(line: bytes) -> bool:
    """Whether a line ends with the end of a dictionary, and leaves none open."""
    opened = line.count(b"{")
    return line.rstrip().endswith(b"}") and opened == line.count(b"}") > 0


def _places(line: bytes) -> tuple[bytes, int] | None:
    """What stands before the number with which a line ends, behind the number before that, and its
    decimals; None if they are so few or so many that it may not be printed with a fixed number of
    them."""
    match = _LAST_NUMBER.search(line)
    return (_tail(line[: match.start()]), len(match[1])) if match else None
