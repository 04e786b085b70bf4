"""What is to be timed: what the program tells its Timer, and what a sweep tells by its environment.

``DLPERF_BEGIN``, ``DLPERF_CASE`` and ``DLPERF_MEASURE`` hold what stands behind the event in the
log's lines of these names: ``DLPERF_CASE='model=gpt2 precision=bf16'`` (docs/timer.md).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.model.case import OBSERVED, Case, Measure, ObservedCase, Topology
from dlperf_hpc.model.checks import Form, Misfit, is_name, is_number, whole
from dlperf_hpc.records import forms
from dlperf_hpc.records.lines import read_values, unflatten
from dlperf_hpc.train.probe import node
from dlperf_hpc.train.ranks import Alone, World

BEGIN, CASE, MEASURE = "DLPERF_BEGIN", "DLPERF_CASE", "DLPERF_MEASURE"
LOG = "DLPERF_LOG"
LOGS = "DLPERF_LOGS"
OWN_LOGS = "logs/timer"
"""Where logs go that nobody names a place for, below the directory in which the program runs."""

_NAMES = ("framework", "model", "precision")
_COUNTS = ("batch_size", "global_batch", "accumulation", "seq_len", "warmup", "iterations")
_WHOLE = (*_NAMES, "topology", "batch_size", "seq_len")
"""What the case of a sweep's own run has at least; with less the case is an observed one."""
_OF_BEGIN = ("sweep", "repeat", "attempt", "launch")
_FORMS: dict[str, tuple[Form, str]] = {
    **dict.fromkeys(
        _NAMES,
        (
            lambda value: value == "" or is_name(value),
            "is no name (letters, digits, '.', '_' and '-', a letter or digit first)",
        ),
    ),
    **dict.fromkeys(_COUNTS, (whole(1, 2**40), "is not a whole number from 1 on")),
    "flops_per_sample": (
        lambda value: is_number(value) and value > 0,
        "is not a positive number",
    ),
}


@dataclass(frozen=True)
class Load:
    """What goes through one iteration, as the program tells it; None is not told.

    ``batch_size`` is samples of one process in one iteration, ``global_batch`` samples of all
    processes in one optimizer step, ``accumulation`` iterations for each optimizer step.
    """

    batch_size: int | None = None
    global_batch: int | None = None
    accumulation: int | None = None


@dataclass(frozen=True)
class TimerConfig:
    """What is to be timed. ``case`` and ``begin`` are tables as in the log; ``log`` is the file of
    a sweep's run, None outside of one, where logs go below ``logs``."""

    load: Load
    measure: Measure
    case: Mapping[str, Any]
    begin: Mapping[str, Any]
    logs: Path
    log: Path | None = None
    flops_per_sample: float | None = None

    def case_in(self, topology: Topology) -> Case | ObservedCase:
        """The case, of a loop that runs in this topology unless the sweep asked for another."""
        told = {"topology": str(topology), **self.case}
        if all(told.get(key) for key in _WHOLE) and told.get(OBSERVED) is not True:
            return forms.case_of(told)
        case = ObservedCase.from_dict(told)
        if case.global_batch is None and case.micro_batch and case.accumulation:
            told["global_batch"] = case.micro_batch * case.accumulation
        return ObservedCase.from_dict(told)


