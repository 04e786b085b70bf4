"""Topology, case and run as plain values: all that is known of a sweep's own, less of others.

A sweep's own :class:`Case` has everything; an :class:`ObservedCase`, which an external log or a
timed loop states, has gaps: what neither the log, nor its name, nor the user says is None (or ''),
and whatever would need it is left out, with a reason. Only the topology must be known: without it
there is no row to put the run in, and the log is listed with what to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any, Union

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""What a sweep, an environment, a back end may be called: also a part of a path."""
LINE = r"[^\x00-\x1f\x7f]*"
"""Text in one line, without control characters."""

_TOPOLOGY = re.compile(r"([1-9][0-9]{0,4})n([1-9][0-9]{0,2})g")
_UNSAFE = re.compile(r"[^A-Za-z0-9.+]+|\.{2,}")
_LONGEST_TEXT = 40  # of one tag
_LONGEST_TAGS = 120  # of all; with model, batch size and repeat a file name stays below 255


@dataclass(frozen=True, order=True)
class Topology:
    """``4n8g``: 4 nodes, 8 GPUs (or, on CPUs, 8 ranks) per node."""

    nodes: int
    gpus_per_node: int

    @classmethod
    @lru_cache(maxsize=1024)
    def parse(cls, text: str) -> Topology:
        """Read ``<nodes>n<gpus per node>g``; ValueError for anything else."""
        match = _TOPOLOGY.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a topology: write <nodes>n<GPUs per node>g, as 4n8g")
        return cls(int(match[1]), int(match[2]))

    @property
    def devices(self) -> int:
        """GPUs over all nodes."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}n{self.gpus_per_node}g"


@dataclass(frozen=True)
class Optimizer:
    """What turns gradients into an update; ``grad_clip`` 0 means no clipping by global norm.
    ``name`` is one of :data:`OPTIMIZERS`. ``min_coeff`` and ``max_coeff`` bound the trust ratio of
    ``lamb-deepspeed``; no other optimizer reads them."""

    name: str = "adamw"
    lr: float = 1e-4
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    grad_clip: float = 1.0
    bias_correction: bool = True
    max_coeff: float = 10.0
    min_coeff: float = 0.01


OPTIMIZERS = ("adam", "adamw", "sgd", "lamb", "lamb-nvidia", "lamb-deepspeed")


@dataclass(frozen=True)
class Schedule:
    """How the learning rate moves; :mod:`dlperf_hpc.train.schedules` has each one's formula.
    ``warmup``, ``total`` and ``decay_steps`` count optimizer steps; ``offset`` is added to the
    learning rate, whatever the schedule says. :data:`SCHEDULES` has what each of them reads."""

    name: str = "constant"
    warmup: int = 0
    total: int = 0
    power: float = 1.0
    decay_rate: float = 1.0
    decay_steps: int = 1
    offset: float = 0.0


NO_FP16 = "fp16 needs a GPU: a CPU only imitates it, and the speed says nothing (take fp32 or bf16)"

SCHEDULES: dict[str, tuple[str, ...]] = {
    "constant": (),
    "polynomial": ("warmup", "total", "power"),
    "cosine": ("warmup", "total"),
    "warmup_exp_decay_poly": ("warmup", "total"),
    "warmup_linear_decay_exp": ("warmup", "decay_rate", "decay_steps"),
    "warmup_exp_decay_exp": ("warmup", "decay_rate", "decay_steps"),
}


MODES = ("eager", "compile", "tuned")
"""How the model is run: as it is written; compiled; compiled, with all that makes it fast and keeps
what it computes within rounding."""


@dataclass(frozen=True)
class Option:
    """A sweep key that belongs to one back end or workload; its type is that of ``default``. A
    number lies between ``minimum`` and ``maximum``, both included. ``compiled`` is the default in
    the modes that compile, None where that is the same."""

    name: str
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    minimum: float = 0
    maximum: float | None = None
    compiled: Any = None

    def default_in(self, mode: str) -> Any:
        """What holds in a mode where the sweep does not say."""
        return self.default if mode == MODES[0] or self.compiled is None else self.compiled


@dataclass(frozen=True)
class Measure:
    """The timed window: ``warmup`` iterations untimed, then at least ``iterations`` timed. The
    window grows until it also holds ``min_seconds`` (estimated from the warm-up) and
    ``min_optimizer_steps``. The defaults are DLPerf's: 20, 100, 0, 0. ``communication_steps``
    optimizer steps at most are timed after it with the all-reduce of gradients, and as many
    without. ``allreduce_probe`` asks for timed all-reduces of the gradient's size after these,
    ``checkpoint`` for one timed save and load; its files stay on disk only with
    ``keep_checkpoint``."""

    warmup: int = 20
    iterations: int = 100
    min_seconds: float = 0.0
    min_optimizer_steps: int = 0
    communication_steps: int = 6
    checkpoint: bool = False
    keep_checkpoint: bool = False
    allreduce_probe: bool = False


@dataclass(frozen=True)
class Limits:
    """Seconds without progress after which a run is ended, by phase."""

    startup_s: float = 900.0
    iteration_s: float = 300.0
    shutdown_s: float = 120.0


LARGEST = "max"
"""What stands for a batch size that is still to be found: the largest that fits."""

FEWEST_REPEATS = 6
"""Of fewer values the smallest and the largest hold the median with less than 95 %."""


@dataclass(frozen=True)
class Until:
    """``min`` repeats at first, and further ones, up to ``max``, while the interval of the median
    is wider than ``half_width`` on either side, as a fraction of the median."""

    min: int
    max: int
    half_width: float


class _CaseNames:
    """Names of a case, in which ``?`` stands for what is not known."""

    framework: str
    model: str
    topology: Topology
    precision: str
    batch_size: int | None
    tags: tuple[str, ...]
    largest = False  # a field of those whose batch size a run may find

    @property
    def sought(self) -> bool:
        """Whether the batch size is still to be found."""
        return self.largest and not self.batch_size

    @property
    def series(self) -> str:
        """The case without its topology: what one speedup curve is made of."""
        return f"{self._group}/{self._variant}"

    @cached_property
    def id(self) -> str:
        """Readable and unique in its sweep; also the path of its runs without the repeat."""
        name = f"{self.model or 'unknown'}_b{self._batch}_{self._variant}"
        return f"{self._group}/{self.topology}/{name}"

    @property
    def _group(self) -> str:
        return f"{self.framework}/{self.model or '?'}/bz{self._batch}"

    @property
    def _batch(self) -> str:
        return LARGEST if self.largest else str(self.batch_size or "?")

    @property
    def _variant(self) -> str:
        return "-".join([self.precision or "?", *self.tags])


@dataclass(frozen=True)
class Case(_CaseNames):
    """One point of a sweep without its repeat. ``batch_size`` is per device. Of a user's program
    (:mod:`.programs`) ``launch`` says how it is started; '' is a back end of ours. There
    ``batch_size`` is per replica, of which there are ``replicas`` (None: one per device).
    ``seq_len`` is 0 where samples are no sequences, and where a program is given none. With
    ``largest`` the batch size is the largest that fits, and 0 until a run has found it
    (:mod:`dlperf_hpc.train.largest`); the names stay the same."""

    framework: str
    model: str
    topology: Topology
    precision: str
    batch_size: int
    seq_len: int
    accumulation: int = 1
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    data: str = "synthetic"
    data_path: str = ""
    device: str = "auto"
    environment: str = "default"
    processes_per_node: int | None = None
    threads: int = 1
    seed: int = 1
    options: tuple[tuple[str, Any], ...] = ()
    tags: tuple[str, ...] = ()
    launch: str = ""
    replicas: int | None = None
    mode: str = MODES[0]
    largest: bool = False

    @property
    def ranks(self) -> int:
        """Processes over all nodes that the launcher starts: one per GPU unless
        ``processes_per_node`` says otherwise."""
        return 1 if self.launch == "once" else self.topology.nodes * self.ranks_per_node

    @property
    def processes(self) -> int | None:
        """Training processes over all nodes, of a program too; None if only the program knows."""
        many = {"torchrun": self.topology.devices, "accelerate": self.topology.devices}
        return {**many, "once": None, "node": None}.get(self.launch, self.ranks)

    @property
    def ranks_per_node(self) -> int:
        """Processes on each node."""
        return self.processes_per_node or self.topology.gpus_per_node

    @property
    def micro_batch(self) -> int:
        """Samples over all devices in one iteration (one micro-batch)."""
        return self.batch_size * (self.replicas or self.topology.devices)

    @property
    def global_batch(self) -> int:
        """Samples over all devices in one optimizer step."""
        return self.micro_batch * self.accumulation

    def option(self, name: str) -> Any:
        """Value of an option of the back end or the workload; KeyError if it declares none."""
        return dict(self.options)[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` reads them back."""
        row = {name: getattr(self, name) for name in _names(Case)}
        row.update(topology=str(self.topology), options=dict(self.options))
        row.update(optimizer={**vars(self.optimizer)}, schedule={**vars(self.schedule)})
        if not self.launch:  # of a back end's case nothing is told that only a program's has
            del row["launch"], row["replicas"]
        else:
            del row["mode"]
        if row.pop("largest"):
            row.update({"batch_size": LARGEST} if self.sought else {"largest": True})
        return row

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        """Inverse of :meth:`to_dict`; unknown keys (of a newer version) are passed over."""
        values = known_fields(cls, data)
        values["topology"] = Topology.parse(values["topology"])
        if values.get("batch_size") == LARGEST:
            values.update(batch_size=0, largest=True)
        values["optimizer"] = Optimizer(**known_fields(Optimizer, values.get("optimizer", {})))
        values["schedule"] = Schedule(**known_fields(Schedule, values.get("schedule", {})))
        options = dict(values.get("options", {}))
        if not values.get("launch") and "compile" in options:
            values["mode"] = _mode_of_earlier_versions(options, values.get("mode", MODES[0]))
        values["options"] = tuple(sorted(options.items()))
        values["tags"] = tuple(values.get("tags", ()))
        return cls(**values)


