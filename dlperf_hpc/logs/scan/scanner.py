"""The scanner: one pass over a file's bytes, looking for every format and for signs of trouble.

A log is mostly noise. The fixed strings of all formats (their needles) are sought together by an
Aho-Corasick automaton with a SIMD prefilter, at about the speed of reading; only a line that holds
one is decoded, stripped of its launcher's prefix and shown to the formats that asked for it. The
cost of a line is thus independent of the number of formats, and memory of the file's size.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.scan import troubles
from dlperf_hpc.logs.scan.demux import Block, first_block, pieces
from dlperf_hpc.logs.scan.launch import LAUNCH
from dlperf_hpc.logs.scan.needles import Group, Needles
from dlperf_hpc.logs.scan.prefixes import Launcher, detect_launcher
from dlperf_hpc.logs.scan.state import (
    LONGEST_LINE,
    State,
    behind_line,
    end_of_line,
    line_counter,
    whole_lines,
)
from dlperf_hpc.logs.scanned import ScannedFile

if TYPE_CHECKING:
    from dlperf_hpc.logs.scan.forms import Stretch

HEAD_BYTES = 1 << 16
SETTINGS_BYTES = 1 << 18
LATE_SETTINGS_BYTES = 1 << 20
"""Programs print their settings as they begin: those of any format are looked for in a file's first
``SETTINGS_BYTES`` (``LATE_SETTINGS_BYTES`` while there is no step), behind them only those of the
formats that were recognised. NCCL's lines are looked for while there is no step."""

LONGEST_RUN = 256
FEWEST_IN_RUN = 2
_TRIAL_BYTES = 1 << 13
_DENSE = 16  # lines to a figure, at most
_MOST_MISSES = 3
_LINES_FOR_NUMPY = 20_000  # which take as long as its import, 0.1 s

_NONE: frozenset[int] = frozenset()
_BROKEN = re.compile("[0-9.]\ufffd|\ufffd[0-9.]")

SHARED = (
    *("_per_sec", "hroughput", "train_step_timing in s", "total_ips", " img/sec ", "(train) "),
    *(": error: ", " tok/s", " Step: ", "Loss: ", "ps: "),
    *("batch_size", "atch size", "accum", "dtype", "seq_len"),
)
"""What needles of several formats have in common, and few other lines hold: with the first of
these, one pass takes the needles of every format's figures, with the last, two those of settings.
"""


@dataclass
class _Run:
    """Lines in a row, and their numbers, that hold the same needles."""

    needles: frozenset[int]
    numbers: list[int] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)


