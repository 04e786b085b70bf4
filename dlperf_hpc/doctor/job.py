"""The short jobs of ``doctor``, which try an environment: submitted as a sweep's arrays are,
watched, ended if need be.

A :class:`Target` is, of an environment, the widest job that the sweep asks it for. A :class:`Trial`
is that job: its state, its output, and what its ranks reported.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlperf_hpc import in_checkout
from dlperf_hpc.doctor.preflight import modules_of, modules_without_mpi
from dlperf_hpc.engines import base
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.errors import SiteError, number_of
from dlperf_hpc.files import read_regular
from dlperf_hpc.model.case import Case, Run, Topology
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import Task
from dlperf_hpc.records.manifest import Array, Manifest, by_environment
from dlperf_hpc.train import probe
from dlperf_hpc.train.probe import MARK

LIMIT_S = 900  # of a job; it takes seconds, and its ranks bound what they do themselves
END = f"{MARK}: the ranks have ended, code"  # what follows the ranks prints it, with the code
_MOST_OUTPUT = 1 << 26  # bytes
_PART = re.compile(MARK + r" ([0-9]+) (\w+) ([0-9]+)/([0-9]+) ([0-9]+) ([0-9a-f]{8}) ")
_LABEL = re.compile(r" *[0-9]+: ")  # srun's and mpiexec's
_POLL_S = 0.02
_REST_S = 5.0  # for the rest of an output that has begun to show
_OVERTIME_S = 90.0  # schedulers' time limits are not kept to the second
_PACKAGE = "dlperf_probe"
# squeue's reasons for a job that waits for a limit of its user's, account's or quality of service.
_LIMIT = re.compile(r"QOS|Assoc|MaxJobs|MaxCpuPer|MaxNodePer|MaxGRESPer|MaxMemPer")
_ASK = "write what the site asks for into the site profile: account, partition, qos, mem, ..."


@dataclass(frozen=True)
class Question:
    """What to look at. ``logs`` is the parent of sweeps' directories; ``nodes`` the most that the
    short jobs take; ``timeout_s`` how long one may be pending; ``visible_s`` how long a file may
    take from one machine to the other. ``progress`` is called with what is being waited for. In
    place of the usual short jobs, ``pairs`` asks for so many rounds of pairs of nodes, and
    ``all_nodes`` for a job on each node; ``among`` names the nodes to choose from. Or each
    short job spends ``collectives_s`` on collectives of all sizes."""

    engine: base.Engine
    site: Site
    logs: Path
    manifest: Manifest | None = None
    nodes: int = 2
    timeout_s: float = 300.0
    visible_s: float = 60.0
    pairs: int = 0
    all_nodes: bool = False
    among: str = ""
    collectives_s: float = 0.0
    progress: Callable[[str], None] = lambda text: None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The sweep's, if there is one."""
        return self.manifest.arrays if self.manifest else ()

    @property
    def root(self) -> Path:
        """Where the sweep would be, so that its scripts are the real ones."""
        return (self.logs / (self.manifest.sweep if self.manifest else "doctor")).absolute()


@dataclass(frozen=True)
class Target:
    """A job to try: ``array`` has its one task; ``devices`` are those that the cases name, and
    ``paths``, by program, what must be there on each node; ``by_local_rank`` are programs whose
    processes are told their node's ranks; ``steps``: its ranks also time steps of their own;
    ``collectives_s``: they spend so many seconds on collectives of all sizes."""

    environment: str
    array: Array
    modules: tuple[str, ...]
    devices: frozenset[str]
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_local_rank: tuple[str, ...] = ()
    steps: bool = False
    collectives_s: float = 0.0

    @property
    def topology(self) -> Topology:
        """Nodes and GPUs per node of the job."""
        return self.array.topology

    @property
    def ranks(self) -> int:
        """Processes that should find each other."""
        return self.array.tasks[0].case.ranks

    @property
    def wants_gpus(self) -> bool:
        """Whether there is a case that takes GPUs where there are any."""
        return self.devices != {"cpu"}


def targets_of(arrays: Sequence[Array], nodes: int, limit_s: int = LIMIT_S) -> list[Target]:
    """One of each environment in the sweep, on at most ``nodes`` nodes. ``limit_s`` is what the
    partition allows."""
    return [_target_of(those, nodes, limit_s) for those in by_environment(arrays).values()]


