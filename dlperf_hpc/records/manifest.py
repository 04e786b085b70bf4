"""The manifest: what a sweep consists of, on disk before anything is submitted.

A task of a job array finds its run by the manifest and its index; nothing else travels. The file
is never changed once written; what happens later is kept beside it: see :mod:`.ledger`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.files import append_line, dump_json, write_once
from dlperf_hpc.records import layout
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.status import Status
from dlperf_hpc.sweepfile.case import Case, Limits, Measure, Run, Topology

SCHEMA = "dlperf-manifest/1"
_WITHOUT = "rename it, and `dlperf report` works from the logs alone"


_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Array:
    """One job array: runs that share a topology, an environment and a time limit.

    ``token`` is unique to this array and travels in the job's comment; ``tasks`` are its runs:
    each array index has ``repeats_per_job`` of them, neighbours, which its job measures in turn.
    ``time_limit_s`` is one run's. ``exclude`` are nodes to leave out, as Slurm writes them
    (``n[3,7]``). ``piece_of`` is the token of the array, never taken, of which it has some runs.
    """

    name: str
    token: str
    topology: Topology
    environment: str
    time_limit_s: int
    tasks: tuple[Run, ...]
    exclude: str = ""
    repeats_per_job: int = 1
    piece_of: str = ""

    @property
    def size(self) -> int:
        """How many indices the array has: jobs, as squeue shows them."""
        return len(self.tasks) // self.repeats_per_job

    def run_of(self, index: int, repeat: int = 0) -> Run:
        """The run that array index ``index`` measures as its ``repeat``-th, both from 0."""
        return self.tasks[index * self.repeats_per_job + repeat]


@dataclass(frozen=True)
class Manifest:
    """A sweep as planned. ``site`` is the site profile's content, for provenance and reruns."""

    sweep: str
    engine: str
    base: str | None
    repeats: int
    measure: Measure
    limits: Limits
    arrays: tuple[Array, ...]
    site: dict[str, Any] = field(default_factory=dict)
    tool_version: str = ""
    created: str = ""
    source: str = ""

    @property
    def runs(self) -> list[Run]:
        """Every run of the sweep, array by array."""
        return [run for array in self.arrays for run in array.tasks]


def array_row(array: Array) -> dict[str, Any]:
    """An array's own values as plain JSON, without its tasks."""
    return {**vars(array), "topology": str(array.topology), "tasks": []}


def array_of(row: Mapping[str, Any], tasks: tuple[Run, ...]) -> Array:
    """Inverse of :func:`array_row`; KeyError or TypeError if it is none."""
    values = {**_known(Array, row), "topology": Topology.parse(row["topology"]), "tasks": tasks}
    return Array(**values)


def _to_json(manifest: Manifest) -> dict[str, Any]:
    cases: dict[str, int] = {}
    dicts: list[dict[str, Any]] = []
    arrays = []
    for array in manifest.arrays:
        tasks = []
        for run in array.tasks:
            if run.case.id not in cases:
                cases[run.case.id] = len(dicts)
                dicts.append(run.case.to_dict())
            tasks.append([cases[run.case.id], run.repeat])
        arrays.append({**array_row(array), "tasks": tasks})
    head = {key: value for key, value in vars(manifest).items() if key != "arrays"}
    head.update(measure=asdict(manifest.measure), limits=asdict(manifest.limits))
    return {"schema": SCHEMA, **head, "cases": dicts, "arrays": arrays}


