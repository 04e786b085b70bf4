"""The scanner: one pass over a file's bytes, looking for every format and for signs of trouble.

A log is mostly noise. The fixed strings of all formats (their literals) are sought together by an
Aho-Corasick automaton with a SIMD prefilter, at about the speed of reading; only a line that holds
one is decoded, stripped of its launcher's prefix and shown to the formats that asked for it. The
cost of a line is thus independent of the number of formats, and memory of the file's size.
"""

from __future__ import annotations

import functools
import itertools
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dlperf_hpc.logs.format import Columns, Format, Found, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.scan.demux import Block, first_block, pieces
from dlperf_hpc.logs.scan.launchers import LAUNCH, LinePrefixes, detect_launcher
from dlperf_hpc.logs.scan.literals import Literals, Search
from dlperf_hpc.logs.scan.state import LONGEST_LINE, State, behind_line, end_of_line, whole_lines
from dlperf_hpc.logs.scanned import ScannedFile, Trouble
from dlperf_hpc.records.failures import Where, found_in, patterns

SETTINGS_BYTES = 1 << 18
LATE_SETTINGS_BYTES = 1 << 20
"""Programs print their settings as they begin: those of any format are looked for in a file's first
``SETTINGS_BYTES`` (``LATE_SETTINGS_BYTES`` while there is no step), behind them only those of the
formats that were recognised. NCCL's lines are looked for while there is no step."""

LONGEST_RUN = 256
FEWEST_IN_RUN = 2
_FIRST_BYTES = 1 << 13  # after which it is looked whether a step was read
MOST_TROUBLES = 50  # of one file: every rank of many may print its own traceback
_LONGEST_TROUBLE = 160  # characters

_NONE: frozenset[int] = frozenset()
_BROKEN = re.compile("[0-9.]\ufffd|\ufffd[0-9.]")

SHARED = (
    *("_per_sec", "hroughput", "train_step_timing in s", "total_ips", "/sec", "(train) "),
    *(": error: ", " tok/s", " Step: ", "Loss: ", "ps: ", "data_time", "time: ", " eta: "),
    *("atency", "tgs"),
    *("batch_size", "atch size", "accum", "dtype", "seq_len", "Num ", "Number of ", "num_nodes"),
    *("num_gpus", "world_size=", "GPU_mem ", "Total ", "Tokens", "batchsize: ", "BS: "),
    *("alidati", "aving ", "train/C", "trainer.n", "_nodes ", "_enabled ..", "ccumulation steps"),
)
"""What literals of several formats have in common, and few other lines hold: with the first of
these, one pass takes the literals of every format's figures, with the last, two those of settings.
"""


@dataclass
class _Stretch:
    """Lines in a row, and their numbers, that hold the same literals."""

    literals: frozenset[int]
    numbers: list[int] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)


class _Text(NamedTuple):
    """Lines without prefixes, joined by line ends, and their ranks, if any line names one."""

    joined: str
    ranks: Sequence[int | None] | None


