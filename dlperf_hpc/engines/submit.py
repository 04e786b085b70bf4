"""From a plan to jobs: a sweep's directory, what of it is missing, and submitting that.

Who submits holds the directory's lock (:func:`.lock.submit_lock`). Every array is noted as about to
be submitted, then submitted, then noted with what came of it: wherever a kill comes between, the
next command finds out what became of it before it submits anything.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import Engine, Limit, Program, Response, TaskState, run_program
from dlperf_hpc.engines.extend import differing_keys, grow, refuse_differences
from dlperf_hpc.engines.lock import stop_asked, submit_lock
from dlperf_hpc.engines.plan import pieces_of, rerun_arrays
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import LedgerError, SiteError, printable
from dlperf_hpc.files import make_directories, write_atomically
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout, ownership
from dlperf_hpc.records.collect import Files, quick_result, quick_results
from dlperf_hpc.records.ledger import Ledger, Task, add_array, read_ledger
from dlperf_hpc.records.manifest import (
    Array,
    FinalState,
    Manifest,
    Submission,
    add_final_states,
    add_submission,
    write_manifest,
)


def make_directory(root: Path) -> None:
    """Make the sweep's directory, or see that it can be written and is nobody else's; LedgerError
    if not."""
    try:
        make_directories(root.parent)
        ownership.make_directory(root)
        ownership.refuse_unsafe(root)
        ownership.make_directory(root / layout.JOBS)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        a_file = next((each for each in (root, *root.parents) if each.is_file()), None)
        why = f"{a_file} is a file, not a directory" if a_file else error.strerror
        raise LedgerError(
            f"{root}: cannot be written: {why}; give with --logs a directory that you and the"
            " compute nodes can write"
        ) from error


def open_sweep(root: Path, manifest: Manifest, text: str) -> tuple[Ledger, bool]:
    """The directory's ledger, and whether it was made just now; call it with the lock held.

    Runs that the sweep there does not have yet are added to it. LedgerError if what is wanted
    contradicts it.
    """
    new = not (root / layout.MANIFEST).exists()
    if new:
        _refuse_leftovers(root)
        try:
            write_atomically(root / layout.SPEC_COPY, text)
        except OSError as error:
            raise LedgerError(f"{root}: cannot be written: {error.strerror or error}") from error
        write_manifest(root, manifest)
    ledger = read_ledger(root)
    if not new:
        refuse_differences(root, ledger.manifest, manifest)
        ledger = grow(ledger, manifest, text)
    keys = differing_keys(ledger.manifest.site, manifest.site)
    if keys:
        note = (
            f"note: {root / layout.MANIFEST} has another site profile ({', '.join(keys)}); what is"
            " submitted now uses the one given, `dlperf rerun` without --site the manifest's"
        )
        print(printable(note), file=sys.stderr)
    return ledger, new


def _refuse_leftovers(root: Path) -> None:
    """LedgerError for a directory without a manifest that has what a sweep leaves all the same."""
    names = (layout.SUBMISSIONS, layout.FINAL_STATES, layout.ARRAYS)
    found = [name for name in names if (root / name).exists()]
    found += [f"{layout.JOBS}/{path.name}" for path in islice((root / layout.JOBS).glob("*"), 1)]
    logs = [path for path in root.rglob("*.log") if layout.JOBS not in path.parts]
    found += [f"{len(logs)} logs"] if logs else []
    if found:
        raise LedgerError(
            f"{root}: has no {layout.MANIFEST}, but {', '.join(found)} of an earlier sweep: nothing"
            " was written or submitted. Put the manifest back if there is a copy; without it"
            f" `dlperf report {root}` still reads the logs, and `dlperf cancel {root}` ends jobs"
            " that are left. To measure anew give another --name (or --logs)"
        )


def missing_arrays(
    ledger: Ledger, new: bool, asked: Sequence[Run] | None = None
) -> tuple[Array, ...]:
    """Arrays that have to be submitted so that every run of ``asked`` (without it, of the sweep)
    has been, and every rerun that was asked for; ``new`` says that the sweep has just been planned.

    An array whose runs have all been submitted again since, as others, is not missing, nor is one
    in whose place pieces of it stand. Where the engine's queue ended with an earlier process
    (``detached`` is false), runs that waited in it get new arrays, which are written down; with the
    lock held nothing of that process still runs.
    """
    if new:
        return ledger.arrays
    asked = ledger.manifest.runs if asked is None else asked
    if not get_engine(ledger.manifest.engine).detached:
        return _missing_here(ledger, asked)
    wanted = {run.id for run in asked}
    tasks, kept_back = ledger.tasks(), {array.token for array in ledger.kept_back()}
    missing = tuple(
        array
        for array in ledger.arrays
        if array.token in kept_back
        or any(_is_left(run, array, tasks) for run in ledger.rest(array))
    )
    return tuple(
        array
        for array in _without_ok(ledger, missing)
        if any(run.id in wanted for run in ledger.rest(array))
    )


def _missing_here(ledger: Ledger, asked: Sequence[Run]) -> tuple[Array, ...]:
    """Arrays of the runs that this process has to queue: those that never were in a queue as they
    are, if that keeps the order of ``asked``, else new ones."""
    results = quick_results(ledger).results
    finished = {result.run.id for result in results if result.status.finished}
    left = [run for run in asked if run.id not in finished]
    fresh = tuple(array for array in ledger.arrays if ledger.outcome(array) is None)
    if [run.id for array in fresh for run in array.tasks] == [run.id for run in left]:
        return fresh
    return save_arrays(ledger, rerun_arrays(ledger, left))


def split_arrays(
    ledger: Ledger, site: Site, arrays: Iterable[Array], wanted: Collection[str] | None = None
) -> tuple[Ledger, tuple[Array, ...]]:
    """The same runs in arrays that are not larger than the site allows now; the ledger as it is
    then. Call it with the lock held, and with a ledger of :func:`adopt`.

    With ``wanted``, ids of runs, only the jobs of these runs. Only arrays that were certainly not
    taken are split, and the pieces are written down. Where a kill came between, the rest follows
    now.
    """
    engine, arrays = get_engine(ledger.manifest.engine), tuple(arrays)
    outcomes = [(array, ledger.outcome(array)) for array in arrays]
    refused = {array.token for array, was in outcomes if was is None or was.limit or was.error}
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
    open_arrays = ledger.without_job(arrays)
    taken = {
        run.id
        for array in open_arrays
        for run in ledger.rest(array)
        if files.may_have(run)
        and quick_result(run, ledger.root, None, float("inf")).status is Status.OK
    }
    done: list[Array] = []
    covered: set[str] = set()
    for array in open_arrays:
        runs = {run.id for run in ledger.rest(array)}
        if taken.isdisjoint(runs):
            covered |= runs
        else:
            done.append(array)
    if not done:
        return arrays
    left: dict[str, Run] = {}
    for array in done:
        for run in ledger.rest(array):
            if run.id not in taken | covered and _is_left(run, array, tasks):
                left[run.id] = run
    kept = tuple(array for array in arrays if array not in done)
    return (*kept, *save_arrays(ledger, rerun_arrays(ledger, left.values())))


def _is_left(run: Run, array: Array, tasks: Mapping[str, Task]) -> bool:
    """Whether no other array's task has measured a run since this array was made."""
    latest = tasks.get(run.id)
    return latest is None or latest.array is array


