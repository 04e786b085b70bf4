"""A sweep's last job, which writes its report when the arrays have ended (``--report``).

It stands among the submissions under the sweep's name and a token that no array has: who cancels
the sweep's jobs ends it with them, and to everybody else the row is nobody's. It runs no rank: the
batch script runs ``dlperf report`` with the Python that submits, as it runs the epilogue.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import (
    GPU_REFUSAL,
    Answer,
    Engine,
    Program,
    Response,
    module_option,
)
from dlperf_hpc.engines.lock import stop_asked
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.files import read_regular
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import Ledger, Task, read_ledger
from dlperf_hpc.records.manifest import Array, Submission, add_submission
from dlperf_hpc.sweepfile.case import Run, Topology

if TYPE_CHECKING:
    from dlperf_hpc.engines.site import Site

LIMIT_S = 900
"""The longest time limit of a report job."""
_MEMORY = "2G"
_ENDED = "dlperf_hpc: the report has ended, exit code"
_CODE = re.compile(rf"^{re.escape(_ENDED)} (\d+)$", re.MULTILINE)
_MOST_OUTPUT = 1 << 26  # bytes


@dataclass(frozen=True)
class Reporting:
    """What became of the wish for a report job: ``job`` is its id, '' if there is none; ``why_not``
    says in words why there is none. ``new``: it was submitted just now. ``failed``: it is wanted
    and missing."""

    job: str = ""
    new: bool = False
    why_not: str = ""
    failed: bool = False


def name_of(ledger: Ledger) -> str:
    """What squeue calls it; no array has this name."""
    return f"{ledger.manifest.sweep}.report"


def rows_of(ledger: Ledger) -> list[Submission]:
    """The submissions of report jobs, oldest first."""
    return [row for row in ledger.submissions if row.array == name_of(ledger)]


def submit_report(ledger: Ledger, site: Site, asked: str) -> Reporting:
    """Submit the job that reports when all jobs of the sweep have ended, unless one that waits for
    all of them is there. Call it with the lock held; ``asked`` is the latest wish to stop.

    One that was submitted before some array was is cancelled first. SiteError if the scheduler
    cannot be asked, LedgerError if the directory cannot be written.
    """
    engine = get_engine(ledger.manifest.engine)
    if stop_asked(ledger.root) != asked:
        return Reporting(why_not="the jobs of this sweep were cancelled meanwhile", failed=True)
    ledger = _settled(ledger, engine)
    earlier = rows_of(ledger)
    others = [row for row in ledger.noted() if row.array != name_of(ledger)]
    jobs = engine.live_jobs(ledger.root, others)
    if not jobs:
        return Reporting(why_not="no run of this sweep waits or runs")
    alive = engine.live_jobs(ledger.root, earlier) if earlier else []
    if alive and not _came_before_an_array(ledger):
        return Reporting(job=alive[-1])
    if alive:
        engine.cancel(alive)
    return _submit(ledger, engine, site, jobs)


def _settled(ledger: Ledger, engine: Engine) -> Ledger:
    """The ledger in which the latest report job has its id, if it was taken: a kill, or a
    controller that gave no answer, may have come between."""
    rows = rows_of(ledger)
    unsure = [rows[-1].token] if rows and rows[-1].unanswered else []
    found = engine.find(unsure, ledger.root) if unsure else {}
    for token, job in found.items():
        add_submission(ledger.root, Submission(name_of(ledger), token, job_id=job))
    return read_ledger(ledger.root) if found else ledger


def _came_before_an_array(ledger: Ledger) -> bool:
    """Whether an array was submitted after the latest report job, which does not wait for it."""
    latest = rows_of(ledger)[-1].token
    begun = [row.token for row in ledger.submissions].index(latest)
    return any(row.job_id and row.token != latest for row in ledger.submissions[begun:])


def _submit(ledger: Ledger, engine: Engine, site: Site, jobs: Sequence[str]) -> Reporting:
    profiles = [engine.starting_after(each, jobs) for each in (_small(site), _of_no_rank(site))]
    row = Submission(name_of(ledger), f"dlperf-{secrets.token_hex(8)}")
    response = Response(error=f"{engine.title} cannot start a job after others")
    for profile in profiles:
        if profile is None:
            break
        add_submission(ledger.root, row)
        try:
            array = _array(ledger, row.token)
            response = engine.submit(ledger.root, array, profile, _program(ledger))
        except OSError as error:
            where = error.filename or ledger.root
            raise LedgerError(f"{where}: cannot be written: {error.strerror}") from error
        # A partition for jobs with GPUs takes it as it takes the runs.
        if not GPU_REFUSAL.search(response.error):
            break
    if not response.silence:
        given = {"job_id": response.job_id, "error": response.error, "limit": response.limit}
        add_submission(ledger.root, replace(row, **given))
    why_not = response.error or response.limit or response.silence
    return Reporting(response.job_id, bool(response.job_id), why_not, failed=bool(why_not))


def _small(site: Site) -> Site:
    """The profile for a job of one process on one node, without GPUs."""
    sbatch = {name: value for name, value in site.sbatch.items() if not _asks_for_gpus(name)}
    changed: dict[str, Any] = {"gpus": "none", "gpu_type": None, "gpu_bind": None}
    changed |= {"exclusive": False, "cpus_per_task": None, "sbatch": sbatch}
    if site.mem or site.mem_per_cpu:  # the site has memory to be asked for
        changed |= {"mem": _MEMORY, "mem_per_cpu": None}
    return _of_no_rank(site).model_copy(update=changed)


def _of_no_rank(site: Site) -> Site:
    """The profile without what concerns the ranks of a run; its environments are not entered."""
    return site.model_copy(update={"environment": {}, "srun": [], "requeue": None})


def _asks_for_gpus(option: str) -> bool:
    return "gpu" in option or option.startswith(("gres", "tres"))


def _array(ledger: Ledger, token: str) -> Array:
    """An array, for that is what engines submit; its run is never begun."""
    topology = Topology(1, 1)
    case = replace(ledger.manifest.runs[0].case, topology=topology, processes_per_node=None)
    case = replace(case, environment="default")
    # What the partition lets the runs have it lets this job have too.
    longest = max(array.repeats_per_job * array.time_limit_s for array in ledger.arrays)
    limit_s = min(LIMIT_S, longest)
    return Array(name_of(ledger), token, topology, "default", limit_s, (Run(case, 1),))


def _program(ledger: Ledger) -> Program:
    out = str(ledger.root / layout.REPORT)
    words = ("-u", *module_option(), "dlperf_hpc", "report", str(ledger.root), "--out", out)
    return Program(words, epilogue=("echo", _ENDED), alone=True)


def latest(ledger: Ledger) -> Task | None:
    """The task of the latest report job, if there was one."""
    taken = [row for row in rows_of(ledger) if row.job_id]
    return Task(_array(ledger, taken[-1].token), 0, taken[-1].job_id) if taken else None


def told_by_output(root: Path, task: Task | None) -> str:
    """How a report job ended, in words; '' if there is none, or if its output does not tell."""
    if task is None:
        return ""
    output = f"{layout.JOBS}/{task.name}.out"
    try:
        text = read_regular(root / output, most=_MOST_OUTPUT).decode(errors="replace")
    except OSError:
        return ""
    codes = _CODE.findall(text)
    if not codes:
        return ""
    ended = f"report job {task.job_id} has ended with exit code {codes[-1]}"
    return f"{ended}: see {layout.REPORT}/, and {output} for what it printed"


def told_by_engine(engine: Engine, task: Task, answer: Answer) -> str:
    """How a report job stands whose output does not tell its end, in words."""
    state, job = answer.states.get(task.name), f"report job {task.job_id}"
    if state is not None and state.alive:
        return f"{job}: {state}"
    if answer.silence:
        return f"{job}: the scheduler cannot be asked ({answer.silence})"
    known = str(state) if state is not None else f"{engine.title} knows nothing of it any more"
    return f"{job}: {known}; `dlperf report DIR` reports now"
