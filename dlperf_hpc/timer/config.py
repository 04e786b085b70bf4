"""What is to be timed, and in how many processes.

Arguments are the program's, variables a sweep's or a launcher's. The processes that meet are those
of a torch.distributed group, else of an initialised mpi4py: nothing is initialised here.

``DLPERF_BEGIN``, ``DLPERF_CASE`` and ``DLPERF_MEASURE`` hold what stands behind the event in the
log's lines of these names: ``DLPERF_CASE='model=gpt2 precision=bf16'`` (docs/timer.md).
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import DlperfError, Issue, SpecError
from dlperf_hpc.model.case import OBSERVED, Case, Measure, ObservedCase, Topology, known_fields
from dlperf_hpc.model.checks import Form, Misfit, is_name, is_number, unfit, whole
from dlperf_hpc.records import forms
from dlperf_hpc.records.lines import read_values, unflatten
from dlperf_hpc.records.store import describe
from dlperf_hpc.train.probe import node
from dlperf_hpc.train.ranks import World, alone, communicator

BEGIN, CASE, MEASURE = "DLPERF_BEGIN", "DLPERF_CASE", "DLPERF_MEASURE"
LOG = "DLPERF_LOG"
LOGS = "DLPERF_LOGS"
OWN_LOGS = "logs/timer"
"""Where logs go that nobody names a place for, below the directory in which the program runs."""

_NAMES = ("framework", "model", "precision")
OF_WINDOW = ("warmup", "iterations", "min_seconds", "min_optimizer_steps")
_COUNTS = ("batch_size", "global_batch", "accumulation", "seq_len", "warmup", "iterations")
_WHOLE = (*_NAMES, "topology", "batch_size", "seq_len")
"""What the case of a sweep's own run has at least; with less the case is an observed one."""
_OF_CASE = (*_NAMES, "seq_len", "batch_size", "global_batch", "accumulation")
_OF_BEGIN = ("sweep", "repeat", "attempt", "launch")


def _is_label(value: Any) -> bool:
    return value == "" or is_name(value)


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


_is_count = whole(1, 2**40)
_FORMS: dict[str, Form] = {
    **dict.fromkeys(_NAMES, _is_label),
    **dict.fromkeys(_COUNTS, _is_count),
    "flops_per_sample": _is_positive,
}
_SENTENCES = {
    _is_label: "is no name (letters, digits, '.', '_' and '-', a letter or digit first)",
    _is_count: "is not a whole number from 1 on",
    _is_positive: "is not a positive number",
}


@dataclass(frozen=True)
class Load:
    """What goes through one iteration: ``batch_size`` samples of one process in one iteration,
    ``global_batch`` samples of all processes in one optimizer step, ``accumulation`` iterations for
    each optimizer step; None is not known."""

    batch_size: int | None = None
    global_batch: int | None = None
    accumulation: int | None = None

    def samples(self, stated: int | None) -> int | None:
        """Samples of one process in an iteration that stated so many, or none."""
        return self.batch_size if stated is None else stated


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
        row = {"topology": str(topology), **self.case}
        if all(map(row.get, _WHOLE)) and row.get(OBSERVED) is not True:
            return forms.case_of(row)
        case = ObservedCase.from_dict(row)
        if case.global_batch is None and case.micro_batch and case.accumulation:
            return replace(case, global_batch=case.micro_batch * case.accumulation)
        return case


DEFAULTS = TimerConfig(Load(), Measure(), {}, {}, Path(OWN_LOGS))  # where no other one is known


