"""From a program's table, a case and a task's place to the words and variables of a child."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlperf_hpc.files import make_directories, write_atomically
from dlperf_hpc.model.case import Case, Measure
from dlperf_hpc.records.lines import SUPERVISED
from dlperf_hpc.records.store import Attempt
from dlperf_hpc.sweepfile.commands import LAUNCHERS, Command, child_argv, command, plan_values
from dlperf_hpc.sweepfile.programs import UserProgram
from dlperf_hpc.train.program.launcher import RankInfo

_DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "NO_COLOR": "1"}
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "davinci[0-9]*", "hl[0-9]*", "accel/*")  # in /dev
_NO_GPU = ("", "-1", "NoDevFiles")  # of CUDA_VISIBLE_DEVICES; the last is Slurm's
_NEVER = ("PYTHONSAFEPATH",)  # a script must find the files beside it


def task_values(
    attempt: Attempt, measure: Measure, place: RankInfo, python: str, port: int
) -> dict[str, Any]:
    """All placeholders of a task whose ranks meet at a port."""
    paths = attempt.paths
    return {
        **plan_values(attempt.run.case, measure, attempt.sweep, attempt.run),
        "rank": place.rank,
        "local_rank": place.local_rank,
        "node_rank": place.node_rank,
        "attempt": attempt.number,
        "host": place.host,
        "hosts": ",".join(place.hosts),
        "hostfile": str(paths.supervised(attempt.number) / "hosts"),
        "master_addr": place.address,
        "master_port": port,
        "scratch": str(paths.scratch(attempt.number)),
        "outdir": str(paths.output(attempt.number)),
        "python": python,
    }


def started(
    program: UserProgram,
    attempt: Attempt,
    measure: Measure,
    place: RankInfo,
    words: Sequence[str],
    port: int,
    env: Mapping[str, str] = os.environ,
) -> Command:
    """What a supervisor starts, with all of the child's environment. ``words`` are the command of
    the environment's Python, a container's before it."""
    values = task_values(attempt, measure, place, words[-1], port)
    made = command(program, values)
    child = {name: value for name, value in env.items() if name not in _NEVER}
    case = attempt.run.case
    defaults = {**_DEFAULTS, "OMP_NUM_THREADS": str(case.threads)}
    child = {**defaults, **child, **_of_timer(values), **_variables(case, place, values)}
    child.update(made.env)
    argv = child_argv(program, made.argv, values, words)
    return Command(argv, child, made.workdir, len(made.argv))


def _of_timer(values: Mapping[str, Any]) -> dict[str, str]:
    """What a Timer in the program, or the hook around it, takes from its environment: the sweep's
    window, where its own log goes, and that what it has measured is to be told."""
    return {
        "DLPERF_MEASURE": f"warmup={values['warmup']} iterations={values['iterations']}",
        "DLPERF_LOGS": values["outdir"],
        SUPERVISED: "1",
    }


def _variables(case: Case, place: RankInfo, values: Mapping[str, Any]) -> dict[str, str]:
    """Where a child stands, as PyTorch's ``env://`` reads it. torchrun sets its workers' own."""
    meeting = {"MASTER_ADDR": values["master_addr"], "MASTER_PORT": str(values["master_port"])}
    if case.launch == "accelerate" and not _has_accelerator(case.device):
        # Else its processes would not meet on CPUs: each would train alone, as rank 0.
        return {**meeting, "ACCELERATE_USE_CPU": "true"}
    if case.launch not in ("rank", "node"):
        return meeting
    told = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": case.ranks_per_node,
        "NODE_RANK": place.node_rank,
    }
    return {**meeting, **{name: str(value) for name, value in told.items()}}


def _has_accelerator(device: str) -> bool:
    """Whether a program is to train on accelerators: with ``auto`` if this node has any."""
    return device == "cuda" or (device == "auto" and _sees_accelerator())


def _sees_accelerator() -> bool:
    """Whether this node has an accelerator that this job may open: without one of its own a job may
    see those of others, but not open them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in _NO_GPU:
        return False
    for path in (each for pattern in _ACCELERATORS for each in Path("/dev").glob(pattern)):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            return True
    return False


def make_directories_of(attempt: Attempt, program: UserProgram, place: RankInfo) -> None:
    """Make the directories and the file that the program's table names."""
    paths = attempt.paths
    for path in (paths.supervised(attempt.number), paths.scratch(attempt.number)):
        make_directories(path)
    if names(program, "outdir"):
        make_directories(paths.output(attempt.number))
    if place.rank == 0:
        hosts = "".join(f"{host}\n" for host in place.hosts)
        write_atomically(paths.supervised(attempt.number) / "hosts", hosts)


def meets(program: UserProgram, place: RankInfo) -> bool:
    """Whether the ranks are to meet at a port of rank 0's node."""
    several = place.size > 1 or program.launch in LAUNCHERS
    return several and (program.launch != "once" or names(program, "master_port"))


def names(program: UserProgram, placeholder: str) -> bool:
    """Whether a placeholder stands anywhere in a program's command."""
    texts = [*program.run, *program.env.values(), program.workdir]
    return any(placeholder in text for text in texts)
