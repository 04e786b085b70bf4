"""What is known of a case and a run, whoever measured it: all of a sweep's own, less of others.

:class:`CaseFacts` and :class:`RunFacts` are what every reader of results may ask for. A sweep's own
:class:`~dlperf_hpc.model.case.Case` has all of it; an :class:`ObservedCase`, which an external
log or a timed loop tells of, has gaps: what neither the log, nor its name, nor the user says is
None (or ''), and whatever would need it is left out, with a reason. Only the topology must be
known: without it there is no row to put the run in, and the log is listed with what to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dlperf_hpc.model.case import Topology

OBSERVED = "observed"
"""The key that marks the ``case`` line of a log of ours whose case was not asked for by a sweep."""


class CaseFacts(Protocol):
    """One case as far as it is known; None or '' is not known. The fields are those of
    :class:`dlperf_hpc.model.case.Case`, where each stands with its meaning."""

    @property
    def framework(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def precision(self) -> str: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def seq_len(self) -> int | None: ...
    @property
    def accumulation(self) -> int | None: ...
    @property
    def global_batch(self) -> int | None: ...
    @property
    def tags(self) -> tuple[str, ...]: ...
    @property
    def ranks(self) -> int: ...
    @property
    def micro_batch(self) -> int | None: ...
    @property
    def series(self) -> str: ...
    @property
    def id(self) -> str: ...


class RunFacts(Protocol):
    """One run of a case; ``repeat`` counts from 1."""

    @property
    def case(self) -> CaseFacts: ...
    @property
    def repeat(self) -> int: ...
    @property
    def id(self) -> str: ...


@dataclass(frozen=True)
class ObservedCase:
    """One case as far as it is known; fields as in :class:`dlperf_hpc.model.case.Case`.

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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as in a log's ``case`` line; :meth:`from_dict` reads them back."""
        return {OBSERVED: True, **asdict(self), "topology": str(self.topology)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ObservedCase:
        """Inverse of :meth:`to_dict`; unknown keys are passed over. KeyError, TypeError or
        ValueError for a table that is none."""
        values = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        values["topology"] = Topology.parse(values["topology"])
        values["tags"] = tuple(map(str, values.get("tags") or ()))
        return cls(**{"framework": "", "model": "", **values})

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
