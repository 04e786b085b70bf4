"""What a short job and its ranks told, as check results.

In order: how the job ended and in whose words; both sides of the log directory; the environment's
Python and modules; GPUs; cores; the clock; MPI's world and where its ranks lie; names; bandwidths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dlperf_hpc
from dlperf_hpc.doctor.job import Trial
from dlperf_hpc.doctor.preflight import NEWER_PYTHON, OLDEST_PYTHON, how_to_install
from dlperf_hpc.engines.base import CheckResult, Grade
from dlperf_hpc.engines.postmortem import explain
from dlperf_hpc.model.result import FEW_CORES, Status, throttle_words
from dlperf_hpc.records.failures import LAUNCHER, Verdict
from dlperf_hpc.records.layout import ARRAY_MARK, LAUNCH_MARK, PMI2_FAULT
from dlperf_hpc.train.probe import MARK

Facts = Mapping[str, Any]

_CLOCK_S = 1.0  # a clock that is off by more is worth a word
_NOT_MPI = "run `dlperf doctor` again; the site profile's mpi is not to blame for this"
# How MPICH (UCX, CMA) says that a rank may not look into another one of its node.
_OTHER_MEMORY = re.compile(r"process_vm_readv failed|open\(file_name=/proc/\d+/fd/\d+")
_EXCHANGE_FAULTS = {
    "unread": "cannot read what the login node wrote",
    "unwritten": "cannot write",
    "unanswered": "what it wrote does not show on the login node",
}


def interpret(trial: Trial) -> Iterator[CheckResult]:
    """All that is to be said of one job."""
    yield ended_well(trial)
    if trial.parts:
        yield from _of_ranks(trial)


def _of_ranks(trial: Trial) -> Iterator[CheckResult]:
    nodes = [part["node"] for _, part in sorted(trial.parts.items()) if "node" in part]
    firsts = [node for node in nodes if "exchange" in node]
    if len(firsts) < trial.target.topology.nodes:
        seen = f"{len(firsts)} of {trial.target.topology.nodes} nodes told what they are like"
        yield trial.found("FAIL", "nodes of the job", seen, "see what the job printed")
    if firsts:
        yield _log_directory(trial, firsts)
        yield from environment(trial, firsts)
        yield from gpu_checks(trial, with_all_gpus(firsts, nodes))
        yield _cpus(trial, nodes)
        if trial.engine.max_nodes != 1:  # nodes that are other machines than this one
            yield _clock(trial, firsts)
    yield world(trial)
    comm = next((part["comm"] for _, part in sorted(trial.parts.items()) if "comm" in part), None)
    if comm:
        yield placement(trial, comm["hosts"])
    yield from _names(trial, comm)
    yield from _rates(trial, comm)


def ended_well(trial: Trial) -> CheckResult:
    """Whether the job ran at all, and if not, why."""
    target, name = trial.target, trial.title
    if trial.given_up:
        return trial.given_up
    if trial.parts:
        silent = [rank for rank in range(target.ranks) if rank not in trial.parts]
        if not silent:
            return trial.found("ok", "job", f"{name}: every rank reported")
        seen = f"{name}: nothing from rank {listed(silent)}: {last_words(trial)}"
        return trial.found("FAIL", "job", seen)
    return _nothing_heard(trial, name)


def _nothing_heard(trial: Trial, name: str) -> CheckResult:
    if trial.output:
        to_do = "correct python, mpi or setup of this environment in the site profile"
        verdict = _verdict(trial)
        words = verdict.reason
        if str(trial.probe) in words:
            to_do = "the log directory is not there on the nodes: give a shared one with --logs"
        if verdict.cause == LAUNCHER:
            return trial.found("warn", "job", f"{name}: {words}", _NOT_MPI)
        if verdict.fault == "mpi_plugin":
            to_do = trial.engine.mpi_hint(trial.environment)
        if "SyntaxError" in trial.output:
            to_do = NEWER_PYTHON
        return trial.found("FAIL", "job", f"{name}: {words}", trial.gpu_hint(words) or to_do)
    state = trial.state
    seen = f"{name}: {state}" if state else f"{name}: gone"
    to_do = (
        f"{trial.logs} must be one directory on login and compute nodes that"
        " both can write: give another with --logs"
    )
    return trial.found("FAIL", "log directory", f"{seen}, and no output of it shows here", to_do)


def last_words(trial: Trial) -> str:
    """Why ranks are missing: in their own words, the launcher's, or at last the scheduler's."""
    return _verdict(trial).reason


def _verdict(trial: Trial) -> Verdict:
    verdict = explain(1 if trial.code is None else trial.code, _others(trial.output), [])
    if stuck_in(trial) and verdict.cause != LAUNCHER:
        return Verdict(verdict.status, f"stuck in {stuck_in(trial)}")
    state = trial.state
    if trial.code is None and state and state.status not in (Status.RUNNING, Status.UNKNOWN):
        return replace(verdict, reason=f"{verdict.reason}; {trial.engine.title}: {state}")
    return verdict


def stuck_in(trial: Trial) -> str:
    """What the ranks were at when one of them had to end itself; '' if none had to."""
    match = re.search(r"^(?:(\d+): )?Timeout \(", trial.output, re.MULTILINE)
    if match is None:
        return ""
    phases = {rank: part["phase"]["name"] for rank, part in trial.parts.items() if "phase" in part}
    common = Counter(phases.values()).most_common(1)
    return phases.get(int(match[1] or -1)) or (common[0][0] if common else "its first step")


def _others(output: str) -> str:
    """The output without the ranks' reports."""
    ours = (MARK, ARRAY_MARK, LAUNCH_MARK)
    kept = [line for line in output.splitlines() if not any(mark in line for mark in ours)]
    return "\n".join(kept) + "\n"


