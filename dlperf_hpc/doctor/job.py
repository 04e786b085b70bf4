"""What is to be tried: of each environment the widest job that the sweep asks it for, cut short.

A short job, and what is known of it: its state, its output, what its ranks told.

Short jobs: submitted by the executors that submit sweeps, watched, ended if need be.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError, FailedSubmissionError

from dlperf_hpc.doctor.result import CheckResult, Grade
from dlperf_hpc.engines.command import cleaned_environment, run
from dlperf_hpc.engines.local.queue import QUEUE
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.engines.slurm import script
from dlperf_hpc.engines.slurm.query import JobState, squeue
from dlperf_hpc.errors import SiteError
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import Array
from dlperf_hpc.sweepfile.case import Case, Run, Topology
from dlperf_hpc.train import probe
from dlperf_hpc.train.probe.speech import MARK
from dlperf_hpc.train.registry import registry

LIMIT_S = 900  # of a job; it takes seconds, and its ranks bound what they do themselves


@dataclass(frozen=True)
class Target:
    """A job to try: ``array`` has its one task; ``devices`` are those that the cases name."""

    environment: str
    array: Array
    modules: tuple[str, ...]
    devices: frozenset[str]

    @property
    def topology(self) -> Topology:
        """Nodes and GPUs per node of the job."""
        return self.array.topology

    @property
    def ranks(self) -> int:
        """Processes that should find each other."""
        return self.array.tasks[0].case.ranks

    @property
    def wants_gpus(self) -> bool:
        """Whether there is a case that takes GPUs where there are any."""
        return self.devices != {"cpu"}


def targets_of(arrays: Sequence[Array], nodes: int) -> list[Target]:
    """One of each environment in the sweep, on at most ``nodes`` nodes."""
    names = dict.fromkeys(array.environment for array in arrays)
    return [_of([array for array in arrays if array.environment == name], nodes) for name in names]


def _of(arrays: Sequence[Array], nodes: int) -> Target:
    cases = [run.case for array in arrays for run in array.tasks]
    backends = {registry().backends[case.framework] for case in cases}
    libraries = {backend.library for backend in backends}
    more = {name for backend in backends for name in backend.modules}
    case = max(cases, key=lambda case: (min(nodes, case.topology.nodes), case.ranks_per_node))
    topology = replace(case.topology, nodes=min(nodes, case.topology.nodes))
    return Target(
        environment=case.environment,
        array=_array(replace(case, topology=topology), max(a.time_limit_s for a in arrays)),
        modules=("dlperf_hpc", "mpi4py", *sorted(libraries), *sorted(more)),
        devices=frozenset(case.device for case in cases),
    )


def targets_of_site(site: Site, topology: Topology, limit_s: int = LIMIT_S) -> list[Target]:
    """Without a sweep: each environment of the profile, and what every back end needs.

    ``limit_s`` is what the partition allows.
    """
    modules = ("dlperf_hpc", "mpi4py")
    return [
        Target(name, _array(_anything(name, topology), limit_s), modules, frozenset())
        for name in site.environment or ["default"]
    ]


def _anything(environment: str, topology: Topology) -> Case:
    """A case as the executors want one; it is never run."""
    return Case(
        framework="ddp",
        model="bert-tiny",
        topology=topology,
        precision="fp32",
        batch_size=1,
        seq_len=1,
        environment=environment,
    )


def _array(case: Case, limit_s: int) -> Array:
    token = f"dlperf-doctor-{secrets.token_hex(6)}"
    name = f"doctor-{case.topology}-{case.environment}"
    tasks = (Run(case, 1),)
    return Array(name, token, case.topology, case.environment, min(limit_s, LIMIT_S), tasks)


END = f"{MARK}: the ranks have ended, code "  # last words of the batch script
_PART = re.compile(MARK + r" (\d+) (\w+) (\d+)/(\d+) (.*)")


@dataclass
class Trial:
    """A job and what came of it.

    ``parts`` are what each rank told, by rank; ``code`` is what srun left with, as far as its
    output shows here; ``started`` and ``over`` are when the scheduler first said so
    (time.monotonic); ``cancelled`` says why we have ended it.
    """

    target: Target
    site: Site
    directory: Path
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    job_id: str = ""
    refused: str = ""
    state: JobState | None = None
    started: float | None = None
    over: float | None = None
    ended: bool = False
    cancelled: str = ""
    code: int | None = None
    output: str = ""
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)

    @property
    def environment(self) -> Environment:
        """The environment it tries, as the site profile has it."""
        return self.site.environment_named(self.target.environment)

    @property
    def logs(self) -> Path:
        """The parent of sweeps' directories."""
        return self.directory.parent.parent

    @property
    def exchange(self) -> Path:
        """Where files go to and fro."""
        return self.directory / "exchange"

    @property
    def never_launched(self) -> bool:
        """Slurm could not start the script: mostly, its output file cannot be opened there."""
        return self.state is not None and self.state.reason == "JobLaunchFailure"

    def found(self, grade: Grade, check: str, seen: str, to_do: str = "") -> CheckResult:
        """A finding of this job's environment."""
        return CheckResult(grade, check, seen, to_do, self.target.environment)

    def answer(self) -> None:
        """Give this machine's time for each file that a node has written."""
        with contextlib.suppress(OSError):
            for path in self.exchange.glob("ping-*[0-9]"):
                if path.name not in self._answered and not self.ended:
                    self._answered.add(path.name)
                    answer = path.with_name(path.name.replace("ping", "pong", 1))
                    fresh = answer.with_suffix(".tmp")
                    fresh.write_text(repr(time.time()))
                    fresh.replace(answer)

    def read(self) -> None:
        """Take in what shows of the output; ends the trial where the output has its end."""
        try:
            data = (self.directory / layout.JOBS / f"{self.job_id}.out").read_bytes()
        except OSError:
            return
        output = data.decode(errors="replace")
        if output == self.output:
            return
        self.output = output
        self.parts = parts_of(output)
        _before, end, rest = output.rpartition(END)
        code, newline, _after = rest.partition("\n")
        if end and newline and code.isdigit():
            self.code, self.ended = int(code), True


