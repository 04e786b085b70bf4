"""What can be seen of a Slurm from its login node, before any job: ``doctor``'s first lines.

Commands, controller, accounting and limits; the partition, its nodes and its time limit; and the
script of each array, exactly as it would be submitted, given to ``sbatch --test-only``.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlperf_hpc.engines.base import DEFAULT_BOUND, GPU_REFUSAL, Capacity, CheckResult, Nodes
from dlperf_hpc.engines.command import Output, run
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm.hints import other_gpus, out_of_reach
from dlperf_hpc.engines.slurm.limits import (
    SubmitLimit,
    names_limit,
    settings,
    submit_check,
    submit_limits,
    submit_remedy,
)
from dlperf_hpc.engines.slurm.script import batch_script
from dlperf_hpc.errors import DlperfError, SiteError, number_of
from dlperf_hpc.records.manifest import Array
from dlperf_hpc.sweepfile.load import clock_seconds

_COMMANDS = ("sbatch", "squeue", "srun", "sinfo")
_MAY_LACK = ("scontrol", "sacct")  # what they tell is good to know; some sites forbid them
_PATIENCE_S = 20.0
# sinfo's words for nodes that take no job now (sinfo(1), NODE STATE CODES); a star means that the
# node does not answer.
_OUT = re.compile(r"down|drain|draining|drained|fail|failing|error|unknown|inval|maint|.*\*")
_SHOWN_NODES = 8


@dataclass(frozen=True)
class Node:
    """A node of the partition as sinfo shows it; ``gpus`` by its generic resources."""

    name: str
    state: str
    reason: str
    gpus: int

    @property
    def out(self) -> bool:
        """Takes no job."""
        return _OUT.fullmatch(self.state.lower().rstrip("~#!%$@^-+")) is not None

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason.lower() not in ("", "none") else ""
        return f"{self.name} {self.state}{why}"


@dataclass(frozen=True)
class Partition:
    """The partition jobs go to: its limit in seconds (None: no limit) and its nodes."""

    name: str
    state: str
    limit_s: int | None
    nodes: tuple[Node, ...]

    @property
    def up(self) -> list[Node]:
        """Nodes that take jobs, now or when the present ones end."""
        return [node for node in self.nodes if not node.out]


def examine(
    site: Site, arrays: Sequence[Array], root: Path
) -> Generator[CheckResult, None, Capacity | None]:
    """All of it in order, each result as soon as it is there; stops where nothing else can be seen.

    Returns what a job can have in the site's partition, None where no job can start.
    """
    present = commands()
    yield present
    answers = controller() if present.grade == "ok" else None
    if answers:
        yield answers
    if not answers or answers.grade == "FAIL":
        yield CheckResult("skipped", "everything else", "it needs a Slurm that answers")
        return None
    config = settings()
    yield accounting(config)
    yield limits(config, arrays, site)
    bounds = submit_limits(site, config.get("ClusterName", ""))
    if bounds:
        yield submit_check(bounds, arrays, site)
    found = read_partitions(site.partition)
    there = partition(site, found)
    yield there
    if there.grade != "ok":
        yield CheckResult("skipped", "scripts and jobs", "no partition to send them to")
        return None
    yield nodes(found, arrays)
    yield time_limits(found, arrays)
    yield from scripts(root, arrays, site, bounds)
    return _capacity(found)


def _capacity(found: Sequence[Partition]) -> Capacity:
    up = {node.name: node for partition in found for node in partition.up}
    return Capacity(
        nodes=len(up),
        gpus=min((node.gpus for node in up.values()), default=0),
        limit_s=min((p.limit_s for p in found if p.limit_s), default=None),
    )


def _ask(argv: Sequence[str]) -> Output:
    """As ``command.run``, but a command that is absent or silent has failed with that word."""
    try:
        return run(argv, timeout_s=_PATIENCE_S)
    except SiteError as error:
        return Output(1, "", str(error))


def _words(output: Output) -> str:
    return (output.stderr.strip() or output.stdout.strip() or f"exit code {output.code}")[:500]


def commands() -> CheckResult:
    """Slurm's commands and their version."""
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        to_do = "log in to a login node, load the site's Slurm module, or use --cluster local"
        return CheckResult("FAIL", "commands", f"not on the PATH: {', '.join(missing)}", to_do)
    version = _ask(["sbatch", "--version"])
    if version.code:
        words = _words(version)
        return CheckResult("FAIL", "commands", f"sbatch --version: {words}", out_of_reach(words))
    more = (name if shutil.which(name) else f"no {name}" for name in _MAY_LACK)
    names = ", ".join((*_COMMANDS, *more))
    return CheckResult("ok", "commands", f"{version.stdout.strip()}: {names}")