def listed(values: Iterable[Any]) -> str:
    """Values with commas between them."""
    return ", ".join(map(str, values))


def _log_directory(trial: Trial, firsts: Sequence[Facts]) -> CheckResult:
    """Both sides see each other's files, and how soon."""
    bad = [
        f"{node['host']}: {fault}: {node['exchange'][key]}"
        for node in firsts
        for key, fault in _EXCHANGE_FAULTS.items()
        if key in node["exchange"]
    ]
    if bad:
        to_do = "give a directory that login and compute nodes share and can write with --logs"
        return trial.found("FAIL", "log directory", f"{trial.logs}: {'; '.join(bad)}", to_do)
    slowest = max(node["exchange"]["round_trip_s"] for node in firsts)
    hosts = listed(node["host"] for node in firsts)
    seen = f"{trial.logs}: read and written on {hosts}; there and back in {slowest:.2g} s"
    return trial.found("ok", "log directory", seen)


def environment(trial: Trial, firsts: Sequence[Facts]) -> Iterator[CheckResult]:
    """The Python and its modules, on every node."""
    yield _python(trial, firsts)
    for name in trial.target.modules:
        yield _module(trial, name, {node["host"]: node["modules"][name] for node in firsts})
    yield from _paths(trial, firsts)
    others = {
        f"{name} {version}"
        for node in firsts
        for name, version in node["installed"].items()
        if name not in trial.target.modules
    }
    if others:
        yield trial.found("ok", "also installed", listed(sorted(others)))


def _paths(trial: Trial, firsts: Sequence[Facts]) -> Iterator[CheckResult]:
    """What users' programs need on each node; nothing of a node that did not look."""
    for name, paths in trial.target.paths.items():
        lacking = {
            f"{path} on {node['host']}"
            for node in firsts
            for path in node.get("lacking", ())
            if path in paths
        }
        if lacking:
            seen = f"there is no {listed(sorted(lacking))}"
            to_do = "put it where all nodes see it, or correct run and workdir of this program"
            yield trial.found("FAIL", f"program {name}", seen, to_do)
        else:
            hosts = listed(node["host"] for node in firsts)
            yield trial.found("ok", f"program {name}", f"its files are there on {hosts}")


