"""Jobs that start after others: those of a sweep after what ``--after`` names, and the last small
job of a sweep, which writes its report when the arrays have ended (``--report``); that job runs
:func:`main`.

The report job stands among the submissions under the sweep's name and a token that no array has:
who cancels the sweep's jobs ends it with them. It runs no rank: the batch script runs ``dlperf
report`` with the Python that submits, as it runs the epilogue. It is bound, as the sweep's first
array is, and stays in the directory that it has looked at, whatever takes that one's name.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import GPU_REFUSAL, Engine, Response, TaskProgram, module_option
from dlperf_hpc.engines.plan import new_token
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.states import REPORT_ENDED
from dlperf_hpc.engines.submit import find_again, stop_request, submit_noted
from dlperf_hpc.errors import DlperfError, Issue, SpecError, nearest
from dlperf_hpc.model.case import Run, Topology
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import quick_results
from dlperf_hpc.records.ledger import Ledger, bound_array, bound_to, read_ledger
from dlperf_hpc.records.manifest import Array

REPORT_LIMIT_S = 900
"""The longest time limit of a report job."""
_MEMORY = "2G"
_OF_GPUS = ("gres", "tres")  # options of sbatch begin so
_JOB = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?", re.ASCII)


def awaited(engine: Engine, name: str, logs: Path) -> tuple[list[str], str]:
    """The living jobs of what a user names, a job, or a sweep by its directory or by its name below
    ``logs``; and what else a user should know of it. SpecError where there is nothing of that name,
    or where no job of this engine can wait for it; SiteError if the scheduler cannot be asked."""
    if _JOB.fullmatch(name):
        alive = engine.lives(name)
        if alive is None:
            hint = (
                "if it has ended long ago, leave the option out; a sweep whose name is a number is"
                " named by its directory, logs/NAME"
            )
            raise _refusal(name, f"{engine.title} knows no job {name}", hint)
        return [name] * alive, ""
    ledger = read_ledger(_directory(name, logs))
    if get_engine(ledger.manifest.engine) is not engine:
        _refuse_unfinished(engine, name, ledger)
        return [], ""
    jobs = engine.live_jobs(ledger.root, ledger.noted())
    left = len(ledger.manifest.runs) - len(ledger.tasks())
    if not left:
        return jobs, ""
    runs = f"{left} runs of it are" if left > 1 else "1 run of it is"
    return jobs, f"{runs} not submitted yet, and nothing waits for that"


def _refuse_unfinished(engine: Engine, name: str, ledger: Ledger) -> None:
    results = quick_results(ledger).results
    left = sum(not result.status.finished for result in results)
    if left:
        runs, title = f"{left} of its {len(results)} runs", get_engine(ledger.manifest.engine).title
        why = f"{runs} have not ended, and no job of {engine.title} can wait for runs of {title}"
        hint = "submit this sweep when that one has ended, or leave the option out"
        raise _refusal(name, why, hint)


def _directory(name: str, logs: Path) -> Path:
    for path in (Path(name), logs / name):
        if (path / layout.MANIFEST).exists():
            return path.absolute()
    sweeps = sorted(path.parent.name for path in logs.glob(f"*/{layout.MANIFEST}"))
    hint = nearest(name, sweeps)
    if sweeps and hint is None:
        more = ", ..." if len(sweeps) > 5 else ""
        hint = f"there are {', '.join(sweeps[:5])}{more}"
    message = f"is no job's id, and there is no sweep's directory {name} or {logs / name}"
    raise _refusal(name, message, hint)


def _refusal(name: str, message: str, hint: str | None) -> SpecError:
    return SpecError("command line", [Issue(f"--after {name}", message, hint)])


@dataclass(frozen=True)
class Reporting:
    """What became of the wish for a report job: ``job`` is its id, '' if there is none; ``why_not``
    says in words why. ``new``: it was submitted just now. ``failed``: it is wanted and missing."""

    job: str = ""
    new: bool = False
    why_not: str = ""
    failed: bool = False


def submit_report(ledger: Ledger, site: Site, last_request: str) -> Reporting:
    """Submit the job that reports when all jobs of the sweep have ended, unless one that waits for
    all of them is there; one that was submitted before some array was is cancelled first. Call it
    with the lock held; ``last_request`` is the latest request to stop. SiteError if the scheduler
    cannot be asked, LedgerError if the directory cannot be written."""
    engine = get_engine(ledger.manifest.engine)
    if stop_request(ledger.root) != last_request:
        return Reporting(why_not="the jobs of this sweep were cancelled meanwhile", failed=True)
    if ledger.reports() and ledger.reports()[-1].unanswered:
        ledger, _ = find_again(ledger, ledger.reports()[-1:])
    reports = ledger.reports()
    rest = [row for row in ledger.noted() if row.array != ledger.report_name]
    jobs = engine.live_jobs(ledger.root, rest)
    if not jobs:
        return Reporting(why_not="no run of this sweep waits or runs")
    if reports and (alive := engine.live_jobs(ledger.root, reports)):
        rows = iter(ledger.submissions)
        before = next(row for row in rows if row.token == reports[-1].token)
        if all(row.token == before.token or not row.job_id for row in rows):
            return Reporting(job=alive[-1])  # no array was submitted after it
        engine.cancel(alive)
    return _submit(ledger, engine, site, jobs)


def _submit(ledger: Ledger, engine: Engine, site: Site, jobs: Sequence[str]) -> Reporting:
    array, first = _array(ledger), ledger.manifest.arrays[0]
    words = ("-u", *module_option(), "dlperf_hpc.engines.dependency", str(ledger.root), first.name)
    bound = bound_to(ledger.root, ledger.manifest, first)
    program = TaskProgram(words, epilogue=("echo", REPORT_ENDED), alone=True, bound=bound)
    response = Response(error=f"{engine.title} cannot start a job after others")
    for profile in (_without_gpus(site), _without_ranks(site)):
        later = engine.starting_after(profile, jobs)
        if later is None:
            break
        response = submit_noted(ledger, later, array, program)
        # A partition for jobs with GPUs takes it as it takes the runs.
        if not GPU_REFUSAL.search(response.error):
            break
    why_not = response.error or response.limit or response.silence
    return Reporting(response.job_id, bool(response.job_id), why_not, failed=bool(why_not))


def _without_gpus(site: Site) -> Site:
    """The profile for a job of one process on one node."""
    ours = [name for name in site.sbatch if not ("gpu" in name or name.startswith(_OF_GPUS))]
    options = {name: site.sbatch[name] for name in ours}
    changed: dict[str, Any] = {"gpus": "none", "gpu_type": None, "gpu_bind": None}
    changed |= {"exclusive": False, "cpus_per_task": None, "sbatch": options}
    if site.mem or site.mem_per_cpu:  # the site has memory to be asked for
        changed |= {"mem": _MEMORY, "mem_per_cpu": None}
    return _without_ranks(site).model_copy(update=changed)


def _without_ranks(site: Site) -> Site:
    """The profile without what concerns the ranks of a run; its environments are not entered."""
    return site.model_copy(update={"environment": {}, "srun": [], "requeue": None})


def _array(ledger: Ledger) -> Array:
    """An array, for that is what engines submit; its run is never started."""
    topology, token = Topology(1, 1), new_token()
    case = replace(ledger.manifest.runs[0].case, topology=topology, processes_per_node=None)
    case = replace(case, environment="default")
    # What the partition lets the runs have it lets this job have too.
    longest = max(array.job_limit_s for array in ledger.arrays)
    limit_s = min(REPORT_LIMIT_S, longest)
    return Array(ledger.report_name, token, topology, "default", limit_s, (Run(case, 1),))


def main(argv: list[str]) -> int:
    """Report on the sweep of ``argv``: directory and first array; 1 if it is another's now."""
    try:
        os.chdir(argv[0])
        bound_array(Path(), argv[1])
    except (DlperfError, OSError) as error:
        print(f"dlperf_hpc: no report: {error}", file=sys.stderr)
        return 1
    sys.argv[1:] = ["report", ".", "--out", layout.REPORT]
    runpy.run_module("dlperf_hpc", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
