"""Putting a planned sweep on disk, and then its arrays to the scheduler or the local queue."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError, FailedSubmissionError

from dlperf_hpc.engines.command import cleaned_environment, find
from dlperf_hpc.engines.environments import local_refusal
from dlperf_hpc.engines.local.queue import find_mpiexec
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm import script
from dlperf_hpc.engines.slurm.reconcile import find_jobs_patiently
from dlperf_hpc.errors import Issue, LedgerError, SiteError, SpecError
from dlperf_hpc.records import layout
from dlperf_hpc.records.files import write_atomically
from dlperf_hpc.records.ledger import Ledger, read_ledger
from dlperf_hpc.records.manifest import (
    Array,
    FinalState,
    Manifest,
    Submission,
    add_final_states,
    add_submission,
    write_manifest,
)
from dlperf_hpc.records.status import Status

# sbatch's words for what a user may have in the queue, and for a controller that is full.
_LIMITS = (
    *("QOSMaxSubmitJobPerUserLimit", "QOSMaxSubmitJobPerAccountLimit", "QOSGrpSubmitJobsLimit"),
    *("AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit", "MaxSubmitJobsPerUser"),
    "Slurm temporarily unable to accept job",
)
# Its words when it did not hear whether the job was taken.
_NO_ANSWER = (
    *("timed out", "Unable to contact", "Zero Bytes", "Connection refused", "Connection reset"),
    *("Communication connection failure", "standby mode", "Resource temporarily unavailable"),
)
_MUTE = "sbatch failed without a word"


def check_engine(engine: str, manifest: Manifest, site: Site, root: Path) -> None:
    """What can be known before anything is written: commands, environments, node counts, paths."""
    named = {
        array.environment: site.environment_named(array.environment) for array in manifest.arrays
    }
    if engine == "slurm":
        find("sbatch", "log in to a cluster's login node, load its Slurm, or use --cluster local")
        for array in manifest.arrays[:1]:
            script.slurm_executor(root, array, site)
        return
    refused = {name: why for name, each in named.items() if (why := local_refusal(each))}
    if refused:
        told = [
            Issue(f"environment.{name}", f"{why}: use --cluster slurm")
            for name, why in refused.items()
        ]
        raise SpecError("site profile", told)
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
        try:
            write_atomically(root / layout.SPEC_COPY, text)
        except OSError as error:
            raise LedgerError(f"{root}: cannot be written: {error.strerror or error}") from error
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
    limits = {array.topology: array.time_limit_s for array in old.arrays}
    for array in new.arrays:
        before = limits.pop(array.topology, array.time_limit_s)
        if before != array.time_limit_s:
            asked_for = f"{before} s there, {array.time_limit_s} s asked for"
            found.append(f"time limit of {array.topology}: {asked_for}")
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
    """What a call to :func:`submit` did. ``waiting`` are arrays kept back for now: by a limit of
    the site's, or because the controller does not answer; ``limit`` says so in Slurm's words."""

    submitted: tuple[Submission, ...] = ()
    refused: tuple[Submission, ...] = ()
    waiting: tuple[Array, ...] = ()
    limit: str = ""


def adopt(ledger: Ledger) -> tuple[Ledger, tuple[Submission, ...]]:
    """Find the jobs of arrays that may have been accepted although no answer came, and note them
    down; the ledger as it is then. Call it, with the lock held, before anything is submitted.

    SiteError if the scheduler cannot be asked.
    """
    unsure = ledger.unanswered() if ledger.manifest.engine == "slurm" else []
    if not unsure:
        return ledger, ()
    jobs = find_jobs_patiently([array.token for array in unsure], ledger.root)
    found = [Submission(a.name, a.token, job_id=jobs[a.token]) for a in unsure if a.token in jobs]
    for submission in found:
        add_submission(ledger.root, submission)
    return read_ledger(ledger.root), tuple(found)


def submit(ledger: Ledger, site: Site, arrays: Iterable[Array]) -> Outcome:
    """Submit those of ``arrays`` that no job stands for yet; call it with the lock held, and
    with a ledger of :func:`adopt`.

    Every array is noted as about to be submitted, then submitted, then noted with what came of it.
    """
    outcomes = [(array, ledger.outcome(array)) for array in arrays]
    todo = [array for array, was in outcomes if was is None or not was.job_id]
    submitted: list[Submission] = []
    refused: list[Submission] = []
    for position, array in enumerate(todo):
        submission, why_not = _submit_noted(ledger.root, array, ledger.manifest.engine, site)
        if why_not:
            return Outcome(tuple(submitted), tuple(refused), tuple(todo[position:]), why_not)
        (refused if submission.error else submitted).append(submission)
    return Outcome(tuple(submitted), tuple(refused))


def _submit_noted(root: Path, array: Array, engine: str, site: Site) -> tuple[Submission, str]:
    """What came of it, on disk already; and why it must wait, if it must."""
    refusal = _refusal_here(array) if engine == "local" else None
    if refusal is not None:
        submission = Submission(array.name, array.token, error=refusal)
    else:
        add_submission(root, Submission(array.name, array.token))
        submission = _submit_array(root, array, engine, site)
    complaint = submission.error
    if engine == "slurm" and complaint:
        submission = _reconsidered(root, submission)
    if not submission.unanswered:
        add_submission(root, submission)
    if submission.error:
        rejected = (Status.REJECTED, submission.error)
        final_states = [FinalState(run.id, *rejected, job=array.token) for run in array.tasks]
        add_final_states(root, final_states)
    answered = submission.job_id or submission.error
    return submission, "" if answered else _one_line(complaint)


def _reconsidered(root: Path, submission: Submission) -> Submission:
    """What sbatch's complaint means: refused; kept back by a limit, which passes as jobs end; or
    accepted all the same, for it may have died, or have given up waiting, after that."""
    text = submission.error
    array, token = submission.array, submission.token
    if any(words in text for words in _LIMITS):
        return Submission(array, token, limit=_one_line(text))
    if "sbatch: " in text and not any(words in text for words in _NO_ANSWER):
        return Submission(array, token, error=_one_line(text))
    try:
        return Submission(array, token, job_id=find_jobs_patiently([token], root).get(token, ""))
    except SiteError:
        return Submission(array, token)


def _submit_array(root: Path, array: Array, engine: str, site: Site) -> Submission:
    """Its ``error`` is sbatch's complaint, as it stands."""
    send = _to_slurm if engine == "slurm" else _to_this_machine
    # submitit repeats sbatch's complaint on stderr; it is told once, by us.
    with cleaned_environment(), contextlib.redirect_stderr(io.StringIO()):
        try:
            return Submission(array.name, array.token, job_id=send(root, array, site))
        except (FailedJobError, FailedSubmissionError) as error:
            return Submission(array.name, array.token, error=str(error) or _MUTE)
        except OSError as error:
            raise LedgerError(
                f"{error.filename or root}: cannot be written: {error.strerror}; {array.name} was"
                " not submitted: the same command again does it"
            ) from error


