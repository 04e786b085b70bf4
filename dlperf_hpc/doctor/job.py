"""The short jobs of ``doctor``: submitted as a sweep's arrays are, watched, ended if need be."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dlperf_hpc import in_checkout
from dlperf_hpc.doctor.trial import END, Target, Trial, modules_without_mpi
from dlperf_hpc.engines.base import CheckResult, Engine, Grade, Program, Response
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import SiteError
from dlperf_hpc.model.result import Status
from dlperf_hpc.train import probe

_POLL_S = 0.02
_REST_S = 5.0  # for the rest of an output that has begun to show
_OVERTIME_S = 90.0  # schedulers' time limits are not kept to the second
_PACKAGE = "dlperf_probe"
# squeue's reasons for a job that waits for a limit of its user's, account's or quality of service.
_LIMIT = re.compile(r"QOS|Assoc|MaxJobs|MaxCpuPer|MaxNodePer|MaxGRESPer|MaxMemPer")
_ASK = "write what the site asks for into the site profile: account, partition, qos, mem, ..."


def submit(root: Path, target: Target, site: Site, engine: Engine, visible_s: float) -> Trial:
    """Put the probe on disk below ``root`` and submit its job.

    OSError where that cannot be written; SpecError or LedgerError as the engine raises them.
    """
    environment = site.environment_named(target.environment)
    modules = modules_without_mpi(target.modules, engine, environment, [target.array])
    trial = Trial(replace(target, modules=modules), engine, site, root)
    trial.exchange.mkdir(parents=True, mode=0o700)
    _copy_probe(trial.probe)
    (trial.exchange / "token").write_text(trial.token)
    (trial.exchange / "paths").write_text(json.dumps(sorted(set().union(*target.paths.values()))))
    response = engine.submit(root, target.array, site, _program(trial, visible_s))
    trial.job_id = response.job_id
    trial.given_up = _not_taken(trial, response)
    trial.ended = not trial.job_id
    return trial


def _not_taken(trial: Trial, response: Response) -> CheckResult | None:
    if response.job_id:
        return None
    if response.limit:
        to_do = "nothing is known of the compute nodes; try again when your other jobs have ended"
        return trial.found("warn", "job", f"kept back by a limit: {response.limit}", to_do)
    words = response.error or response.silence
    to_do = trial.gpu_hint(words) or _ASK
    return trial.found("FAIL", "job", f"refused: {words}", to_do)


def _copy_probe(box: Path) -> None:
    """Make a directory that a Python runs, and that has something to say in an environment without
    this package."""
    source = Path(probe.__file__).parent
    shutil.copytree(source, box / _PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (box / "__main__.py").write_text(f"from {_PACKAGE}.rank import main\n\nmain()\n")


def _program(trial: Trial, visible_s: float) -> Program:
    """The probe where a run has its worker; and no run to write a record of."""
    modules = ",".join(trial.target.modules)
    options = [f"--token={trial.token}", f"--modules={modules}", f"--patience={visible_s:g}"]
    options.append(f"--nodes={trial.target.topology.nodes}")
    options += ["--checkout"] if in_checkout() else []
    if "torch" in trial.target.modules and trial.target.wants_gpus:
        options.append("--torch")
    options += ["--steps"] if trial.target.steps else []
    if trial.target.collectives_s:
        options.append(f"--collectives={trial.target.collectives_s:g}")
    arguments = ("-u", str(trial.probe), str(trial.exchange), *options)
    return Program(arguments, epilogue=("echo", END))


def watch(
    trials: Sequence[Trial],
    timeout_s: float,
    visible_s: float,
    progress: Callable[[str], None],
) -> Iterator[Trial]:
    """Each job as it ends. One that is pending for ``timeout_s`` is cancelled; files may take
    ``visible_s`` to show; ``progress`` is called with what is being waited for."""
    yield from (trial for trial in trials if trial.ended)
    waiting = [trial for trial in trials if not trial.ended]
    with _answering(waiting):
        yield from _watch(waiting, timeout_s, visible_s, progress)


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
    timeout_s: float,
    visible_s: float,
    progress: Callable[[str], None],
) -> Iterator[Trial]:
    begin, asked = time.monotonic(), float("-inf")
    while waiting:
        elapsed = time.monotonic() - begin
        # Often at first, for those who wait; seldom later, for the scheduler's sake.
        pause = min(1 + elapsed / 4, waiting[0].engine.pause_s(waiting[0].site.poll_s))
        if begin + elapsed - asked > pause:
            _ask_states(waiting, visible_s)
            asked = time.monotonic()
            progress(_describe(waiting))
        for trial in waiting:
            trial.read()
            # Tasks of this process's own queue wait for one another, and it bounds them itself.
            if trial.engine.detached:
                _bound(trial, elapsed, timeout_s)
        yield from (trial for trial in waiting if trial.ended)
        waiting = [trial for trial in waiting if not trial.ended]
        time.sleep(_POLL_S)


def _describe(trials: Sequence[Trial]) -> str:
    states = [f"{trial.task.name} {trial.state}" for trial in trials if trial.state]
    return "waiting for " + (", ".join(states) or f"{len(trials)} short jobs")


def _ask_states(trials: Sequence[Trial], visible_s: float) -> None:
    """What the engine says of each; what it says nothing of stays as it was."""
    first = trials[0]
    answer = first.engine.states(first.root, [], also=[trial.task for trial in trials])
    for trial in trials:
        trial.state = answer.states.get(trial.task.name, trial.state)
        if trial.state is None or trial.state.status in (Status.PENDING, Status.REJECTED):
            continue
        if trial.started is None:
            trial.started = time.monotonic()
        if not trial.state.alive:
            _over(trial, visible_s)


def _over(trial: Trial, visible_s: float) -> None:
    """The engine says it has ended; its output may take a while to show."""
    if trial.over is None:
        trial.over = time.monotonic()
    trial.read()
    at_once = not trial.engine.detached or (trial.state is not None and not trial.state.launched)
    patience_s = min(_REST_S, visible_s) if trial.output else visible_s
    trial.ended |= at_once or time.monotonic() - trial.over > patience_s


def _bound(trial: Trial, elapsed_s: float, timeout_s: float) -> None:
    """End what never starts, and what waits, or runs, for too long."""
    if trial.ended:
        return
    if trial.started is None and not trial.output:
        trial.given_up = _hopeless(trial)
        if elapsed_s > timeout_s and not trial.given_up:
            why = trial.state.reason if trial.state else f"{trial.engine.title} says nothing of it"
            seen = f"still pending after {timeout_s:g} s: {why}"
            to_do = "nothing is known of the compute nodes; try again with a longer --timeout"
            trial.given_up = _cancelled(trial, "warn", seen, to_do)
    elif trial.started and time.monotonic() - trial.started > (limit_s := _longest_s(trial)):
        seen = f"still running after {limit_s:g} s"
        trial.given_up = _cancelled(trial, "FAIL", seen, "see what the job printed")
    if trial.given_up:
        cancel([trial])
        trial.ended = True


def _hopeless(trial: Trial) -> CheckResult | None:
    """What the scheduler says of a job that waiting alone does not start."""
    if trial.state is None:
        return None
    if trial.state.status is Status.REJECTED:
        to_do = "ask for less, or set another partition, account or qos in the site profile"
        return _cancelled(trial, "FAIL", f"never starts here: {trial.state.reason}", to_do)
    if _LIMIT.match(trial.state.reason):
        seen = f"pending because of a limit: {trial.state.reason}"
        to_do = "try again when your other jobs have ended, or set another qos or account"
        return _cancelled(trial, "warn", seen, f"{to_do} in the site profile")
    return None


def _cancelled(trial: Trial, grade: Grade, seen: str, to_do: str) -> CheckResult:
    return trial.found(grade, "job", f"{trial.title}: {seen}; cancelled", to_do)


def _longest_s(trial: Trial) -> float:
    return trial.target.array.time_limit_s + _OVERTIME_S


def cancel(trials: Sequence[Trial]) -> None:
    """End those that have not ended, by their own ids; one that ends meanwhile is no error."""
    left = sorted({trial.job_id for trial in trials if trial.job_id and not trial.ended})
    if left:
        with contextlib.suppress(SiteError):
            trials[0].engine.cancel(left)
