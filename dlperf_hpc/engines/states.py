"""How a sweep stands: disk first, the scheduler for the rest, its final words kept; :func:`follow`
looks again and again, until the last run has ended, with progress on stderr.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Collection as Ids
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import Answer, Engine, TaskState, inherited_descriptors
from dlperf_hpc.engines.postmortem import verdict_of_output
from dlperf_hpc.errors import LedgerError, SiteError, printable
from dlperf_hpc.files import read_regular
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records import layout, ownership
from dlperf_hpc.records.collect import (
    Collection,
    Files,
    RunJob,
    quick_result,
    quick_results,
    result_of,
)
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import Ledger, Task, read_ledger
from dlperf_hpc.records.logfile import started
from dlperf_hpc.records.manifest import FinalState, add_final_states

if TYPE_CHECKING:
    from rich.progress import Progress

REPORT_ENDED = "dlperf_hpc: the report has ended, exit code"
"""The output of a job that reports (``--report``) ends with these words and the code."""
_MOST_OUTPUT = 1 << 26  # bytes
_PATIENCE_S = 180.0
_FORKED_S = 5.0
_LIVES_AFTER = {Status.PENDING: "requeued", Status.RUNNING: "its job runs"}
_NO_OUTPUT = (
    "{0} is not here: another directory stood in this one's place when the job began (it then runs"
    " nothing), or the file was removed"
)
_WHEN_IT_ANSWERS = "look again when the scheduler answers; until then nothing is submitted again"
_WHEN_GONE = "`dlperf logs DIR RUN --output` shows what it printed; `dlperf rerun DIR` takes it"
_NEVER_BEGAN = " any more, and it printed nothing: as if cancelled before it began"
_WHEN_LATE = "its files may show within a minute; if they do not, `dlperf rerun DIR` takes it"


def current(root: Path, ask_scheduler: bool = True) -> Collection:
    """Every run's state, and what could not be read. What the scheduler says finally of a run is
    kept in the directory."""
    damaged: list[str] = []
    collection = state_of(read_ledger(root, damaged), ask_scheduler)
    return replace(collection, unreadable=(*collection.unreadable, *damaged))


def state_of(ledger: Ledger, ask_scheduler: bool = True, insist: bool = False) -> Collection:
    """Every run's state, of a ledger that was read; asks the engine once, with ``insist`` SiteError
    if it cannot be asked: for who submits again what does not live. An engine whose queue is a
    process's own is not asked: its runs tell everything on disk."""
    reporting = _report_task(ledger)
    end = _report_end(ledger.root, reporting)
    engine = get_engine(ledger.manifest.engine)
    collection = quick_results(ledger)
    waited: Sequence[str] = ()
    if not engine.detached and not all(result.status.finished for result in collection.results):
        waited = _settle(ledger, engine, ask_scheduler)
        collection = quick_results(ledger)
    collection = replace(collection, report_job=end)
    if not engine.detached:
        results = tuple(_interrupted(each, waited) for each in collection.results)
        return replace(collection, results=results, jobs=_jobs_by_logs(ledger, results))
    if not ask_scheduler:
        return collection
    return _with_engine(ledger, engine, collection, None if end else reporting, insist)


def _settle(ledger: Ledger, engine: Engine, wanted: bool) -> Sequence[str]:
    """Settle what is left of a process that was interrupted, unless one lives, which holds the
    lock, or the directory is another's; the ids of the runs that waited in its queue."""
    if engine.detached or not wanted:
        return ()
    with contextlib.suppress(LedgerError), contextlib.ExitStack() as held:
        ownership.refuse_foreign(ledger.root)
        if not inherited_descriptors:
            # The kernel lists who lives. What was just forked may hold the lock of who was killed.
            patience_s = -1.0 if _is_listed(ledger.root / layout.LOCK) else _FORKED_S
            from dlperf_hpc.engines.submit import submit_lock

            held.enter_context(submit_lock(ledger.root, patience_s))
        return engine.settle(ledger)
    return ()


def _is_listed(lock: Path) -> bool:
    with contextlib.suppress(OSError):
        return f":{lock.stat().st_ino} " in Path("/proc/locks").read_text()
    return False


def _interrupted(result: RunResult, waited: Ids[str]) -> RunResult:
    """A run as it stands; one that waited in a queue which has gone was cancelled with it."""
    if result.run.id not in waited:
        return result
    return replace(result, status=Status.CANCELLED, reason="interrupted before it began")