class Scanner:
    """Looks for known formats in files, one after another; make it once in a process."""

    def __init__(self, known: Iterable[Format]) -> None:
        known = (*known, LAUNCH)
        wanting: dict[str, list[Format]] = {needle: [] for needle in troubles.NEEDLES}
        for each in known:
            for needle in dict.fromkeys(each.needles):
                wanting.setdefault(needle, []).append(each)
        self._first_fact = len(wanting)
        for each in known:
            for needle in dict.fromkeys(each.facts_needles):
                takers = wanting.setdefault(needle, [])
                if each not in takers:
                    takers.append(each)
        self._needles = Needles(wanting, SHARED)
        self._wanting = list(wanting.values())
        self._takers = functools.lru_cache(maxsize=4096)(self._concerned)
        self._rows = {n for n, text in enumerate(wanting) if not any(map(str.isalnum, text))}
        self._groups = functools.lru_cache(maxsize=256)(self._sought)
        self._usual = 0  # lines that rows have read, of all files

    def scan(self, path: str, size: int, blocks: Iterable[bytes]) -> ScannedFile:
        """Read a file's ``blocks`` (any cut) to the end. Never raises for what is in them."""
        blocks = iter(blocks)
        head = first_block(blocks)
        state = State(detect_launcher(head[:HEAD_BYTES]))
        whole = itertools.chain([head], blocks)
        if state.launcher.tagged:
            self._tagged(whole, state)
        else:
            self._plain(whole, state)
        return state.scanned(path, size)

    def _show(
        self,
        state: State,
        number: int,
        data: bytes,
        needles: frozenset[int],
        rank: int | None = None,
        host: str | None = None,
    ) -> None:
        """Give a whole line, as it was found, to the formats that have a needle in it."""
        if b"\0" in data:
            state.note(number, "holds NUL bytes: not read")
            return
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("utf-8", errors="replace")
            # The damage may lie within a number. In a line of settings it may lie in anything,
            # even in what is only counted.
            if min(needles) >= self._first_fact or _BROKEN.search(text):
                state.note(number, "holds bytes that are no text: not read")
                return
        stripped = state.launcher.strip(text)
        concerned = self._takers(needles)
        if len(stripped.text) < len(text) and not self._needles.all_in(stripped.text, needles):
            # What was taken off held a needle, or was put into the midst of one.
            concerned = tuple(each for each in concerned if _holds_one(each, stripped.text))
        rank = stripped.rank if rank is None else rank
        line = Line(number, stripped.text, rank, host or stripped.host)
        drafts = state.drafts
        for each in concerned:
            draft = drafts.get(each.name)
            if draft is None:
                draft = drafts[each.name] = Draft(each)
            each.read(line, draft)
        if not concerned and len(state.troubles) < troubles.MOST:
            found = troubles.trouble_in(number, line.text)
            if found is not None:
                state.troubles.append(found)

    def _show_first(self, state: State, number: int, data: bytes, needles: frozenset[int]) -> None:
        """Show a line that may begin a draft. If it has, later lines with the same needles are
        collected and read many at once, where a format has rows for them."""
        self._show(state, number, data, needles)
        state.keep(needles, data)
        takers = self._takers(needles)
        if any(each.rows for each in takers) and all(e.name in state.drafts for e in takers):
            state.settled.add(needles)

    def _show_run(self, state: State, run: _Run) -> None:
        """Show lines in a row: by the formats' rows, if nothing is unusual in them."""
        if not run.lines:
            return
        for data in run.lines[-2:]:
            state.keep(run.needles, data)
        ranks, text = self._stripped(state.launcher, run)
        if not text:
            for number, data in zip(run.numbers, run.lines):
                self._show(state, number, data, run.needles)
            return
        takers = self._takers(run.needles)
        usual = [_show_rows(state.drafts[each.name], run.numbers, ranks, text) for each in takers]
        state.usual += len(run.lines) if any(usual) else 0

    def _learn(self, state: State, line: bytes) -> None:
        """Learn the form of a line, if it says what all lines of the form are."""
        assert state.forms is not None
        if not self._needles.are_certain(line):
            state.forms.learn_odd(line)
            return
        needles = self._needles.found_in(line, state.groups)
        takers = self._takers(needles)
        if not needles:
            state.forms.learn_noise(line)
        elif not line.isascii() or b"\0" in line or b"\r" in line:
            state.forms.learn_odd(line)
        elif all(each.name in state.drafts for each in takers):
            text = state.launcher.strip(line.decode()).text
            if self._needles.all_in(text, needles):
                state.forms.learn(line, text, needles, takers)

    def _show_stretch(self, state: State, block: bytes, stretch: Stretch, before: int) -> None:
        """Show lines of known forms; ``before`` lines stand before their part of the block."""
        assert state.forms is not None and stretch.kind is not None
        ranks = state.forms.ranks(block, stretch, state.launcher)
        numbers = array("q", (stretch.numbers + (before + 1)).tobytes())
        columns_of = state.forms.columns(block, stretch)
        for (each, rows, _), columns in zip(stretch.kind.takers, columns_of):
            draft = state.drafts[each.name]
            if not (
                rows is not None
                and columns is not None
                and columns.are_fixed()
                and rows.read(columns, numbers, ranks, draft)
            ):
                self._show_again(state, draft, block, stretch, numbers)
        for begin, end in zip(stretch.begins[-2:].tolist(), stretch.ends[-2:].tolist()):
            state.keep(stretch.kind.needles, block[begin:end])

    def _show_again(
        self, state: State, draft: Draft, block: bytes, stretch: Stretch, numbers: array[int]
    ) -> None:
        """Show lines to a format for which some of them are unusual."""
        places = zip(stretch.begins.tolist(), stretch.ends.tolist())
        lines = [state.launcher.strip(block[begin:end].decode()) for begin, end in places]
        for at in range(0, len(lines), LONGEST_RUN):
            some = lines[at : at + LONGEST_RUN]
            text = "\n".join([each.text for each in some])
            ranks = [each.rank for each in some]
            _show_rows(draft, numbers[at : at + LONGEST_RUN], ranks, text)

    def _stripped(self, launcher: Launcher, run: _Run) -> tuple[Sequence[int | None], str]:
        """The ranks of a run's lines, and the lines without prefixes, joined by line ends. The text
        is "" if the lines are few, or if one of them has to be looked at by itself."""
        joined = b"\n".join(run.lines)
        if len(run.lines) < FEWEST_IN_RUN or not joined.isascii() or b"\0" in joined:
            return (), ""
        text = joined.decode()
        if launcher.leaves(text):
            return [None] * len(run.lines), text
        stripped = list(map(launcher.strip, text.split("\n")))
        if not all([self._needles.all_in(each.text, run.needles) for each in stripped]):
            return (), ""
        return [each.rank for each in stripped], "\n".join([each.text for each in stripped])

    def _numpy_pays(self) -> bool:
        """Whether so many lines were read that numpy's import costs less than it will save."""
        return "numpy" in sys.modules or self._usual > _LINES_FOR_NUMPY

    def _concerned(self, needles: frozenset[int]) -> tuple[Format, ...]:
        """The formats that asked for lines with one of ``needles``."""
        named = (each for needle in sorted(needles) for each in self._wanting[needle])
        return tuple({each.name: each for each in named}.values())

    def _groups_for(self, state: State) -> tuple[Group, ...]:
        """The needles to look for in the next block."""
        early = state.seen < (SETTINGS_BYTES if state.begun else LATE_SETTINGS_BYTES)
        return self._groups(early, frozenset(state.drafts) - {LAUNCH.name})

    def _sought(self, early: bool, known: frozenset[str]) -> tuple[Group, ...]:
        """The needles to look for, of formats in ``known`` and of others.

        Needles without a letter or a digit (a table's rows) are in many progress bars: they are
        looked for once their format was recognised.
        """
        firm, loose = [], []
        for needle, takers in enumerate(self._wanting):
            recognised = not known.isdisjoint(each.name for each in takers)
            if needle in self._rows:
                if recognised:
                    loose.append(needle)
            elif needle < self._first_fact:
                firm.append(needle)
            elif early or recognised:
                loose.append(needle)
        return tuple(self._needles.groups(firm, loose))

    def _tagged(self, blocks: Iterable[bytes], state: State) -> None:
        """Lines put together from chunks of many ranks."""
        for chunk in pieces(blocks):
            if isinstance(chunk, Block):
                self._in_tagged(chunk, state)
                continue
            state.lines = max(state.lines, chunk.number)
            found = self._needles.find(chunk.data, 0, len(chunk.data), self._groups_for(state))
            state.seen += len(chunk.data)
            needles = self._needles.of(chunk.data) if found else _NONE
            if chunk.whole or state.is_whole(chunk.data, needles):
                if found:
                    self._show(state, chunk.number, chunk.data, needles, chunk.rank, chunk.host)
                    state.keep(needles, chunk.data)
            else:
                state.cut, state.lost = chunk.number, state.lost or bool(needles)

    def _plain(self, blocks: Iterable[bytes], state: State) -> None:
        """Lines of a file that is one stream."""
        block, end = b"\n", 1
        for block, begin, end in whole_lines(blocks, state):
            self._in_block(block, begin, end, state)
        if not state.rest and block[end - 1 : end] != b"\n":
            state.lines += 1  # which carriage returns end
        if state.rest:
            state.lines += 1
            needles = self._needles.of(state.rest)
            if not state.is_whole(state.rest, needles):
                state.cut, state.lost = state.lines, bool(needles)
            elif needles:
                self._show(state, state.lines, state.rest, needles)

    def _in_tagged(self, block: Block, state: State) -> None:
        """Lines with needles of a block of tagged ones."""
        state.lines = block.number - 1
        data = block.data
        state.groups = self._groups_for(state)
        for number, line, _ in self._found_lines(data, 0, len(data), state, returns=False):
            for chunk in block.chunks_of(number, line):
                needles = self._needles.of(chunk.data)
                if needles:
                    self._show(state, number, chunk.data, needles, chunk.rank, chunk.host)
                    state.keep(needles, chunk.data)
        state.seen += len(data)

    def _in_block(self, block: bytes, begin: int, end: int, state: State) -> None:
        """Lines with needles of a part of a block that is whole lines."""
        self._seek(state, self._groups_for(state))
        at = begin
        while at < end:
            if state.dense and end - at > _TRIAL_BYTES:
                at = self._show_known(block, at, end, state)
            else:  # as dense as a part is, the rest may be
                done = state.seen + at - begin
                stop = behind_line(block, at + max(_TRIAL_BYTES, 3 * done), end)
                # Ranks meet before they train.
                if not state.begun and state.seen + stop - begin <= LATE_SETTINGS_BYTES:
                    state.connections.read(block[at:stop].decode(errors="replace"))
                self._search(block, at, stop, state)
                at = stop
        state.seen += end - begin

    def _seek(self, state: State, groups: tuple[Group, ...]) -> None:
        """Look for these needles from now on."""
        if state.forms is not None and groups is not state.groups:
            state.forms.keep(lambda line: self._needles.found_in(line, groups))
        state.groups = groups

    def _show_known(self, block: bytes, begin: int, end: int, state: State) -> int:
        """Show lines, those whose forms are known many at once. The place up to which this was
        done: other needles are sought from there on, if it is not ``end``."""
        if state.forms is None:
            from dlperf_hpc.logs.scan.forms import Forms  # numpy: not needed for small logs

            state.forms = Forms()
        before, known, groups = state.lines, 0, state.groups
        learn = functools.partial(self._learn, state)
        stretches, line_ends = state.forms.stretches(block, begin, end, learn)
        for stretch in stretches:
            if stretch.kind is not None:
                known += len(stretch.numbers)
                self._show_stretch(state, block, stretch, before)
                continue
            state.lines = before + int(stretch.numbers[0])
            stop = min(int(stretch.ends[-1]) + 1, end)
            self._search(block, int(stretch.begins[0]), stop, state)
            if state.groups is not groups:
                return stop
        state.lines = before + line_ends
        state.misses += not known
        state.dense = _DENSE * known >= state.lines - before
        return end

    def _search(self, block: bytes, begin: int, end: int, state: State) -> None:
        """Lines in which a search finds needles."""
        before, state.usual = state.lines, 0
        returns = block.find(b"\r", begin, end) >= 0
        run = _Run(_NONE)
        for number, line, needles in self._found_lines(block, begin, end, state, returns):
            if needles != run.needles or len(run.lines) == LONGEST_RUN:
                self._show_run(state, run)
                run = _Run(needles)
            if len(line) > LONGEST_LINE:
                state.note_too_long(number)
            elif needles in state.settled:
                run.numbers.append(number)
                run.lines.append(line)
            else:
                self._show_first(state, number, line, needles)
        self._show_run(state, run)
        if end - begin >= _TRIAL_BYTES:
            self._usual += state.usual
            usual = _DENSE * state.usual >= state.lines - before
            state.dense = usual and state.misses < _MOST_MISSES and self._numpy_pays()

    def _found_lines(
        self, block: bytes, begin: int, end: int, state: State, returns: bool
    ) -> Iterator[tuple[int, bytes, frozenset[int]]]:
        """The lines in which something was found, with the numbers of the physical lines and
        their needles; counts these. ``returns``: a carriage return ends a line too."""
        groups, known = state.groups, len(state.drafts)
        hits = self._needles.find(block, begin, end, groups)
        line_ends = line_counter(block, begin, end, hits)
        find, rfind, among = block.find, block.rfind, self._needles.among
        at, counted, stop = 0, begin, begin
        while at < len(hits):
            first, place = at, hits[at][0]
            start = rfind(b"\n", stop, place) + 1 or stop
            if returns:
                start = rfind(b"\r", start, place) + 1 or start
                stop = end_of_line(block, place, end)
            else:
                stop = find(b"\n", place, end)
                stop = end if stop < 0 else stop
            at += 1
            while at < len(hits) and hits[at][0] <= stop:
                at += 1
            state.lines += line_ends(counted, start)
            counted = start
            line = block[start:stop]
            yield state.lines + 1, line, among(block, hits[first:at], line)
            if len(state.drafts) > known:
                before, known = groups, len(state.drafts)
                groups = self._groups_for(state)
                self._seek(state, groups)
                if _size(groups) > _size(before):
                    hits, at = self._needles.find(block, stop, end, groups), 0
        state.lines += line_ends(counted, end)


def _show_rows(
    draft: Draft, numbers: Sequence[int], ranks: Sequence[int | None], text: str
) -> bool:
    """Show lines to one format: by its rows, if nothing is unusual in them, or else (False) one by
    one."""
    tags = None
    if ranks.count(None) < len(ranks):
        tags = array("q", [-1 if rank is None else rank for rank in ranks])
    for rows in draft.format.rows:
        columns = rows.columns(text, len(numbers))
        if columns is not None and rows.read(columns, array("q", numbers), tags, draft):
            return True
    for line in map(Line, numbers, text.split("\n"), ranks):
        draft.format.read(line, draft)
    return False


def _size(groups: tuple[Group, ...]) -> int:
    return sum(len(group.needles) for group in groups)


def _holds_one(each: Format, text: str) -> bool:
    return any(needle in text for needle in (*each.needles, *each.facts_needles))


@functools.lru_cache(maxsize=2)
def scanner(more: Format | None = None) -> Scanner:
    """This process's scanner of every format, and of one ``more``."""
    return Scanner([*formats(), *([more] if more else [])])