def _python(trial: Trial, firsts: Sequence[Facts]) -> CheckResult:
    versions = {node["python"] for node in firsts}
    seen = listed(sorted({f"{node['python']} ({node['executable']})" for node in firsts}))
    if len(versions) > 1:
        to_do = "the nodes do not have the same environment: install it on a shared file system"
        return trial.found("FAIL", "python", f"differs from node to node: {seen}", to_do)
    old = [v for v in versions if tuple(map(int, v.split(".")[:2])) < OLDEST_PYTHON]
    if old:
        return trial.found("FAIL", "python", seen, NEWER_PYTHON)
    return trial.found("ok", "python", seen)


def _module(trial: Trial, name: str, found: Mapping[str, Facts]) -> CheckResult:
    errors = {host: facts["error"] for host, facts in found.items() if "error" in facts}
    if errors:
        where = "" if len(errors) == len(found) else f" on {listed(errors)}"
        python = trial.environment.interpreter
        seen = f"{next(iter(errors.values()))}{where}"
        return trial.found("FAIL", name, seen, how_to_install(name, python))
    versions = {facts["version"] for facts in found.values()}
    if len(versions) > 1:
        each = listed(f"{host} {facts['version']}" for host, facts in found.items())
        to_do = "the nodes do not have the same environment: install it on a shared file system"
        return trial.found("FAIL", name, f"differs from node to node: {each}", to_do)
    facts = next(iter(found.values()), {"version": "unknown"})
    details = [facts["library"]] if "library" in facts else []
    details += [f"CUDA {facts['cuda']}"] if facts.get("cuda") else []
    slow = max((f.get("seconds", 0) for f in found.values()), default=0)
    details += [f"imported in {slow:.1f} s"] if slow >= 1 else []
    seen = facts["version"] + (f" ({listed(details)})" if details else "")
    if name == "dlperf_hpc" and facts["version"] != dlperf_hpc.__version__:
        to_do = f"install the login node's version there: {dlperf_hpc.__version__}"
        return trial.found("warn", name, seen, to_do)
    return trial.found("ok", name, seen)


def with_all_gpus(firsts: Sequence[Facts], nodes: Sequence[Facts]) -> list[Facts]:
    """The facts of each node's first rank, with the GPUs that any rank of that node is shown: a
    site may show each rank its own only. ``shown`` is how many the first rank itself is."""
    found: list[Facts] = []
    for first in firsts:
        told = [node["gpus"] for node in nodes if node["host"] == first["host"] and "gpus" in node]
        lists = [gpus["devices"] for gpus in told if gpus["devices"]]
        by_uuid = {device["uuid"]: device for devices in lists for device in devices}
        devices = list(by_uuid.values()) if lists else first["gpus"]["devices"]
        shown = len(first["gpus"]["devices"] or [])
        found.append({**first, "gpus": {**first["gpus"], "devices": devices, "shown": shown}})
    return found


def gpu_checks(trial: Trial, firsts: Sequence[Facts]) -> Iterator[CheckResult]:
    """``firsts`` are the facts of each node's first rank, with all GPUs of the node."""
    environment = trial.target.environment
    if not trial.target.wants_gpus:
        yield CheckResult("skipped", "gpus", "every case says device = cpu", "", environment)
        return
    yield _count(trial, firsts)
    devices = {node["host"]: node["gpus"]["devices"] for node in firsts if node["gpus"]["devices"]}
    if not devices:
        return
    if any(node["gpus"]["source"] != "NVML" for node in firsts if node["gpus"]["devices"]):
        seen = "no nvidia-ml-py in this environment to ask"
        yield CheckResult("skipped", "gpu health", seen, "pip install nvidia-ml-py", environment)
        return
    ill = [f"{host} {ailment}" for host, found in devices.items() for ailment in _ailments(found)]
    if ill:
        to_do = "free or leave out the node, and tell the administrators"
        yield CheckResult("warn", "gpu health", "; ".join(ill), to_do, environment)
        return
    seen = "no uncorrected memory errors, no throttling, nobody else's processes"
    yield CheckResult("ok", "gpu health", seen, "", environment)


