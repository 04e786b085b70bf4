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
from subprocess import CompletedProcess

from dlperf_hpc.engines.base import DEFAULT_BOUND, GPU_REFUSAL, Capacity, CheckResult, Nodes, ask
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm import remedies
from dlperf_hpc.engines.slurm.query import out_of_reach, seconds
from dlperf_hpc.engines.slurm.script import batch_script
from dlperf_hpc.errors import DlperfError, SiteError, listed, number_of
from dlperf_hpc.records.manifest import Array

_COMMANDS = ("sbatch", "squeue", "srun", "sinfo")
_MAY_LACK = ("scontrol", "sacct")  # what they tell is good to know; some sites forbid them
# sinfo's words for nodes that take no job now (sinfo(1), NODE STATE CODES); a star means that the
# node does not answer.
_OUT = re.compile(r"down|drain|draining|drained|fail|failing|error|unknown|inval|maint|.*\*")
_FLAGS = "~#!%$@^-+"  # that sinfo puts behind a state
_MOST_NAMED = 8  # nodes in a sentence


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
        return _OUT.fullmatch(self.bare_state) is not None

    @property
    def bare_state(self) -> str:
        """Its state without sinfo's flags, in small letters."""
        return self.state.lower().rstrip(_FLAGS)

    @property
    def doing(self) -> str:
        """Its state, and the reason that the administrators gave."""
        known = self.reason.lower() not in ("", "none")
        return f"{self.state}: {self.reason}" if known else self.state

    def __str__(self) -> str:
        return f"{self.name} {self.doing}"


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
    Returns what a job can have in the site's partition, None where no job can start."""
    for check in (commands, controller):
        result = check()
        yield result
        if result.grade == "FAIL":
            yield CheckResult("skipped", "everything else", "it needs a Slurm that answers")
            return None
    config = remedies.settings()
    yield accounting(config)
    yield limits(config, arrays, site)
    bounds = remedies.submit_limits(site, config.get("ClusterName", ""))
    if bounds:
        yield remedies.submit_check(bounds, arrays, site)
    found = read_partitions(site.partition)
    there = partition(site, found)
    yield there
    if there.grade != "ok":
        yield CheckResult("skipped", "scripts and jobs", "no partition to send them to")
        return None
    yield nodes(found, arrays)
    yield time_limits(found, arrays)
    yield from scripts(root, arrays, site, bounds)
    up = {node.name: node for each in found for node in each.up}
    return Capacity(
        nodes=len(up),
        gpus=min((node.gpus for node in up.values()), default=0),
        limit_s=min((each.limit_s for each in found if each.limit_s), default=None),
    )


def _words(output: CompletedProcess[str]) -> str:
    return (output.stderr.strip() or output.stdout.strip() or f"exit code {output.returncode}")[
        :500
    ]


def commands() -> CheckResult:
    """Slurm's commands and their version."""
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        to_do = "log in to a login node, load the site's Slurm module, or use --cluster local"
        return CheckResult("FAIL", "commands", f"not on the PATH: {', '.join(missing)}", to_do)
    version = ask(["sbatch", "--version"])
    if version.returncode:
        words = _words(version)
        return CheckResult("FAIL", "commands", f"sbatch --version: {words}", out_of_reach(words))
    more = (name if shutil.which(name) else f"no {name}" for name in _MAY_LACK)
    names = ", ".join((*_COMMANDS, *more))
    return CheckResult("ok", "commands", f"{version.stdout.strip()}: {names}")


def controller() -> CheckResult:
    """Whether slurmctld answers."""
    ping = ask(["scontrol", "ping"])
    seen = "; ".join(re.findall(r"^Slurmctld.*(?:UP|DOWN).*$", ping.stdout, re.MULTILINE))
    if re.search(r"\bUP\b", seen):
        return CheckResult("ok", "slurmctld", seen)
    if not seen and ask(["sinfo", "--noheader"]).returncode == 0:
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
    done = ask(["sacct", "--noheader", "--allocations", "--starttime=now"])
    if done.returncode == 0:
        return CheckResult("ok", "accounting", f"{kind.rpartition('/')[2]}: sacct answers")
    if "accounting storage is disabled" in _words(done):
        return CheckResult("ok", "accounting", none)
    to_do = "states come from squeue and from what the runs leave until it is back"
    return CheckResult("warn", "accounting", f"sacct: {_words(done)}", to_do)


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
    """The named partitions (``a,b``) that Slurm knows, or the default one."""
    found = []
    for line in ask(["sinfo", "--noheader", "--format=%P|%a|%l"]).stdout.splitlines():
        title, state, limit = [*line.split("|"), "", ""][:3]
        plain = title.rstrip("*")
        if plain in name.split(",") if name else title.endswith("*"):
            found.append(Partition(plain, state, seconds(limit), _nodes(plain)))
    return list({partition.name: partition for partition in found}.values())