def _mode_of_earlier_versions(options: dict[str, Any], mode: str) -> str:
    """The mode of a case whose back end has an option ``compile``, which is taken out. Its
    ``bucket_mb`` of 25, the default, came to 100 where the model was compiled."""
    mode = MODES[1] if options.pop("compile") is True else mode
    if mode == MODES[1] and options.get("bucket_mb") == 25:
        options["bucket_mb"] = 100
    return mode


def known_fields(kind: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """What this version knows of a row, by a dataclass's fields; TypeError for what is no row."""
    return {name: row[name] for name in _names(kind) if name in row}


@lru_cache(maxsize=64)
def _names(kind: Any) -> list[str]:
    return [each.name for each in fields(kind)]


def value_at(*paths: str) -> Callable[[Any], Any]:
    """A function that gives a figure of a part of a value, as ``window.samples``: by the first of
    these paths that leads to one; None where none does."""
    parts = [path.split(".") for path in paths]

    def value(whole: Any) -> Any:
        for names in parts:
            found = whole
            for name in names:
                if found is not None:
                    found = getattr(found, name)
            if found is not None:
                return found
        return None

    return value


@dataclass(frozen=True)
class Run:
    """One case x one repeat (counted from 1): the unit that has a log, a record and a status."""

    case: Case
    repeat: int

    @cached_property
    def id(self) -> str:
        """Stable and readable; relative path of the run's log without its ending."""
        return f"{self.case.id}_{self.repeat}"


OBSERVED = "observed"
"""The key that marks the ``case`` line of a log of ours whose case was not asked for by a sweep."""


@dataclass(frozen=True)
class ObservedCase(_CaseNames):
    """One case as far as it is known; fields as in :class:`Case`. ``batch_size`` is per device;
    ``accumulation`` and ``global_batch`` (samples per optimizer step over all devices) are as the
    log or the user says."""

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
        values = known_fields(cls, data)
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


CaseFacts = Union[Case, ObservedCase]
"""A case as far as it is known."""
RunFacts = Union[Run, ObservedRun]
"""One run of such a case; ``repeat`` counts from 1."""


def repeat_major(
    groups: Sequence[Sequence[Case]], repeats: int, per_job: int = 1
) -> list[tuple[Run, ...]]:
    """The runs of each job. All groups of cases once, then all again: drift of the machine spreads
    evenly over the cases. A job measures ``per_job`` repeats, a divisor of ``repeats``, of each
    case of its group: in the group's order where the repeat is odd, backwards where it is even
    (ABBA), so that a steady drift within the job is the same for all of them."""
    return [
        tuple(
            Run(case, repeat)
            for repeat in range(first, first + per_job)
            for case in (group if repeat % 2 else group[::-1])
        )
        for first in range(1, repeats + 1, per_job)
        for group in groups
    ]


def tag(name: str, value: Any) -> str:
    """A key that left its default, as part of a file name: ``compile``, ``acc4``, ``lr1e-05``. Tags
    are joined by '-'; a part that begins with a digit belongs to the tag before it
    (``beta1-0.95``). Text that a name cannot hold as it is gets a digest: no two look alike."""
    plain = _UNSAFE.sub("", name)
    if isinstance(value, bool):
        return plain if value else f"no{plain}"
    if isinstance(value, (int, float)):
        number = str(value)
        number = number[:-2] if number.endswith(".0") else number
        return f"{plain}-{number}" if plain[-1:].isdigit() else plain + number
    text = str(value)
    safe = _UNSAFE.sub("", text)
    if safe != text or len(text) > _LONGEST_TEXT:
        safe = f"{safe[-24:]}.{_digest(text)}"
    return plain + safe


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]


def fitting(tags: list[str]) -> tuple[str, ...]:
    """The tags as a file name bears them: a digest of all stands for the last of too many."""
    if len("-".join(tags)) <= _LONGEST_TAGS:
        return tuple(tags)
    kept = list(tags)
    while len("-".join(kept)) > _LONGEST_TAGS - 13:
        kept.pop()
    return (*kept, f"more{_digest('-'.join(tags))}")