class Scanner:
    """Looks for known formats in files, one after another; make it once in a process."""

    def __init__(self, known: Iterable[Format]) -> None:
        known = (*known, LAUNCH)
        wanting: dict[str, dict[str, Format]] = {
            text: {} for row in patterns(Where.LOG) for text in row.literals
        }
        for each in known:
            for literal in each.literals:
                wanting.setdefault(literal, {})[each.name] = each
        self._first_fact = len(wanting)
        for each in known:
            for literal in each.facts_literals:
                wanting.setdefault(literal, {})[each.name] = each
        self._literals = Literals(wanting, SHARED)
        self._wanting = list(wanting.values())
        self._takers = functools.lru_cache(maxsize=4096)(self._concerned)
        self._rows = {n for n, text in enumerate(wanting) if not any(map(str.isalnum, text))}
        self.with_rows = frozenset(name for n in self._rows for name in self._wanting[n])
        self._search = functools.lru_cache(maxsize=256)(self._sought)

    def scan(
        self, path: str, size: int, blocks: Iterable[bytes], known: frozenset[str] = frozenset()
    ) -> ScannedFile:
        """Read a file's ``blocks`` (any cut) to the end. Never raises for what is in them. The rows
        of formats ``known`` are sought from the beginning on."""
        blocks = iter(blocks)
        head = first_block(blocks)
        state = State(detect_launcher(head), self._search(True, known), known)
        read = self._tagged if state.launcher.tagged else self._plain
        read(itertools.chain([head], blocks), state)
        return state.scanned(path, size)

    def _show(
        self,
        state: State,
        number: int,
        data: bytes,
        literals: frozenset[int],
        rank: int | None = None,
        host: str | None = None,
    ) -> None:
        """Give a whole line, as it was found, to the formats that have a literal in it."""
        text = self._decoded(state, number, data, literals)
        if text is None:
            return
        stripped = state.launcher.strip(text)
        concerned = self._takers(literals)
        if len(stripped.text) < len(text) and not self._literals.all_in(stripped.text, literals):
            # What was taken off held a literal, or was put into the midst of one.
            concerned = tuple(each for each in concerned if _holds_one(each, stripped.text))
        rank = stripped.rank if rank is None else rank
        line = Line(number, stripped.text, rank, host or stripped.host)
        builders = state.builders
        for each in concerned:
            builder = builders.get(each.name)
            if builder is None:
                builder = builders[each.name] = ReadingBuilder(each)
            each.read(line, builder)
        if not concerned and len(state.troubles) < MOST_TROUBLES:
            row = found_in(line.text, Where.LOG)
            if row is not None:
                text = line.text.strip()[:_LONGEST_TROUBLE]
                state.keep_trouble(Trouble(number, row.status.value, text, row.cause))

    def _decoded(
        self, state: State, number: int, data: bytes, literals: frozenset[int]
    ) -> str | None:
        """A line as text; None, and a note, if damage may lie within a number."""
        if b"\0" in data:
            state.note(number, "holds NUL bytes: not read")
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("utf-8", errors="replace")
            # In a line of settings damage may lie in anything, even in what is only counted.
            if min(literals) < self._first_fact and not _BROKEN.search(text):
                return text
            state.note(number, "holds bytes that are no text: not read")
            return None

    def _show_first(self, state: State, number: int, data: bytes, literals: frozenset[int]) -> None:
        """Show a line that may begin a builder. If it has, later lines with the same literals are
        collected and read many at once, where a format has patterns for them."""
        self._show(state, number, data, literals)
        state.keep(literals, data)
        takers = self._takers(literals)
        if any(each.at_once for each in takers) and all(e.name in state.builders for e in takers):
            state.settled.add(literals)

    def _show_run(self, state: State, run: _Stretch) -> None:
        """Show lines in a row: by the formats' patterns, if nothing is unusual in them."""
        if not run.lines:
            return
        for data in run.lines[-2:]:
            state.keep(run.literals, data)
        text = self._joined(state.launcher, run)
        if text is None:
            for number, data in zip(run.numbers, run.lines):
                self._show(state, number, data, run.literals)
            return
        self._show_text(state, run, text)

    def _show_text(self, state: State, run: _Stretch, text: _Text) -> None:
        """Show lines that hold the same literals to each format: taken apart by one of its
        patterns, if nothing is unusual in the lines, or else one by one."""
        known: dict[tuple[str, str], Found] = {}
        numbers, tags = run.numbers, None
        if text.ranks is not None:
            tags = array("q", [-1 if rank is None else rank for rank in text.ranks])
        for each in self._takers(run.literals):
            fit = _fitting(each, text.joined, len(numbers), known)
            builder = state.builders[each.name]
            if fit is None or not fit[0].read_all(fit[1], array("q", numbers), tags, builder):
                ranks = text.ranks or itertools.repeat(None)
                for line in map(Line, numbers, text.joined.split("\n"), ranks):
                    each.read(line, builder)

    def _joined(self, launcher: LinePrefixes, run: _Stretch) -> _Text | None:
        """A run's lines without prefixes; None if the lines are few, or if one of them has to be
        looked at by itself."""
        joined = b"\n".join(run.lines)
        if len(run.lines) < FEWEST_IN_RUN or not joined.isascii() or b"\0" in joined:
            return None
        text = joined.decode()
        if launcher.leaves(text):
            return _Text(text, None)
        stripped = list(map(launcher.strip, text.split("\n")))
        if not all([self._literals.all_in(each.text, run.literals) for each in stripped]):
            return None
        ranks = [each.rank for each in stripped]
        named = ranks if ranks.count(None) < len(ranks) else None
        return _Text("\n".join([each.text for each in stripped]), named)

    def _concerned(self, literals: frozenset[int]) -> tuple[Format, ...]:
        named: dict[str, Format] = {}
        for literal in sorted(literals):
            named.update(self._wanting[literal])
        return tuple(named.values())

    def _search_for(self, state: State) -> Search:
        early = state.seen < (SETTINGS_BYTES if state.has_steps else LATE_SETTINGS_BYTES)
        return self._search(early, state.known.union(state.builders) - {LAUNCH.name})

    def _sought(self, early: bool, known: frozenset[str]) -> Search:
        """Seeks the literals of failures and figures, those of settings too if it is ``early`` in
        the file, and every one of the formats in ``known``.

        Literals without a letter or a digit (a table's rows) are in many progress bars: they are
        looked for once their format was recognised.
        """
        sought = []
        for literal, takers in enumerate(self._wanting):
            wanted = literal not in self._rows and (early or literal < self._first_fact)
            if wanted or not known.isdisjoint(takers):
                sought.append(literal)
        return self._literals.search(sought)

    def _tagged(self, blocks: Iterable[bytes], state: State) -> None:
        for chunk in pieces(blocks):
            if isinstance(chunk, Block):
                self._in_tagged(chunk, state)
                continue
            state.lines = max(state.lines, chunk.number)
            literals = self._search_for(state).of(chunk.data)
            state.seen += len(chunk.data)
            if not (chunk.whole or state.is_whole(chunk.data, literals)):
                state.cut, state.lost = chunk.number, state.lost or bool(literals)
            elif literals:
                self._show(state, chunk.number, chunk.data, literals, chunk.rank, chunk.host)
                state.keep(literals, chunk.data)

    def _plain(self, blocks: Iterable[bytes], state: State) -> None:
        block, end = b"\n", 1
        for block, begin, end in whole_lines(blocks, state):
            self._in_block(block, begin, end, state)
        if state.rest or block[end - 1 : end] != b"\n":  # or carriage returns end the last line
            state.lines += 1
        if state.rest:
            literals = self._search_for(state).of(state.rest)
            if not state.is_whole(state.rest, literals):
                state.cut, state.lost = state.lines, bool(literals)
            elif literals:
                self._show(state, state.lines, state.rest, literals)

    def _in_tagged(self, block: Block, state: State) -> None:
        state.lines = block.number - 1
        data = block.data
        state.search = self._search_for(state)
        for number, line, _ in self._found_lines(data, 0, len(data), state, returns=False):
            for chunk in block.chunks_of(number, line):
                literals = state.search.of(chunk.data)
                if literals:
                    self._show(state, number, chunk.data, literals, chunk.rank, chunk.host)
                    state.keep(literals, chunk.data)
        state.seen += len(data)

    def _in_block(self, block: bytes, begin: int, end: int, state: State) -> None:
        state.search = self._search_for(state)
        at = begin
        while at < end:
            stop = behind_line(block, at + max(_FIRST_BYTES, 3 * (state.seen + at - begin)), end)
            # Ranks meet before they train.
            if not state.has_steps and state.seen + stop - begin <= LATE_SETTINGS_BYTES:
                state.connections.read(block[at:stop].decode(errors="replace"))
            self._show_found(block, at, stop, state)
            at = stop
        state.seen += end - begin

    def _show_found(self, block: bytes, begin: int, end: int, state: State) -> None:
        returns = block.find(b"\r", begin, end) >= 0
        run = _Stretch(_NONE)
        for number, line, literals in self._found_lines(block, begin, end, state, returns):
            if literals != run.literals or len(run.lines) == LONGEST_RUN:
                self._show_run(state, run)
                run = _Stretch(literals)
            if len(line) > LONGEST_LINE:
                state.note_too_long(number)
            elif literals in state.settled:
                run.numbers.append(number)
                run.lines.append(line)
            else:
                self._show_first(state, number, line, literals)
        self._show_run(state, run)

    def _found_lines(
        self, block: bytes, begin: int, end: int, state: State, returns: bool
    ) -> Iterator[tuple[int, bytes, frozenset[int]]]:
        """The lines in which something was found, with the numbers of the physical lines and
        their literals; counts these. ``returns``: a carriage return ends a line too."""
        search, known = state.search, len(state.builders)
        find, rfind, count = block.find, block.rfind, block.count
        hits, at, counted, stop = search.find(block, begin, end), 0, begin, begin
        while at < len(hits):
            place = hits[at]
            start = rfind(b"\n", stop, place) + 1 or stop
            if returns:
                start = rfind(b"\r", start, place) + 1 or start
                stop = end_of_line(block, place, end)
            else:
                stop = find(b"\n", place, end)
                stop = end if stop < 0 else stop
            at += 1
            while at < len(hits) and hits[at] <= stop:
                at += 1
            line = block[start:stop]
            literals = search.of(line)
            if not literals:
                continue
            state.lines += count(b"\n", counted, start)
            counted = start
            yield state.lines + 1, line, literals
            if len(state.builders) > known:
                known = len(state.builders)
                state.search = self._search_for(state)
                if len(state.search.literals) > len(search.literals):
                    search = state.search
                    hits, at = search.find(block, stop, end), 0
        state.lines += count(b"\n", counted, end)


def _fitting(
    each: Format, text: str, count: int, known: dict[tuple[str, str], Found]
) -> tuple[LinePattern, Columns] | None:
    """The first of a format's patterns that finds one of ``count`` lines, with the lines' groups;
    None if none does, or if it does not find all. ``known`` has what patterns found."""
    for lines in each.lines:
        key = lines.pattern, lines.clock
        if key not in known:
            known[key] = lines.find_all(text)
        found = known[key]
        if found:
            columns = lines.columns(found) if len(found) == count else None
            return None if columns is None else (lines, columns)
    return None


def _holds_one(each: Format, text: str) -> bool:
    return any(literal in text for literal in (*each.literals, *each.facts_literals))


@functools.lru_cache(maxsize=2)
def scanner(more: Format | None = None) -> Scanner:
    """This process's scanner of every format, and of one ``more``."""
    return Scanner([*formats(), *([more] if more else [])])
