"""A short job that tries an environment: what it is to try, and what is known of it.

A :class:`Target` is, of an environment, the widest job that the sweep asks it for. A :class:`Trial`
is that job: its state, its output, and what its ranks told.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.engines.base import GPU_REFUSAL, CheckResult, Engine, Grade, TaskState
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.files import read_regular
from dlperf_hpc.model.case import Case, Run, Topology
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import Task
from dlperf_hpc.records.manifest import Array, Manifest
from dlperf_hpc.sweepfile.commands import LAUNCHERS
from dlperf_hpc.train.probe.protocol import MARK
from dlperf_hpc.train.registry import registry

LIMIT_S = 900  # of a job; it takes seconds, and its ranks bound what they do themselves
END = f"{MARK}: the ranks have ended, code"  # what follows the ranks prints it, with the code
_MOST_OUTPUT = 1 << 26  # bytes
_PART = re.compile(MARK + r" ([0-9]+) (\w+) ([0-9]+)/([0-9]+) ([0-9]+) ([0-9a-f]{8}) ")
_LABEL = re.compile(r" *[0-9]+: ")  # srun's and mpiexec's


@dataclass(frozen=True)
class Question:
    """What to look at. ``logs`` is the parent of sweeps' directories; ``nodes`` the most that the
    short jobs take; ``timeout_s`` how long one may be pending; ``visible_s`` how long a file may
    take from one machine to the other. ``progress`` is called with what is being waited for. In
    place of the usual short jobs, ``pairs`` asks for so many rounds of pairs of nodes, and
    ``all_nodes`` for a job on each node; ``among`` names the nodes to choose from. Or each
    short job spends ``collectives_s`` on collectives of all sizes."""

    engine: Engine
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
    ``paths``, by program, what must be there on each node; ``steps``: its ranks also time steps of
    their own; ``collectives_s``: they spend so many seconds on collectives of all sizes."""

    environment: str
    array: Array
    modules: tuple[str, ...]
    devices: frozenset[str]
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
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
    """One of each environment in the sweep, on at most ``nodes`` nodes.

    ``limit_s`` is what the partition allows.
    """
    named: dict[str, list[Array]] = {}
    for array in arrays:
        named.setdefault(array.environment, []).append(array)
    return [_of(those, nodes, limit_s) for those in named.values()]


def _of(arrays: Sequence[Array], nodes: int, limit_s: int) -> Target:
    cases = [run.case for array in arrays for run in array.tasks]
    case = max(cases, key=lambda case: (min(nodes, case.topology.nodes), case.ranks_per_node))
    topology = replace(case.topology, nodes=min(nodes, case.topology.nodes))
    return Target(
        environment=case.environment,
        array=_array(
            replace(case, topology=topology), min(limit_s, max(a.time_limit_s for a in arrays))
        ),
        modules=modules_of(arrays),
        devices=frozenset(case.device for case in cases),
    )


def modules_of(arrays: Sequence[Array]) -> tuple[str, ...]:
    """What the environment of these arrays must have: the wrapper, MPI, what back ends declare."""
    cases = [run.case for array in arrays for run in array.tasks]
    names = {case.framework for case in cases if not case.launch}
    # A program brings its own modules; what starts its processes must be there.
    launchers = {LAUNCHERS[case.launch].split(".")[0] for case in cases if case.launch in LAUNCHERS}
    backends = [registry().backends[name] for name in names]
    libraries = {backend.library for backend in backends}
    more = {name for backend in backends for name in backend.modules}
    if not names:
        return tuple(sorted(launchers))
    also = launchers - libraries - more
    return ("dlperf_hpc", "mpi4py", *sorted(libraries), *sorted(more), *sorted(also))


def modules_without_mpi(
    modules: Sequence[str], engine: Engine, environment: Environment, arrays: Sequence[Array]
) -> tuple[str, ...]:
    """``modules``, without mpi4py where these arrays' runs do without MPI."""
    without = engine.without_mpi(environment, arrays)
    return tuple(name for name in modules if name != "mpi4py" or not without)


def targets_of_site(site: Site, topology: Topology, limit_s: int = LIMIT_S) -> list[Target]:
    """Without a sweep: each environment of the profile, and what every back end needs.

    ``limit_s`` is what the partition allows.
    """
    modules = ("dlperf_hpc", "mpi4py")
    return [
        Target(name, _array(_anything(name, topology), limit_s), modules, frozenset())
        for name in site.environment or ["default"]
    ]


def on_so_many_nodes(array: Array, nodes: int) -> Array:
    """A short job with ranks on another number of nodes, under a name and a token of its own.

    Of a program that starts its own processes the launcher starts one on a node, or one alone, but
    what is measured here needs one for each device.
    """
    case = array.tasks[0].case
    case = replace(case, topology=replace(case.topology, nodes=nodes))
    if case.launch not in ("", "rank"):
        case = replace(case, launch="rank", processes_per_node=None)
    made = _array(case, array.time_limit_s)
    return replace(made, name=f"{made.name}-{made.token[-8:]}")


def _anything(environment: str, topology: Topology) -> Case:
    """A case, for an array must have one; it is never run."""
    return Case(
        framework="ddp",
        model="bert-tiny",
        topology=topology,
        precision="fp32",
        batch_size=1,
        seq_len=1,
        environment=environment,
    )


def _array(case: Case, limit_s: int) -> Array:
    token = f"dlperf-{secrets.token_hex(8)}"
    name = f"doctor-{case.topology}-{case.environment}"
    tasks = (Run(case, 1),)
    return Array(name, token, case.topology, case.environment, min(limit_s, LIMIT_S), tasks)


@dataclass
class Trial:
    """A job and what came of it; ``root`` is the directory of all short jobs.

    ``parts`` are what each rank told, by rank; ``code`` is what the launcher left with, as far as
    its output shows here; ``started`` and ``over`` are when the engine first said so
    (time.monotonic); ``given_up`` is what is to be said of a job that was not taken, or that was
    cancelled.
    """

    target: Target
    engine: Engine
    site: Site
    root: Path
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    job_id: str = ""
    state: TaskState | None = None
    started: float | None = None
    over: float | None = None
    ended: bool = False
    given_up: CheckResult | None = None
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
        shape = f"{nodes} node{'s' * (nodes > 1)}, {ranks} rank{'s' * (ranks > 1)}"
        return f"job {self.job_id} ({shape})"

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

    def found(self, grade: Grade, check: str, seen: str, to_do: str = "") -> CheckResult:
        """A check result of this job's environment."""
        return CheckResult(grade, check, seen, to_do, self.target.environment)

    def gpu_hint(self, words: str) -> str:
        """What to do if somebody says that the request for GPUs does not fit, else ''."""
        return self.engine.gpu_hint(self.site) if GPU_REFUSAL.search(words) else ""

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
        output = data.decode(errors="replace")
        if output == self.output:
            return
        self.output = output
        self.parts = parts_of(output)
        _before, end, rest = output.rpartition(END)
        code, newline, _after = rest.partition("\n")
        if end and newline and code.strip().isdigit():
            self.code, self.ended = int(code), True


def _told(output: str) -> Iterator[str]:
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
    for text in _told(output):
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