def timer_config(given: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> TimerConfig:
    """From a Timer's arguments (None: not given) and the environment. The sweep decides on the
    window and what the case is called, the program on what goes through an iteration. SpecError
    with everything that is wrong in either."""
    arguments = {key: value for key, value in given.items() if value is not None}
    issues = list(_wrong(arguments, ""))
    tables = {name: _table(env, name, issues) for name in (BEGIN, CASE, MEASURE)}
    issues += _wrong(tables[CASE], f"{CASE}: ")
    measure = _measure({**arguments, **tables[MEASURE]}, issues)
    case = {key: arguments[key] for key in _OF_CASE if key in arguments}
    case.update(tables[CASE])
    found = TimerConfig(
        load=_load(arguments, case),
        measure=measure,
        case=case,
        begin={key: value for key, value in tables[BEGIN].items() if key in _OF_BEGIN},
        logs=Path(arguments.get("logs") or env.get(LOGS) or OWN_LOGS),
        log=Path(env[LOG]) if env.get(LOG) else None,
        flops_per_sample=arguments.get("flops_per_sample"),
    )
    issues = issues or list(_misfits(found))
    if issues:
        raise SpecError("what dlperf_hpc is to time", issues)
    return found


def _load(arguments: Mapping[str, Any], case: Mapping[str, Any]) -> Load:
    load = Load(**known_fields(Load, arguments))
    if not (load.batch_size or load.global_batch):
        load = replace(load, batch_size=case.get("batch_size"))
    return replace(load, accumulation=load.accumulation or case.get("accumulation"))


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
    for name, value in unfit(values, _FORMS):
        yield Issue(f"{where}{name}", f"{value!r} {_SENTENCES[_FORMS[name]]}")
    if not where and "batch_size" in values and "global_batch" in values:
        yield Issue("global_batch", "batch_size is told too, and one follows from the other",
                    "leave one of them out")  # fmt: skip


def _measure(values: Mapping[str, Any], issues: list[Issue]) -> Measure:
    """The window; a Timer times no communication and no checkpoint."""
    row = {key: values[key] for key in OF_WINDOW if key in values}
    try:
        measure = forms.measure_of({**row, "communication_steps": 0})
    except (Misfit, TypeError) as error:
        issues.append(Issue("the window", str(error)))
        return Measure()
    if measure.warmup <= (measure.min_seconds > 0) or measure.iterations <= 0:
        words = "warmup is 1 at least (2 with min_seconds), iterations 1"
        issues.append(Issue("the window", words))
    return measure


def _misfits(found: TimerConfig) -> Iterator[Issue]:
    try:
        found.case_in(Topology(1, 1))
    except (KeyError, TypeError, ValueError) as error:
        yield Issue(CASE, f"this is no case: {error}")
    for key, value in unfit(found.begin, dict.fromkeys(("repeat", "attempt"), whole(1))):
        yield Issue(f"{BEGIN}: {key}", f"{value!r} is not a number from 1 on")


# --- the other processes of the loop


def _of_torch(distributed: Any) -> Any:
    """A communicator of the default group of torch.distributed; its barrier is the group's own."""
    size = int(distributed.get_world_size())

    def allgather(value: Any) -> list[Any]:
        values = [None] * size
        distributed.all_gather_object(values, value)
        return values

    found = communicator(int(distributed.get_rank()), size, allgather)
    found.Barrier = distributed.barrier
    return found


def _groups() -> list[Any]:
    """Communicators that the program has made."""
    found: list[Any] = []
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found.append(_of_torch(distributed))
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        found.append(mpi.COMM_WORLD)
    return found


@dataclass(frozen=True)
class ProcessGroup:
    """All processes of the loop, this one among them. ``world`` is None where the launcher started
    several and they cannot be met; ``remark`` then says so. ``topology`` is None where it is not
    known, or no topology (uneven); ``uneven`` says why."""

    rank: int
    size: int
    topology: Topology | None
    world: World | None
    remark: str = ""
    uneven: str = ""


def launched(env: Mapping[str, str] = os.environ) -> ProcessGroup:
    """All processes by the launcher's variables, a device for each; alone where there are none."""
    place = node.launched(env, (node.TORCHRUN, *node.LAUNCHERS))
    if not place.whole or place.rank is None or place.size is None:
        return ProcessGroup(0, 1, Topology(1, 1), None)
    topology = _topology(place.size, place.local_size or 0)
    return ProcessGroup(place.rank, place.size, topology, None)


def _topology(size: int, local: int) -> Topology | None:
    """The topology of ``size`` processes, ``local`` of them on each node; 0 is not known."""
    if size == 1:
        return Topology(1, 1)
    if not 0 < local <= 999 or size % local or size // local > 99999:
        return None
    return Topology(size // local, local)


def find(env: Mapping[str, str] = os.environ, meet: bool = True) -> ProcessGroup:
    """All processes, as far as they can be met now; every process of the loop calls it. Without
    ``meet`` only by the launcher: as a program ends nobody may be there any more."""
    group = launched(env)
    communicators = [comm for comm in _groups() if comm.Get_size() > 1] if meet else []
    if not communicators and group.size > 1:
        remark = (
            f"the launcher started {group.size} processes, which did not meet, as the program had"
            " initialised neither torch.distributed nor mpi4py by then. The times are those of rank"
            " 0, and every process is taken to have done as many samples"
        )
        uneven = "" if group.topology else "the launcher does not tell how they lie on nodes"
        return replace(group, remark=remark, uneven=uneven)
    comm = communicators[0] if communicators else alone()
    world = World(comm.Get_rank(), tuple(comm.allgather(socket.gethostname())), comm)
    per_node = {host: world.hosts.count(host) for host in world.nodes}
    if len(set(per_node.values())) == 1:
        topology = Topology(len(per_node), world.local_size)
        return ProcessGroup(world.rank, world.size, topology, world)
    uneven = f"they lie unevenly on nodes, {per_node}"
    return ProcessGroup(world.rank, world.size, None, world, uneven=uneven)


def error_words(error: Exception) -> str:
    """An error in the words of the system, or of this package, else with its place in here."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, DlperfError) else fault(error)


def fault(error: Exception) -> str:
    """That a call from here has failed, and where."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f", {os.path.basename(each.filename)}:{each.lineno}" for each in frames)
    return f"the Timer has failed ({describe(error)}{where}); the program went on"