def _count(trial: Trial, firsts: Sequence[Facts]) -> CheckResult:
    environment, asked = trial.target.environment, trial.target.topology.gpus_per_node
    seen = "; ".join(f"{node['host']} {_describe_gpus(node)}" for node in firsts)
    counts = [_number(node) for node in firsts]
    if any(count == 0 for count in counts):
        computed = "runs with device = auto compute on CPUs"
        if "cuda" in trial.target.devices:
            to_do = "cases with device = cuda will fail: look at gpus in the site profile"
            return CheckResult("FAIL", "gpus", seen, to_do, environment)
        to_do = f"{computed}; meant so? say device = cpu. Else look at gpus in the site profile"
        return CheckResult("warn", "gpus", seen, to_do, environment)
    if any(count < asked for count in counts):
        to_do = f"{asked} per node asked for: look at gpus and gpu_type in the site profile"
        return CheckResult("FAIL", "gpus", seen, to_do, environment)
    blind = [
        f"{name} in this environment sees {facts['devices']}"
        for node in firsts
        for name, facts in node["modules"].items()
        # It is a first rank's framework: it need not see what only other ranks are shown.
        if facts.get("devices", asked) < min(asked, node["gpus"].get("shown", asked))
    ]
    if blind:
        to_do = "a build without CUDA, or one newer than the driver: install the fitting one"
        return CheckResult("FAIL", "gpus", f"{seen}; {blind[0]}", to_do, environment)
    return CheckResult("ok", "gpus", f"{seen}; {asked} per node asked for", "", environment)


def _has_gpus(trial: Trial) -> bool:
    """Whether any rank told of a GPU."""
    nodes = (part["node"] for part in trial.parts.values() if "node" in part)
    return any(node.get("gpus", {}).get("devices") for node in nodes)


def _number(node: Facts) -> int:
    return len(node["gpus"]["devices"] or [])


def _describe_gpus(node: Facts) -> str:
    found, visible = node["gpus"]["devices"], node["gpus"]["visible"]
    handed = f"CUDA_VISIBLE_DEVICES={visible}" if visible is not None else "none handed out"
    if found is None:
        return f"no NVIDIA driver answers ({handed})"
    if not found:
        return f"0 ({handed})"
    names = list(dict.fromkeys(str(device["name"]) for device in found))
    return f"{len(found)} x {' and '.join(names)}"


def _ailments(devices: Sequence[Facts]) -> Iterator[str]:
    numbers = Counter(device["index"] for device in devices)
    for device in devices:
        # Where each rank is shown its own GPU only, each of them is number 0.
        apart = f" ({device['uuid']})" if numbers[device["index"]] > 1 else ""
        name = f"GPU {device['index']}{apart}"
        if device.get("ecc"):
            yield f"{name}: {device['ecc']} uncorrected memory errors since the last restart"
        remap = device.get("remap") or {}
        if remap.get("failed"):
            yield f"{name}: memory rows could not be remapped"
        if remap.get("pending"):
            yield f"{name}: remapped memory rows wait for a restart"
        why = throttle_words(device.get("throttle") or 0)
        if why:
            yield f"{name}: throttled ({why})"
        if device.get("others"):
            pids = ", ".join(map(str, device["others"]))
            yield f"{name}: in use by other processes (pid {pids})"