def _with_engine(
    ledger: Ledger, engine: Engine, collection: Collection, reporting: Task | None, insist: bool
) -> Collection:
    """What is on disk, and what the engine says besides: of runs that are not ok, of every job, and
    of the job that reports."""
    tasks = {run: task for run, task in ledger.tasks().items() if task.job_id}
    unclear = [
        result
        for result in collection.results
        if result.run.id in tasks and result.status is not Status.OK
    ]
    also = [tasks[result.run.id] for result in unclear if result.status.finished]
    left = [tasks[result.run.id] for result in unclear if not result.status.finished]
    if reporting is not None:
        also.append(reporting)
    try:
        answer = engine.states(ledger.root, left, also, insist)
    except SiteError as error:
        raise SiteError(
            f"{error}; nothing is submitted while the scheduler's jobs are not known"
        ) from error
    resolve = _StateResolver(ledger.root, engine, answer)
    found = {each.run.id: resolve.resolved(each, tasks[each.run.id]) for each in unclear}
    if resolve.final_states:  # another's sweep may be looked at, but not written to
        with contextlib.suppress(LedgerError), writing(ledger.root):
            add_final_states(ledger.root, resolve.final_states)
    words = collection.report_job
    if reporting is not None:
        words = _report_state(engine, reporting, answer)
    return replace(
        collection,
        results=tuple(found.get(each.run.id, each) for each in collection.results),
        jobs={run: _job_of(task, answer.states.get(task.name)) for run, task in tasks.items()},
        report_job=words,
    )


def _report_task(ledger: Ledger) -> Task | None:
    rows = [row for row in ledger.reports() if row.job_id]
    if not rows:
        return None
    array = replace(ledger.arrays[0], name=rows[-1].array, token=rows[-1].token)
    return Task(array, 0, rows[-1].job_id)


def _report_end(root: Path, task: Task | None) -> str:
    """How that job ended, in words; '' if there is none, or if its output does not tell."""
    if task is None:
        return ""
    output = f"{layout.JOBS}/{task.name}.out"
    try:
        text = read_regular(root / output, most=_MOST_OUTPUT).decode(errors="replace")
    except OSError:
        return ""
    codes = re.findall(rf"^{re.escape(REPORT_ENDED)} (\d+)$", text, re.MULTILINE)
    if not codes:
        return ""
    ended = f"report job {task.job_id} has ended with exit code {codes[-1]}"
    return f"{ended}: see {layout.REPORT}/, and {output} for what it printed"


def _report_state(engine: Engine, task: Task, answer: Answer) -> str:
    """How that job stands, whose output does not tell its end, in words."""
    state, job = answer.states.get(task.name), f"report job {task.job_id}"
    if state is not None and state.alive:
        return f"{job}: {state}"
    if answer.silence:
        return f"{job}: the scheduler cannot be asked ({answer.silence})"
    known = str(state) if state is not None else f"{engine.title} knows nothing of it any more"
    return f"{job}: {known}; `dlperf report DIR` reports now"


def _jobs_by_logs(ledger: Ledger, results: Iterable[RunResult]) -> dict[str, RunJob]:
    """Where no scheduler knows of a job: how long the runs that run have run, by their logs."""
    tasks = ledger.tasks()
    found = {}
    running = (each.run.id for each in results if each.status is Status.RUNNING)
    for run in filter(tasks.__contains__, running):
        began = started(RunPaths(ledger.root, run).log)
        if began is not None:
            elapsed = max(0.0, time.time() - began)
            left = tasks[run].array.time_limit_s - elapsed
            found[run] = RunJob("", elapsed_s=elapsed, left_s=left)
    return found


def _job_of(task: Task, state: TaskState | None) -> RunJob:
    """A run's job, with what the engine told of it while it waits or runs."""
    if state is None:
        return RunJob(task.name, "")
    if state.status is Status.PENDING:
        return RunJob(task.name, starts=state.starts)
    if state.status is not Status.RUNNING:
        return RunJob(task.name, state.nodes)
    left = None
    if state.elapsed_s is not None and state.limit_s is not None:
        left = state.limit_s - state.elapsed_s
    return RunJob(task.name, state.nodes, state.elapsed_s, left)


def standing(ledger: Ledger, insist: bool) -> Collection:
    """How the runs stand for who submits: as in :func:`state_of`, but runs that waited in a queue
    of this machine, which has ended, wait."""
    found = state_of(ledger, insist=insist)
    return found if get_engine(ledger.manifest.engine).detached else quick_results(ledger)


