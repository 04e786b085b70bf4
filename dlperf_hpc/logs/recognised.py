"""Programs that are told by what they print, and of which no speed is read.

A log in which no format of :mod:`dlperf_hpc.logs.formats` is recognised may still show who wrote
it. The user is then told so in place of "in no known format": nothing is wrong with the file, and
it need not be looked at again. Nothing else is taken from such a file.

The table of programs and signs is ``recognised.toml`` beside this module. Signs are sought in the
beginning of a file alone, after the file was scanned and only if nothing was recognised in it, so
that they cost the logs that are read nothing.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HEAD_BYTES = 1 << 20
"""Where signs are sought: as far as settings are at most."""

TABLE = Path(__file__).with_suffix(".toml")
"""The programs and their signs."""

TRAINS = "training"
"""The kind of a program that trains; others serve a model or measure a machine."""


class Program(NamedTuple):
    """A program, what it is, strings of its lines, and where such lines are to be seen."""

    name: str
    kind: str
    signs: tuple[str, ...]
    source: str


@functools.cache
def programs() -> tuple[Program, ...]:
    """Every program of the table, in its order."""
    kinds = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(
        Program(name, kind, tuple(row["signs"]), row["source"])
        for kind, rows in kinds.items()
        for name, row in rows.items()
    )


def no_speed(program: str) -> str:
    """What is said of a log whose program is known, and of which no speed is read."""
    return f"recognised: {program}, no speed read"


def programs_in(head: bytes | bytearray) -> tuple[str, ...]:
    """The names of the programs of which ``head``, a file's beginning, holds a sign; in the order
    in which their first signs stand there."""
    search, owners = _search()
    found = search.find_matches_as_indexes(memoryview(head)[:HEAD_BYTES])
    return tuple(dict.fromkeys(owners[index] for index, _, _ in found))


@functools.cache
def _search() -> tuple[BytesAhoCorasick, list[str]]:
    """The search for all signs together, and the program of each sign."""
    owners = {sign: each.name for each in programs() for sign in each.signs}
    return BytesAhoCorasick([sign.encode() for sign in owners]), [*owners.values()]