def parts_of(output: str) -> dict[int, dict[str, Any]]:
    """What ranks said, by rank and part, out of a job's output with whatever else is in it."""
    pieces: dict[tuple[int, str], dict[int, str]] = {}
    totals: dict[tuple[int, str], int] = {}
    for match in _PART.finditer(output):
        rank, part, number, total, text = match.groups()
        pieces.setdefault((int(rank), part), {})[int(number)] = text.rstrip("\r")
        totals[int(rank), part] = int(total)
    parts: dict[int, dict[str, Any]] = {}
    for (rank, part), found in pieces.items():
        with contextlib.suppress(KeyError, ValueError):
            whole = "".join(found[number] for number in range(1, totals[rank, part] + 1))
            parts.setdefault(rank, {})[part] = json.loads(whole)
    return parts


_POLL_S = 0.02
_REST_S = 5.0  # for the rest of an output that has begun to show
_OVERTIME_S = 90.0  # the scheduler's time limits are not kept to the second
_WORKER = "dlperf_hpc.train"
_PACKAGE = "dlperf_probe"
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_RUNS = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")


def submit(root: Path, target: Target, site: Site, engine: str, visible_s: float) -> Trial:
    """Put the probe on disk below ``root`` and its job to the scheduler or the local queue.

    OSError where that cannot be written; SpecError or LedgerError as the executors raise them.
    """
    trial = Trial(target, site, root / target.array.name)
    trial.exchange.mkdir(parents=True, mode=0o700)
    box = _copy_probe(trial)
    (trial.exchange / "token").write_text(trial.token)
    executor = _executor(trial, engine)
    executor.command = _command(executor.command, box, trial, visible_s)
    with cleaned_environment(), contextlib.redirect_stderr(io.StringIO()):
        try:
            (job,) = executor.map_array(
                script.run_task, [str(trial.directory)], [target.array.name], [0]
            )
        except (FailedJobError, FailedSubmissionError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or ["no word"]
            trial.refused, trial.ended = lines[-1].removeprefix("sbatch: error: "), True
            return trial
    job.paths.submitted_pickle.unlink(missing_ok=True)
    # Slurm knows it as an array of one, submitit does not.
    number = str(job.job_id)
    trial.job_id = f"{number.split('_')[0]}_0" if engine == "slurm" else number
    return trial


def _executor(trial: Trial, engine: str) -> Any:
    """The sweep's own executor, without the epilogue: there is no run to close."""
    array, site = trial.target.array, trial.site
    if engine == "local":
        local = script.local_executor(trial.directory, array, site)
        local.update_parameters(epilogue=())
        return local
    slurm = script.slurm_executor(trial.directory, array, site)
    teardown = ["dlperf_code=$?", f'echo "{END}$dlperf_code"', "exit $dlperf_code"]
    slurm.update_parameters(teardown=teardown)
    return slurm


def _copy_probe(trial: Trial) -> Path:
    """A directory that a Python runs, and that says something in an environment without us."""
    box = trial.directory / "probe"
    source = Path(probe.__file__).parent
    shutil.copytree(source, box / _PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (box / "__main__.py").write_text(f"from {_PACKAGE}.tell import main\n\nmain()\n")
    return box


def _command(worker: Sequence[str], box: Path, trial: Trial, visible_s: float) -> list[str]:
    """The worker's command with the probe in its place: what leads up to it stays as it is."""
    before = worker[: list(worker).index(_WORKER) - 1]
    modules = ",".join(trial.target.modules)
    options = [f"--token={trial.token}", f"--modules={modules}", f"--patience={visible_s:g}"]
    options.append(f"--nodes={trial.target.topology.nodes}")
    if "torch" in trial.target.modules and trial.target.wants_gpus:
        options.append("--torch")
    return [*before, str(box), str(trial.exchange), *options]


def watch(
    trials: Sequence[Trial],
    engine: str,
    timeout_s: float,
    visible_s: float,
    tell: Callable[[str], None],
) -> Iterator[Trial]:
    """Each job as it ends. One that is pending for ``timeout_s`` is cancelled; files may take
    ``visible_s`` to show; ``tell`` hears what is being waited for."""
    yield from (trial for trial in trials if trial.ended)
    waiting = [trial for trial in trials if not trial.ended]
    with _answering(waiting):
        yield from _watch(waiting, engine, timeout_s, visible_s, tell)


@contextlib.contextmanager
def _answering(trials: Sequence[Trial]) -> Iterator[None]:
    """Answer the nodes from a thread: the scheduler, when asked, may take its time."""
    stop = threading.Event()

    def answer() -> None:
        while not stop.wait(_POLL_S):
            for trial in trials:
                trial.answer()

    thread = threading.Thread(target=answer, name="doctor-answers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(
    waiting: list[Trial],
    engine: str,
    timeout_s: float,
    visible_s: float,
    tell: Callable[[str], None],
) -> Iterator[Trial]:
    begin, asked = time.monotonic(), float("-inf")
    while waiting:
        elapsed = time.monotonic() - begin
        # Often at first, for those who wait; seldom later, for the scheduler's sake.
        pause = 0.1 if engine == "local" else min(1 + elapsed / 4, waiting[0].site.poll_s)
        if begin + elapsed - asked > pause:
            _ask_states(waiting, engine, visible_s)
            asked = time.monotonic()
            tell(_progress(waiting))
        for trial in waiting:
            trial.read()
            if engine == "slurm":
                _bound(trial, elapsed, timeout_s)
        yield from (trial for trial in waiting if trial.ended)
        waiting = [trial for trial in waiting if not trial.ended]
        time.sleep(_POLL_S)


def _progress(trials: Sequence[Trial]) -> str:
    states = [f"{t.job_id} {t.state.state} {t.state.reason}" for t in trials if t.state]
    return "waiting for " + (", ".join(states) or f"{len(trials)} short jobs")


def _ask_states(trials: Sequence[Trial], engine: str, visible_s: float) -> None:
    known = _local(trials) if engine == "local" else _slurm(trials)
    for trial in trials:
        trial.state = known.get(trial.job_id, trial.state)
        word = trial.state.state if trial.state else "PENDING"
        if word in _WAITS:
            continue
        if trial.started is None:
            trial.started = time.monotonic()
        if word not in _RUNS:
            _over(trial, visible_s)


def _slurm(trials: Sequence[Trial]) -> dict[str, JobState]:
    """A job that was cancelled before it began is shown without its index."""
    tasks = squeue(sorted({trial.job_id.split("_")[0] for trial in trials}))
    return {f"{job}_0": state for (job, _index), state in tasks.items()}


def _local(trials: Sequence[Trial]) -> dict[str, JobState]:
    known = {trial.job_id: QUEUE.known[trial.job_id].state for trial in trials}
    return {job: JobState(state, "", "") for job, state in known.items()}


def _over(trial: Trial, visible_s: float) -> None:
    """The scheduler says it has ended; its output may take a while to show."""
    if trial.over is None:
        trial.over = time.monotonic()
    trial.read()
    at_once = trial.job_id in QUEUE.known or trial.never_launched
    patience_s = min(_REST_S, visible_s) if trial.output else visible_s
    trial.ended |= at_once or time.monotonic() - trial.over > patience_s


def _bound(trial: Trial, elapsed_s: float, timeout_s: float) -> None:
    """End what waits, or runs, for too long."""
    if trial.ended:
        return
    if trial.started is None and not trial.output:
        if elapsed_s > timeout_s:
            why = trial.state.reason if trial.state else "squeue says nothing of it"
            trial.cancelled = f"still pending after {timeout_s:g} s: {why}"
    elif trial.started and time.monotonic() - trial.started > (limit_s := _longest_s(trial)):
        trial.cancelled = f"still running after {limit_s:g} s"
    if trial.cancelled:
        cancel([trial], "slurm")
        trial.ended = True


def _longest_s(trial: Trial) -> float:
    return trial.target.array.time_limit_s + _OVERTIME_S


def cancel(trials: Sequence[Trial], engine: str) -> None:
    """End those that have not ended, by their own ids; one that ends meanwhile is no error."""
    left = [trial for trial in trials if not trial.ended]
    if engine == "local":
        if left:
            QUEUE.cancel()
    elif left:
        with contextlib.suppress(SiteError):
            run(["scancel", *sorted({trial.job_id.split("_")[0] for trial in left})])