def one_run(ledger: Ledger, run: Run, ask_scheduler: bool = True) -> tuple[RunResult, str]:
    """How one run stands, its log read whole, and what the scheduler says; nothing is written."""
    engine = get_engine(ledger.manifest.engine)
    _settle(ledger, engine, ask_scheduler)
    result, task = result_of(ledger, run), ledger.tasks().get(run.id)
    kept = ""
    if words := ledger.last_words().get(run.id):
        kept = f"said finally: {words.status.value}: {words.reason}"
    if task is None or not task.job_id:
        return result, kept or "no job stands for this run"
    if not engine.detached:
        return result, kept or f"{engine.title}: nothing but what lies on disk"
    if not ask_scheduler:
        return result, f"job {task.name}: {kept or 'not asked'}"
    answer = engine.states(ledger.root, [task])
    resolved = _StateResolver(ledger.root, engine, answer).resolved(result, task)
    state = str(answer.states.get(task.name, "")) or answer.silence or kept
    return resolved, f"{engine.title}, job {task.name}: {state or 'says nothing of it any more'}"


@contextlib.contextmanager
def writing(root: Path) -> Iterator[None]:
    """Within it a sweep's directory may be written to; LedgerError where it is another's, and not
    one that the group of DLPERF_SITE shares."""
    with contextlib.ExitStack() as shared:
        if ownership.whose_else(root) is not None:
            from dlperf_hpc.engines.site import sharing_group

            shared.enter_context(ownership.sharing(sharing_group(None)))
            ownership.refuse_foreign(root)
        yield


class _StateResolver:
    """Puts together what the disk said before the scheduler was asked, and what that said."""

    def __init__(self, root: Path, engine: Engine, answer: Answer) -> None:
        self.root = root
        self.engine = engine
        self.answer = answer
        self.files = Files(root)  # as they are after it was asked
        self.final_states: list[FinalState] = []

    def resolved(self, result: RunResult, task: Task) -> RunResult:
        state = self.answer.states.get(task.name)
        if result.status.finished:
            return self._ended_badly(result, task, state)
        return self._settled(result, task, state)

    def _ended_badly(self, result: RunResult, task: Task, state: TaskState | None) -> RunResult:
        """A run whose job may live: requeued, by hand or by preemption, or about to end. Where the
        scheduler alone knew of the end, it may have been an earlier one."""
        if state is None:
            return result
        if words := _LIVES_AFTER.get(state.status):
            reason, to_do = f"{words} after: {result.reason}", self.engine.to_do(state)
            if state.status is Status.PENDING:
                reason += f"; {self.engine.title}: {state}"
            return replace(
                result, status=state.status, reason=reason, source="scheduler", to_do=to_do
            )
        if state.status is result.status:  # it waits, and will for ever
            return replace(result, to_do=self.engine.to_do(state))
        by_scheduler = result.source == "scheduler" and state.status.finished
        if by_scheduler and self._believed(result, task, state).reason != result.reason:
            return self._settled(result, task, state)
        return result

    def _settled(self, result: RunResult, task: Task, state: TaskState | None) -> RunResult:
        """What the scheduler says, unless the run ended by itself while it was being asked."""
        resolved = self._believed(result, task, state)
        if resolved.status in (Status.PENDING, Status.RUNNING):
            return resolved
        if self.files.may_have(result.run):
            again = quick_result(result.run, self.root, None, limit_s=float("inf"), task=task)
            if again.status.finished:
                return again
        if resolved.status.finished:
            words = FinalState(result.run.id, resolved.status, resolved.reason, job=task.name)
            self.final_states.append(words)
        return resolved

    def _believed(self, result: RunResult, task: Task, state: TaskState | None) -> RunResult:
        """The result as the scheduler has it; where that does not know the end, as the task's
        output tells it, else as unknown."""
        if state is None and self.answer.silence:
            reason = f"{result.reason}; the scheduler cannot be asked ({self.answer.silence})"
            return replace(result, status=Status.UNKNOWN, reason=reason, to_do=_WHEN_IT_ANSWERS)
        if state is None:
            reason = f"{result.reason}; the scheduler says nothing of it"
            if not (self.root / layout.JOBS / f"{task.name}.out").exists():
                reason += _NEVER_BEGAN
            unknown = replace(result, status=Status.UNKNOWN, reason=reason, to_do=_WHEN_GONE)
            return self._as_printed(unknown, task)
        reason, to_do = f"{self.engine.title}: {state}", ""
        if state.status is Status.UNKNOWN:
            reason, to_do = f"{reason}; no record on disk yet", _WHEN_LATE
        elif state.alive:
            to_do = self.engine.to_do(state)
        found = replace(result, status=state.status, reason=reason, source="scheduler", to_do=to_do)
        if state.status in (Status.UNKNOWN, Status.FAILED) and state.launched:
            return self._as_printed(found, task)
        return found

    def _as_printed(self, result: RunResult, task: Task) -> RunResult:
        """A run whose end the scheduler has forgotten, or never knew, by its output."""
        verdict = verdict_of_output(self.root, task.name)
        if verdict is None and result.status is Status.FAILED:
            output = f"{layout.JOBS}/{task.name}.out"
            if not (self.root / output).exists():
                return replace(result, reason=f"{result.reason}; {_NO_OUTPUT.format(output)}")
        if verdict is None:
            return result
        reason = f"{verdict.reason} (jobs/{task.name}.out)"
        codes = replace(result, decided_by=verdict.decided_by, cause=verdict.cause, to_do="")
        return replace(codes, status=verdict.status, reason=reason, source="scheduler")


