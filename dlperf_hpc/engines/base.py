"""The contract of an engine: where runs go, and what can be known of them afterwards; and how every
engine runs a command, with an argument list and in a clean environment.

``manifest.engine`` is the engine's name; :func:`dlperf_hpc.engines.get_engine` makes the object of
it, and no other code compares names. Tasks of the same array are called ``<job>_<index>`` on every
engine, and ``jobs/<job>_<index>.out`` is what their ranks printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, ClassVar, Literal

from dlperf_hpc import in_checkout
from dlperf_hpc.errors import SiteError, printable
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.layout import BOUND, MPI_VARIABLE, NO_MPI

if TYPE_CHECKING:
    from dlperf_hpc.engines.site import Environment, Site
    from dlperf_hpc.records.ledger import Ledger, Task
    from dlperf_hpc.records.manifest import Array, Manifest, Submission

DEFAULT_BOUND = 1001
"""Slurm's default MaxArraySize, for whoever tells no other: the most tasks of one array."""

_ALIVE = (Status.PENDING, Status.RUNNING, Status.REJECTED)

GPU_REFUSAL = re.compile(
    r"generic resource|trackable resource|\bGRES\b|\bTRES\b|\bGPUs?\b", re.IGNORECASE
)
"""How schedulers, their plug-ins and launchers say that a request for GPUs does not fit."""

