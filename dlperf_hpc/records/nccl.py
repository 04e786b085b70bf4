"""Which way NCCL's ranks talk, by the lines that ``NCCL_DEBUG=INFO`` makes it print.

``n1:81:93 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read``, or with ``[send] via
NET/IB/3/GDRDMA``; before NCCL 2.8 ``Ring 00`` in place of ``Channel 00/0``. The host in front is
that of the rank that prints: the one that receives where the line says so, else the one that sends
(NCCL's src/transport: p2p.cc, shm.cc, net.cc). Lines may be anybody's: what is kept is bounded, and
words that NCCL does not print are not taken over.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlperf_hpc.records.lines import NCCL

_LINE = re.compile(  # its first words are all that is sought where there is no such line
    r"NCCL INFO (?:Channel|Ring) ([0-9]{1,4})(?:/[0-9]{1,4})? :"
    r" ([0-9]{1,7})(?:\[\w{1,16}\])? -> ([0-9]{1,7})(?:\[\w{1,16}\])?"
    r" (?:\[(send|receive)\] )?via (.{1,200})$",
    re.ASCII | re.MULTILINE,
)
# Not tried from within a word: a long one would take the square of its length.
_HOST = re.compile(r"(?<![\w.-])([\w.-]{1,255}):[0-9]{1,10}:[0-9]{1,10} \[[0-9]{1,4}\] \Z", re.A)
_LONGEST_BEFORE = 600  # characters of a line before what NCCL says
# As NCCL spells them; of what it may spell in another version only the first word is told.
_MEMORY = re.compile(
    r"P2P/(?:IPC|CUMEM|MNNVL|direct pointer|indirect)\b|SHM/(?:direct|CE)(?:/(?:direct|CE))?\b"
    r"|(?:P2P|SHM)(?=/)"
)
_NETWORK = re.compile(r"(NET/[\w.+-]{1,32}(?: [\w.+-]{1,32}){0,3})/[0-9]{1,4}(?:\([0-9]{1,7}\))?"
                      r"(/GDRDMA)?(?=[/(\s]|$)", re.ASCII)  # fmt: skip
_OLD_MEMORY = "direct shared memory"
_ACROSS_NODES = "P2P/MNNVL"  # the one way of this kind that may leave the node
_MOST = 1 << 16
_MOST_NAMES = 8


@dataclass
class Connections:
    """What lines of NCCL's say: a connection is (channel, from, to, way). ``hosts`` are those that
    a rank's lines begin with: several where communicators number their ranks anew."""

    found: set[tuple[int, int, int, str]] = field(default_factory=set)
    hosts: dict[int, set[str]] = field(default_factory=dict)

    def read(self, text: str) -> None:
        """Take what the lines of a text say, the last of which is whole; others are passed over."""
        for match in _LINE.finditer(text):
            way = _way(match[5])
            if not way or len(self.found) >= _MOST:
                continue
            channel, source, target = int(match[1]), int(match[2]), int(match[3])
            self.found.add((channel, source, target, way))
            known = self.hosts.setdefault(target if match[4] == "receive" else source, set())
            begin = match.start()
            host = _HOST.search(text, _line_begin(text, begin), begin) if len(known) < 2 else None
            if host:
                known.add(host[1])

    def add(self, other: Connections) -> None:
        """Take over what another process has read."""
        self.found |= other.found
        for rank, names in other.hosts.items():
            self.hosts.setdefault(rank, set()).update(names)

    def facts(self) -> dict[str, Any]:
        """``within`` and ``between`` nodes, and ``elsewhere`` (a line does not tell where its other
        end is): the ways, most connections first; ``channels``: how many numbers of channels there
        are. Empty where no line said anything."""
        places: dict[str, Counter[str]] = {}
        for _, source, target, way in sorted(self.found):
            place = self._place(source, target, way)
            places.setdefault(place, Counter())[way] += 1
        if not places:
            return {}
        names = {p: [w for w, _ in c.most_common(_MOST_NAMES)] for p, c in sorted(places.items())}
        return {**names, "channels": len({each[0] for each in self.found})}

    def _place(self, source: int, target: int, way: str) -> str:
        if not way.startswith("NET/") and way != _ACROSS_NODES:
            return "within"
        here, there = self.hosts.get(source, set()), self.hosts.get(target, set())
        if len(here) != 1 or len(there) != 1:
            return "elsewhere"
        return "within" if here == there else "between"


def _line_begin(text: str, at: int) -> int:
    """Where the line begins that ``at`` lies in, or where it is looked at from."""
    least = max(0, at - _LONGEST_BEFORE)
    return text.rfind("\n", least, at) + 1 or least


@functools.lru_cache(maxsize=1024)  # lines are many, ways few
def _way(text: str) -> str:
    """``P2P/CUMEM``, ``SHM/direct/direct``, ``NET/IB/GDRDMA``: without the number of the card, the
    proxy, and what else differs from channel to channel. '' for what is no such thing."""
    if text.startswith(_OLD_MEMORY):
        return "SHM"
    network = _NETWORK.match(text)
    if network is not None:
        return f"{network[1]}{network[2] or ''}"
    memory = _MEMORY.match(text)
    return memory[0] if memory else ""


_WORDS = {"within": "within nodes", "between": "between nodes", "elsewhere": "between ranks"}


def ways(facts: Mapping[str, Any], place: str) -> list[str]:
    """The ways that NCCL took ``within`` or ``between`` nodes, or ``elsewhere``, by a run's facts:
    texts, whoever wrote the log."""
    names = _fact(facts, place)
    return [each for each in names if isinstance(each, str)] if isinstance(names, list) else []


def _fact(facts: Mapping[str, Any], key: str) -> Any:
    table = facts.get(NCCL)
    return table.get(key) if isinstance(table, Mapping) else None


def in_words(facts: Mapping[str, Any]) -> str:
    """``P2P/CUMEM within nodes, NET/IB/GDRDMA between nodes``; '' where no line told it."""
    found = ((words, " and ".join(ways(facts, place))) for place, words in _WORDS.items())
    return ", ".join(f"{names} {words}" for words, names in found if names)


def channels(facts: Mapping[str, Any]) -> int | None:
    """How many channels NCCL's lines number; None where no line told it."""
    count = _fact(facts, "channels")
    return count if type(count) is int and count > 0 else None
