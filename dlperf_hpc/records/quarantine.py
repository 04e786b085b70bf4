"""What holds runs back: a marker in the sweep's directory for each environment that cannot run.

A task whose run dies of its environment leaves the marker; tasks that start later, of runs that
would die of the same fault, end as ``held-back`` without an attempt; ``rerun`` takes the marker
away. Whoever cannot read a marker as its writer made it goes on as if there were none.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Callable

from dlperf_hpc.files import dump_json, group_of, is_mine, open_in, write_atomically
from dlperf_hpc.model import checks
from dlperf_hpc.model.case import Case, known_fields
from dlperf_hpc.records import forms, layout
from dlperf_hpc.records.lines import utc

SCHEMA = "dlperf-held-back/1"
_MOST_BYTES = 1 << 16
_MOST_ENTRIES = 50


@dataclass(frozen=True)
class Kind:
    """A way in which an environment fails before the window opens. ``certain``: one run proves it,
    since its Python ran, or its launcher said so; any other kind may come of a single broken node.
    ``cases`` says of which cases of the environment it is the end, a key of ``_SAME``."""

    title: str
    certain: bool = False
    cases: str = ""


KINDS = {
    "python": Kind("its Python is too old", certain=True),
    "package": Kind("dlperf_hpc is not installed in it", certain=True),
    "framework": Kind("a module of the framework is missing", certain=True, cases="framework"),
    "mpi": Kind("mpi4py is missing", certain=True),
    "mpi_plugin": Kind("srun has no such MPI plug-in", certain=True),
    "mpi_alone": Kind("each rank believes that it is alone", certain=True, cases="ranks"),
    "interpreter": Kind("its Python cannot be started"),
    "setup": Kind("a line of its setup failed"),
    "mpi_library": Kind("its MPI library cannot be loaded"),
    "library": Kind("the framework cannot be loaded", cases="framework"),
    "gpu": Kind("its framework sees no GPU", cases="gpu"),
}
"""By the word that stands in records (key ``fault``) and markers."""

_SAME: dict[str, Callable[[Case, str], bool]] = {
    "": lambda case, framework: True,
    "framework": lambda case, framework: case.framework == framework,
    "ranks": lambda case, framework: case.ranks > 1,
    "gpu": lambda case, framework: case.framework == framework and case.device == "cuda",
}


def several(hosts: Collection[str]) -> bool:
    """Whether hosts, or lists of hosts (``n[1-2]``), are more than one."""
    return len(hosts) > 1 or any("[" in host for host in hosts)


def is_end_of(kind: str, framework: str, case: Case) -> bool:
    """Whether a fault of a run of the back end ``framework`` would end such a case there too."""
    return _SAME[KINDS[kind].cases](case, framework)


@dataclass(frozen=True)
class EnvironmentFault:
    """One fault of an environment: its ``kind``, the ``run`` that died of it and that run's back
    end, and the ``reason`` in its record."""

    kind: str
    framework: str
    run: str
    reason: str
    time: str = ""


def marker(root: Path, environment: str) -> Path:
    """The path of an environment's marker in a sweep's directory."""
    return root / layout.HELD_BACK.format(environment)


def read_entries(root: Path, environment: str) -> tuple[EnvironmentFault, ...]:
    """What holds runs of an environment back; nothing where there is no marker, or none that its
    writer made: a regular file of the directory's owner, of this user, or of the group that the
    directory is shared with."""
    try:
        row = checks.parse(_read(root, marker(root, environment).name))
        forms.check_held_back(row, KINDS)
    except (OSError, ValueError):
        return ()
    if row["schema"] != SCHEMA or row["environment"] != environment:
        return ()
    held = (known_fields(EnvironmentFault, entry) for entry in row["held"])
    return tuple(EnvironmentFault(**entry) for entry in held)


def _read(root: Path, name: str) -> bytes:
    """A marker's content; OSError or ValueError where it is none, or not its writer's."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open_in(folder, name) as file:
            found, above = os.fstat(file.fileno()), os.fstat(folder)
            if found.st_uid != above.st_uid and not is_mine(found, group_of(above)):
                raise ValueError("the marker is another user's")
            data = file.read(_MOST_BYTES + 1)
    finally:
        os.close(folder)
    if len(data) > _MOST_BYTES:
        raise ValueError("too large for a marker")
    return data


def entry_for(root: Path, case: Case) -> EnvironmentFault | None:
    """What holds a run of this case back; None if nothing does."""
    entries = read_entries(root, case.environment)
    return next((e for e in entries if is_end_of(e.kind, e.framework, case)), None)


def hold_back(root: Path, environment: str, entry: EnvironmentFault) -> None:
    """Leave a marker, or add to it; OSError if that cannot be written. Two tasks at once may write
    one of two entries only: the next run that dies writes the other."""
    entries = read_entries(root, environment)
    if any((e.kind, e.framework) == (entry.kind, entry.framework) for e in entries):
        return
    stamped = replace(entry, time=entry.time or utc())
    rows = list(map(asdict, (*entries, stamped)[:_MOST_ENTRIES]))
    row = {"schema": SCHEMA, "environment": environment, "held": rows}
    write_atomically(marker(root, environment), dump_json(row))


def let_go(root: Path, environments: Iterable[str]) -> list[str]:
    """Take the markers of environments away: the environments whose marker was there. OSError if
    one cannot be taken away."""
    found = []
    for environment in dict.fromkeys(environments):
        try:
            marker(root, environment).unlink()
        except FileNotFoundError:
            continue
        found.append(environment)
    return found


def reason(environment: str, entry: EnvironmentFault) -> str:
    """Why a run is held back, for its record and for people: the same for all runs of it."""
    why = f"{KINDS[entry.kind].title}, as run {entry.run} says: {entry.reason}"
    return f"environment {environment}: {why}; when that is mended, `dlperf rerun` takes these runs"