def _target_of(arrays: Sequence[Array], nodes: int, limit_s: int) -> Target:
    cases = [run.case for array in arrays for run in array.tasks]
    case = max(cases, key=lambda case: (min(nodes, case.topology.nodes), case.ranks_per_node))
    topology = replace(case.topology, nodes=min(nodes, case.topology.nodes))
    limit_s = min(limit_s, max(array.time_limit_s for array in arrays))
    return Target(
        environment=case.environment,
        array=_array(replace(case, topology=topology), limit_s),
        modules=modules_of(arrays),
        devices=frozenset(case.device for case in cases),
    )


def targets_of_site(site: Site, topology: Topology, limit_s: int = LIMIT_S) -> list[Target]:
    """Without a sweep: each environment of the profile, and what every back end needs. ``limit_s``
    is what the partition allows."""
    modules = ("dlperf_hpc", "mpi4py")
    # An array must have a case; it is never run.
    anything = Case(
        framework="ddp",
        model="bert-tiny",
        topology=topology,
        precision="fp32",
        batch_size=1,
        seq_len=1,
    )
    return [
        Target(name, _array(replace(anything, environment=name), limit_s), modules, frozenset())
        for name in site.environment or ["default"]
    ]


def on_so_many_nodes(array: Array, nodes: int) -> Array:
    """A short job with ranks on another number of nodes, under a name and a token of its own. Of a
    program that starts its own processes the launcher starts one on a node, or one alone, but what
    is measured here needs one for each device."""
    case = array.tasks[0].case
    case = replace(case, topology=replace(case.topology, nodes=nodes))
    if case.launch not in ("", "rank"):
        case = replace(case, launch="rank", processes_per_node=None)
    made = _array(case, array.time_limit_s)
    return replace(made, name=f"{made.name}-{made.token[-8:]}")


def _array(case: Case, limit_s: int) -> Array:
    token = f"dlperf-{secrets.token_hex(8)}"
    name = f"doctor-{case.topology}-{case.environment}"
    tasks = (Run(case, 1),)
    return Array(name, token, case.topology, case.environment, min(limit_s, LIMIT_S), tasks)


@dataclass
class Trial:
    """A job and what came of it; ``root`` is the directory of all short jobs. ``parts`` are what
    each rank reported; ``code`` is what the launcher left with, as far as its output shows here;
    ``started`` and ``over`` are when the engine first said so (time.monotonic); ``given_up`` is
    what is to be said of a job that was not taken, or that was cancelled."""

    target: Target
    engine: base.Engine
    site: Site
    root: Path
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    job_id: str = ""
    state: base.TaskState | None = None
    started: float | None = None
    over: float | None = None
    ended: bool = False
    given_up: base.CheckResult | None = None
    code: int | None = None
    output: str = ""
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)

    @property
    def task(self) -> Task:
        """The job's one task."""
        return Task(self.target.array, 0, self.job_id)

    @property
    def title(self) -> str:
        """The job and its size, for people."""
        nodes, ranks = self.target.topology.nodes, self.target.ranks
        return f"job {self.job_id} ({number_of(nodes, 'node')}, {number_of(ranks, 'rank')})"

    @property
    def environment(self) -> Environment:
        """The environment it tries, as the site profile has it."""
        return self.site.environment_named(self.target.environment)

    @property
    def logs(self) -> Path:
        """The parent of sweeps' directories."""
        return self.root.parent

    @property
    def probe(self) -> Path:
        """The program that its ranks run."""
        return self.root / self.target.array.name / "probe"

    @property
    def exchange(self) -> Path:
        """Where files go to and fro."""
        return self.root / self.target.array.name / "exchange"

    def reported(self, part: str) -> list[dict[str, Any]]:
        """What each rank reported of one kind, in the order of ranks."""
        return [parts[part] for _, parts in sorted(self.parts.items()) if part in parts]

    def found(self, grade: base.Grade, check: str, seen: str, to_do: str = "") -> base.CheckResult:
        """A check result of this job's environment."""
        return base.CheckResult(grade, check, seen, to_do, self.target.environment)

    def gpu_hint(self, words: str) -> str:
        """What to do if somebody says that the request for GPUs does not fit, else ''."""
        return self.engine.gpu_hint(self.site) if base.GPU_REFUSAL.search(words) else ""

    def answer(self) -> None:
        """Give this machine's time for each file that a node has written."""
        with contextlib.suppress(OSError):
            for path in self.exchange.glob("ping-*[0-9]"):
                if path.name not in self._answered and not self.ended:
                    self._answered.add(path.name)
                    answer = path.with_name(path.name.replace("ping", "pong", 1))
                    fresh = answer.with_suffix(".tmp")
                    fresh.write_text(repr(time.time()))
                    fresh.replace(answer)

    def read(self) -> None:
        """Take in what shows of the output; ends the trial where the output has its end."""
        try:
            data = read_regular(self.root / layout.JOBS / f"{self.task.name}.out", _MOST_OUTPUT)
        except OSError:
            return
        output = data.decode(errors="replace").replace("\0", "")
        if output == self.output:
            return
        self.output = output
        self.parts = parts_of(output)
        _before, end, rest = output.rpartition(END)
        code, newline, _after = rest.partition("\n")
        if end and newline and code.strip().isdigit():
            self.code, self.ended = int(code), True


