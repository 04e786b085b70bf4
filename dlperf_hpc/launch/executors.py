"""submitit's executors with our command: a task finds its run by manifest and array index.

submitit moves its pickles into place after sbatch has returned, so a task must not need them:
:func:`run_task` is what is pickled, a top-level function and two strings, and what really runs is
the command line of :func:`worker_command`, in the environment's own Python.
"""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import SlurmExecutor

from dlperf_hpc.launch.mpiexec import MpiexecExecutor
from dlperf_hpc.launch.site import Environment, Site
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import Array
from dlperf_hpc.records.task import ARRAY_MARK, LAUNCH_MARK

_SIGNAL_BEFORE_END_S = 10  # SIGUSR2 so long before Slurm's own end, for a record of why


def run_task(root: str, array: str, index: int) -> None:
    """What submitit pickles: enough to name the run. The task itself never reads it."""
    raise NotImplementedError(f"task {index} of {array} in {root} runs dlperf_hpc.train instead")


def worker_command(root: Path, array: Array, environment: Environment) -> list[str]:
    """One rank's command line."""
    return [environment.interpreter, "-u", "-m", "dlperf_hpc.train", str(root), array.name]


def epilogue_command(root: Path, array: Array) -> list[str]:
    """What follows the ranks, in the Python that submits: see :mod:`dlperf_hpc.launch.epilogue`."""
    return [sys.executable, "-m", "dlperf_hpc.launch.epilogue", str(root), array.name]


class SlurmArrayExecutor(SlurmExecutor):
    """submitit's Slurm executor; ``command`` replaces its own, which would load a pickle."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.command = command
        super().__init__(folder)

    @classmethod
    def affinity(cls) -> int:
        """A dry run makes its scripts on any machine; submitting looks for sbatch itself."""
        return 2

    @property
    def _submitit_command_str(self) -> str:
        return shlex.join(self.command)

    def script(self, tasks: int) -> str:
        """The batch script of an array, exactly as it would be submitted."""
        self.parameters["map_count"] = tasks
        return str(self._make_submission_file_text(self._submitit_command_str, ""))


class LocalQueueExecutor(MpiexecExecutor):
    """Our mpiexec executor with the worker's command in place of submitit's."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.command = command
        super().__init__(folder)

    @property
    def _submitit_command_str(self) -> str:
        return shlex.join(self.command)


def slurm_executor(root: Path, array: Array, site: Site) -> SlurmArrayExecutor:
    """An executor whose next map_array submits this array in the site's dialect."""
    environment = site.environment_named(array.environment)
    executor = SlurmArrayExecutor(root / layout.JOBS, worker_command(root, array, environment))
    executor.update_parameters(**_sbatch_parameters(root, array, site, environment))
    return executor


def _sbatch_parameters(
    root: Path, array: Array, site: Site, environment: Environment
) -> dict[str, Any]:
    tasks = len(array.tasks)
    given = {
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "cpus_per_task": site.cpus_per_task,
        "mem": site.mem,
        "exclusive": site.exclusive or None,
    }
    # One file for a task's batch script and all its ranks; "array" also where there is one task,
    # so that every run is called <job>_<index>.
    extra = {
        "array": f"0-{tasks - 1}%{min(tasks, site.array_parallelism or tasks)}",
        "output": str(root / layout.JOBS / "%A_%a.out"),
        **({"reservation": site.reservation} if site.reservation else {}),
        **site.sbatch,
    }
    return {
        **{key: value for key, value in given.items() if value is not None},
        **_gpu_request(array, site),
        "job_name": array.name,
        "comment": array.token,
        "wckey": None,  # submitit's own default, which sites that use wckeys refuse
        "nodes": array.topology.nodes,
        "ntasks_per_node": array.tasks[0].case.ranks_per_node,
        "time": math.ceil(array.time_limit_s / 60),
        "signal_delay_s": _SIGNAL_BEFORE_END_S,
        "stderr_to_stdout": True,
        "additional_parameters": extra,
        "setup": _setup_lines(array, environment),
        "srun_args": _srun_arguments(site, environment),
        "teardown": _teardown_lines(root, array),
    }


def _gpu_request(array: Array, site: Site) -> dict[str, Any]:
    count = array.topology.gpus_per_node
    typed = f"{site.gpu_type}:{count}" if site.gpu_type else f"{count}"
    if site.gpus == "none":
        return {}
    return {"gres": f"gpu:{typed}"} if site.gpus == "gres" else {"gpus_per_node": typed}


def _setup_lines(array: Array, environment: Environment) -> list[str]:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.env.items()]
    # A requeued task goes on in the same output file: the epilogue reads from its own launch on.
    launch = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}.${SLURM_RESTART_COUNT:-0}"
    marks = [f'echo "{ARRAY_MARK} {array.token}"', f'echo "{LAUNCH_MARK} {launch}"']
    return [*marks, *environment.setup, *exports]


def _srun_arguments(site: Site, environment: Environment) -> list[str]:
    # --output=all undoes submitit's file per rank: everything goes to the task's one file.
    # srun has not inherited --cpus-per-task since 22.05.
    cpus = [f"--cpus-per-task={site.cpus_per_task}"] if site.cpus_per_task else []
    fixed = ["--output=all", "--label", "--kill-on-bad-exit=1", f"--wait={site.srun_wait_s}"]
    return [*fixed, f"--mpi={environment.mpi}", *cpus, *site.srun]


def _teardown_lines(root: Path, array: Array) -> list[str]:
    epilogue = shlex.join(epilogue_command(root, array))
    return ["dlperf_code=$?", f'{epilogue} "$dlperf_code"', "exit $dlperf_code"]


def local_executor(root: Path, array: Array, site: Site) -> LocalQueueExecutor:
    """An executor whose next map_array queues this array on this machine."""
    environment = site.environment_named(array.environment)
    executor = LocalQueueExecutor(root / layout.JOBS, worker_command(root, array, environment))
    executor.update_parameters(
        tasks_per_node=array.tasks[0].case.ranks_per_node,
        timeout_min=array.time_limit_s / 60,
        env=dict(environment.env),
        epilogue=epilogue_command(root, array),
    )
    return executor
