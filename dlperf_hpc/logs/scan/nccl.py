"""NCCL's lines of which way its ranks talk. They belong to no program: what they say counts only in
a file in which a format is recognised. There are thousands at a time, so that they are taken out of
a block at once, and a line that says what an earlier one did is passed over unread."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dlperf_hpc.records.transport import Connections

_MARK = b"NCCL INFO "
_SAYING = re.compile(_MARK + rb"(?:Channel|Ring) ([^\n]{1,200})")
_MOST = 1 << 16
_LONGEST_HEAD = 512  # bytes of a line before it: labels, a host, numbers


@dataclass
class Talk:
    """What the lines of a file say together. ``_known`` are those that were read: who printed it,
    and what."""

    connections: Connections = field(default_factory=Connections)
    _known: set[tuple[bytes, bytes]] = field(default_factory=set)

    def read(self, block: bytes, begin: int, end: int) -> None:
        """Whole lines, a part of a block."""
        if block.find(_MARK, begin, end) < 0:
            return
        for match in _SAYING.finditer(block, begin, end):
            least = max(begin, match.start() - _LONGEST_HEAD)
            start = block.rfind(b"\n", least, match.start()) + 1 or least
            head = block[start : match.start()]
            key = head.rpartition(b":")[0].rpartition(b":")[0], match[1]
            if key not in self._known and len(self._known) < _MOST:
                self._known.add(key)
                self.connections.read([block[start : match.end()].decode(errors="replace")])