def _reports(output: str) -> Iterator[str]:
    """The lines of each label, put together: a scheduler may have cut them anywhere."""
    streams: dict[str, list[str]] = {}
    for line in output.splitlines():
        label = _LABEL.match(line)
        # What has no label was not cut by whoever sets them.
        if label is None:
            yield line
        else:
            streams.setdefault(label[0], []).append(line[label.end() :])
    yield from map("".join, streams.values())


def parts_of(output: str) -> dict[int, dict[str, Any]]:
    """What ranks said, by rank and part, out of a job's output with whatever else is in it."""
    pieces: dict[tuple[int, str], dict[int, str]] = {}
    totals: dict[tuple[int, str], int] = {}
    for text in _reports(output):
        for match in _PART.finditer(text):
            rank, part, number, total, length, check = match.groups()
            piece = text[match.end() : match.end() + int(length)]
            if int(check, 16) == zlib.crc32(piece.encode()):
                pieces.setdefault((int(rank), part), {})[int(number)] = piece
                totals[int(rank), part] = int(total)
    parts: dict[int, dict[str, Any]] = {}
    for (rank, part), found in pieces.items():
        with contextlib.suppress(KeyError, ValueError):
            whole = "".join(found[number] for number in range(1, totals[rank, part] + 1))
            parts.setdefault(rank, {})[part] = json.loads(whole)
    return parts


def submit(root: Path, target: Target, question: Question, site: Site) -> Trial:
    """Put the probe on disk below ``root`` and submit its job. OSError where that cannot be
    written; SpecError or LedgerError as the engine raises them."""
    engine, environment = question.engine, site.environment_named(target.environment)
    modules = modules_without_mpi(target.modules, engine, environment, [target.array])
    trial = Trial(replace(target, modules=modules), engine, site, root)
    trial.exchange.mkdir(parents=True, mode=0o700)
    _copy_probe(trial.probe)
    (trial.exchange / "token").write_text(trial.token)
    (trial.exchange / "paths").write_text(json.dumps(sorted(set().union(*target.paths.values()))))
    response = engine.submit(root, target.array, site, _program(trial, question.visible_s))
    trial.job_id = response.job_id
    trial.given_up = _not_taken(trial, response)
    trial.ended = not trial.job_id
    return trial


def _not_taken(trial: Trial, response: base.Response) -> base.CheckResult | None:
    if response.job_id:
        return None
    if response.limit:
        to_do = "nothing is known of the compute nodes; try again when your other jobs have ended"
        return trial.found("warn", "job", f"kept back by a limit: {response.limit}", to_do)
    words = response.error or response.silence
    to_do = trial.gpu_hint(words) or _ASK
    return trial.found("FAIL", "job", f"refused: {words}", to_do)