def follow(root: Path, poll_s: float, quiet: bool = False) -> None:
    """Return when no run can change any more. Whatever ends this process, but SIGKILL, ends runs
    whose queue is its own; a cluster's go on. Runs of which neither disk nor scheduler says
    anything are waited for a few minutes: their files may be slow to show, or never come."""
    ledger = read_ledger(root)
    engine = get_engine(ledger.manifest.engine)
    try:
        if not engine.detached:
            _on_signals(signal.SIG_DFL, signal.default_int_handler)
        with _progress(quiet) as progress:
            _watch(root, engine, poll_s, progress)
    except BaseException:  # also of a terminal that was closed
        if not engine.detached:
            _on_signals(signal.default_int_handler, signal.SIG_IGN)
            with contextlib.suppress(OSError):
                print("ending the run that is measured now", file=sys.stderr)
            with contextlib.suppress(LedgerError):  # nothing was submitted
                engine.cancel(engine.live_jobs(root, ledger.noted()))
        raise


def _on_signals(before: Any, handler: Any) -> None:
    """Handle so the signals that end a process and were handled in the way ``before``: one that
    nohup or a shell has set aside stays so."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is before:
            signal.signal(number, handler)


def _watch(root: Path, engine: Engine, poll_s: float, progress: Progress) -> None:
    bar = progress.add_task("starting", total=None)
    reported: set[str] = set()
    heard = time.monotonic()
    while True:
        # Asked before the disk is read: what ended in between shows next time round.
        idle = engine.idle()
        collection = current(root)
        for line in _news(collection.results, reported):
            progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        open_runs = _open_runs(collection)
        total = len(collection.results)
        done = total - len(open_runs)
        progress.update(bar, total=total, completed=done, description=_now(open_runs))
        if any(result.status is not Status.UNKNOWN for result in open_runs):
            heard = time.monotonic()
        if not open_runs or idle or time.monotonic() - heard > _PATIENCE_S:
            return
        time.sleep(engine.pause_s(poll_s))


def _open_runs(collection: Collection) -> list[RunResult]:
    """Runs that can still change. What no job stands for may stay so: `--only` named other runs."""
    left = [result for result in collection.results if not result.status.finished]
    return [result for result in left if result.run.id not in collection.unsubmitted]


def _progress(quiet: bool) -> Progress:
    from rich import progress as bars
    from rich.console import Console

    return bars.Progress(
        bars.MofNCompleteColumn(),
        bars.BarColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.description}", markup=False),
        console=Console(stderr=True, quiet=quiet),
    )


def _now(open_runs: list[RunResult]) -> str:
    for result in open_runs:
        if result.status is Status.RUNNING:
            return f"running {printable(result.run.id)}"
    return "waiting" if open_runs else "done"


def _news(results: Iterable[RunResult], reported: set[str]) -> Iterator[str]:
    """A line for each run that has ended, one for all that the same thing holds back."""
    for result in results:
        key, words = result.run.id, result.run.id
        if result.status is Status.HELD_BACK:
            key, words = result.reason, "every other run that this would end"
        if result.status.finished and key not in reported:
            reported.add(key)
            reason = f": {result.reason}" if result.reason else ""
            yield f"{result.status.value:8} {printable(words + reason)}"
