"""The short job: submitted by the executors that submit sweeps, watched, and ended if it must be."""

from __future__ import annotations

import contextlib
import io
import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError, FailedSubmissionError

from dlperf_hpc.errors import SiteError
from dlperf_hpc.launch import executors
from dlperf_hpc.launch.checks.targets import LIMIT_S, Target
from dlperf_hpc.launch.command import cleaned_environment, run
from dlperf_hpc.launch.mpiexec import QUEUE
from dlperf_hpc.launch.query import JobState, squeue
from dlperf_hpc.launch.site import Site
from dlperf_hpc.records import layout
from dlperf_hpc.train import probe

_POLL_S = 0.02
_RANK_LIMIT_S = 180.0  # the ranks end themselves after it, saying where they are
_WORKER = "dlperf_hpc.train"
_END = "dlperf-probe: the ranks have ended, code "
_PART = re.compile(probe.MARK + r" (\d+) (\w+) (\d+)/(\d+) (.*)")
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_RUNS = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")


@dataclass
class Trial:
    """A job and what came of it.

    ``parts`` are what each rank told, by rank; ``code`` is what srun left with, as far as its
    output shows here; ``cancelled`` says why we have ended it.
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
    pings: dict[str, float] = field(default_factory=dict)

    @property
    def never_launched(self) -> bool:
        """Slurm could not start the script: mostly, its output file cannot be opened there."""
        return self.state is not None and self.state.reason == "JobLaunchFailure"

    @property
    def exchange(self) -> Path:
        """Where files go to and fro."""
        return self.directory / "exchange"


def submit(root: Path, target: Target, site: Site, engine: str, visible_s: float) -> Trial:
    """Put the probe on disk and its job to the scheduler or the local queue. OSError where the
    directory cannot be written."""
    trial = Trial(target, site, root / target.array.name)
    trial.exchange.mkdir(parents=True, mode=0o700)
    script = trial.directory / "probe.py"
    shutil.copyfile(probe.__file__, script)
    (trial.exchange / "token").write_text(trial.token)
    make = executors.slurm_executor if engine == "slurm" else executors.local_executor
    executor: Any = make(trial.directory, target.array, site)
    executor.command = _command(executor.command, script, trial, visible_s)
    if engine == "slurm":
        teardown = ["dlperf_code=$?", f'echo "{_END}$dlperf_code"', "exit $dlperf_code"]
        executor.update_parameters(teardown=teardown)
    else:
        executor.update_parameters(epilogue=())
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


def _command(worker: list[str], script: Path, trial: Trial, visible_s: float) -> list[str]:
    """The worker's command with the probe in its place: what leads up to it stays as it is."""
    before = worker[: worker.index(_WORKER) - 1]
    modules = ",".join(trial.target.modules)
    options = [f"--token={trial.token}", f"--modules={modules}", f"--patience={visible_s:g}"]
    options.append(f"--limit={_RANK_LIMIT_S:g}")
    if "torch" in trial.target.modules and trial.target.wants_gpus:
        options.append("--torch")
    return [*before, str(script), str(trial.exchange), *options]


def watch(
    trials: Sequence[Trial],
    engine: str,
    timeout_s: float,
    visible_s: float,
    tell: Callable[[str], None],
) -> Iterator[Trial]:
    """Each job as it ends. One that is pending for ``timeout_s`` is cancelled, as are all that
    are left when the caller stops."""
    open_trials = [trial for trial in trials if not trial.ended]
    yield from (trial for trial in trials if trial.ended)
    try:
        begin, asked = time.monotonic(), float("-inf")
        while open_trials:
            elapsed = time.monotonic() - begin
            # Often at first, for those who wait; seldom later, for the scheduler's sake.
            pause = 0.1 if engine == "local" else min(1 + elapsed / 4, trials[0].site.poll_s)
            if begin + elapsed - asked > pause:
                _ask_states(open_trials, engine, visible_s)
                asked = time.monotonic()
                tell(_waiting(open_trials))
            for trial in open_trials:
                _answer(trial)
                _read(trial)
                if engine == "slurm":
                    _bound(trial, elapsed, timeout_s)
            for trial in [trial for trial in open_trials if trial.ended]:
                open_trials.remove(trial)
                yield trial
            time.sleep(_POLL_S)
    finally:
        _cancel(open_trials, engine)


def _waiting(trials: Sequence[Trial]) -> str:
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
    _read(trial)
    at_once = trial.job_id in QUEUE.known or trial.never_launched
    trial.ended |= at_once or time.monotonic() - trial.over > visible_s


def _answer(trial: Trial) -> None:
    """The login node's time for each file that a node has written."""
    with contextlib.suppress(OSError):
        for path in trial.exchange.glob("ping-*"):
            if path.name in trial.pings or path.suffix:
                continue
            trial.pings[path.name] = now = time.time()
            answer = path.with_name(path.name.replace("ping", "pong", 1))
            fresh = answer.with_suffix(".tmp")
            fresh.write_text(repr(now))
            fresh.replace(answer)


def _read(trial: Trial) -> None:
    try:
        data = (trial.directory / layout.JOBS / f"{trial.job_id}.out").read_bytes()
    except OSError:
        return
    trial.output = data.decode(errors="replace")
    trial.parts = parts_of(trial.output)
    end = trial.output.rpartition(_END)[2].split("\n")[0] if _END in trial.output else ""
    if end.isdigit():
        trial.code, trial.ended = int(end), True


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
            whole = "".join(found[n] for n in range(1, totals[rank, part] + 1))
            parts.setdefault(rank, {})[part] = json.loads(whole)
    return parts


def _bound(trial: Trial, elapsed_s: float, timeout_s: float) -> None:
    """End what waits, or runs, for too long."""
    if trial.ended:
        return
    if trial.started is None and not trial.output:
        if elapsed_s > timeout_s:
            why = trial.state.reason if trial.state else "squeue says nothing of it"
            trial.cancelled = f"still pending after {timeout_s:g} s: {why}"
    elif trial.started and time.monotonic() - trial.started > LIMIT_S + 60:
        trial.cancelled = f"still running after {LIMIT_S + 60} s"
    if trial.cancelled:
        trial.ended = True
        _scancel([trial])


def _cancel(trials: Sequence[Trial], engine: str) -> None:
    if engine == "local":
        QUEUE.cancel()
    elif trials:
        _scancel(trials)


def _scancel(trials: Sequence[Trial]) -> None:
    """By the ids of our own jobs only; one that has ended meanwhile is no error."""
    ids = sorted({trial.job_id.split("_")[0] for trial in trials})
    with contextlib.suppress(SiteError):
        run(["scancel", *ids])