def _cpus(trial: Trial, nodes: Sequence[Facts]) -> CheckResult:
    """Cores that a rank may use, against what was asked and what its neighbours use."""
    fewest = min((len(node["cpus"]) for node in nodes), default=0)
    ranks = Counter(node["host"] for node in nodes)
    cores = {host: set[int]() for host in ranks}
    for node in nodes:
        cores[node["host"]].update(node["cpus"])
    threads = sorted({str(node["omp"]) for node in nodes})
    omp = f"OMP_NUM_THREADS {threads[0]}" if threads != ["None"] else "OMP_NUM_THREADS not set"
    seen = f"{fewest} for each rank at least; {omp}"
    asked = trial.site.cpus_per_task
    crowded = [host for host in ranks if ranks[host] > len(cores[host])]
    if crowded:
        host = crowded[0]
        seen = f"{ranks[host]} ranks of {host} share {len(cores[host])} cores; {omp}"
        to_do = "set cpus_per_task in the site profile, or ask for fewer ranks per node"
        return trial.found("warn", "cpus", seen, to_do)
    if asked and fewest < asked:
        to_do = f"the site profile asks for {asked}: is srun's --cpus-per-task heard here?"
        return trial.found("warn", "cpus", seen, to_do)
    if fewest < FEW_CORES and trial.target.wants_gpus and _has_gpus(trial):
        to_do = (
            f"a rank that feeds a GPU needs {FEW_CORES} cores or more (Slurm's default is 1):"
            " set cpus_per_task in the site profile"
        )
        return trial.found("warn", "cpus", seen, to_do)
    return trial.found("ok", "cpus", seen)


def _clock(trial: Trial, firsts: Sequence[Facts]) -> CheckResult:
    """How far the nodes' clocks are from the login node's, as well as files can tell."""
    measured = {
        node["host"]: (node["exchange"]["offset_s"], node["exchange"]["within_s"])
        for node in firsts
        if "offset_s" in node["exchange"]
    }
    if not measured:
        return trial.found("skipped", "clock", "no file came back to measure it by")
    text = listed(f"{h} {1e3 * o:+.0f} +- {1e3 * w:.0f} ms" for h, (o, w) in measured.items())
    seen = f"against the login node's: {text}"
    if any(abs(offset) - within > _CLOCK_S for offset, within in measured.values()):
        to_do = "times in logs will not fit: ask the administrators to look at NTP on these nodes"
        return trial.found("warn", "clock", seen, to_do)
    return trial.found("ok", "clock", seen)


def _mpi_to_do(trial: Trial) -> str:
    box = trial.environment.apptainer
    if box is None or "--sharens" in box.options or not _OTHER_MEMORY.search(trial.output):
        return trial.engine.mpi_hint(trial.environment)
    return (
        "ranks of one node, each in a container of its own, may not read each other's memory: add"
        ' options = ["--sharens"] to apptainer in the site profile (Apptainer 1.3 and newer)'
    )


