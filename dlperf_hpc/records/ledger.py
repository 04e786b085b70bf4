"""A sweep's ledger: its manifest, and what has happened since.

``arrays/<name>.json`` are arrays made later, of runs that are in the manifest; like it they are
on disk, under a unique token, before anything is submitted, and never changed. Before a job reads
any of it, it looks whether it is what it was submitted for (:func:`bound_array`).
``submissions.jsonl`` tells which job an array became, ``verdicts.jsonl`` what the scheduler said
of runs that left no record. A run belongs to the task that was submitted last.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dlperf_hpc.errors import LedgerError, raising
from dlperf_hpc.files import dump_json, read_regular, user_name, write_once
from dlperf_hpc.model import checks
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.checks import Misfit
from dlperf_hpc.records import forms, layout, ownership
from dlperf_hpc.records.manifest import (
    DAMAGE,
    Array,
    FinalState,
    Manifest,
    Submission,
    array_of,
    array_row,
    check_name,
    damage,
    digest,
    read_final_states,
    read_manifest,
    read_submissions,
    submission_of,
)

SCHEMA = "dlperf-array/1"
_TOKEN = re.compile(forms.TOKEN)
_WAY_OUT = (
    "move the file away (mv {0} {0}.damaged) and type the same command again: the runs that it"
    " submitted again then count as they stood before it, so cancel first what still waits or runs"
)
_OTHER = (
    " when this job was submitted: the job runs nothing of it. Find the sweep's own directory:"
    " `dlperf rerun` there submits its runs again"
)


@dataclass(frozen=True)
class Task:
    """One index of a job array. ``job_id`` is '' where the scheduler refused the array."""

    array: Array
    index: int
    job_id: str

    @property
    def name(self) -> str:
        """``4711_3``, as Slurm calls it; the array's token if there is no job."""
        return f"{self.job_id}_{self.index}" if self.job_id else self.array.token


@dataclass(frozen=True)
class Ledger:
    """Everything known of a sweep but what its runs left themselves."""

    root: Path
    manifest: Manifest
    arrays: tuple[Array, ...]
    submissions: tuple[Submission, ...]
    final_states: dict[str, FinalState]

    def tasks(self) -> dict[str, Task]:
        """The task of each run that was ever submitted or refused, the latest, by run id."""
        by_token = {array.token: array for array in self.arrays}
        found: dict[str, Task] = {}
        for submission in self.submissions:
            array = by_token.get(submission.token)
            if array is not None and (submission.job_id or submission.error):
                for place, run in enumerate(array.tasks):
                    index = place // array.repeats_per_job
                    found[run.id] = Task(array, index, submission.job_id)
        return found

    def last_words(self) -> dict[str, FinalState]:
        """The final state of each run that has one, if it is that of the run's latest task."""
        tasks = self.tasks()
        return {
            run: final_state
            for run, final_state in self.final_states.items()
            if not final_state.job or run not in tasks or final_state.job == tasks[run].name
        }

    def outcome(self, array: Array) -> Submission | None:
        """What became of an array: the submission with its job, else the latest one."""
        return self._outcomes.get(array.token)

    @cached_property
    def _outcomes(self) -> dict[str, Submission]:
        bare = (row for row in self.submissions if not row.job_id)
        taken = (row for row in reversed(self.submissions) if row.job_id)
        return {row.token: row for row in (*bare, *taken)}

    def without_job(self, arrays: Iterable[Array]) -> list[Array]:
        """Those of these arrays that no job stands for yet."""
        outcomes = ((array, self.outcome(array)) for array in arrays)
        return [array for array, was in outcomes if was is None or not was.job_id]

    def unanswered(self) -> list[Array]:
        """Arrays that the scheduler may have taken although no answer came."""
        outcomes = ((array, self.outcome(array)) for array in self.arrays)
        return [array for array, was in outcomes if was is not None and was.unanswered]

    def noted(self) -> tuple[Submission, ...]:
        """All submissions, and a row without a job for each array that none is of."""
        noted = {row.token for row in self.submissions}
        rest = (Submission(a.name, a.token) for a in self.arrays if a.token not in noted)
        return (*self.submissions, *rest)

    @property
    def report_name(self) -> str:
        """What squeue calls the job that ``--report`` asks for; no array has this name."""
        return f"{self.manifest.sweep}.report"

    def reports(self) -> list[Submission]:
        """The submissions of jobs that report, oldest first."""
        return [row for row in self.submissions if row.array == self.report_name]

    def rest(self, array: Array) -> tuple[Run, ...]:
        """Those runs of an array that no piece of it has; none if pieces stand in its place."""
        pieces = self.pieces(array)
        gone = {run.id for piece in pieces for run in piece.tasks}
        return tuple(run for run in array.tasks if run.id not in gone) if pieces else array.tasks

    def pieces(self, array: Array) -> list[Array]:
        """The smaller arrays that were made of an array before any scheduler took it."""
        return [each for each in self.arrays if each.piece_of == array.token]

    def kept_back(self) -> list[Array]:
        """Later arrays that were never submitted: a limit or a kill came between."""
        planned = {array.token for array in self.manifest.arrays}
        later = [a for a in self.arrays if a.token not in planned and self.rest(a)]
        outcomes = ((array, self.outcome(array)) for array in later)
        return [array for array, was in outcomes if was is None or not (was.job_id or was.error)]


def read_ledger(root: Path, damaged: list[str] | None = None) -> Ledger:
    """Read a sweep's directory; LedgerError names the file that is wrong. With ``damaged``, for who
    only looks, later arrays that cannot be read are left out and named there: their runs then stand
    as they stood before these arrays were submitted."""
    # Listed first: of a sweep that grows meanwhile, the manifest read after it has all their runs.
    paths = sorted((root / layout.ARRAYS).glob("*.json"))
    manifest = read_manifest(root)
    arrays = (*manifest.arrays, *_later_arrays(paths, manifest, damaged))
    return Ledger(root, manifest, arrays, tuple(read_submissions(root)), read_final_states(root))


