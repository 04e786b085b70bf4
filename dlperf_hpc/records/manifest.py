"""The manifest: what a sweep consists of, on disk before anything is submitted.

A task of a job array finds its run by the manifest and its index; nothing else travels. What is in
the file is never changed once written: a sweep that grows gets further cases and arrays, in one
step. What happens to the runs is kept beside it: see :mod:`.ledger`.
"""

from __future__ import annotations

import itertools
import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dlperf_hpc import files
from dlperf_hpc.errors import ABSENT, LedgerError, raising, redacted
from dlperf_hpc.model import checks
from dlperf_hpc.model.case import Case, Limits, Measure, Run, Topology, Until, known_fields
from dlperf_hpc.model.checks import Misfit
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import forms, layout, ownership
from dlperf_hpc.records.lines import utc
from dlperf_hpc.sweepfile.programs import UserProgram

_WITHOUT = "rename it, and `dlperf report` works from the logs alone"
DAMAGE = (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError)
"""What making a value of damaged JSON may raise."""


_Row = TypeVar("_Row")
_LATER = ("programs", "budget_node_hours", "until")  # keys that only a sweep which needs them has


@dataclass(frozen=True)
class Array:
    """One job array: runs that share a topology, a time limit of one run, and an environment; where
    the runs of a job have several, in the same turns in every job, ``environment`` is the first.
    ``token`` is unique to this array and travels in the job's comment; of ``tasks``, its runs, each
    array index has ``repeats_per_job`` neighbours, which its job measures in turn. ``exclude`` are
    nodes to leave out (``n[3,7]``). ``piece_of`` is the token of the array, never taken by a
    scheduler, of which it has some runs."""

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

    @property
    def repeats_in_job(self) -> int:
        """How many repeats of a case a job measures."""
        return len({run.repeat for run in self.tasks[: self.repeats_per_job]})

    @property
    def environments(self) -> tuple[str, ...]:
        """The environment of each run of a job, in turn; every job has the same."""
        further = self.tasks[1 : self.repeats_per_job]
        return (self.environment, *(run.case.environment for run in further))

    @property
    def job_limit_s(self) -> int:
        """Time limit of a job: the sum of those of its runs."""
        return self.repeats_per_job * self.time_limit_s

    @property
    def searches(self) -> set[str]:
        """The ids of the cases whose batch size its runs find; later repeats may wait for that."""
        first = (run for run in self.tasks if run.repeat <= self.repeats_per_job)
        return {run.case.id for run in first if run.case.sought}

    def run_of(self, index: int, repeat: int = 0) -> Run:
        """The run that array index ``index`` measures as its ``repeat``-th, both from 0.
        LedgerError if the array has no such index."""
        place = index * self.repeats_per_job + repeat
        if not 0 <= place < len(self.tasks):
            raise LedgerError(f"array {self.name} has no run {repeat} of index {index}")
        return self.tasks[place]


@dataclass(frozen=True)
class Manifest:
    """A sweep as planned. ``site`` is the site profile's content, for provenance and reruns;
    ``programs`` are the users' programs of its cases, by name. ``budget_node_hours`` is what its
    jobs may use, None without a bound. With ``until`` what is measured decides how many repeats a
    case has. ``rows`` are cases (by their ids), programs, measure and limits as the file has them,
    whatever version wrote it."""

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
    programs: Mapping[str, UserProgram] = field(default_factory=dict)
    budget_node_hours: float | None = None
    until: Until | None = None
    rows: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def runs(self) -> list[Run]:
        """Every run of the sweep, array by array."""
        return [run for array in self.arrays for run in array.tasks]

    @property
    def sought(self) -> list[str]:
        """The ids of the cases whose batch size their runs are to find."""
        return list(dict.fromkeys(run.case.id for run in self.runs if run.case.sought))


def by_environment(arrays: Iterable[Array]) -> dict[str, list[Array]]:
    """Arrays by the environment of their runs; one whose jobs have several is an array of each."""
    found: dict[str, list[Array]] = {}
    for array in arrays:
        names = set(array.environments)
        for name in dict.fromkeys(array.environments):
            part = array
            if len(names) > 1:
                tasks = tuple(run for run in array.tasks if run.case.environment == name)
                part = replace(array, environment=name, tasks=tasks, repeats_per_job=1)
            found.setdefault(name, []).append(part)
    return found


def array_row(array: Array) -> dict[str, Any]:
    """An array's own values as plain JSON, without its tasks."""
    return {**vars(array), "topology": str(array.topology), "tasks": []}