def save_arrays(ledger: Ledger, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Write new arrays down, before any of them is submitted."""
    for array in arrays:
        add_array(ledger.root, array)
    return arrays


def adopt(ledger: Ledger) -> tuple[Ledger, tuple[Submission, ...]]:
    """Find the jobs of arrays that may have been accepted although no answer came, and note them
    down; the ledger as it is then. Call it, with the lock held, before anything is submitted.

    SiteError if the scheduler cannot be asked.
    """
    unsure = ledger.unanswered() or _forgotten(ledger)
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


def _forgotten(ledger: Ledger) -> list[Array]:
    """All arrays, where jobs have left files but nothing is noted of any: that file was lost."""
    left = any((ledger.root / layout.JOBS).glob("*")) and not ledger.submissions
    return list(ledger.arrays) if left else []


@dataclass(frozen=True)
class Outcome:
    """What a call to :func:`submit` did.

    ``waiting`` are arrays kept back for now: by a limit of the site's, or because the scheduler
    does not answer; ``limit`` says so in its words. Where somebody asked that submitting stops,
    ``limit`` is ''; ``asked`` is the latest such wish of before (:func:`.lock.stop_asked`).
    """

    submitted: tuple[Submission, ...] = ()
    refused: tuple[Submission, ...] = ()
    waiting: tuple[Array, ...] = ()
    limit: str = ""
    asked: str = ""

    @property
    def stopped(self) -> bool:
        """Whether it stopped because somebody cancels the sweep's jobs."""
        return bool(self.waiting) and not self.limit


def submit(
    ledger: Ledger, site: Site, arrays: Iterable[Array], asked: str | None = None
) -> Outcome:
    """Submit those of ``arrays`` that no job stands for yet; call it with the lock held, and
    with a ledger of :func:`adopt`.

    It stops when somebody asks for that from now on, or, with ``asked``, since that was the latest
    wish.
    """
    asked = stop_asked(ledger.root) if asked is None else asked
    waiting, why_not = ledger.without_job(arrays), ""
    submitted: list[Submission] = []
    refused: list[Submission] = []
    while waiting and stop_asked(ledger.root) == asked:
        array = waiting[0]
        response = submit_noted(ledger, site, array, run_program(ledger.root, array))
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
    return Outcome(tuple(submitted), tuple(refused), tuple(waiting), why_not, asked)


def never_fits(array: Array, limit: Limit) -> bool:
    """Whether a limit keeps an array back for ever, however empty the queue is."""
    return limit.alone if limit.most is None else array.size > limit.most


def submit_noted(ledger: Ledger, site: Site, array: Array, program: Program) -> Response:
    """What came of an array, on disk already."""
    root, row = ledger.root, Submission(array.name, array.token)
    add_submission(root, row)
    try:
        response = get_engine(ledger.manifest.engine).submit(root, array, site, program)
    except OSError as error:
        raise LedgerError(
            f"{error.filename or root}: cannot be written: {error.strerror}; {array.name} was"
            " not submitted: the same command again does it"
        ) from error
    if not response.silence:
        given = {"job_id": response.job_id, "error": response.error, "limit": response.limit}
        add_submission(root, replace(row, **given))
    return response


def submit_in_waves(
    root: Path,
    site: Site,
    outcome: Outcome,
    report: Callable[[Outcome, tuple[Submission, ...]], None],
) -> Outcome:
    """Submit the arrays that wait, again and again as the queue empties, until all are in it, the
    next one never can be, or somebody asks that submitting stops.

    ``report`` is called with what each wave submitted, and with the jobs it found again.
    """
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
                wave = submit(ledger, site, outcome.waiting, outcome.asked)
        except SiteError as error:  # the controller is away: it will be back
            print(f"{printable(str(error))}: waiting", file=sys.stderr)
            continue
        if adopted or wave.submitted or wave.refused:
            report(wave, adopted)
        outcome = wave
    return outcome


_GONE_S = 30.0
_LOOK_S = 0.5


@dataclass(frozen=True)
class ActiveJobs:
    """Tasks of some runs that have not ended. ``running`` names the task that measures a run, by
    run id; ``waiting`` are ``tasks`` of the other runs, and how each stands."""

    waiting: dict[str, TaskState] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    tasks: tuple[Task, ...] = ()


def active_jobs(ledger: Ledger, engine: Engine, runs: Collection[str]) -> ActiveJobs:
    """Every task of these runs that may still start or runs, also of earlier submissions; SiteError
    if the scheduler cannot be asked."""
    tasks = _all_tasks(ledger, runs)
    if not tasks or not engine.detached:
        return ActiveJobs()
    each = {task.name: task for _, task in tasks}
    states = engine.states(ledger.root, [], list(each.values()), insist=True).states
    living = [(run, task, states[task.name]) for run, task in tasks if task.name in states]
    running = {run: t.name for run, t, state in living if state.status is Status.RUNNING}
    measuring = set(running.values())
    waiting = {
        task.name: state
        for run, task, state in living
        if state.alive and run not in running and task.name not in measuring
    }
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


def cancel_waiting(ledger: Ledger, engine: Engine, jobs: ActiveJobs) -> None:
    """End the tasks that wait; returns when the scheduler says that they are gone. SiteError if it
    does not."""
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
