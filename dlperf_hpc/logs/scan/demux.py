"""Lines out of files whose launcher tags flushed chunks, not lines (``[1,0]<stdout>:``).

| launcher | tags |
|---|---|
| Open MPI up to 4 | ``[job,rank]<stdout>:``, stamped ``Sun May 29 09:48:38 2022[1,0]<stdout>:`` |
| Open MPI 5 (PRRTE) | ``[job,rank]<stdout>: ``, ``[namespace,rank]<stdout>: ``, |
| | ``[job,rank][host:pid]<stdout>: ``, ``[rank]<stdout>: ``, stamped ``[Sun May ... 2022]`` |
| horovodrun (Gloo) | ``[rank]<stdout>:``, stamped as Open MPI 4 does |

Open MPI 4 puts a tag before each chunk that a rank flushed and after each newline within one. A
line that was flushed in parts is scattered over other ranks' lines; the newline belongs to the
chunk it ends, so that of an unbuffered print comes with a tag of its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

HEAD_BYTES = 1 << 16
"""The part of a file by which its launcher is recognised."""

LONGEST_LINE = 1 << 16
MOST_STREAMS = 1 << 16
MOST_HELD = 1 << 26
"""Bytes of unfinished lines kept, over all ranks."""

_TIME = (
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ 0-9][0-9]"
    r" [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4}"
)
STAMP = rf"(?:{_TIME}|\[{_TIME}\])"
TAG = (
    r"\[(?:[^\[\],\s]{1,200},)?(?P<rank>[0-9]{1,9})\]"
    r"(?:\[(?P<host>[^\[\]:\s]{1,255}):[0-9a-z]{1,20}\])?<std(?:out|err|diag)>:"
)
_LONGEST_TAG = 600  # stamp, tag and a blank: no tag is longer
_PIECE = 1 << 18

_PARTS = re.compile(TAG.encode())
_GLOO_TAG = re.compile(rb"\[[0-9]{1,9}\]<std")
# For split(): the one group is the tag.
_BARE = re.compile(b"(" + re.sub(r"\?P<[a-z]+>", "?:", TAG).encode() + b")")
_SPACED = re.compile(_BARE.pattern[:-1] + b" ?)")
_LINES = re.compile(rb"([^\r\n]*)([\r\n]*)")  # a line and all line ends behind it
_STAMP_AT_END = re.compile(STAMP.encode() + rb"\Z")
_AT_BEGINNING = re.compile(b"\n(?:" + STAMP.encode() + b")?" + _BARE.pattern)
_BEGINNING = re.compile(b"(?:" + STAMP.encode() + b")?" + TAG.encode())


class Chunk(NamedTuple):
    """A logical line without its end. ``number`` is the physical line, from 1, where it began;
    ``rank`` is None where no tag stood; ``whole`` is False if the file ended before the line."""

    number: int
    rank: int | None
    data: bytes
    host: str | None = None
    whole: bool = True


class Block(NamedTuple):
    """Physical lines from ``number`` on, each a whole line of its own: tags stand only where a line
    begins. Nearly all of a file is such, and can be searched before it is cut up."""

    number: int
    data: bytes
    spaced: bool = False

    def chunks(self) -> Iterator[Chunk]:
        """All its lines."""
        for number, line in enumerate(self.data.split(b"\n"), self.number):
            yield from self.chunks_of(number, line)

    def chunks_of(self, number: int, line: bytes) -> Iterator[Chunk]:
        """The chunks of one of its physical lines: several if there are carriage returns in it."""
        rank = host = None
        tag = _BEGINNING.match(line)
        if tag is not None:
            rank, host = int(tag["rank"]), _text(tag["host"])
            line = line[tag.end() + (self.spaced and line[tag.end() : tag.end() + 1] == b" ") :]
        for data in line.split(b"\r") if b"\r" in line else (line,):
            if data:
                yield Chunk(number, rank, _cut(data), host)


class _Stream:
    __slots__ = ("host", "lost", "number", "rank", "rest")

    def __init__(self, rank: int | None, host: str | None = None) -> None:
        self.rank = rank
        self.host = host
        self.rest = bytearray()
        self.number = 0
        self.lost = False  # the line's beginning was given up, so the rest of it is too

    def is_open(self) -> bool:
        """Whether a line has no end yet."""
        return bool(self.rest) or self.lost

    def take(self, text: bytes, number: int) -> int:
        """Add text to the line; the number of its bytes that were kept."""
        if self.lost:
            return 0
        if not self.rest:
            self.number = number
        kept = text[: LONGEST_LINE + 1 - len(self.rest)]
        self.rest += kept
        return len(kept)

    def finish(self, whole: bool = True) -> Chunk:
        """End the line. One that is too long ends after its last whole word that fits."""
        data = bytes(self.rest)
        self.rest.clear()
        self.lost = False
        return Chunk(self.number, self.rank, _cut(data), self.host, whole)

    def give_up(self) -> None:
        """Forget the line so far."""
        self.lost = self.is_open()
        self.rest.clear()


class _Streams:
    def __init__(self) -> None:
        self.by_tag: dict[bytes, _Stream] = {}
        self.untagged = self.current = _Stream(None)
        self.number = 1
        self.held = 0  # bytes of unfinished lines

    def open(self) -> list[_Stream]:
        """The streams within a line."""
        return [each for each in (self.untagged, *self.by_tag.values()) if each.is_open()]

    def enter(self, tag: bytes) -> None:
        """Go on with the stream of ``tag``; a new one beyond ``MOST_STREAMS`` is not read."""
        if self.untagged.is_open():
            self.held -= len(self.untagged.rest)
            self.untagged.finish()
        self.current = self.by_tag.get(tag) or self._new(tag)

    def _new(self, tag: bytes) -> _Stream:
        match = _PARTS.match(tag)
        assert match is not None, "split() found it"
        stream = _Stream(int(match["rank"]), _text(match["host"]))
        if len(self.by_tag) < MOST_STREAMS:
            self.by_tag[tag] = stream
        else:
            stream.lost = True
        return stream

    def add(self, text: bytes) -> list[Chunk]:
        """Add the text up to the next tag; the lines that end in it."""
        ended = []
        for line, ends in _LINES.findall(text):
            stream = self.current
            if line:
                self.held += stream.take(line, self.number)
            if ends:
                self.held -= len(stream.rest)
                chunk = stream.finish()
                if chunk.data:
                    ended.append(chunk)
            newlines = ends.count(b"\n")
            if newlines:
                self.number += newlines
                self.current = self.untagged
        if self.held > MOST_HELD:
            for stream in self.open():
                stream.give_up()
            self.held = 0
        return ended

    def idle(self) -> bool:
        """Whether a line begins here, and no rank is within one."""
        return self.current is self.untagged and not self.open()

    def unfinished(self) -> list[Chunk]:
        """The lines that have no end, in the order of the file."""
        return [each.finish(False) for each in sorted(self.open(), key=lambda each: each.number)]


def demultiplex(blocks: Iterable[bytes]) -> Iterator[Chunk]:
    """The lines of a tagged file, each as it ends; empty ones are left out.

    ``blocks`` may be cut anywhere. A line ends with ``\\n`` or ``\\r`` of its own rank and stream.
    Untagged text is a line without a rank if it goes on to the physical line's end; before a tag it
    is another program's prefix, and dropped. A line of more than ``LONGEST_LINE`` bytes is cut,
    ranks beyond ``MOST_STREAMS`` tags are not read, and unfinished lines of more than ``MOST_HELD``
    bytes are given up. Last come the lines that the file does not end, not ``whole``.
    """
    for found in pieces(blocks):
        if isinstance(found, Block):
            yield from found.chunks()
        else:
            yield found


def pieces(blocks: Iterable[bytes]) -> Iterator[Chunk | Block]:
    """The lines of a tagged file like :func:`demultiplex`, but lines in one piece by the block."""
    source = iter(blocks)
    head = first_block(source)
    tag = _SPACED if is_spaced(head[:HEAD_BYTES]) else _BARE
    streams = _Streams()
    for data in _cut_between_tags(itertools.chain([head], source), tag):
        if data.endswith(b"\n") and streams.idle() and _is_tidy(data):
            yield Block(streams.number, data, tag is _SPACED)
            streams.number += data.count(b"\n")
        else:
            yield from _chunks(tag.split(data), streams, b"\r" in data)
    yield from streams.unfinished()


def _chunks(parts: list[bytes], streams: _Streams, returns: bool) -> Iterator[Chunk]:
    """The lines that end in a text, which is given as text, tag, text, tag, ..., text."""
    last = len(parts) - 1
    for at in range(0, last + 1, 2):
        text = parts[at]
        if at:
            streams.enter(parts[at - 1])
        if at < last and text[-1:] != b"\n":
            text = _without_stamp(text)
        stream, end = streams.current, text.find(b"\n")
        alone = 0 < end <= LONGEST_LINE and end >= len(text) - 1
        if returns or not alone or stream.is_open():
            yield from streams.add(text)
        else:  # as add() does it, for nearly every line of every file: whole, behind one tag
            yield Chunk(streams.number, stream.rank, text[:end], stream.host)
            streams.number += 1
            streams.current = streams.untagged


def _is_tidy(data: bytes) -> bool:
    return len(_AT_BEGINNING.findall(b"\n" + data)) == data.count(b"]<std")


def _cut(data: bytes) -> bytes:
    """A line that is too long ends after its last whole word that fits."""
    return data if len(data) <= LONGEST_LINE else data[:LONGEST_LINE].rpartition(b" ")[0]


def _text(name: bytes | None) -> str | None:
    return name.decode("utf-8", "replace") if name else None


def first_block(source: Iterator[bytes]) -> bytes:
    """Blocks joined until they have ``HEAD_BYTES``, so that their sizes do not matter."""
    blocks, size = [], 0
    for block in source:
        blocks.append(block)
        size += len(block)
        if size >= HEAD_BYTES:
            break
    return b"".join(blocks)


def tagged_by(head: bytes) -> str:
    """The launcher that writes the tags on the lines, or "" if there are none."""
    tags = [tag[0] for tag in _PARTS.finditer(head)] if b"]<std" in head else []
    if not tags or 20 * len(tags) < head.count(b"\n"):
        return ""
    gloo = sum(_GLOO_TAG.match(tag) is not None for tag in tags)
    # A lone number and a blank is PRRTE's "rank" output.
    return "horovodrun" if 2 * gloo > len(tags) and not is_spaced(head) else "ompi"


def is_spaced(head: bytes) -> bool:
    """Whether the launcher puts a blank behind its tags: then (nearly) every tag has one.

    Taking a program's own blank for the tag's would join ``1.5`` and `` 2`` to one number.
    """
    after = [head[match.end() : match.end() + 1] for match in _BARE.finditer(head)]
    known = [byte for byte in after if byte]
    return bool(known) and 100 * known.count(b" ") >= 99 * len(known)


def _cut_between_tags(blocks: Iterable[bytes], tag: re.Pattern[bytes]) -> Iterator[bytes]:
    """The blocks' bytes in pieces of a moderate size, no stamp or tag cut in two."""
    rest = b""
    for block in blocks:
        for start in range(0, len(block), _PIECE):
            data = rest + block[start : start + _PIECE]
            cut = data.rfind(b"\n") + 1
            if len(data) - cut > _LONGEST_TAG:
                ends = [match.end() for match in tag.finditer(data, cut)]
                cut = max(cut, len(data) - _LONGEST_TAG, *(end for end in ends if end < len(data)))
            yield data[:cut]
            rest = data[cut:]
    yield rest


def _without_stamp(text: bytes) -> bytes:
    match = _STAMP_AT_END.search(text, max(0, len(text) - 26))
    return text[: match.start()] if match else text