def array_of(row: Mapping[str, Any], tasks: tuple[Run, ...]) -> Array:
    """Inverse of :func:`array_row`, of a row that :func:`.forms.check_array` let through. Misfit
    for a run that does not belong on such nodes, or in such an environment."""
    values = {
        **known_fields(Array, row),
        "topology": Topology.parse(row["topology"]),
        "tasks": tasks,
    }
    array = Array(**values)
    turns = itertools.cycle(array.environments)
    pairs = {(id(run.case), turn): (run.case, turn) for run, turn in zip(tasks, turns)}
    for case, environment in pairs.values():
        if (case.topology, case.environment) != (array.topology, environment):
            there = f"{case.topology} in environment {case.environment!r}"
            raise Misfit(f"tasks: {case.id} is for {there}, and array {array.name} is not")
    return array


def _to_json(manifest: Manifest) -> dict[str, Any]:
    head = {key: value for key, value in vars(manifest).items() if key not in ("arrays", "rows")}
    head.update(measure=asdict(manifest.measure), limits=asdict(manifest.limits))
    head.update(programs=_tables_of(manifest.programs))
    head.update(until=manifest.until and vars(manifest.until))
    head = {key: value for key, value in head.items() if value or key not in _LATER}
    return {"schema": layout.MANIFEST_SCHEMA, **head, **_with_arrays([], [], manifest.arrays)}


def _with_arrays(
    cases: list[Any], arrays: list[Any], added: Iterable[Array]
) -> dict[str, list[Any]]:
    """The rows of cases and arrays, and behind them those of arrays that are added."""
    cases, arrays = list(cases), list(arrays)
    numbers = {forms.case_of(row).id: number for number, row in enumerate(cases)}
    for array in added:
        for run in array.tasks:
            if run.case.id not in numbers:
                numbers[run.case.id] = len(cases)
                cases.append(run.case.to_dict())
        tasks = [[numbers[run.case.id], run.repeat] for run in array.tasks]
        arrays.append({**array_row(array), "tasks": tasks})
    return {"cases": cases, "arrays": arrays}


def _tables_of(programs: Mapping[str, UserProgram]) -> dict[str, Any]:
    return {name: program.to_dict() for name, program in programs.items()}


def _from_json(data: Mapping[str, Any]) -> Manifest:
    forms.check_manifest(data)
    cases = [_named(f"cases[{i}]", forms.case_of, row) for i, row in enumerate(data["cases"])]
    of_row = partial(_array_in, data["sweep"], cases, data["repeats"])
    arrays = tuple(_named(f"arrays[{i}]", of_row, row) for i, row in enumerate(data["arrays"]))
    for key in ("name", "token"):
        if len({getattr(array, key) for array in arrays}) < len(arrays):
            raise Misfit(f"arrays: two of them have one {key}")
    made = {
        "rows": _with_ids(data, (case.id for case in cases)),
        "measure": forms.measure_of(data["measure"]),
        "limits": forms.limits_of(data["limits"]),
        "arrays": arrays,
        "until": data.get("until") and Until(**known_fields(Until, data["until"])),
        "programs": forms.programs_of(data.get("programs", {}), cases),
    }
    return Manifest(**{**known_fields(Manifest, data), **made})


def _with_ids(data: Mapping[str, Any], ids: Iterable[str]) -> dict[str, Any]:
    """The manifest as its file holds it, with its cases by their ids."""
    return {"programs": {}, **data, "cases": dict(zip(ids, data["cases"]))}


def _named(where: str, make: Callable[[Any], _Row], row: Any) -> _Row:
    """What ``make`` makes of a row; its Misfit then says where the row stands."""
    try:
        return make(row)
    except Misfit as error:
        raise Misfit(f"{where}.{error}") from error


def _array_in(sweep: str, cases: list[Case], repeats: int, row: Any) -> Array:
    forms.check_array(row)
    check_name(row["name"], sweep)
    tasks = [_task(task, cases, repeats) for task in row["tasks"]]
    return array_of(row, tuple(tasks))


def check_name(name: str, sweep: str) -> None:
    """Misfit for an array's name that is none of its sweep: ``2n8g.bert``, ``2n8g.bert.r1-env``; of
    earlier versions ``bert-2n8g``, ``bert.r1-2n8g-env``."""
    topology, _, rest = name.partition(".")
    more = (f"{sweep}-", f"{sweep}.")
    ours = checks.is_topology(topology) and (rest == sweep or rest.startswith(more))
    if not ours and not name.startswith(more):
        raise Misfit(f"name is {name!r}, which is no array of sweep {sweep!r}")


