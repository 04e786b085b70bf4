"""Changes of whole lines and numbers, which bytes at random would seldom come to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from damage import ODD_NUMBERS, with_bytes, with_nuls

PREFIXES = (
    *(b"[1,0]<stdout>:", b"[1,7]<stderr>: ", b"[0]<stdout>:", b"vs001: ", b"0: ", b" 3: "),
    *(b"[rank1]: ", b"[default0]:", b"Sun May 29 09:48:38 2022[1,0]<stdout>:", b"\x1b[32m"),
    *(b"2021-05-29 19:53:45 run6222: ", b"\r", b"P1 3: "),
)
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]+)?")


def mutated(data: bytes, lines: Sequence[bytes], random: Random) -> bytes:
    """A log with something done to some of its lines; ``lines`` are what other logs consist of."""
    return random.choice(_CHANGES)(data, lines, random)


def _numbers(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    match = random.choice(found)
    digits, dot, fraction = match[0].partition(b".")
    near = b"%d" % max(0, int(digits[:30]) + random.choice((-100, -10, -1, 1, 2, 10, 1000)))
    other = random.choice(found)[0]
    new = random.choice((near, near + dot + fraction, other, random.choice(ODD_NUMBERS)))
    return data[: match.start()] + new + data[match.end() :]


def _more(data: bytes, lines: Sequence[bytes], random: Random) -> bytes:
    mine = data.split(b"\n")
    at = random.randrange(len(mine) + 1)
    return b"\n".join([*mine[:at], *random.choices(lines, k=random.randint(1, 4)), *mine[at:]])


def _again(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    mine = data.split(b"\n")
    first = random.randrange(len(mine))
    piece = mine[first : first + random.randint(1, 12)]
    at = random.choice((first, len(mine), random.randrange(len(mine))))
    return b"\n".join([*mine[:at], *piece * random.choice((1, 1, 2, 30)), *mine[at:]])


def _less(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    mine = data.split(b"\n")
    first = random.randrange(len(mine))
    return b"\n".join(mine[:first] + mine[first + random.randint(1, 8) :])


def _order(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    mine = data.split(b"\n")
    first, length = random.randrange(len(mine)), random.choice((2, 5, 40))
    piece = mine[first : first + length]
    random.shuffle(piece)
    return b"\n".join([*mine[:first], *piece, *mine[first + length :]])


def _prefixed(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    some = random.choices(PREFIXES, k=random.randint(1, 2))
    share = random.choice((0.1, 0.6, 1.0))
    mine = data.split(b"\n")
    return b"\n".join(
        random.choice(some) + line if random.random() < share else line for line in mine
    )


def _joined(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    ends = [at for at, byte in enumerate(data) if byte == 10]
    if not ends:
        return data
    at = random.choice(ends)
    return data[:at] + random.choice((b"", b"\r", b" ", b"\0")) + data[at + 1 :]


def _damaged(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    return random.choice((with_nuls, with_bytes))(data, random) if data else data


def _counted(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    """A line many times, one of its numbers rising."""
    mine = data.split(b"\n")
    line = random.choice(mine)
    found = list(_NUMBER.finditer(line))
    if not found:
        return data
    match = random.choice(found)
    first, step = int(match[0].partition(b".")[0][:12]), random.choice((1, 1, 2, 10, -1))
    risen = [
        line[: match.start()] + b"%d" % max(0, first + i * step) + line[match.end() :]
        for i in range(random.choice((3, 8, 30)))
    ]
    at = mine.index(line)
    return b"\n".join([*mine[:at], *risen, *mine[at + 1 :]])


_CHANGES: Sequence[Callable[[bytes, Sequence[bytes], Random], bytes]] = (
    *(_numbers, _numbers, _numbers, _more, _again, _less, _order, _prefixed, _joined, _damaged),
    _counted,
)
