"""From a plan to jobs: what of a sweep is missing, and submitting that.

Who submits holds the directory's lock (:func:`submit_lock`), whatever kills it. Every array is
noted as about to be submitted, then submitted, then noted with what came of it: wherever a kill
comes between, the next command finds out what became of it before it submits anything.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from dlperf_hpc.engines import base, get_engine
from dlperf_hpc.engines.plan import pieces_of, rerun_arrays
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import LedgerError, SiteError, SpecError, printable
from dlperf_hpc.files import lock_holder, open_locked, read_regular, write_atomically
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout, ownership
from dlperf_hpc.records.collect import Files, quick_result, quick_results
from dlperf_hpc.records.ledger import Ledger, Task, add_array, bound_to, read_ledger
from dlperf_hpc.records.manifest import (
    Array,
    FinalState,
    Submission,
    add_final_states,
    add_submission,
)

_POLL_S = 0.2
_GONE_S = 30.0  # how long a cancelled task may take to end
_LOOK_S = 0.5
_id = attrgetter("id")  # of runs


@contextmanager
def submit_lock(root: Path, patience_s: float) -> Iterator[None]:
    """Hold the right to submit in ``root``; LedgerError if another holds it for ``patience_s``. It
    is a lock of the kernel's (flock), gone with the last process that has the file open. The file
    becomes this process's standard input for as long, so that an sbatch which outlives us still
    holds it: who comes next must find what that sbatch has submitted."""
    descriptor = _acquired(root, time.monotonic() + patience_s)
    try:
        stdin = os.dup(0)
        os.dup2(descriptor, 0)
        base.inherited_descriptors.append(descriptor)
        try:
            yield
        finally:
            base.inherited_descriptors.remove(descriptor)
            os.dup2(stdin, 0)
            os.close(stdin)
    finally:
        os.close(descriptor)


def ask_to_stop(root: Path) -> None:
    """Ask whoever submits in ``root`` to stop after the present array; OSError if that fails."""
    write_atomically(root / layout.STOP, f"{os.urandom(16).hex()}\n")


def stop_request(root: Path) -> str:
    """The latest request that submitting stops, '' if there was none. Who submits stops when it is
    another than it was in the beginning: times of several machines cannot be compared."""
    try:
        return read_regular(root / layout.STOP, most=100).decode(errors="replace")
    except OSError:
        return ""


def _acquired(root: Path, deadline: float) -> int:
    path, announced = root / layout.LOCK, False
    while (descriptor := _opened(path)) is None:
        words = f"another process is submitting here: {printable(lock_holder(path))}"
        if time.monotonic() > deadline:
            raise LedgerError(
                f"{root}: {words}; wait for its end, or end it (fuser {path} names what still has"
                f" the file open), and type the same command again. A file that another user holds"
                f" can be removed: rm {path}"
            )
        if not announced:
            announced = True
            print(f"{words}: waiting for its end", file=sys.stderr)
        time.sleep(_POLL_S)
    return descriptor


def _opened(path: Path) -> int | None:
    try:
        return open_locked(path, ownership.sharing_group())
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written and locked (flock): {error.strerror}; only who may write a"
            " sweep's directory can submit its runs, and only on a file system with locks: else two"
            " processes could submit the same runs. Give another directory with --logs"
        ) from error


def missing_arrays(
    ledger: Ledger, new: bool, requested: Sequence[Run] | None = None
) -> tuple[Array, ...]:
    """Arrays that have to be submitted so that every run of ``requested`` (without it, of the
    sweep) has been, and every rerun; ``new`` says that the sweep has just been planned. An array
    whose runs have all been submitted again since is not missing, nor is one in whose place pieces
    of it stand. Where the engine's queue ended with an earlier process (``detached`` is false),
    runs that waited in it get new arrays, which are written down; with the lock held nothing of
    that process still runs."""
    if new:
        return ledger.arrays
    requested = ledger.manifest.runs if requested is None else requested
    engine = get_engine(ledger.manifest.engine)
    if not engine.detached:
        engine.settle(ledger)
        return _missing_here(ledger, requested)
    wanted, tasks = {*map(_id, requested)}, ledger.tasks()
    kept_back = {array.token for array in ledger.kept_back()}
    missing = [a for a in ledger.arrays if a.token in kept_back or _left_runs(ledger, a, tasks)]
    found = _without_ok(ledger, tuple(missing))
    return tuple(each for each in found if not wanted.isdisjoint(map(_id, ledger.rest(each))))


def _missing_here(ledger: Ledger, requested: Sequence[Run]) -> tuple[Array, ...]:
    """Arrays of the runs that this process has to queue: those that never were in a queue as they
    are, if that keeps the order of ``requested``, else new ones."""
    results = quick_results(ledger).results
    finished = {result.run.id for result in results if result.status.finished}
    left = [run for run in requested if run.id not in finished]
    fresh = tuple(array for array in ledger.arrays if ledger.outcome(array) is None)
    queued = itertools.chain.from_iterable(array.tasks for array in fresh)
    if [*map(_id, queued)] == [*map(_id, left)]:
        return fresh
    return save_arrays(ledger, rerun_arrays(ledger, left))


def split_arrays(
    ledger: Ledger, site: Site, arrays: Iterable[Array], wanted: Collection[str] | None = None
) -> tuple[Ledger, tuple[Array, ...]]:
    """Put the runs into arrays that are not larger than the site allows now; the ledger as it
    is then, and these. Call it with the lock held, and with a ledger of :func:`adopt`. With
    ``wanted``, ids of runs, only the jobs of these runs. Only arrays that were certainly not taken
    are split, and the pieces are written down. Where a kill came between, the rest follows now."""
    engine, arrays = get_engine(ledger.manifest.engine), tuple(arrays)
    refused = {array.token for array in arrays if _refused(ledger, array)}
    if not refused or engine.one_queue:
        return ledger, arrays
    bound = engine.array_bound(site)
    found: list[Array] = []
    for array in arrays:
        number, runs = len(ledger.pieces(array)), _jobs_with(array, ledger.rest(array), wanted)
        whole = not number and len(runs) == len(array.tasks)
        if array.token in refused and not (whole and array.size <= bound):
            found += save_arrays(ledger, pieces_of(array, runs, bound, number))
        else:
            found.append(array)
    return read_ledger(ledger.root), tuple(found)


def _refused(ledger: Ledger, array: Array) -> bool:
    """Whether an array was certainly not taken."""
    row = ledger.outcome(array)
    return row is None or bool(row.limit or row.error)


def _jobs_with(array: Array, runs: Sequence[Run], wanted: Collection[str] | None) -> Sequence[Run]:
    """Those of an array's runs whose job measures a wanted one."""
    if wanted is None:
        return runs
    size = array.repeats_per_job
    jobs = [runs[start : start + size] for start in range(0, len(runs), size)]
    return [run for job in jobs if any(each.id in wanted for each in job) for run in job]