def _nodes(partition: str) -> tuple[Node, ...]:
    argv = ["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%T|%G|%E"]
    rows = (line.split("|", 3) for line in ask(argv).stdout.splitlines())
    return tuple(Node(r[0], r[1], r[3], _gpus(r[2])) for r in rows if len(r) == 4)


def _gpus(resources: str) -> int:
    """GPUs in ``gpu:8``, ``gpu:a100:4(S:0-1),shard:8``."""
    return sum(map(int, re.findall(r"\bgpu(?::[^:,()]+)?:([0-9]+)", resources)))


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
        wanted = _hostnames(among)
        strange = [name for name in wanted if name not in every]
        if strange:
            names = ", ".join(sorted(every)[:_MOST_NAMED])
            where = f"partition {', '.join(each.name for each in found)}"
            raise SiteError(f"{where} has no node {', '.join(strange)}; it has {names}")
    never = set(_hostnames(site.exclude)) if site.exclude else set()
    wanted = [name for name in wanted if name not in never]
    idle = tuple(name for name in wanted if every[name].bare_state == "idle")
    busy = {name: every[name].doing for name in wanted if name not in idle}
    left_out = dict.fromkeys(sorted(never & every.keys()), "left out by the site profile")
    return Nodes(idle, {**busy, **left_out})


def _hostnames(nodes: str) -> list[str]:
    """The nodes of a list as ``n[1-3],m4``; its words where Slurm cannot be asked."""
    done = ask(["scontrol", "show", "hostnames", nodes])
    return nodes.split(",") if done.returncode else done.stdout.split()


def partition(site: Site, found: Sequence[Partition]) -> CheckResult:
    """Whether the partition is there and takes jobs."""
    if not found:
        listed = ask(["sinfo", "--noheader", "--format=%R"]).stdout.split()
        there = ", ".join(dict.fromkeys(listed)) or "none"
        if site.partition is None:
            seen = f"no default partition; there are: {there}"
            return CheckResult("FAIL", "partition", seen, "set partition in the site profile")
        to_do = f"set partition in the site profile to one of: {there}"
        return CheckResult("FAIL", "partition", f"Slurm has no partition {site.partition!r}", to_do)
    seen = ", ".join(f"{p.name} {p.state}" for p in found)
    if not any(p.state == "up" for p in found):
        to_do = "choose another, or wait until it is up again"
        return CheckResult("FAIL", "partition", seen, to_do)
    if not site.partition:
        seen += " (Slurm's default)"
    return CheckResult("ok", "partition", seen)


def nodes(found: Sequence[Partition], arrays: Sequence[Array]) -> CheckResult:
    """Nodes that take jobs against what the sweep needs; those out of service by name."""
    every = {node.name: node for partition in found for node in partition.nodes}
    out = [node for node in every.values() if node.out]
    widest = max((len(partition.up) for partition in found), default=0)
    seen = f"{len(every) - len(out)} of {len(every)} take jobs"
    if out:
        seen += f"; out of service: {listed(list(map(str, out)), _MOST_NAMED)}"
    wide = sorted({str(a.topology) for a in arrays if a.topology.nodes > widest})
    if wide or not widest:
        wide = wide or ["a job"]
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
    seen = "partition: no limit" if bound is None else f"partition: at most {bound / 60:g} min"
    if arrays:
        seen += f"; the sweep: {longest / 60:g} min"
    if bound is not None and longest > bound:
        to_do = "lower time_limit, or choose another partition"
        return CheckResult("FAIL", "time limit", seen, to_do)
    return CheckResult("ok", "time limit", seen)


def scripts(
    root: Path, arrays: Sequence[Array], site: Site, bounds: Sequence[remedies.SubmitLimit]
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
            yield _tested(array, ask(["sbatch", "--test-only", str(path)]), site, bounds)


def _tested(
    array: Array, done: CompletedProcess[str], site: Site, bounds: Sequence[remedies.SubmitLimit]
) -> CheckResult:
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    seen = (
        "; ".join(line.removeprefix("sbatch: ") for line in lines) or f"exit code {done.returncode}"
    )
    name = f"sbatch --test-only {array.name}"
    if done.returncode == 0:
        return CheckResult("ok", name, seen)
    to_do = "compare site profile and script (sweep --dry-run) with what the site allows"
    if GPU_REFUSAL.search(seen):
        to_do = remedies.other_gpus(site)
    if "node configuration" in seen:
        to_do = f"no nodes for {array.topology} here: see `sinfo -N -o '%N %G %c %m'`"
    if remedies.names_limit(seen):
        to_do = remedies.submit_remedy(bounds)
    return CheckResult("FAIL", name, seen, to_do)
