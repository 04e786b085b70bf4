"""NCCL's lines of which way its ranks talk: no program's own, and they make no run of a file."""

from __future__ import annotations

from typing import Any

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.scanned import Evidence
from dlperf_hpc.records.transport import NEEDLE, Connections


def read(line: Line, draft: Draft) -> None:
    """A line's connection, with those before it."""
    connections = draft.state.setdefault("connections", Connections())
    connections.read([line.text])


def told_in(draft: Draft | None) -> dict[str, Any]:
    """What the lines said together: :meth:`.Connections.told`."""
    return {} if draft is None else draft.state.get("connections", Connections()).told()


NCCL = Format(
    name="NCCL's lines",
    title="NCCL's own lines",
    framework="",
    evidence=Evidence.QUOTED,
    source="NVIDIA/nccl src/transport; its issues 226, 707, 952, 1189",
    needles=(),
    read=read,
    facts_needles=(NEEDLE,),
)
