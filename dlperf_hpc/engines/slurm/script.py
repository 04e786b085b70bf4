"""Batch scripts, written and submitted by submitit. Of submitit nothing else is used, nor anywhere:
a task finds its run by manifest and array index, so that nothing is pickled, and the environment's
own Python needs no submitit.

submitit is pinned to its minor version in pyproject.toml, because the methods in use are private:
``PRIVATE`` has their names and parameters, and a test fails when submitit has others.

What sbatch prints goes past submitit, into files: submitit takes the first number behind the word
job for the job's id, be it a site's greeting that says it, and ends an sbatch that prints a byte
which is not UTF-8.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.engines.base import TaskProgram, clean_environment, module_option, run_program
from dlperf_hpc.engines.site import Environment, Site, mountable
from dlperf_hpc.errors import Issue, LedgerError, SpecError, redacted
from dlperf_hpc.model.checks import is_printable
from dlperf_hpc.records import layout
from dlperf_hpc.records.forms import NODE_LIST
from dlperf_hpc.records.manifest import Array

if TYPE_CHECKING:
    from submitit.slurm.slurm import SlurmExecutor

PRIVATE = {
    "_make_submission_file_text": ("self", "command", "uid"),
    "_submit_command": ("self", "command"),
    "_make_submission_command": ("self", "submission_file_path"),
    "_get_job_id_from_submission_command": ("string",),
}
"""Private methods of submitit's SlurmExecutor that are used here, and their parameters."""

_SAYS_SO_AFTER_S = 8.0  # that sbatch has not answered yet: a full controller lets it wait minutes
_SIGNAL_BEFORE_END_S = 10  # SIGUSR2 so long before Slurm's own end, for a record of why
# What a running task is called, and how often it has been put back, for the shell to fill in.
_TASK = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
_RESTARTS = "${SLURM_RESTART_COUNT:-0}"
# What a shell set up for another Python; it would be led astray by them.
_OTHER_PYTHONS = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
_OTHER_CONDAS = ("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_SHLVL")
# A batch shell is no login shell: `module` may not be there yet.
_FIND_MODULE = (
    "type module >/dev/null 2>&1 || for dlperf_init in"
    ' "${LMOD_PKG:-}/init/bash" "${MODULESHOME:-}/init/bash"'
    " /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh;"
    ' do [ ! -r "$dlperf_init" ] || { source "$dlperf_init"; break; }; done'
)
# A step that fails, or leaves the shell, is named in the output.
_TRAP = (
    """trap 'dlperf_status=$?; [ -z "$dlperf_line" ] ||"""
    f""" printf "{layout.SETUP_MARK} %d: %s\\n" "$dlperf_status" "$dlperf_line" >&2' EXIT"""
)
_UNBOUND = {"none": "--gpu-bind=none", "tres-none": "--tres-bind=gres/gpu:none"}


class SubmissionError(Exception):
    """sbatch did not say that it took the job; the message is its complaint, perhaps empty."""


