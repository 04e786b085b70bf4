"""Putting a planned sweep on disk, and then its arrays to the scheduler or the local queue."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError, FailedSubmissionError

from dlperf_hpc.errors import Issue, LedgerError, SiteError, SpecError
from dlperf_hpc.launch import executors
from dlperf_hpc.launch.adopt import surely_by_token
from dlperf_hpc.launch.command import cleaned_environment, find
from dlperf_hpc.launch.mpiexec import find_mpiexec
from dlperf_hpc.launch.site import Site
from dlperf_hpc.records import layout
from dlperf_hpc.records.files import write_atomically
from dlperf_hpc.records.ledger import Ledger, read_ledger
from dlperf_hpc.records.manifest import (
    Array,
    Manifest,
    Submission,
    Verdict,
    add_submission,
    add_verdict,
    write_manifest,
)
from dlperf_hpc.records.status import Status

# sbatch's words for what a user may have in the queue, and for a controller that is full.
_LIMITS = (
    *("QOSMaxSubmitJobPerUserLimit", "QOSMaxSubmitJobPerAccountLimit", "QOSGrpSubmitJobsLimit"),
    *("AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit", "MaxSubmitJobsPerUser"),
    "Slurm temporarily unable to accept job",
)


def check_engine(engine: str, manifest: Manifest, site: Site) -> None:
    """What can be known before anything is written: commands, environments, node counts."""
    for array in manifest.arrays:
        site.environment_named(array.environment)
    if engine == "slurm":
        find("sbatch", "log in to a cluster's login node, load its Slurm, or use --cluster local")
        return
    if find_mpiexec() is None:
        raise SiteError(
            "mpiexec: neither beside this Python nor on the PATH; pip install mpich brings one"
        )
    wide = sorted({str(a.topology) for a in manifest.arrays if a.topology.nodes > 1})
    if wide:
        one = "the local engine has one node, this machine"
        hint = "use --cluster slurm, or --only with topologies of 1 node"
        raise SpecError(manifest.source, [Issue(f"topologies {', '.join(wide)}", one, hint)])


def make_room(root: Path) -> None:
    """Make the sweep's directory, or see that it can be written; LedgerError if not."""
    try:
        (root / layout.JOBS).mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise LedgerError(
            f"{root}: cannot be written: {error.strerror}; give a directory that the compute nodes"
            " can write as well with --logs"
        ) from error


def open_sweep(root: Path, manifest: Manifest, text: str) -> tuple[Ledger, bool]:
    """The directory's ledger, and whether it was made just now; call it with the lock held.

    LedgerError if the directory holds another sweep than the one that is wanted.
    """
    new = not (root / layout.MANIFEST).exists()
    if new:
        write_atomically(root / layout.SPEC_COPY, text)
        write_manifest(root, manifest)
    ledger = read_ledger(root)
    differing = [] if new else differences(ledger.manifest, manifest)
    if differing:
        listed = "".join(f"\n  {line}" for line in differing[:10])
        raise LedgerError(
            f"{root} holds this sweep as it was planned on {ledger.manifest.created[:10]}, and what"
            f" you ask for differs:{listed}\nGive the same again to submit what is missing, or"
            " another --name (or --logs) to measure anew"
        )
    return ledger, new


def differences(old: Manifest, new: Manifest) -> list[str]:
    """What of a plan is not as in another, in words; runs and how they are measured count."""
    found = [
        f"{name}: {getattr(old, name)!r} there, {getattr(new, name)!r} asked for"
        for name in ("engine", "base", "measure", "limits")
        if getattr(old, name) != getattr(new, name)
    ]
    there = {run.id: run.case for run in old.runs}
    asked = {run.id: run.case for run in new.runs}
    for words, runs in (
        ("only there", there.keys() - asked.keys()),
        ("only asked for", asked.keys() - there.keys()),
        ("with other settings", {r for r in there.keys() & asked.keys() if there[r] != asked[r]}),
    ):
        if runs:
            found.append(f"{len(runs)} runs {words}: {', '.join(sorted(runs)[:3])}")
    return found


@dataclass(frozen=True)
class Outcome:
    """What a call to :func:`submit` did. ``waiting`` are arrays that a limit of the site's keeps
    back for now, and ``limit`` that limit in Slurm's words."""

    submitted: tuple[Submission, ...] = ()
    adopted: tuple[Submission, ...] = ()
    refused: tuple[Submission, ...] = ()
    waiting: tuple[Array, ...] = ()
    limit: str = ""


