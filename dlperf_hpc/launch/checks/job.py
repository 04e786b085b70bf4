"""Short jobs: submitted by the executors that submit sweeps, watched, ended if need be."""

from __future__ import annotations

import contextlib
import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError, FailedSubmissionError

from dlperf_hpc.errors import SiteError
from dlperf_hpc.launch import executors
from dlperf_hpc.launch.checks.targets import Target
from dlperf_hpc.launch.checks.trial import END, Trial
from dlperf_hpc.launch.command import cleaned_environment, run
from dlperf_hpc.launch.mpiexec import QUEUE
from dlperf_hpc.launch.query import JobState, squeue
from dlperf_hpc.launch.site import Site
from dlperf_hpc.train import probe

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
                executors.run_task, [str(trial.directory)], [target.array.name], [0]
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
        local = executors.local_executor(trial.directory, array, site)
        local.update_parameters(epilogue=())
        return local
    slurm = executors.slurm_executor(trial.directory, array, site)
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
