"""How a rank speaks: in parts, each as soon as it is known, for the next thing may end it.

``phase`` (what it sets out to do), ``node`` (the machine and the Python), ``world`` (MPI),
``comm`` (what ranks do together), ``collectives0`` and on (each a sweep of sizes), and ``steps``
(what a rank computes by itself).
"""

from __future__ import annotations

import faulthandler
import json
import os
import zlib
from typing import Any

MARK = "dlperf-probe"
# Writes of up to 4096 bytes to a pipe do not mix. Slurm takes what has come in pieces of 1024 bytes
# and ends a line behind each: a line may be cut anywhere. So its length and a sum are told.
_PIECE = 800


class Reporter:
    """Says what is found, part by part, and ends the process where it gets stuck."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def enter(self, phase: str, limit_s: float) -> None:
        """Say what comes next. After ``limit_s`` in it the process ends with its stack printed.

        Not by a thread of Python: MPI_Init, which is what hangs, lets none run.
        """
        self.say("phase", {"name": phase})
        faulthandler.dump_traceback_later(limit_s, exit=True)

    def say(self, part: str, facts: dict[str, Any]) -> None:
        """Print a part as lines that survive labels, cuts and other ranks' lines between them."""
        text = json.dumps(facts)
        pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
        for i, piece in enumerate(pieces, 1):
            head = f"{MARK} {self.rank} {part} {i}/{len(pieces)}"
            line = f"{head} {len(piece)} {zlib.crc32(piece.encode()):08x} {piece}\n"
            os.write(1, line.encode("ascii"))