def _from_json(data: Mapping[str, Any]) -> Manifest:
    cases = [Case.from_dict(case) for case in data["cases"]]
    arrays = tuple(
        array_of(row, tuple(Run(cases[index], repeat) for index, repeat in row["tasks"]))
        for row in data["arrays"]
    )
    return Manifest(
        sweep=data["sweep"],
        engine=data["engine"],
        base=data["base"],
        repeats=data["repeats"],
        measure=Measure(**data["measure"]),
        limits=Limits(**data["limits"]),
        arrays=arrays,
        site=data["site"],
        tool_version=data["tool_version"],
        created=data["created"],
        source=data["source"],
    )


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write the manifest of a new sweep; LedgerError if the directory holds one already, or if it
    cannot be written."""
    path = root / layout.MANIFEST
    try:
        written = write_once(path, dump_json(_to_json(manifest)))
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written: {error.strerror}") from error
    if not written:
        raise LedgerError(f"{root} already holds a sweep")


def read_manifest(root: Path) -> Manifest:
    """Read a sweep's manifest; LedgerError names what is wrong with the file."""
    path = root / layout.MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LedgerError(
            f"{root}: no {layout.MANIFEST} there, so this is not a sweep's directory;"
            " give the directory that `dlperf sweep` printed (logs/<sweep>)"
        ) from None
    except NotADirectoryError:
        raise LedgerError(
            f"{root}: is a file, not a sweep's directory; if it is an archive, unpack it first"
            f" (python -m zipfile -e {root} DIR)"
        ) from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LedgerError(f"{path}: damaged: {error}; {_WITHOUT}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise LedgerError(
            f"{path}: schema is {found!r}, this version reads {SCHEMA!r}: use the version of"
            f" dlperf_hpc that wrote it, or {_WITHOUT}"
        )
    try:
        return _from_json(data)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise LedgerError(f"{path}: damaged: {what}; {_WITHOUT}") from error


@dataclass(frozen=True)
class Submission:
    """An array the scheduler took (``job_id``), refused (``error``), or has no room for as yet
    (``limit``, in its words). A row with none of them was written as it was about to be asked:
    what became of it, only the array's token can tell."""

    array: str
    token: str
    job_id: str = ""
    error: str = ""
    time: str = ""
    limit: str = ""

    @property
    def unanswered(self) -> bool:
        """The scheduler may have taken it, and nobody has heard."""
        return not (self.job_id or self.error or self.limit)


@dataclass(frozen=True)
class FinalState:
    """What the scheduler said of a run that may have left no record. ``job`` is the task it was
    said of (``4711_3``), or the token of an array that was refused."""

    run: str
    status: Status
    reason: str
    time: str = ""
    job: str = ""


def _rows(path: Path, make: Callable[[dict[str, Any]], _Row]) -> list[_Row]:
    """The file's rows. A line that is no JSON was torn by a kill: it never came to be."""
    rows: list[_Row] = []
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return rows
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    # What follows the last newline is still being written.
    for number, line in enumerate(lines[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        try:
            rows.append(make(row))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise LedgerError(
                f"{path}:{number}: damaged: {what}; correct or remove that line"
            ) from error
    return rows


def _append(path: Path, *rows: Mapping[str, Any]) -> None:
    if not rows:
        return
    try:
        append_line(path, "\n".join(map(json.dumps, rows)))
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written: {error.strerror}") from error


def add_submission(root: Path, submission: Submission) -> None:
    """Note down what became of an array when it was submitted."""
    _append(root / layout.SUBMISSIONS, {**vars(submission), "time": submission.time or utc()})


def read_submissions(root: Path) -> list[Submission]:
    """All submissions, oldest first."""
    return _rows(root / layout.SUBMISSIONS, lambda row: Submission(**_known(Submission, row)))


def add_final_states(root: Path, final_states: Iterable[FinalState]) -> None:
    """Note down final states of several runs in one write: the scheduler forgets soon."""
    now = utc()
    rows = [{**vars(v), "status": v.status.value, "time": v.time or now} for v in final_states]
    _append(root / layout.FINAL_STATES, *rows)


def read_final_states(root: Path) -> dict[str, FinalState]:
    """The latest final state of each run that has one, by run id."""
    return {
        final_state.run: final_state
        for final_state in _rows(root / layout.FINAL_STATES, _final_state)
    }


def _final_state(row: Mapping[str, Any]) -> FinalState:
    return FinalState(**{**_known(FinalState, row), "status": Status(row["status"])})


def _known(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """What this version knows of a row; a newer one may have written more."""
    return {f.name: row[f.name] for f in fields(kind) if f.name in row}