Grade = Literal["ok", "FAIL", "warn", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """What was looked at, what was seen, and, where it is not well, what to do about it;
    ``environment`` is that of the site profile, for what was seen in its job."""

    grade: Grade
    check: str
    seen: str
    to_do: str = ""
    environment: str = ""

    def line(self) -> str:
        """One line whatever is in it: hostnames, reasons and outputs are other people's words."""
        named = self.environment not in ("", "default")
        name = f"{self.check} [{self.environment}]" if named else self.check
        to_do = f" -> {self.to_do}" if self.to_do else ""
        return f"{self.grade:7}  {printable(f'{name}: {self.seen}{to_do}')}"


@dataclass(frozen=True)
class Capacity:
    """What a short job can have here: ``nodes`` that take jobs, ``gpus`` of each (0 if none are
    told), and the longest time limit that is allowed (s), None for no limit."""

    nodes: int
    gpus: int = 0
    limit_s: int | None = None


@dataclass(frozen=True)
class Nodes:
    """The nodes that jobs go to, by name: the ``idle`` ones, and what each other one is doing."""

    idle: tuple[str, ...]
    busy: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskProgram:
    """What a task runs. ``arguments`` are those of its environment's Python, on every rank; with
    ``alone`` the batch script itself runs that Python, once. ``supervised``: they are those of the
    Python that submits, and the command of the environment's Python follows them. ``epilogue`` is
    run after it, with the exit code as its last argument. Where one of the files ``markers`` is
    there, ``gate`` is run before anything of the environment is; where it ends with 0, the task has
    ended, its record is written, and no rank is started. ``bound`` is what the task is bound to
    (:func:`dlperf_hpc.records.ledger.bound_to`)."""

    arguments: tuple[str, ...]
    epilogue: tuple[str, ...]
    alone: bool = False
    supervised: bool = False
    gate: tuple[str, ...] = ()
    markers: tuple[Path, ...] = ()
    bound: str = ""


# What ``-P -m`` does. Only from 3.11 on Python has the option, and the environment's, or the one
# that submits, may be older.
_SAFE_MODULE = (
    "import sys; sys.path = [path for path in sys.path if path]; del sys.argv[0]; import runpy;"
    " runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def module_option() -> tuple[str, ...]:
    """``-m``, or what does the same and looks for no modules in the current directory; only if that
    is a checkout of this package they are looked for there."""
    return ("-m",) if in_checkout() else ("-c", _SAFE_MODULE)


def run_program(root: Path, array: Array, bound: str = "") -> TaskProgram:
    """The program of an array's runs: the worker (of a user's program its supervisor), then the
    epilogue in the Python that submits."""
    from dlperf_hpc.records import quarantine

    ours = (sys.executable, *module_option())
    of_array = (str(root), array.name)
    supervised = bool(array.tasks[0].case.launch)
    module = "dlperf_hpc.train" + ".program" * supervised
    return TaskProgram(
        ("-u", *module_option(), module, *of_array),
        (*ours, "dlperf_hpc.engines.epilogue", *of_array),
        supervised=supervised,
        gate=(*ours, "dlperf_hpc.engines.holding", *of_array),
        markers=tuple(quarantine.marker(root, name) for name in dict.fromkeys(array.environments)),
        bound=bound,
    )


@dataclass(frozen=True)
class Response:
    """What came of submitting one array: it was taken (``job_id``), refused for good (``error``),
    or cannot be taken yet (``limit``); or nobody knows whether it was taken, because no answer came
    (``silence``). Exactly one field is not empty."""

    job_id: str = ""
    error: str = ""
    limit: str = ""
    silence: str = ""


@dataclass(frozen=True)
class Limit:
    """What is known for certain of a limit that keeps an array back: its ``name`` and ``most``, the
    number of tasks that may be in the queue at the same time. ``alone``: only this user's jobs
    count, and none of them waits or runs."""

    name: str = ""
    most: int | None = None
    alone: bool = False


@dataclass(frozen=True)
class TaskState:
    """How a task stands. ``state``, ``reason`` and ``nodes`` are the engine's own words;
    ``launched`` is False where its script could not be started, so that it can have no output.
    ``elapsed_s`` is how long it has run and ``limit_s`` how long it may, ``starts`` when it is
    expected to start (``2026-11-23T06:00:00``, as the engine's clock goes)."""

    status: Status
    state: str
    reason: str = ""
    nodes: str = ""
    launched: bool = True
    elapsed_s: float | None = None
    limit_s: float | None = None
    starts: str = ""

    @property
    def alive(self) -> bool:
        """Whether it waits (perhaps for ever) or runs."""
        return self.status in _ALIVE

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        where = f" on {self.nodes}" if self.nodes not in ("", "None assigned") else ""
        return f"{self.state}{why}{where}"


@dataclass(frozen=True)
class Answer:
    """What an engine says of tasks, by their names. ``silence`` is why it could not be asked, '' if
    it could: what it knows nothing of has ended, what it could not be asked of may still run."""

    states: Mapping[str, TaskState] = field(default_factory=dict)
    silence: str = ""


class Engine(ABC):
    """Where runs go. Methods that ask a scheduler raise SiteError if it does not answer."""

    name: ClassVar[str]
    """In manifests, on the command line, in the name of its folder."""
    title: ClassVar[str]
    """In sentences."""
    detached: ClassVar[bool] = True
    """Its jobs wait and run on after the process that submitted them has ended."""
    one_queue: ClassVar[bool] = False
    """It runs one task after another, so that arrays need not be parted by topology."""
    max_nodes: ClassVar[int | None] = None
    """The most nodes of a job; None where only the site knows."""
    lock_patience_s: ClassVar[float] = 120.0
    """How long to wait for somebody else who is submitting in the sweep's directory."""

    # --- before anything is written

    @abstractmethod
    def present(self) -> bool:
        """Whether this machine has it."""

    @abstractmethod
    def check(self, manifest: Manifest, site: Site, root: Path) -> None:
        """Raise SpecError, SiteError or LedgerError for what can be known to fail by now."""

    @abstractmethod
    def examine(
        self, site: Site, arrays: Sequence[Array], root: Path
    ) -> Generator[CheckResult, None, Capacity | None]:
        """What can be seen from this machine; returns what a job can have, None if none can start.
        ``arrays`` are those of the sweep that would be submitted in ``root``, if there is one."""

    def preflight(self, site: Site, arrays: Sequence[Array]) -> Iterator[CheckResult]:
        """What the scheduler tells in an instant of why these arrays cannot run: FAIL for what is
        certain, warn for what is not; nothing of what is well."""
        return iter(())

    def nodes(self, site: Site, among: str = "") -> Nodes | None:
        """The nodes of the profile's partition, or of them those that a list (``n1,n[3-5]``) names;
        None for an engine that has no nodes to choose among. SiteError if it does not answer."""
        return None

    def on_nodes(self, site: Site, nodes: Sequence[str]) -> Site:
        """The profile with which a job of as many nodes runs on these."""
        return site

    def array_bound(self, site: Site) -> int:
        """The most tasks of one array."""
        return DEFAULT_BOUND

    def script(self, root: Path, array: Array, site: Site, bound: str = "") -> str | None:
        """The batch script as it would be submitted, its tasks ``bound`` as those of a
        :class:`TaskProgram`; None where there is none."""
        return None

    def commands(self, root: Path, array: Array, site: Site) -> tuple[str, ...]:
        """What it would start for each task of an array, as one would type it in a shell; nothing
        where the batch script starts it."""
        return ()

    # --- submitting

    @abstractmethod
    def submit(self, root: Path, array: Array, site: Site, program: TaskProgram) -> Response:
        """Submit one array. OSError if its files cannot be written."""

    def find(self, tokens: Collection[str], root: Path) -> dict[str, str]:
        """Job ids, by token, of arrays that were taken although no answer came; none where what was
        submitted ends with the process that submitted it."""
        return {}

    def starting_after(self, site: Site, jobs: Sequence[str]) -> Site | None:
        """The profile with which jobs start when all these have ended, however they end; None for
        an engine whose jobs cannot wait for others. SpecError where the profile forbids it."""
        return None

    def lives(self, job: str) -> bool | None:
        """Whether a job, anybody's, waits or runs; None if nothing is known of such a job."""
        return None

    def limit_behind(self, words: str, site: Site) -> Limit:
        """What is known of the limit that a response names."""
        return Limit()

    def out_of_reach(self, words: str) -> str:
        """What to do where the scheduler's own words say that it cannot be reached from here; ''
        where they say something else."""
        return ""

    # --- afterwards

    @abstractmethod
    def states(
        self, root: Path, tasks: Sequence[Task], also: Sequence[Task] = (), insist: bool = False
    ) -> Answer:
        """How tasks stand, as far as the engine still knows; of ``also`` only what costs no second
        request. SiteError only with ``insist``: for who submits again what does not live."""

    @abstractmethod
    def live_jobs(self, root: Path, submissions: Sequence[Submission]) -> list[str]:
        """What to cancel so that nothing of a sweep waits or runs: jobs, or tasks of them.
        ``submissions`` name every array of which something is known: jobs are found by token also
        where none was noted."""

    def foreign(self, jobs: Collection[str]) -> dict[str, str]:
        """Those of these jobs that this user cannot cancel, and the name of the user who can."""
        return {}

    @abstractmethod
    def cancel(self, jobs: Collection[str]) -> None:
        """End these jobs, and no others."""

    def settle(self, ledger: Ledger) -> Sequence[str]:
        """End what is left of a process that was interrupted, in whose own queue the sweep's runs
        were; the ids of those that had not begun. Call it with the lock held."""
        return ()

    def idle(self) -> bool:
        """Whether nothing of this process's can change any more; False where nobody knows."""
        return False

    def pause_s(self, poll_s: float) -> float:
        """How long to wait between two looks, where the site profile says ``poll_s``."""
        return poll_s

    # --- words for people

    def to_do(self, state: TaskState) -> str:
        """What a user can do about a task that does not start; '' where nothing is known. In it
        stands DIR for the sweep's directory."""
        return ""

    def without_mpi(self, environment: Environment, arrays: Sequence[Array]) -> bool:
        """Whether runs of this environment need no MPI: each is one process, and told so."""
        return mpi_disabled(environment.env) and alone(arrays)

    def launcher(self, environment: Environment) -> str:
        """What starts the ranks of an environment."""
        return "mpiexec"

    def mpi_hint(self, environment: Environment) -> str:
        """What to do where the ranks do not find each other."""
        return "use the mpiexec of this environment's MPI"

    def gpu_hint(self, site: Site) -> str:
        """What to do where a job, or what starts its ranks, is refused its GPUs."""
        return "look at gpus and gpu_type in the site profile"

    def queue_command(self, jobs: Sequence[str]) -> list[str]:
        """The command that shows these jobs in the queue, of no jobs the user's own; empty where
        there is none."""
        return []

    def cancel_command(self, jobs: Sequence[str]) -> list[str]:
        """The command that cancels jobs; empty where there is none."""
        return []


def alone(arrays: Sequence[Array]) -> bool:
    """Whether every run is one process of ours. A user's program may start ranks of its own."""
    cases = [run.case for array in arrays for run in array.tasks]
    return all(case.ranks == 1 and not case.launch for case in cases)


def mpi_disabled(variables: Mapping[str, str]) -> bool:
    """Whether these variables ask for one process without MPI."""
    return variables.get(MPI_VARIABLE) == NO_MPI


inherited_descriptors: list[int] = []
"""Files that commands which run on after this process must hold open as well: the locks of
:func:`dlperf_hpc.engines.submit.submit_lock`."""

# Left over from an allocation or a user's profile, these change what the commands mean or print.
_SLURM = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SALLOC_")
_POISON = (*_SLURM, BOUND, "PMI_", "PMIX_", "OMPI_", "HYDRA_", "MPI_LOCAL")
_SACK = ("SLURM_SACK_SOCKET", "SLURM_SACK_KEY", "SLURM_SACK_JWKS")  # of sites with auth/slurm
# Where the cluster is, and who is asking (sites with auth/jwt).
_KEEP = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", *_SACK)


def clean_environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what an enclosing job or launcher left in it."""
    return {
        name: value for name, value in env.items() if name in _KEEP or not name.startswith(_POISON)
    }


def run(argv: Sequence[str], timeout_s: float = 60.0) -> CompletedProcess[str]:
    """Run a command to its end, in English. SiteError if it is absent or takes too long. A byte of
    its output that is not UTF-8 stands there as ``\\xfc``."""
    env = {**clean_environment(), "LC_ALL": "C"}
    try:
        return subprocess.run(
            list(argv), capture_output=True, timeout=timeout_s, env=env, check=False,
            encoding="utf-8", errors="backslashreplace",
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SiteError(f"{argv[0]}: not on the PATH of this machine") from error
    except OSError as error:
        raise SiteError(f"{argv[0]}: cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SiteError(f"{' '.join(argv)}: no answer within {timeout_s:g} s") from error


def ask(argv: Sequence[str], timeout_s: float = 20.0) -> CompletedProcess[str]:
    """As :func:`run`, but a command that is absent or silent has failed with that word."""
    try:
        return run(argv, timeout_s)
    except SiteError as error:
        return CompletedProcess(list(argv), 1, "", str(error))
