"""NCCL's lines of which way its ranks talk. They belong to no program: what they say counts only in
a file in which a format is recognised. There are thousands at a time, so that they are taken out of
a block at once, and a line that says what an earlier one did is passed over unread."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlperf_hpc.records.transport import NEEDLE, Connections

_NEEDLE, _MARK = NEEDLE.encode(), b"NCCL INFO "
_MOST = 1 << 16
_BEFORE, _BEHIND = 600, 100  # bytes of a line that are looked at


@dataclass
class Talk:
    """What the lines of a file say together. ``_known`` are those that were read: who printed it,
    and what."""

    connections: Connections = field(default_factory=Connections)
    _known: set[tuple[bytes, bytes]] = field(default_factory=set)

    def read(self, block: bytes, begin: int, end: int) -> None:
        """Whole lines, a part of a block."""
        at = block.find(_NEEDLE, begin, end)
        while at >= 0:
            least, most = max(begin, at - _BEFORE), min(end, at + _BEHIND)
            start = block.rfind(b"\n", least, at) + 1 or least
            stop = block.find(b"\n", at, most)
            line = block[start : most if stop < 0 else stop]
            who, _, what = line.partition(_MARK)
            key = who.rpartition(b":")[0].rpartition(b":")[0], what  # without process and thread
            if key not in self._known and len(self._known) < _MOST:
                self._known.add(key)
                self.connections.read([line.decode(errors="replace")])
            at = block.find(_NEEDLE, most if stop < 0 else stop, end)