def _executor(
    root: Path, array: Array, site: Site, program: TaskProgram, place: Path | None = None,
    job_in: Callable[[str], str] = str,
) -> SlurmExecutor:  # fmt: skip
    """submitit's executor for an array. sbatch's answer and complaint go into ``place``, and
    ``job_in`` finds the job's id in the answer."""
    parameters = _parameters(root, array, site, program)
    from submitit.slurm.slurm import SlurmExecutor  # slow to load

    class _Executor(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            """A dry run makes its scripts on any machine; submitting looks for sbatch itself."""
            return 2

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            """``--parsable``: the job's id, and nothing else that sbatch itself would print."""
            unset = (f"-u{name}" for name in os.environ.keys() - clean_environment().keys())
            shell = ("/bin/sh", "-c", 'exec sbatch --parsable "$0" >"$1" 2>"$2"')
            paths = (submission_file_path, f"{place}/answer", f"{place}/complaint")
            return ["/usr/bin/env", *unset, *shell, *map(str, paths)]

        # A method, since it reads files of this submission; submitit's is static.
        def _get_job_id_from_submission_command(self, string: str | bytes) -> str:  # type: ignore[override]
            answer = _text(Path(f"{place}/answer"))
            if job := job_in(answer):
                return job
            words = " ".join(answer.split())[:200]
            raise SubmissionError(f"sbatch's answer does not tell the job's id: {words}")

    executor = _Executor(root / layout.JOBS)
    executor.update_parameters(**parameters)
    executor.parameters["map_count"] = array.size
    return executor


def batch_script(root: Path, array: Array, site: Site, program: TaskProgram | None = None) -> str:
    """The batch script of an array, exactly as it would be submitted; by default that of its runs.
    LedgerError if Slurm cannot be given the directory's name, SpecError for any other value that
    cannot stand in a batch script."""
    program = program or run_program(root, array)
    executor = _executor(root, array, site, program)
    return str(executor._make_submission_file_text(_command(root, array, site, program), ""))


def submit(
    root: Path, array: Array, site: Site, program: TaskProgram, job_in: Callable[[str], str]
) -> str:
    """Write the batch script below ``root`` and give it to sbatch; the job id, which ``job_in``
    finds in what ``sbatch --parsable`` prints ('': it is not certain). SubmissionError if sbatch
    fails or the job id is not certain, OSError if the script cannot be written; else as
    :func:`batch_script`."""
    (root / layout.JOBS).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dlperf-sbatch-") as folder, _said_if_slow(array):
        executor = _executor(root, array, site, program, Path(folder), job_in)
        from submitit.core.utils import FailedJobError

        command = _command(root, array, site, program)
        script = executor._make_submission_file_text(command, "")
        before = os.umask(0o077)  # nobody else reads a script with a secret
        try:
            if redacted(script) == script:
                os.umask(before)
            job = executor._submit_command(command)
        except FailedJobError as error:
            raise SubmissionError(_text(Path(folder, "complaint"))) from error
        finally:
            os.umask(before)
    return str(job.job_id)


def _text(path: Path) -> str:
    """What sbatch printed into a file; '' if it did not get that far."""
    try:
        return path.read_text(encoding="utf-8", errors="backslashreplace")
    except FileNotFoundError:
        return ""


@contextlib.contextmanager
def _said_if_slow(array: Array) -> Iterator[None]:
    """Say on stderr that sbatch has not answered yet, if it takes long."""
    words = (
        f"sbatch has not answered for {_SAYS_SO_AFTER_S:g} s ({array.name}): waiting for it,"
        " which can take minutes where the controller is full or busy"
    )
    timer = threading.Timer(_SAYS_SO_AFTER_S, print, [words], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _command(root: Path, array: Array, site: Site, program: TaskProgram) -> str:
    """What follows srun's own options in the script. Setup and ranks have a shell of their own,
    from "(" in the setup to ")" after the command: one that ends early, or whose PATH or PYTHONPATH
    was changed, must not keep the epilogue from running."""
    if _takes_turns(array):
        return '"${dlperf_launch[@]}"\n)'  # set for the run's turn, with options of srun
    environment = site.environment_named(array.environment)
    words = environment.task_command(root, program.arguments, program.supervised)
    return f"{shlex.join(words)}\n)"


def check(root: Path, array: Array, site: Site) -> None:
    """Raise what :func:`batch_script` would, without submitit, which is slow to load."""
    program = run_program(root, array)
    _parameters(root, array, site, program)
    _command(root, array, site, program)


def _parameters(root: Path, array: Array, site: Site, program: TaskProgram) -> dict[str, Any]:
    _check_directory(root)
    return {
        **_readable(array, _options(array, site)),
        "wckey": None,  # submitit's own default, which sites that use wckeys refuse
        "signal_delay_s": _SIGNAL_BEFORE_END_S,
        "stderr_to_stdout": True,
        "additional_parameters": _readable(array, _further_options(root, array, site)),
        "setup": _setup_lines(root, array, site, program),
        "srun_args": srun_arguments(root, array, site),
        "use_srun": not program.alone,
        "teardown": _teardown_lines(array, site, program),
    }


def _check_directory(root: Path) -> None:
    """Refuse what Slurm would not take as it stands in the name of an output file."""
    if re.search(r"[%\\\x00-\x1f\x7f]", str(root)) or not is_printable(str(root)):
        raise LedgerError(
            f"{str(root)!a}: Slurm cannot be given a directory with '%', a backslash, control"
            " characters or broken UTF-8 in its path; sweep with another --logs"
        )


def _readable(array: Array, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as sbatch reads their values from a script: it unquotes like a shell, but takes a
    backslash for an escape within single quotes too. A line break would begin another line."""
    texts = {name: value for name, value in options.items() if isinstance(value, str)}
    for name, value in texts.items():
        if re.search(r"[\x00-\x1f\x7f]", value):
            issue = Issue(name.replace("_", "-"), f"{value!a} has control characters")
            raise SpecError(f"batch script of {array.name!a}", [issue])
    return {**options, **{name: text.replace("\\", "\\\\") for name, text in texts.items()}}


def _options(array: Array, site: Site) -> dict[str, Any]:
    """The options of sbatch that submitit knows."""
    keys = ("partition", "account", "qos", "constraint", "cpus_per_task", "mem", "mem_per_cpu")
    given = {key: getattr(site, key) for key in keys}
    given |= {"exclude": _excluded(array, site) or None, "exclusive": site.exclusive or None}
    return {
        **{key: value for key, value in given.items() if value is not None},
        **_gpu_request(array, site),
        "job_name": array.name,
        "comment": array.token,
        "nodes": array.topology.nodes,
        "ntasks_per_node": _ranks_per_node(array),
        "time": math.ceil(array.job_limit_s / 60),
    }


def _further_options(root: Path, array: Array, site: Site) -> dict[str, Any]:
    """The options of sbatch that submitit does not know, or not as we mean them."""
    tasks = array.size
    # One file for a task's batch script and all its ranks; "array" also where there is one task,
    # so that every run is called <job>_<index>.
    options: dict[str, Any] = {
        "array": f"0-{tasks - 1}%{min(tasks, site.array_parallelism or tasks)}",
        "output": str(root / layout.JOBS / "%A_%a.out"),
        "export": site.export,
    }
    if site.ntasks:
        options["ntasks"] = array.topology.nodes * _ranks_per_node(array)
    if site.reservation:
        options["reservation"] = site.reservation
    if site.requeue is not None:
        options["requeue" if site.requeue else "no-requeue"] = True
    return {**options, **site.sbatch}


def _ranks_per_node(array: Array) -> int:
    """Tasks for which a job asks on each node; of a program that starts its own, one per device."""
    case = array.tasks[0].case
    return case.topology.gpus_per_node if case.launch == "once" else case.ranks_per_node


def _excluded(array: Array, site: Site) -> str:
    """Nodes to leave out: the site's, and the array's own (those of a rerun)."""
    if array.exclude and re.fullmatch(NODE_LIST, array.exclude) is None:
        issue = Issue("exclude", f"{array.exclude!a} is no list of nodes", "n1,n[3-5]")
        raise SpecError(f"batch script of {array.name!a}", [issue])
    return ",".join(dict.fromkeys(each for each in (site.exclude, array.exclude) if each))


def _gpu_request(array: Array, site: Site) -> dict[str, Any]:
    typed = f"{array.topology.gpus_per_node}"
    if site.gpu_type:
        typed = f"{site.gpu_type}:{typed}"
    requests = {"gres": {"gres": f"gpu:{typed}"}, "gpus-per-node": {"gpus_per_node": typed}}
    return requests.get(site.gpus, {})


def _setup_lines(root: Path, array: Array, site: Site, program: TaskProgram) -> list[str]:
    mark = f"echo {shlex.quote(f'{layout.ARRAY_MARK} {array.token}')}"
    # A requeued task goes on in the same output file: the epilogue reads from its own launch on.
    launch = f"{layout.LAUNCH_MARK} {_TASK}.{_RESTARTS}"
    lines = [mark]
    if program.bound:
        lines.append(f"export {layout.BOUND}={program.bound}")
    if array.repeats_per_job > 1:
        lines.append(
            f"for {layout.REPEAT} in {' '.join(map(str, range(array.repeats_per_job)))}; do"
        )
        lines.append(f"export {layout.REPEAT} {layout.JOB_SECONDS}=$SECONDS")
        launch += f".${layout.REPEAT}"
    lines += [f'echo "{launch}"', "(", *_first_lines(root, array, site, program)]
    lines += _turn_lines(root, array, site, program)
    if site.cpus_per_task:
        # srun has not inherited it since 22.05. Our srun has an option, any other the variable.
        lines.append(f"export SRUN_CPUS_PER_TASK={site.cpus_per_task}")
    return lines


def _first_lines(root: Path, array: Array, site: Site, program: TaskProgram) -> list[str]:
    """Steps of a run before anything of its environment. One ends the task at once if its run is
    held back; to see that nothing is costs a look for one file. Another keeps the repeats that wait
    off this task's nodes; a run begins whatever becomes of it."""
    if not program.markers:  # no run
        return []
    looks = " || ".join(f"[ -f {shlex.quote(str(marker))} ]" for marker in program.markers)
    looks = f"{{ {looks}; }}" if len(program.markers) > 1 else looks
    lines = [f"if {looks} && {shlex.join(program.gate)}; then exit 0; fi"]
    if site.spread:
        words = (sys.executable, *module_option(), "dlperf_hpc.engines.slurm.spread")
        own = f"{layout.EXCLUDED}={shlex.quote(_excluded(array, site))}"
        lines.append(f"{own} {shlex.join([*words, str(root), array.name])} || true")
    return lines


def srun_arguments(root: Path, array: Array, site: Site) -> list[str]:
    """Options of srun, beside those that submitit writes itself."""
    # --output=all undoes submitit's file per rank: everything goes to the task's one file.
    options = ["--output=all", "--label", "--kill-on-bad-exit=1", f"--wait={site.srun_wait_s}"]
    # What setup made must reach the ranks: sbatch's own --export would count for srun as well.
    options.append("--export=ALL")
    if not _takes_turns(array):
        options += _environment_options(site.environment_named(array.environment), root)
    per_node = _ranks_per_node(array)
    if array.tasks[0].case.launch == "once":
        # What the program starts itself must find the nodes free.
        options += ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--overlap"]
    elif site.ntasks:
        options.append(f"--ntasks={array.topology.nodes * per_node}")
        options.append(f"--ntasks-per-node={per_node}")
    if site.cpus_per_task:
        options.append(f"--cpus-per-task={site.cpus_per_task}")
    if site.gpu_bind:
        options.append(_UNBOUND[site.gpu_bind])
    return [*options, *site.srun]


def _teardown_lines(array: Array, site: Site, program: TaskProgram) -> list[str]:
    lines = ["dlperf_code=$?", f'{shlex.join(program.epilogue)} "$dlperf_code"']
    if array.repeats_per_job > 1 or site.requeue:
        lines.append("dlperf_ended=$?")
    if array.repeats_per_job > 1:
        over = f"[ $dlperf_ended -eq {layout.REQUEUE} ] || [ $dlperf_ended -eq {layout.JOB_ENDS} ]"
        lines += [f"if {over}; then break; fi", "done"]
    if site.requeue:
        lines.append(
            f'[ $dlperf_ended -ne {layout.REQUEUE} ] || [ "{_RESTARTS}" -ge {site.requeue} ] ||'
            f' scontrol requeue "{_TASK}"'
        )
    return [*lines, "exit $dlperf_code"]


def _environment_options(environment: Environment, root: Path) -> list[str]:
    """What srun is told of an environment: the MPI plug-in, and pyxis's container."""
    options, box = [f"--mpi={environment.mpi}"], environment.pyxis
    if box is not None:
        pairs = [mount if ":" in mount else f"{mount}:{mount}" for mount in box.mounts]
        mounts = ",".join([f"{mountable(root)}:{root}", *pairs])
        options += [f"--container-image={box.image}", f"--container-mounts={mounts}"]
        if environment.env:  # else a variable that the image sets itself would stay as it is there
            options.append(f"--container-env={','.join(environment.env)}")
        options += box.options
    return options


def _takes_turns(array: Array) -> bool:
    """Whether the runs of a job have several environments."""
    return len(set(array.environments)) > 1


def _turn_lines(root: Path, array: Array, site: Site, program: TaskProgram) -> list[str]:
    """Shell lines that lead into the environment of a run. Where the runs of a job have several,
    the shell chooses by the run's turn, and sets options of srun and command as well."""
    names = array.environments
    if not _takes_turns(array):
        return _environment_lines(site.environment_named(names[0]), site.requeue)
    lines = [f"case ${layout.REPEAT} in"]
    for name in dict.fromkeys(names):
        environment = site.environment_named(name)
        turns = "|".join(str(turn) for turn, each in enumerate(names) if each == name)
        command = environment.task_command(root, program.arguments, program.supervised)
        words = [*_environment_options(environment, root), *command]
        lines += [f"{turns})", *_environment_lines(environment, site.requeue)]
        lines += [f"dlperf_launch=({shlex.join(words)})", ";;"]
    return [*lines, "esac"]


def _environment_lines(environment: Environment, requeue: int | None) -> list[str]:
    """Shell lines that lead into an environment, for a shell that only runs the ranks. The first
    step fails when a task has been put back in the queue more than ``requeue`` times."""
    lines, steps = [], []
    if environment.own_python:
        cleared = (*_OTHER_PYTHONS, *(_OTHER_CONDAS if environment.conda else ()))
        lines.append(f"unset {' '.join(cleared)}")
    if requeue:
        steps.append(f'[ "{_RESTARTS}" -le {requeue} ] {layout.REQUEUE_BOUND}')
    steps += [*_module_steps(environment), *_conda_steps(environment), *environment.setup]
    if steps:
        lines.append(_TRAP)
        for step in steps:
            # ``eval``: a slip of the pen in a step must not make bash misread what follows.
            lines += [f"dlperf_line={shlex.quote(step)}", 'eval "$dlperf_line" || exit']
        lines.append("dlperf_line=")
    if environment.venv is not None:
        lines.append(f"export VIRTUAL_ENV={shlex.quote(environment.venv.rstrip('/'))}")
        lines.append('export PATH="$VIRTUAL_ENV/bin:$PATH"')
    given = {**environment.env, **environment.container_variables()}
    return [*lines, *(f"export {name}={shlex.quote(value)}" for name, value in given.items())]


def _module_steps(environment: Environment) -> list[str]:
    steps = ["module purge"] if environment.modules_purge else []
    steps += [f"module load {shlex.quote(name)}" for name in environment.modules]
    return [_FIND_MODULE, *steps] if steps else []


def _conda_steps(environment: Environment) -> list[str]:
    if environment.conda is None:
        return []
    # A batch shell has not read the lines that `conda init` writes for interactive ones.
    hook = 'dlperf_hook="$(conda shell.bash hook)" && eval "$dlperf_hook"'
    if root := environment.conda_root:
        hook = f"source {shlex.quote(root.rstrip('/') + '/etc/profile.d/conda.sh')}"
    activate = f"conda activate {shlex.quote(environment.conda)}"
    return [hook, activate, '[ -x "$CONDA_PREFIX/bin/python" ]']