def _task(task: Any, cases: list[Case], repeats: int) -> Run:
    """A run as an array of the manifest names it: ``[number of the case, repeat]``."""
    if isinstance(task, list) and len(task) == 2 and type(task[0]) is type(task[1]) is int:
        number, repeat = task
        if 0 <= number < len(cases) and 0 < repeat <= repeats:
            return Run(cases[number], repeat)
    raise Misfit(f"tasks: there is no run {reprlib.repr(task)}")


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write the manifest of a new sweep; LedgerError if one is there, or it cannot be written."""
    path = root / layout.MANIFEST
    with raising(LedgerError, f"{path}: cannot be written"):
        written = files.write_once(path, files.dump_json(_to_json(manifest)), _mode_of(manifest))
    if not written:
        raise LedgerError(f"{root} already holds a sweep")


def _mode_of(manifest: Manifest) -> int | None:
    """Of a manifest with a secret, which jobs need as it is: nobody else reads it, but the group
    that shares the sweep. None: the usual one."""
    text = json.dumps([_tables_of(manifest.programs), manifest.site])
    if redacted(text) == text:
        return None
    return 0o600 if ownership.sharing_group() is None else 0o660


def extend_manifest(root: Path, grown: Manifest) -> None:
    """Put the manifest of a sweep that has grown in the place of the one that is there; call it
    with the submitters' lock held. ``grown`` begins with the arrays that are there, whose rows and
    cases stay as they are, with what another version wrote in them. LedgerError if the file cannot
    be written, or could not be read again."""
    path = root / layout.MANIFEST
    try:
        with raising(LedgerError, f"{path}: cannot be written"):
            text = files.dump_json(_extended(checks.parse(files.read_regular(path)), grown))
            _from_json(checks.parse(text.encode()))
            files.write_atomically(path, text, _mode_of(grown))
    except DAMAGE as error:
        raise LedgerError(
            f"{path}: cannot be extended: {damage(error)}; nothing was changed or submitted: give"
            " another --name (or --logs)"
        ) from error


def _extended(data: dict[str, Any], grown: Manifest) -> dict[str, Any]:
    head: dict[str, Any] = {"base": grown.base, "repeats": grown.repeats, "site": grown.site}
    if grown.programs:
        # What is there stays as it is: jobs that wait are bound to it.
        head["programs"] = {**_tables_of(grown.programs), **data.get("programs", {})}
    if grown.budget_node_hours:
        head["budget_node_hours"] = grown.budget_node_hours
    if grown.until:
        head["until"] = vars(grown.until)
    added = grown.arrays[len(data["arrays"]) :]
    return {**data, **head, **_with_arrays(data["cases"], data["arrays"], added)}


def as_read(manifest: Manifest) -> Manifest:
    """A manifest that is not on disk, with the rows that its file would have."""
    rows = _with_ids(_to_json(manifest), dict.fromkeys(run.case.id for run in manifest.runs))
    return replace(manifest, rows=rows)


def digest(manifest: Manifest, array: Array) -> str:
    """Of all that the tasks of an array read: the same however the sweep grows, and whatever
    version reads it. The manifest is one that was read."""
    import hashlib  # of the verbs that only look, none needs it

    rows, cases, programs = manifest.rows, dict[str, Any](), dict[str, Any]()
    for case in (run.case for run in array.tasks):
        cases[case.id] = rows["cases"].get(case.id)
        programs[case.framework] = rows["programs"].get(case.framework)
    runs = [run.id for run in array.tasks]
    head = (manifest.sweep, manifest.engine, array.name, array.repeats_per_job, array.time_limit_s)
    plan = [*head, runs, cases, programs, rows["measure"], rows["limits"]]
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def read_manifest(root: Path) -> Manifest:
    """Read a sweep's manifest; LedgerError names what is wrong with the file."""
    path = root / layout.MANIFEST
    try:
        data = checks.parse(files.read_regular(path))
    except ABSENT:
        raise LedgerError(f"{root}: {_no_sweep(root)}") from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LedgerError(f"{path}: damaged: {error}; {_WITHOUT}") from error
    if not isinstance(data, dict) or data.get("schema") != layout.MANIFEST_SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise LedgerError(
            f"{path}: schema is {reprlib.repr(found)}, this version reads"
            f" {layout.MANIFEST_SCHEMA!r}: use the version of dlperf_hpc that wrote it,"
            f" or {_WITHOUT}"
        )
    try:
        return _from_json(data)
    except DAMAGE as error:
        raise LedgerError(f"{path}: damaged: {damage(error)}; {_WITHOUT}") from error