def controller() -> CheckResult:
    """Whether slurmctld answers."""
    ping = _ask(["scontrol", "ping"])
    seen = "; ".join(re.findall(r"^Slurmctld.*(?:UP|DOWN).*$", ping.stdout, re.MULTILINE))
    if re.search(r"\bUP\b", seen):
        return CheckResult("ok", "slurmctld", seen)
    if not seen and _ask(["sinfo", "--noheader"]).code == 0:
        seen = f"answers sinfo; scontrol cannot be asked: {_words(ping)}"
        return CheckResult("warn", "slurmctld", seen, "what only scontrol tells stays unknown")
    to_do = "wait, or ask the site's administrators; $SLURM_CONF names the configuration in use;"
    to_do += " --cluster local runs the sweep on this machine"
    return CheckResult("FAIL", "slurmctld", seen or _words(ping), to_do)


def accounting(config: Mapping[str, str]) -> CheckResult:
    """Whether sacct answers. Not having it is a site's choice, not a fault."""
    kind = config.get("AccountingStorageType", "of a kind that only scontrol tells")
    none = "none at this site: states come from squeue and from what the runs leave"
    if kind.endswith("/none"):
        return CheckResult("ok", "accounting", none)
    asked = _ask(["sacct", "--noheader", "--allocations", "--starttime=now"])
    if asked.code == 0:
        return CheckResult("ok", "accounting", f"{kind.rpartition('/')[2]}: sacct answers")
    if "accounting storage is disabled" in _words(asked):
        return CheckResult("ok", "accounting", none)
    to_do = "states come from squeue and from what the runs leave until it is back"
    return CheckResult("warn", "accounting", f"sacct: {_words(asked)}", to_do)


def limits(config: Mapping[str, str], arrays: Sequence[Array], site: Site) -> CheckResult:
    """MaxArraySize and MaxJobCount against the sweep."""
    size, count = config.get("MaxArraySize", ""), config.get("MaxJobCount", "")
    if not (size.isdigit() and count.isdigit()):
        seen = "MaxArraySize and MaxJobCount are not known: `scontrol show config` does not tell"
        if site.max_array_size:
            seen += f"; the site profile has max_array_size = {site.max_array_size}"
            return CheckResult("ok", "limits", seen)
        to_do = "ask the administrators, and set max_array_size in the site profile"
        return CheckResult("warn", "limits", f"{seen}; arrays of {DEFAULT_BOUND} at most", to_do)
    seen = f"MaxArraySize {size}, MaxJobCount {count}"
    runs = sum(len(array.tasks) for array in arrays)
    if arrays:
        seen += f"; the sweep: {number_of(runs, 'run')} in {number_of(len(arrays), 'array')}"
    if runs >= int(count):
        return CheckResult("warn", "limits", seen, "submit it in parts: --only")
    return CheckResult("ok", "limits", seen)


def read_partitions(name: str | None) -> list[Partition]:
    """The named partitions (``a,b``), or the default one; those that Slurm does not know are left
    out."""
    found = []
    for line in _ask(["sinfo", "--noheader", "--format=%P|%a|%l"]).stdout.splitlines():
        title, state, limit = [*line.split("|"), "", ""][:3]
        plain = title.rstrip("*")
        if plain in name.split(",") if name else title.endswith("*"):
            found.append(Partition(plain, state, _seconds(limit), _nodes(plain)))
    return list({partition.name: partition for partition in found}.values())


def _nodes(partition: str) -> tuple[Node, ...]:
    argv = ["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%T|%G|%E"]
    rows = (line.split("|", 3) for line in _ask(argv).stdout.splitlines())
    return tuple(Node(r[0], r[1], r[3], _gpus(r[2])) for r in rows if len(r) == 4)


def _gpus(resources: str) -> int:
    """GPUs in ``gpu:8``, ``gpu:a100:4(S:0-1),shard:8``."""
    counts = re.findall(r"\bgpu(?::[^:,()]+)?:([0-9]+)", resources)
    return sum(map(int, counts))


def _seconds(text: str) -> int | None:
    try:
        return clock_seconds(text)
    except ValueError:
        return None


def nodes_of(site: Site, among: str = "") -> Nodes:
    """The nodes of the site's partition, or of them those that ``among`` names, by whether they are
    idle. SiteError for a partition or a node that is not there."""
    found = read_partitions(site.partition)
    there = partition(site, found)
    if there.grade != "ok":
        raise SiteError(f"{there.seen}; {there.to_do}")
    every = {node.name: node for each in found for node in each.nodes}
    wanted = list(every)
    if among:
        asked = run(["scontrol", "show", "hostnames", among], timeout_s=_PATIENCE_S)
        wanted = asked.stdout.split() if asked.code == 0 else among.split(",")
        strange = [name for name in wanted if name not in every]
        if strange:
            names = ", ".join(sorted(every)[:_SHOWN_NODES])
            where = f"partition {', '.join(each.name for each in found)}"
            raise SiteError(f"{where} has no node {', '.join(strange)}; it has {names}")
    never = set()
    if site.exclude:
        argv = ["scontrol", "show", "hostnames", site.exclude]
        never = set(run(argv, timeout_s=_PATIENCE_S).stdout.split())
        wanted = [name for name in wanted if name not in never]
    idle = [name for name in wanted if every[name].state.lower().rstrip("~#!%$@^-+") == "idle"]
    others = {name: str(every[name]).partition(" ")[2] for name in wanted if name not in idle}
    left_out = dict.fromkeys(sorted(never & every.keys()), "left out by the site profile")
    return Nodes(tuple(idle), {**others, **left_out})