def _copy_probe(box: Path) -> None:
    """Make a directory that a Python runs, and that has something to say in an environment without
    this package."""
    source = Path(probe.__file__).parent
    shutil.copytree(source, box / _PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (box / "__main__.py").write_text(f"from {_PACKAGE}.__main__ import main\n\nmain()\n")


def _program(trial: Trial, visible_s: float) -> base.TaskProgram:
    """The probe where a run has its worker; and no run to write a record of."""
    target = trial.target
    options = [f"--token={trial.token}", f"--modules={','.join(target.modules)}"]
    options += [f"--patience={visible_s:g}", f"--nodes={target.topology.nodes}"]
    flags = {
        "--checkout": in_checkout(),
        "--torch": "torch" in target.modules and target.wants_gpus,
        "--steps": target.steps,
        f"--collectives={target.collectives_s:g}": target.collectives_s > 0,
    }
    options += [flag for flag, wanted in flags.items() if wanted]
    arguments = ("-u", str(trial.probe), str(trial.exchange), *options)
    return base.TaskProgram(arguments, epilogue=("echo", END))


def watch(trials: Sequence[Trial], question: Question) -> Iterator[Trial]:
    """Each job as it ends. One that is pending for too long is cancelled."""
    yield from (trial for trial in trials if trial.ended)
    waiting = [trial for trial in trials if not trial.ended]
    with _answering(waiting):
        yield from _watch(waiting, question)


@contextlib.contextmanager
def _answering(trials: Sequence[Trial]) -> Iterator[None]:
    """Answer the nodes from a thread: the scheduler, when asked, may take its time."""
    stop = threading.Event()

    def answer() -> None:
        while not stop.wait(_POLL_S):
            for trial in trials:
                trial.answer()

    thread = threading.Thread(target=answer, name="doctor-answers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(waiting: list[Trial], question: Question) -> Iterator[Trial]:
    begin, looked = time.monotonic(), float("-inf")
    while waiting:
        elapsed = time.monotonic() - begin
        # Often at first, for those who wait; seldom later, for the scheduler's sake.
        pause = min(1 + elapsed / 4, question.engine.pause_s(question.site.poll_s))
        if begin + elapsed - looked > pause:
            _ask_states(waiting, question.visible_s)
            looked = time.monotonic()
            states = ", ".join(f"{each.task.name} {each.state}" for each in waiting if each.state)
            question.progress(f"waiting for {states or f'{len(waiting)} short jobs'}")
        for trial in waiting:
            trial.read()
            # Tasks of this process's own queue wait for one another, and it bounds them itself.
            if question.engine.detached:
                _bound(trial, elapsed, question.timeout_s)
        yield from (trial for trial in waiting if trial.ended)
        waiting = [trial for trial in waiting if not trial.ended]
        time.sleep(_POLL_S)


def _ask_states(trials: Sequence[Trial], visible_s: float) -> None:
    """What the engine says of each; what it says nothing of stays as it was. The output of one that
    has ended may take a while to show."""
    first = trials[0]
    answer = first.engine.states(first.root, [], also=[trial.task for trial in trials])
    for trial in trials:
        trial.state = state = answer.states.get(trial.task.name, trial.state)
        if state is None or state.status in (Status.PENDING, Status.REJECTED):
            continue
        now = time.monotonic()
        trial.started = trial.started or now
        if not state.alive:
            trial.over = trial.over or now
            trial.read()
            patience_s = min(_REST_S, visible_s) if trial.output else visible_s
            at_once = not trial.engine.detached or not state.launched
            trial.ended |= at_once or time.monotonic() - trial.over > patience_s


def _bound(trial: Trial, elapsed_s: float, timeout_s: float) -> None:
    """End what never starts, and what waits, or runs, for too long."""
    if trial.ended:
        return
    longest_s = trial.target.array.time_limit_s + _OVERTIME_S
    if trial.started is None and not trial.output:
        trial.given_up = _hopeless(trial)
        if elapsed_s > timeout_s and not trial.given_up:
            why = trial.state.reason if trial.state else f"{trial.engine.title} says nothing of it"
            seen = f"still pending after {timeout_s:g} s: {why}"
            to_do = "nothing is known of the compute nodes; try again with a longer --timeout"
            trial.given_up = _cancelled(trial, "warn", seen, to_do)
    elif trial.started and time.monotonic() - trial.started > longest_s:
        seen = f"still running after {longest_s:g} s"
        trial.given_up = _cancelled(trial, "FAIL", seen, "see what the job printed")
    if trial.given_up:
        cancel([trial])
        trial.ended = True


def _hopeless(trial: Trial) -> base.CheckResult | None:
    """What the scheduler says of a job that waiting alone does not start."""
    if trial.state is None:
        return None
    if trial.state.status is Status.REJECTED:
        to_do = "ask for less, or set another partition, account or qos in the site profile"
        return _cancelled(trial, "FAIL", f"never starts here: {trial.state.reason}", to_do)
    if _LIMIT.match(trial.state.reason):
        seen = f"pending because of a limit: {trial.state.reason}"
        to_do = "try again when your other jobs have ended, or set another qos or account"
        return _cancelled(trial, "warn", seen, f"{to_do} in the site profile")
    return None


def _cancelled(trial: Trial, grade: base.Grade, seen: str, to_do: str) -> base.CheckResult:
    return trial.found(grade, "job", f"{trial.title}: {seen}; cancelled", to_do)


def cancel(trials: Sequence[Trial]) -> None:
    """End those that have not ended, by their own ids; one that ends meanwhile is no error."""
    left = sorted({trial.job_id for trial in trials if trial.job_id and not trial.ended})
    if left:
        with contextlib.suppress(SiteError):
            trials[0].engine.cancel(left)