def salvaged(root: Path) -> list[Submission]:
    """What is left of a directory that cannot be read, for who must end its jobs: rows of
    submissions that are whole, and every token that stands anywhere, without a job."""
    rows = []
    tokens: set[str] = set()
    scripts = (root / layout.JOBS).glob("*submission*.sh")
    planned = [root / layout.MANIFEST, *(root / layout.ARRAYS).glob("*.json")]
    for path in (root / layout.SUBMISSIONS, *planned, *scripts):
        try:
            text = read_regular(path).decode(errors="replace")
        except OSError:
            continue
        tokens.update(_TOKEN.findall(text))
        if path.name == layout.SUBMISSIONS:
            rows = [row for line in text.splitlines() if (row := _salvaged_row(line))]
    tokens -= {row.token for row in rows}
    return [*rows, *(Submission("", token) for token in sorted(tokens))]


def _salvaged_row(line: str) -> Submission | None:
    try:
        row = submission_of(checks.parse(line.encode()))
    except ValueError:
        return None
    return Submission(row.array, row.token, row.job_id)


def find_array(root: Path, manifest: Manifest, name: str) -> Array:
    """The array of that name; LedgerError if there is none."""
    for array in manifest.arrays:
        if array.name == name:
            return array
    path = _array_path(root, name)
    if not path.is_file():
        raise LedgerError(f"{root}: sweep {manifest.sweep!r} has no array {name!r}")
    return _read_array(path, manifest.sweep, {run.id: run for run in manifest.runs})


def bound_to(root: Path, manifest: Manifest, array: Array) -> str:
    """What the jobs of an array are bound to when they are submitted: the owner of the sweep's
    directory (of one that is not there yet, this user), and a digest of what they read there."""
    try:
        owner = os.stat(root).st_uid
    except FileNotFoundError:
        owner = os.geteuid()
    return f"{owner}:{digest(manifest, array)}"


def bound_array(
    root: Path, name: str, env: Mapping[str, str] = os.environ
) -> tuple[Manifest, Array]:
    """The manifest and the array of that name, for a process of its job. LedgerError if they are
    not there, or if this is not the directory and the plan that the job is bound to: who may rename
    what is in the directory above may put another in its place. What is compared is what is
    returned. A job that an earlier version submitted is bound to nothing."""
    owner, _, plan = env.get(layout.BOUND, "").partition(":")
    if plan:
        _refuse_other_owner(root, int(owner))
    manifest = read_manifest(root)
    array = find_array(root, manifest, name)
    if plan and digest(manifest, array) != plan:
        raise LedgerError(f"{root}: the plan of array {name} is not what it was{_OTHER}")
    return manifest, array


def _refuse_other_owner(root: Path, owner: int) -> None:
    try:
        found = os.stat(root).st_uid
    except OSError:
        return  # who reads it says what is wrong
    # Where a container has other numbers for users, what was this user's is this user's there too.
    if found not in (owner, os.geteuid()):
        whose = f"belongs to {user_name(found)}, and belonged to {user_name(owner)}"
        raise LedgerError(f"{root}: {whose}{_OTHER}")


def add_array(root: Path, array: Array) -> None:
    """Keep an array before it is submitted; LedgerError if it is there, or cannot be read back."""
    row = {**array_row(array), "tasks": [run.id for run in array.tasks]}
    path = _array_path(root, array.name)
    try:
        forms.check_array(row)
        with raising(LedgerError, f"{path}: cannot be written"):
            ownership.make_directory(path.parent)
            written = write_once(path, dump_json({"schema": SCHEMA, **row}))
    except Misfit as error:
        raise LedgerError(f"{array.name}: cannot be an array: {error}") from error
    if not written:
        raise LedgerError(f"{path}: is there already: somebody else is rerunning this sweep")


def _array_path(root: Path, name: str) -> Path:
    return root / layout.ARRAYS / f"{name}.json"


def _later_arrays(
    paths: Sequence[Path], manifest: Manifest, damaged: list[str] | None
) -> list[Array]:
    runs = {run.id: run for run in manifest.runs} if paths else {}
    arrays = []
    for path in paths:
        try:
            arrays.append(_read_array(path, manifest.sweep, runs))
        except LedgerError as error:
            if damaged is None:
                raise LedgerError(f"{error}; {_WAY_OUT.format(path)}") from error
            damaged.append(f"{error}; its runs stand as they stood before it was submitted")
    return arrays


def _read_array(path: Path, sweep: str, runs: Mapping[str, Run]) -> Array:
    try:
        with raising(LedgerError, f"{path}: cannot be read"):
            data = read_regular(path)
        row = checks.parse(data)
        forms.check_array(row)
        if row.get("schema") != SCHEMA:
            found = reprlib.repr(row.get("schema"))
            raise Misfit(f"schema is {found}, this version reads {SCHEMA!r}")
        if path.name != f"{row['name']}.json":
            raise Misfit(f"name is {row['name']!r}, which is not the file's")
        check_name(row["name"], sweep)
        strange = [name for name in row["tasks"] if not isinstance(name, str) or name not in runs]
        if strange:
            raise Misfit(f"tasks: the sweep has no run {reprlib.repr(strange[0])}")
        return array_of(row, tuple(runs[name] for name in row["tasks"]))
    except DAMAGE as error:
        raise LedgerError(f"{path}: damaged: {damage(error)}") from error