def _to_slurm(root: Path, array: Array, site: Site) -> str:
    """The array's job id. This is the part of submitit's ``map_array`` that writes the script and
    calls sbatch; the other writes, moves and describes a pickle for each task, which ours do not
    read: of 10 000 runs 10 000 files, and most of the time."""
    executor = script.slurm_executor(root, array, site)
    (root / layout.JOBS).mkdir(exist_ok=True)
    executor.parameters["map_count"] = array.size
    return str(executor._submit_command(executor._submitit_command_str).job_id)


def _to_this_machine(root: Path, array: Array, site: Site) -> str:
    executor = script.local_executor(root, array, site)
    n = len(array.tasks)
    arguments: list[list[Any]] = [[str(root)] * n, [array.name] * n, list(range(n))]
    jobs = executor.map_array(script.run_task, *arguments)
    for job in jobs:
        # Nobody reads it, and what nobody reads nobody should be able to plant.
        job.paths.submitted_pickle.unlink(missing_ok=True)
    return str(jobs[0].job_id).split("_")[0]


def _one_line(text: str) -> str:
    """sbatch's complaint in one line: the limit's name stands in a line before the last."""
    said = [line.partition("sbatch: error: ") for line in text.splitlines()]
    lines = [rest.strip() for _, mark, rest in said if mark and rest.strip()]
    if not lines:
        lines = [line for line in text.splitlines() if line.strip()][-1:]
    return ": ".join(dict.fromkeys(lines[-2:])) or _MUTE


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