def world(trial: Trial) -> CheckResult:
    """MPI's world is what the launcher started."""
    worlds = [part["world"] for part in trial.parts.values() if "world" in part]
    wanted = trial.target.ranks
    alone = trial.engine.without_mpi(trial.environment, [trial.target.array])
    how = "no launcher" if alone else trial.engine.launcher(trial.environment)
    errors = [world["error"] for world in worlds if "error" in world]
    if re.search(PMI2_FAULT, trial.output) and len(worlds) < wanted:
        seen = f"{len(worlds)} of {wanted} ranks came through MPI_Init: {last_words(trial)}"
        return trial.found("warn", "mpi", seen, _NOT_MPI)
    if errors:
        grade: Grade = "skipped" if "ModuleNotFoundError" in errors[0] else "FAIL"
        to_do = (
            "install an MPI library beside mpi4py (the extra 'mpi'), or load the site's in setup"
        )
        return trial.found(grade, "mpi", f"cannot be started: {errors[0]}", to_do)
    stuck = stuck_in(trial)
    if len(worlds) == wanted and set(world["size"] for world in worlds) == {wanted} and not stuck:
        if trial.code and not any("comm" in part for part in trial.parts.values()):
            seen = f"world size {wanted} under {how}, but then: {last_words(trial)}"
            return trial.found("FAIL", "mpi", seen, _mpi_to_do(trial))
        single = " (a single rank: nothing to find)" if wanted == 1 else ""
        seen = f"world size {wanted} under {how}{single}; {worlds[0]['library']}"
        return trial.found("ok", "mpi", seen)
    to_do = _mpi_to_do(trial)
    if len(worlds) < wanted:
        why = last_words(trial)
        seen = f"{len(worlds)} of {wanted} ranks came through MPI_Init under {how}: {why}"
        return trial.found("FAIL", "mpi", seen, to_do)
    sizes = Counter(world["size"] for world in worlds)
    library = worlds[0]["library"]
    if set(sizes) == {1} and wanted > 1:
        seen = f"{wanted} ranks each believe they are alone (world size 1) under {how}; {library}"
        return trial.found("FAIL", "mpi", seen, to_do)
    if set(sizes) != {wanted}:
        seen = f"world sizes {listed(sorted(sizes))}, {wanted} ranks under {how}; {library}"
        return trial.found("FAIL", "mpi", seen, to_do)
    seen = f"world size {wanted} under {how}, but stuck in {stuck}"
    to_do = "the ranks find each other but do not get through: which network does MPI choose?"
    return trial.found("FAIL", "mpi", seen, to_do)


def placement(trial: Trial, hosts: Sequence[str]) -> CheckResult:
    """So many ranks on each of so many hosts."""
    per_node = Counter(hosts)
    each = trial.target.array.tasks[0].case.ranks_per_node
    seen = listed(f"{host} {count}" for host, count in per_node.items())
    if len(per_node) == trial.target.topology.nodes and set(per_node.values()) == {each}:
        return trial.found("ok", "placement", f"ranks on {seen}")
    wanted = f"{each} on each of {trial.target.topology.nodes} nodes wanted"
    to_do = "look at srun and sbatch in the site profile: --distribution, --ntasks-per-node"
    return trial.found("FAIL", "placement", f"ranks on {seen}; {wanted}", to_do)


def _names(trial: Trial, comm: Facts | None) -> Iterator[CheckResult]:
    """The nodes find rank 0's by name and get through to it."""
    if trial.target.topology.nodes == 1:
        return
    if not comm:
        yield trial.found("skipped", "names", "no right MPI world to try it in")
        return
    bad = [f"{row['host']}: {row['error']}" for row in comm["reach"] if "error" in row]
    first = comm["hosts"][0]
    if bad:
        to_do = "each node must reach the others by their hostname: /etc/hosts, DNS, firewall"
        yield trial.found("FAIL", "names", "; ".join(bad), to_do)
        return
    addresses = listed(dict.fromkeys(a for row in comm["reach"] for a in row["addresses"]))
    hosts = listed(row["host"] for row in comm["reach"])
    yield trial.found("ok", "names", f"{hosts} reach {first} ({addresses})")


def _rates(trial: Trial, comm: Facts | None) -> Iterator[CheckResult]:
    """Bandwidths, as information, and what NCCL says if it fails."""
    for part in trial.parts.values():
        if "gpu_error" in part.get("comm", {}):
            to_do = "see NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME in env of the site profile"
            yield trial.found("FAIL", "all-reduce on GPUs", part["comm"]["gpu_error"], to_do)
            break
    skipped = (comm or {}).get("gpu_skipped")
    if skipped and trial.target.wants_gpus and _has_gpus(trial):
        yield trial.found("skipped", "all-reduce on GPUs", skipped)
    for rate in comm["rates"] if comm else []:
        size = f"{rate['bytes'] >> 20} MiB in {1e3 * rate['seconds']:.3g} ms"
        bus = f"{rate['gb_per_s']:.3g} GB/s bus bandwidth"
        yield trial.found("ok", "all-reduce", f"{rate['what']}: {size}, {bus}")