_GIVE = "give the directory that `dlperf sweep` printed (logs/<sweep>)"


def _no_sweep(root: Path) -> str:
    """Why a path cannot be a sweep's directory, and what to give in its place."""
    if root.is_dir():
        return f"no {layout.MANIFEST} there, so this is not a sweep's directory; {_GIVE}"
    if not root.exists():
        import difflib

        near = difflib.get_close_matches(root.name, _sweeps_in(root.parent), n=1)
        hint = f"did you mean {root.with_name(near[0])}?" if near else _GIVE
        return f"there is no such directory; {hint}"
    if files.is_tar(root.name):
        return files.unpack_tar(str(root))
    if root.suffix == ".toml":
        return f"is a sweep file, not the directory of its runs; {_GIVE}"
    unpack = f"unpack it first (python -m zipfile -e {root} DIR)"
    return f"is a file, not a sweep's directory; if it is an archive, {unpack}"


def _sweeps_in(folder: Path) -> list[str]:
    try:
        return [each.name for each in folder.iterdir() if (each / layout.MANIFEST).is_file()]
    except OSError:
        return []


def damage(error: Exception) -> str:
    """What is wrong with damaged JSON, in words."""
    return str(error) if isinstance(error, Misfit) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Submission:
    """An array the scheduler took (``job_id``), refused (``error``), or has no room for as yet
    (``limit``, in its words). A row with none of them was written before the scheduler answered.
    ``host``: where the process ran in whose own queue it was; '' for a scheduler's."""

    array: str
    token: str
    job_id: str = ""
    error: str = ""
    time: str = ""
    limit: str = ""
    host: str = ""

    @property
    def unanswered(self) -> bool:
        """The scheduler may have taken it, and nobody has heard."""
        return not (self.job_id or self.error or self.limit)


@dataclass(frozen=True)
class FinalState:
    """What the scheduler said of a run that may have left no record. ``job`` is the task
    (``4711_3``), or the token of an array that was refused."""

    run: str
    status: Status
    reason: str
    time: str = ""
    job: str = ""


def _rows(path: Path, make: Callable[[dict[str, Any]], _Row]) -> list[_Row]:
    """The file's rows. A line that is no JSON was torn by a kill: it never came to be."""
    rows: list[_Row] = []
    data = b""
    with raising(LedgerError, f"{path}: cannot be read"), suppress(FileNotFoundError):
        data = files.read_regular(path)
    # What follows the last newline is still being written.
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            rows.append(make(checks.parse(line)))
        except (json.JSONDecodeError, UnicodeDecodeError):
            continue
        except DAMAGE as error:
            raise LedgerError(
                f"{path}:{number}: damaged: {damage(error)}; correct or remove that line"
            ) from error
    return rows


def _append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        with raising(LedgerError, f"{path}: cannot be written"):
            text = redacted("\n".join(json.dumps(checks.printable(row)) for row in rows))
            files.append_line(path, text, ownership.sharing_group())


def add_submission(root: Path, submission: Submission) -> None:
    """Note down what became of an array when it was submitted."""
    _append(root / layout.SUBMISSIONS, [{**vars(submission), "time": submission.time or utc()}])


def read_submissions(root: Path) -> list[Submission]:
    """All submissions, oldest first."""
    return _rows(root / layout.SUBMISSIONS, submission_of)


def submission_of(row: Any) -> Submission:
    """A submission as it stands in its file; Misfit for a row that is none of ours."""
    checks.check(row, *forms.SUBMISSION)
    return Submission(**known_fields(Submission, row))


def add_final_states(root: Path, final_states: Iterable[FinalState]) -> None:
    """Note down final states of several runs in one write: the scheduler forgets soon."""
    now = utc()
    rows = [{**vars(v), "status": v.status.value, "time": v.time or now} for v in final_states]
    _append(root / layout.FINAL_STATES, rows)


def read_final_states(root: Path) -> dict[str, FinalState]:
    """The latest final state of each run that has one, by run id."""
    rows = _rows(root / layout.FINAL_STATES, _final_state)
    return {final_state.run: final_state for final_state in rows}


def _final_state(row: Mapping[str, Any]) -> FinalState:
    checks.check(row, *forms.FINAL_STATE)
    return FinalState(**{**known_fields(FinalState, row), "status": Status(row["status"])})
