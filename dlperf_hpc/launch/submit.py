"""Putting a planned sweep on disk, and then its arrays to the scheduler or the local queue."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from submitit.core.utils import FailedJobError, FailedSubmissionError

from dlperf_hpc.errors import Issue, LedgerError, SiteError, SpecError
from dlperf_hpc.launch import executors
from dlperf_hpc.launch.command import cleaned_environment, find
from dlperf_hpc.launch.mpiexec import find_mpiexec
from dlperf_hpc.launch.site import Site
from dlperf_hpc.records import layout
from dlperf_hpc.records.files import write_atomically
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


def create(root: Path, manifest: Manifest, text: str) -> None:
    """Write the sweep's directory; LedgerError if it cannot be written or holds a sweep."""
    if (root / layout.MANIFEST).exists():
        raise LedgerError(
            f"{root} already holds a sweep. Look at it: python -m dlperf_hpc.status {root}\n"
            "To measure anew, give this sweep another --name, or another --logs directory;"
            " continuing and rerunning a sweep is not built yet"
        )
    try:
        (root / layout.JOBS).mkdir(parents=True, exist_ok=True)
        write_atomically(root / layout.SPEC_COPY, text)
    except OSError as error:
        raise LedgerError(
            f"{root}: cannot be written: {error.strerror}; give a directory that the compute nodes"
            " can write as well with --logs"
        ) from error
    write_manifest(root, manifest)


def submit(root: Path, manifest: Manifest, site: Site) -> Iterator[Submission]:
    """Submit array by array; each is noted on disk before the next, refused or not."""
    for array in manifest.arrays:
        refused = _refusal_here(array) if manifest.engine == "local" else None
        if refused is None:
            submission = _submit_array(root, array, manifest.engine, site)
        else:
            submission = Submission(array.name, array.token, error=refused)
        add_submission(root, submission)
        if submission.error:
            for run in array.tasks:
                add_verdict(root, Verdict(run.id, Status.REJECTED, submission.error))
        yield submission


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
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("sbatch: error: ") if lines else "sbatch failed without a word"


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