def partition(site: Site, found: Sequence[Partition]) -> CheckResult:
    """Whether the partition is there and takes jobs."""
    if not found:
        listed = _ask(["sinfo", "--noheader", "--format=%R"]).stdout.split()
        there = ", ".join(dict.fromkeys(listed)) or "none"
        if site.partition is None:
            seen = f"no default partition; there are: {there}"
            return CheckResult("FAIL", "partition", seen, "set partition in the site profile")
        to_do = f"set partition in the site profile to one of: {there}"
        return CheckResult("FAIL", "partition", f"Slurm has no partition {site.partition!r}", to_do)
    seen = ", ".join(f"{p.name} {p.state}" for p in found)
    if not any(p.state == "up" for p in found):
        return CheckResult(
            "FAIL", "partition", seen, "choose another, or wait until it is up again"
        )
    return CheckResult("ok", "partition", seen + ("" if site.partition else " (Slurm's default)"))


def nodes(found: Sequence[Partition], arrays: Sequence[Array]) -> CheckResult:
    """Nodes that take jobs against what the sweep needs; those out of service by name."""
    every = {node.name: node for partition in found for node in partition.nodes}
    out = [node for node in every.values() if node.out]
    widest = max((len(partition.up) for partition in found), default=0)
    seen = f"{len(every) - len(out)} of {len(every)} take jobs"
    if out:
        more = f" and {len(out) - _SHOWN_NODES} more" if len(out) > _SHOWN_NODES else ""
        seen += f"; out of service: {', '.join(map(str, out[:_SHOWN_NODES]))}{more}"
    needed = max((array.topology.nodes for array in arrays), default=1)
    if widest < needed:
        wide = sorted({str(a.topology) for a in arrays if a.topology.nodes > widest}) or ["a job"]
        to_do = f"{', '.join(wide)} cannot start: leave out with --only, or wait for the nodes"
        return CheckResult("FAIL", "nodes", seen, to_do)
    if out:
        to_do = "jobs start on the others; `sinfo -R` tells since when"
        return CheckResult("warn", "nodes", seen, to_do)
    return CheckResult("ok", "nodes", seen)


def time_limits(found: Sequence[Partition], arrays: Sequence[Array]) -> CheckResult:
    """The partition's time limit against the sweep's."""
    bounds = [partition.limit_s for partition in found]
    bound = None if None in bounds else max(filter(None, bounds), default=None)
    longest = max((array.time_limit_s for array in arrays), default=0)
    limit = "no limit" if bound is None else f"at most {bound / 60:g} min"
    seen = f"partition: {limit}" + (f"; the sweep: {longest / 60:g} min" if arrays else "")
    if bound is not None and longest > bound:
        return CheckResult(
            "FAIL", "time limit", seen, "lower time_limit, or choose another partition"
        )
    return CheckResult("ok", "time limit", seen)


def scripts(
    root: Path, arrays: Sequence[Array], site: Site, bounds: Sequence[SubmitLimit]
) -> Iterator[CheckResult]:
    """Each array's script, exactly as it would be submitted, to ``sbatch --test-only``."""
    with tempfile.TemporaryDirectory(prefix="dlperf-doctor-") as directory:
        for array in arrays:
            path = Path(directory, "script.sbatch")
            try:
                path.write_text(batch_script(root, array, site))
            except DlperfError as error:
                yield CheckResult("FAIL", f"script of {array.name}", str(error))
                continue
            yield _tested(array, _ask(["sbatch", "--test-only", str(path)]), site, bounds)


def _tested(array: Array, asked: Output, site: Site, bounds: Sequence[SubmitLimit]) -> CheckResult:
    lines = [line.strip() for line in (asked.stdout + asked.stderr).splitlines() if line.strip()]
    seen = "; ".join(line.removeprefix("sbatch: ") for line in lines) or f"exit code {asked.code}"
    name = f"sbatch --test-only {array.name}"
    if asked.code == 0:
        return CheckResult("ok", name, seen)
    to_do = "compare site profile and script (sweep --dry-run) with what the site allows"
    if GPU_REFUSAL.search(seen):
        to_do = other_gpus(site)
    if "node configuration" in seen:
        to_do = f"no nodes for {array.topology} here: see `sinfo -N -o '%N %G %c %m'`"
    if names_limit(seen):
        to_do = submit_remedy(bounds)
    return CheckResult("FAIL", name, seen, to_do)
