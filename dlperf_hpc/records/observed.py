"""The case and the run that an external log tells of: what a sweep's :class:`Case` is, with gaps.

Somebody else's log rarely says everything. What neither the log, nor its name, nor the user says
is None (or ''), and whatever would need it is left out, with a reason. Only the topology must be
known: without it there is no row to put the run in, and the log is listed with what to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlperf_hpc.sweepfile.case import Topology


@dataclass(frozen=True)
class ObservedCase:
    """One case as far as it is known; fields as in :class:`dlperf_hpc.sweepfile.case.Case`.

    ``batch_size`` is per device; ``accumulation`` and ``global_batch`` (samples per optimizer step
    over all devices) are as the log or the user says.
    """

    framework: str
    model: str
    topology: Topology
    precision: str = ""
    batch_size: int | None = None
    seq_len: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    tags: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """One per device, as far as anybody knows."""
        return self.topology.devices

    @property
    def micro_batch(self) -> int | None:
        """Samples over all devices in one iteration (one micro-batch)."""
        return self.batch_size * self.topology.devices if self.batch_size else None

    @property
    def series(self) -> str:
        """The case without its topology: what one speedup curve is made of."""
        return "/".join([self.framework, self.model or "?", self._batch, self._variant])

    @property
    def id(self) -> str:
        """Readable; equal for runs of one case, in the manner of a sweep's own ids."""
        name = f"{self.model or 'unknown'}_b{self.batch_size or '?'}_{self._variant}"
        return "/".join([self.framework, self.model or "?", self._batch, str(self.topology), name])

    @property
    def _batch(self) -> str:
        return f"bz{self.batch_size or '?'}"

    @property
    def _variant(self) -> str:
        return "-".join([self.precision or "?", *self.tags])


@dataclass(frozen=True)
class ObservedRun:
    """One run of an observed case. ``log`` tells apart runs whose repeat is not known."""

    case: ObservedCase
    repeat: int
    log: str

    @property
    def id(self) -> str:
        """Stable and readable, in the manner of a sweep's own ids."""
        return f"{self.case.id}_{self.repeat}"