def _without_ok(ledger: Ledger, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """These arrays, but for runs that are ok on disk although no job is known: what told of their
    jobs was lost. The other runs of such an array get new arrays, which are written down."""
    files, tasks = Files(ledger.root), ledger.tasks()
    rest = {array.token: ledger.rest(array) for array in ledger.without_job(arrays)}
    taken = {
        run.id
        for runs in rest.values()
        for run in filter(files.may_have, runs)
        if quick_result(run, ledger.root, None, float("inf")).status is Status.OK
    }
    done = [array for array in arrays if not taken.isdisjoint(map(_id, rest.get(array.token, ())))]
    if not done:
        return arrays
    kept = tuple(array for array in arrays if array not in done)
    covered = taken.union(*(map(_id, rest.get(array.token, ())) for array in kept))
    left = {run.id: run for array in done for run in _left_runs(ledger, array, tasks)}
    for run in covered & left.keys():
        del left[run]
    return (*kept, *save_arrays(ledger, rerun_arrays(ledger, left.values())))


def _left_runs(ledger: Ledger, array: Array, tasks: Mapping[str, Task]) -> list[Run]:
    """Runs of an array that no other array's task has measured since it was made."""
    latest = ((run, tasks.get(run.id)) for run in ledger.rest(array))
    return [run for run, task in latest if task is None or task.array is array]


def save_arrays(ledger: Ledger, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Write new arrays down, before any of them is submitted."""
    for array in arrays:
        add_array(ledger.root, array)
    return arrays


def adopt(ledger: Ledger) -> tuple[Ledger, tuple[Submission, ...]]:
    """Find the jobs of arrays that may have been accepted although no answer came, and note them
    down; the ledger as it is then. Call it, with the lock held, before anything is submitted.
    SiteError if the scheduler cannot be asked."""
    unsure = ledger.unanswered()
    if not ledger.submissions and any((ledger.root / layout.JOBS).glob("*")):
        unsure = list(ledger.arrays)  # what was noted of these jobs is lost
    if not unsure:
        return ledger, ()
    return find_again(ledger, [Submission(array.name, array.token) for array in unsure])


def find_again(
    ledger: Ledger, unsure: Sequence[Submission]
) -> tuple[Ledger, tuple[Submission, ...]]:
    """Find the jobs of what the scheduler may have taken, and note them down; the ledger as it is
    then, and what was found. SiteError if the scheduler cannot be asked."""
    engine = get_engine(ledger.manifest.engine)
    try:
        jobs = engine.find([row.token for row in unsure], ledger.root)
    except SiteError as error:
        raise SiteError(
            f"{error}; nothing was submitted, because the jobs that the scheduler already has are"
            " not known"
        ) from error
    found = [replace(row, job_id=jobs[row.token]) for row in unsure if row.token in jobs]
    for submission in found:
        add_submission(ledger.root, submission)
    return read_ledger(ledger.root), tuple(found)


@dataclass(frozen=True)
class SubmitResult:
    """What a call to :func:`submit` did. ``waiting`` are arrays kept back for now: by a limit of
    the site's, or because the scheduler does not answer; ``limit`` says so in its words. Where
    somebody asked that submitting stops, ``limit`` is ''; ``stop_request`` is the latest such
    request of before."""

    submitted: tuple[Submission, ...] = ()
    refused: tuple[Submission, ...] = ()
    waiting: tuple[Array, ...] = ()
    limit: str = ""
    stop_request: str = ""

    @property
    def stopped(self) -> bool:
        """Whether it stopped because somebody cancels the sweep's jobs."""
        return bool(self.waiting) and not self.limit


def submit(
    ledger: Ledger, site: Site, arrays: Iterable[Array], last_request: str | None = None
) -> SubmitResult:
    """Submit those of ``arrays`` that no job stands for yet; call it with the lock held, and with a
    ledger of :func:`adopt`. It stops when somebody requests that, now or after ``last_request``."""
    if last_request is None:
        last_request = stop_request(ledger.root)
    waiting, why_not = ledger.without_job(arrays), ""
    submitted: list[Submission] = []
    refused: list[Submission] = []
    while waiting and stop_request(ledger.root) == last_request:
        array = waiting[0]
        ownership.refuse_foreign(ledger.root)  # a wave may come hours after the first
        bound = bound_to(ledger.root, ledger.manifest, array)
        later = _after_searches(ledger, site, array, submitted)
        response = submit_noted(ledger, later, array, base.run_program(ledger.root, array, bound))
        if response.error:
            rejected = (Status.REJECTED, response.error)
            states = [FinalState(run.id, *rejected, job=array.token) for run in array.tasks]
            add_final_states(ledger.root, states)
        why_not = response.limit or response.silence
        if why_not:
            break
        submission = Submission(array.name, array.token, response.job_id, response.error)
        (refused if submission.error else submitted).append(submission)
        del waiting[0]
    return SubmitResult(tuple(submitted), tuple(refused), tuple(waiting), why_not, last_request)


def _after_searches(
    ledger: Ledger, site: Site, array: Array, submitted: Iterable[Submission]
) -> Site:
    """The profile with which an array starts when those submitted just now have ended whose runs
    find the batch sizes of its cases; without a job of these it starts at once, since each run can
    find them."""
    cases = {run.case.id for run in array.tasks if run.case.sought} - array.searches
    if not cases:
        return site
    first = {each.token for each in ledger.arrays if not cases.isdisjoint(each.searches)}
    jobs = [row.job_id for row in submitted if row.token in first]
    with contextlib.suppress(SpecError):  # the profile has a dependency of another kind
        return get_engine(ledger.manifest.engine).starting_after(site, jobs) or site
    return site


def never_fits(array: Array, limit: base.Limit) -> bool:
    """Whether a limit keeps an array back for ever, however empty the queue is."""
    return limit.alone if limit.most is None else array.size > limit.most


def submit_noted(
    ledger: Ledger, site: Site, array: Array, program: base.TaskProgram
) -> base.Response:
    """What came of an array, on disk already."""
    root, engine = ledger.root, get_engine(ledger.manifest.engine)
    host = os.uname().nodename * (not engine.detached)
    row = Submission(array.name, array.token, host=host)
    add_submission(root, row)
    try:
        response = engine.submit(root, array, site, program)
    except OSError as error:
        raise LedgerError(
            f"{error.filename or root}: cannot be written: {error.strerror}; {array.name} was"
            " not submitted: the same command again does it"
        ) from error
    if not response.silence:
        add_submission(
            root, replace(row, job_id=response.job_id, error=response.error, limit=response.limit)
        )
    return response


def submit_in_waves(
    root: Path,
    site: Site,
    outcome: SubmitResult,
    report: Callable[[SubmitResult, tuple[Submission, ...]], None],
) -> SubmitResult:
    """Submit the arrays that wait, again and again as the queue empties, until all are in it, the
    next one never can be, or somebody asks that submitting stops. ``report`` is called with what
    each wave submitted, and with the jobs it found again."""
    engine = get_engine(read_ledger(root).manifest.engine)
    hopeless = False
    while outcome.waiting and not outcome.stopped:
        limit = engine.limit_behind(outcome.limit, site)
        never = never_fits(outcome.waiting[0], limit)
        # What was in the queue when sbatch refused may have ended just now: asked once more.
        if never and (hopeless or limit.most is not None):
            break
        hopeless = never
        time.sleep(engine.pause_s(site.poll_s))
        try:
            with submit_lock(root, engine.lock_patience_s):
                ledger, adopted = adopt(read_ledger(root))
                wave = submit(ledger, site, outcome.waiting, outcome.stop_request)
        except SiteError as error:  # the controller is away: it will be back
            print(f"{printable(str(error))}: waiting", file=sys.stderr)
            continue
        if adopted or wave.submitted or wave.refused:
            report(wave, adopted)
        outcome = wave
    return outcome


@dataclass(frozen=True)
class ActiveJobs:
    """Tasks of some runs that have not ended. ``running`` names the task that measures a run, by
    run id; ``waiting`` are ``tasks`` of the other runs, and how each stands."""

    waiting: dict[str, base.TaskState] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    tasks: tuple[Task, ...] = ()


def active_jobs(ledger: Ledger, engine: base.Engine, runs: Collection[str]) -> ActiveJobs:
    """Every task of these runs that may still start or runs, also of earlier submissions; SiteError
    if the scheduler cannot be asked."""
    tasks = _all_tasks(ledger, runs)
    if not tasks or not engine.detached:
        return ActiveJobs()
    each = {task.name: task for _, task in tasks}
    states = engine.states(ledger.root, [], list(each.values()), insist=True).states
    living = [(run, task.name, states[task.name]) for run, task in tasks if task.name in states]
    running = {run: name for run, name, state in living if state.status is Status.RUNNING}
    measuring = set(running.values())
    rest = [(name, state) for run, name, state in living if state.alive and run not in running]
    waiting = {name: state for name, state in rest if name not in measuring}
    return ActiveJobs(waiting, running, tuple(each[name] for name in waiting))


def _all_tasks(ledger: Ledger, runs: Collection[str]) -> list[tuple[str, Task]]:
    """Each task that was ever submitted for these runs, with the run."""
    wanted, arrays = set(runs), {array.token: array for array in ledger.arrays}
    return [
        (run.id, Task(array, place // array.repeats_per_job, submission.job_id))
        for submission in ledger.submissions
        if submission.job_id and (array := arrays.get(submission.token)) is not None
        for place, run in enumerate(array.tasks)
        if run.id in wanted
    ]


def cancel_waiting(ledger: Ledger, engine: base.Engine, jobs: ActiveJobs) -> None:
    """End the tasks that wait, and wait until they are gone; SiteError if they do not go."""
    if not jobs.waiting:
        return
    engine.cancel(sorted(jobs.waiting))
    deadline = time.monotonic() + _GONE_S
    while True:
        states = engine.states(ledger.root, [], jobs.tasks, insist=True).states
        left = sorted(name for name, state in states.items() if state.alive)
        if not left:
            return
        if time.monotonic() > deadline:
            raise SiteError(
                f"{', '.join(left[:3])}: cancelled, but not ended within {_GONE_S:g} s; nothing"
                " was submitted: type the same command again when it has left the queue"
            )
        time.sleep(_LOOK_S)