def timer_config(told: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> TimerConfig:
    """From a Timer's arguments (those that were given) and the environment.

    The sweep decides on the window and what the case is called, the program on what goes through an
    iteration. SpecError with everything that is wrong in either.
    """
    told = {key: value for key, value in told.items() if value is not None}
    issues = list(_wrong(told, ""))
    tables = {name: _table(env, name, issues) for name in (BEGIN, CASE, MEASURE)}
    issues += _wrong(tables[CASE], f"{CASE}: ")
    measure = _measure(told, tables[MEASURE], issues)
    case = {key: told[key] for key in (*_NAMES, "seq_len", "batch_size", "global_batch",
                                       "accumulation") if key in told}  # fmt: skip
    case.update(tables[CASE])
    load = {key: told.get(key) for key in Load.__dataclass_fields__}
    if not (load["batch_size"] or load["global_batch"]):
        load["batch_size"] = case.get("batch_size")
    load["accumulation"] = load["accumulation"] or case.get("accumulation")
    found = TimerConfig(
        load=Load(**load),
        measure=measure,
        case=case,
        begin={key: value for key, value in tables[BEGIN].items() if key in _OF_BEGIN},
        logs=Path(told.get("logs") or env.get(LOGS) or OWN_LOGS),
        log=Path(env[LOG]) if env.get(LOG) else None,
        flops_per_sample=told.get("flops_per_sample"),
    )
    if not issues:
        issues += _misfits(found)
    if issues:
        raise SpecError("what dlperf_hpc is to time", issues)
    return found


def _table(env: Mapping[str, str], name: str, issues: list[Issue]) -> dict[str, Any]:
    text = env.get(name, "").strip()
    try:
        values = read_values(" " + " ".join(text.split())) if text else {}
        if values is not None:
            return unflatten(values)
        why = "it is not key=value key=value"
    except ValueError as error:
        why = str(error)
    issues.append(Issue(name, f"{text!r} cannot be read: {why}"))
    return {}


def _wrong(values: Mapping[str, Any], where: str) -> Iterator[Issue]:
    for key, (fits, words) in _FORMS.items():
        if key in values and not fits(values[key]):
            yield Issue(f"{where}{key}", f"{values[key]!r} {words}")
    if not where and "batch_size" in values and "global_batch" in values:
        yield Issue("global_batch", "batch_size is told too, and one follows from the other",
                    "leave one of them out")  # fmt: skip


def _measure(told: Mapping[str, Any], swept: Mapping[str, Any], issues: list[Issue]) -> Measure:
    """The window; a Timer times no communication and no checkpoint."""
    known = ("warmup", "iterations", "min_seconds", "min_optimizer_steps")
    values = {key: table[key] for table in (told, swept) for key in known if key in table}
    try:
        measure = forms.measure_of({**values, "communication_steps": 0})
        if measure.warmup > (measure.min_seconds > 0) and measure.iterations > 0:
            return measure
        issues.append(
            Issue("the window", "warmup is 1 at least (2 with min_seconds), iterations 1")
        )
    except (Misfit, TypeError) as error:
        issues.append(Issue("the window", str(error)))
    return Measure()


def _misfits(found: TimerConfig) -> Iterator[Issue]:
    """What shows only when the case is made."""
    try:
        found.case_in(Topology(1, 1))
    except (KeyError, TypeError, ValueError) as error:
        yield Issue(CASE, f"this is no case: {error}")
    for key in ("repeat", "attempt"):
        if key in found.begin and not (type(found.begin[key]) is int and found.begin[key] > 0):
            yield Issue(f"{BEGIN}: {key}", f"{found.begin[key]!r} is not a number from 1 on")


# --- the other processes of the loop


class _Torch:
    """The default group of torch.distributed, with the calls of mpi4py's that a World has."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed

    def Get_rank(self) -> int:
        return int(self._distributed.get_rank())

    def Get_size(self) -> int:
        return int(self._distributed.get_world_size())

    def Barrier(self) -> None:
        self._distributed.barrier()

    def bcast(self, value: Any, root: int = 0) -> Any:
        values = [value]
        self._distributed.broadcast_object_list(values, src=root)
        return values[0]

    def allgather(self, value: Any) -> list[Any]:
        values = [None] * self.Get_size()
        self._distributed.all_gather_object(values, value)
        return values


def _groups() -> list[Any]:
    """Communicators that the program has made."""
    found: list[Any] = []
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found.append(_Torch(distributed))
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        found.append(mpi.COMM_WORLD)
    return found


@dataclass(frozen=True)
class ProcessGroup:
    """All processes of the loop, this one among them.

    ``world`` is None where the launcher started several and they cannot be met; ``remark`` then
    says so. ``topology`` is None where it is not known, or no topology (uneven); ``uneven`` says
    why.
    """

    rank: int
    size: int
    topology: Topology | None
    world: World | None
    remark: str = ""
    uneven: str = ""


def launched(env: Mapping[str, str] = os.environ) -> ProcessGroup:
    """All processes as the launcher tells them, a device for each; alone where none tells any."""
    told = node.launched(env, (node.TORCHRUN, *node.LAUNCHERS))
    if not told.whole or told.rank is None or told.size is None:
        return ProcessGroup(0, 1, Topology(1, 1), None)
    topology = _topology(told.size, told.local_size or 0)
    return ProcessGroup(told.rank, told.size, topology, None)


def _topology(size: int, local: int) -> Topology | None:
    """The topology of ``size`` processes, ``local`` of them on each node; 0 is not known."""
    if size == 1:
        return Topology(1, 1)
    if not 0 < local <= 999 or size % local or size // local > 99999:
        return None
    return Topology(size // local, local)


def find(env: Mapping[str, str] = os.environ, meet: bool = True) -> ProcessGroup:
    """The others, as far as they can be met now; every process of the loop calls it. Without
    ``meet`` only what the launcher tells: as a program ends nobody may be there any more."""
    told = launched(env)
    groups = [comm for comm in _groups() if comm.Get_size() > 1] if meet else []
    if not groups and told.size > 1:
        remark = (
            f"the launcher started {told.size} processes, which did not meet, as the program had"
            " initialised neither torch.distributed nor mpi4py by then. The times are those of rank"
            " 0, and every process is taken to have done as many samples"
        )
        uneven = "" if told.topology else "the launcher does not tell how they lie on nodes"
        return ProcessGroup(told.rank, told.size, told.topology, None, remark, uneven)
    comm = groups[0] if groups else Alone()
    world = World(comm.Get_rank(), tuple(comm.allgather(socket.gethostname())), comm)
    per_node = {host: world.hosts.count(host) for host in world.nodes}
    if len(set(per_node.values())) == 1:
        topology = Topology(len(per_node), world.local_size)
        return ProcessGroup(world.rank, world.size, topology, world)
    uneven = f"they lie unevenly on nodes, {per_node}"
    return ProcessGroup(world.rank, world.size, None, world, uneven=uneven)