def submit(ledger: Ledger, site: Site, arrays: Iterable[Array]) -> Outcome:
    """Submit those of ``arrays`` that no job stands for yet; call it with the lock held.

    What may have been accepted although no answer came is looked for first. Every array is noted
    as about to be submitted, then submitted, then noted with what came of it.
    """
    open_arrays = [(array, ledger.outcome(array)) for array in arrays]
    todo = [array for array, was in open_arrays if was is None or not was.job_id]
    unsure = [
        array for array, was in open_arrays if was is not None and not (was.job_id or was.error)
    ]
    root = ledger.root
    adopted = [_adopt(root, array, job) for array, job in _found_again(unsure, root)]
    todo = [array for array in todo if array.token not in {each.token for each in adopted}]
    submitted: list[Submission] = []
    refused: list[Submission] = []
    for position, array in enumerate(todo):
        submission = _submit_noted(root, array, ledger.manifest.engine, site)
        if _is_limit(submission.error):
            waiting = tuple(todo[position:])
            return Outcome(
                tuple(submitted), tuple(adopted), tuple(refused), waiting, submission.error
            )
        (refused if submission.error else submitted).append(submission)
    return Outcome(tuple(submitted), tuple(adopted), tuple(refused))


def _found_again(arrays: list[Array], root: Path) -> Iterator[tuple[Array, str]]:
    jobs = surely_by_token(arrays, root) if arrays else {}
    yield from ((array, jobs[array.token]) for array in arrays if array.token in jobs)


def _adopt(root: Path, array: Array, job: str) -> Submission:
    submission = Submission(array.name, array.token, job_id=job)
    add_submission(root, submission)
    return submission


def _submit_noted(root: Path, array: Array, engine: str, site: Site) -> Submission:
    refusal = _refusal_here(array) if engine == "local" else None
    if refusal is not None:
        submission = Submission(array.name, array.token, error=refusal)
    else:
        add_submission(root, Submission(array.name, array.token))
        submission = _submit_array(root, array, engine, site)
        if engine == "slurm" and _may_be_accepted(submission.error):
            for found in surely_by_token([array], root).values():
                submission = Submission(array.name, array.token, job_id=found)
    if _is_limit(submission.error):
        return submission  # as if it had not been asked: next time it may fit
    add_submission(root, submission)
    if submission.error:
        for run in array.tasks:
            words = Verdict(run.id, Status.REJECTED, submission.error, job=array.token)
            add_verdict(root, words)
    return submission


def _may_be_accepted(error: str) -> bool:
    """sbatch gave up waiting for an answer: the controller may have taken the job all the same."""
    return any(words in error for words in ("timed out", "Unable to contact", "Zero Bytes"))


def _is_limit(error: str) -> bool:
    """A limit on jobs in the queue: it passes as jobs end."""
    return any(words in error for words in _LIMITS)


def _submit_array(root: Path, array: Array, engine: str, site: Site) -> Submission:
    make = executors.slurm_executor if engine == "slurm" else executors.local_executor
    executor: Any = make(root, array, site)
    n = len(array.tasks)
    # submitit repeats sbatch's complaint on stderr; it is told once, by us.
    with cleaned_environment(), contextlib.redirect_stderr(io.StringIO()):
        try:
            jobs = executor.map_array(
                executors.run_task, [str(root)] * n, [array.name] * n, list(range(n))
            )
        except (FailedJobError, FailedSubmissionError) as error:
            return Submission(array.name, array.token, error=_first_line(str(error)))
    for job in jobs:
        # Nobody reads it, and what nobody reads nobody should be able to plant.
        job.paths.submitted_pickle.unlink(missing_ok=True)
    return Submission(array.name, array.token, job_id=str(jobs[0].job_id).split("_")[0])


def _first_line(text: str) -> str:
    """sbatch's complaint in one line: the limit's name stands in a line before the last."""
    said = [line.partition("sbatch: error: ") for line in text.splitlines()]
    lines = [rest.strip() for _, mark, rest in said if mark and rest.strip()]
    if not lines:
        lines = [line for line in text.splitlines() if line.strip()][-1:]
    return ": ".join(dict.fromkeys(lines[-2:])) or "sbatch failed without a word"


def _refusal_here(array: Array) -> str | None:
    """Why this machine cannot run an array: more GPUs than it has. A row, like a site's refusal."""
    gpus = local_gpus()
    wanted = array.topology.gpus_per_node
    if gpus and wanted > gpus and any(run.case.device != "cpu" for run in array.tasks):
        return f"this machine has {gpus} GPU{'s' * (gpus > 1)}, {array.topology} needs {wanted}"
    return None


def local_gpus() -> int:
    """NVIDIA GPUs this machine shows, without loading a framework; CUDA_VISIBLE_DEVICES counts."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if visible is None:
        return present
    shown = [part for part in visible.split(",") if part.strip() not in ("", "-1")]
    return min(present, len(shown))
