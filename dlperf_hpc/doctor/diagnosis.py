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
_ONE_ENVIRONMENT = "the nodes do not have the same environment: install it on a shared file system"
_NVML_TO_DO = "the driver's libnvidia-ml.so.1 must be found on the nodes (in a container: --nv)"
_NOT_MPI = "then run `dlperf doctor` again; the site profile's mpi is not to blame for this"
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
    if not trial.parts:
        return
    nodes = trial.reported("node")
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
    comm = next(iter(trial.reported("comm")), None)
    if comm:
        yield placement(trial, comm["hosts"])
    yield from _names(trial, comm)
    yield from _rates(trial, comm)


def ended_well(trial: Trial) -> CheckResult:
    """Whether the job ran at all, and if not, why."""
    if trial.given_up:
        return trial.given_up
    if not trial.parts:
        return _nothing_heard(trial)
    silent = [rank for rank in range(trial.target.ranks) if rank not in trial.parts]
    if not silent:
        return trial.found("ok", "job", f"{trial.title}: every rank reported")
    seen = f"{trial.title}: nothing from rank {listed(silent)}: {last_words(trial)}"
    return trial.found("FAIL", "job", seen)


def _nothing_heard(trial: Trial) -> CheckResult:
    if not trial.output:
        seen = f"{trial.title}: {trial.state or 'gone'}, and no output of it shows here"
        to_do = f"{trial.logs} must be one directory on login and compute nodes that both can write"
        return trial.found("FAIL", "log directory", seen, f"{to_do}: give another with --logs")
    verdict = _verdict(trial)
    words = verdict.reason
    if verdict.cause == LAUNCHER:
        return trial.found("FAIL", "job", f"{trial.title}: {words}", _NOT_MPI)
    to_do = "correct python, mpi or setup of this environment in the site profile"
    if str(trial.probe) in words:
        to_do = "the log directory is not there on the nodes: give a shared one with --logs"
    if verdict.fault == "mpi_plugin":
        to_do = trial.engine.mpi_hint(trial.environment)
    if "SyntaxError" in trial.output:
        to_do = NEWER_PYTHON
    return trial.found("FAIL", "job", f"{trial.title}: {words}", trial.gpu_hint(words) or to_do)


def last_words(trial: Trial) -> str:
    """Why ranks are missing: in their own words, the launcher's, or at last the scheduler's."""
    return _verdict(trial).reason


def _verdict(trial: Trial) -> Verdict:
    ours = (MARK, ARRAY_MARK, LAUNCH_MARK)  # the ranks' reports are no words of their end
    kept = [line for line in trial.output.splitlines() if not any(mark in line for mark in ours)]
    code = 1 if trial.code is None else trial.code
    verdict = explain(code, "\n".join(kept) + "\n", [])
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
    own = trial.parts.get(int(match[1] or -1), {}).get("phase", {}).get("name")
    common = Counter(phase["name"] for phase in trial.reported("phase")).most_common(1)
    return own or next((name for name, _ in common), "its first step")


def listed(values: Iterable[Any]) -> str:
    """Values with commas between them."""
    return ", ".join(map(str, values))


def _log_directory(trial: Trial, firsts: Sequence[Facts]) -> CheckResult:
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
    installed = {pair for node in firsts for pair in node["installed"].items()}
    more = {f"{name} {version}" for name, version in installed if name not in trial.target.modules}
    if more:
        yield trial.found("ok", "also installed", listed(sorted(more)))


def _paths(trial: Trial, firsts: Sequence[Facts]) -> Iterator[CheckResult]:
    """What users' programs need on each node; nothing of a node that did not look."""
    absent = {(path, node["host"]) for node in firsts for path in node.get("lacking", ())}
    for name, paths in trial.target.paths.items():
        lacking = sorted(f"{path} on {host}" for path, host in absent if path in paths)
        if lacking:
            to_do = "put it where all nodes see it, or correct run and workdir of this program"
            yield trial.found("FAIL", f"program {name}", f"there is no {listed(lacking)}", to_do)
        else:
            hosts = listed(node["host"] for node in firsts)
            yield trial.found("ok", f"program {name}", f"its files are there on {hosts}")


def _python(trial: Trial, firsts: Sequence[Facts]) -> CheckResult:
    versions = {node["python"] for node in firsts}
    seen = listed(sorted({f"{node['python']} ({node['executable']})" for node in firsts}))
    if len(versions) > 1:
        return trial.found("FAIL", "python", f"differs from node to node: {seen}", _ONE_ENVIRONMENT)
    if any(tuple(map(int, v.split(".")[:2])) < OLDEST_PYTHON for v in versions):
        return trial.found("FAIL", "python", seen, NEWER_PYTHON)
    return trial.found("ok", "python", seen)


def _module(trial: Trial, name: str, found: Mapping[str, Facts]) -> CheckResult:
    errors = {host: facts["error"] for host, facts in found.items() if "error" in facts}
    if errors:
        seen = next(iter(errors.values()))
        if len(errors) < len(found):
            seen += f" on {listed(errors)}"
        return trial.found("FAIL", name, seen, how_to_install(name, trial.environment.interpreter))
    versions = {facts["version"] for facts in found.values()}
    if len(versions) > 1:
        each = listed(f"{host} {facts['version']}" for host, facts in found.items())
        return trial.found("FAIL", name, f"differs from node to node: {each}", _ONE_ENVIRONMENT)
    seen = _module_words(list(found.values()))
    if name == "dlperf_hpc" and dlperf_hpc.__version__ not in versions:
        to_do = f"install the login node's version there: {dlperf_hpc.__version__}"
        return trial.found("warn", name, seen, to_do)
    return trial.found("ok", name, seen)


def _module_words(found: Sequence[Facts]) -> str:
    """A module's version, what it was built with, and how slowly it is imported."""
    facts = found[0]
    details = [facts["library"]] if "library" in facts else []
    if "build" in facts:
        details.append(f"built for {facts['build']}")
    slow = max(each.get("seconds", 0) for each in found)
    if slow >= 1:
        details.append(f"imported in {slow:.1f} s")
    return f"{facts['version']} ({listed(details)})" if details else str(facts["version"])


def with_all_gpus(firsts: Sequence[Facts], nodes: Sequence[Facts]) -> list[Facts]:
    """The facts of each node's first rank, with the GPUs that any rank of that node is shown: a
    site may show each rank its own only. ``visible_here`` is how many the first rank itself is."""
    found: list[Facts] = []
    for first in firsts:
        gpus = first["gpus"]
        own, by_uuid = gpus["devices"], {}
        for node in nodes:
            if node["host"] == first["host"]:
                devices = node.get("gpus", {}).get("devices") or []
                by_uuid.update({device["uuid"]: device for device in devices})
        more = {"devices": list(by_uuid.values()) or own, "visible_here": len(own or [])}
        found.append({**first, "gpus": {**gpus, **more}})
    return found


def gpu_checks(trial: Trial, firsts: Sequence[Facts]) -> Iterator[CheckResult]:
    """``firsts`` are the facts of each node's first rank, with all GPUs of the node."""
    if not trial.target.wants_gpus:
        yield trial.found("skipped", "gpus", "every case says device = cpu")
        return
    yield _count(trial, firsts)
    having = [node for node in firsts if node["gpus"]["devices"]]
    if not having:
        return
    yield from _compiler(trial, having)
    if unheard := _without_nvml(trial, having):
        yield unheard
        return
    ill = [
        f"{node['host']} {each}" for node in having for each in _ailments(node["gpus"]["devices"])
    ]
    if ill:
        to_do = "free or leave out the node, and tell the administrators"
        yield trial.found("warn", "gpu health", "; ".join(ill), to_do)
        return
    seen = "no uncorrected memory errors, no throttling, nobody else's processes"
    yield trial.found("ok", "gpu health", seen)


def _without_nvml(trial: Trial, firsts: Sequence[Facts]) -> CheckResult | None:
    """Where NVML does not answer, and why; None if it does everywhere."""
    for node in firsts:
        why_not = node["gpus"].get("no_nvml", "ModuleNotFoundError")
        if node["gpus"]["source"] != "NVML" and "ModuleNotFoundError" in why_not:
            seen = "no nvidia-ml-py in this environment to ask"
            return trial.found("skipped", "gpu health", seen, "pip install nvidia-ml-py")
        if node["gpus"]["source"] != "NVML":
            seen = f"NVML does not answer on {node['host']}: {why_not}"
            return trial.found("skipped", "gpu health", seen, _NVML_TO_DO)
    return None


def _compiler(trial: Trial, firsts: Sequence[Facts]) -> Iterator[CheckResult]:
    for node in firsts:
        lacking = node.get("cannot_compile", [])
        if lacking and "torch" in node["modules"]:
            seen = f"{node['host']} lacks {' and '.join(lacking)}"
            to_do = 'mode = "compile" and "tuned" will fail: install gcc and Python\'s headers'
            yield trial.found("warn", "compiler", seen, f"{to_do} (python3-dev), or load them")
            return


def _count(trial: Trial, firsts: Sequence[Facts]) -> CheckResult:
    wanted = trial.target.topology.gpus_per_node
    hosts = dict[str, list[str]]()
    for node in firsts:  # what several nodes have in common is said once
        hosts.setdefault(_describe_gpus(node), []).append(node["host"])
    seen = "; ".join(f"{listed(names)} {words}" for words, names in hosts.items())
    fewest = min((len(node["gpus"]["devices"] or []) for node in firsts), default=wanted)
    if other := _of_other_builds(trial, firsts):
        return other
    if fewest == 0:
        if "cuda" in trial.target.devices:
            to_do = "cases with device = cuda will fail: look at gpus in the site profile"
            return trial.found("FAIL", "gpus", seen, to_do)
        to_do = "runs with device = auto compute on CPUs; meant so? say device = cpu. Else look at"
        return trial.found("warn", "gpus", seen, f"{to_do} gpus in the site profile")
    if fewest < wanted:
        to_do = f"{wanted} per node asked for: look at gpus and gpu_type in the site profile"
        return trial.found("FAIL", "gpus", seen, to_do)
    for words in _blind_modules(firsts, wanted):
        to_do = "a build without CUDA, or one newer than the driver: install the fitting one"
        return trial.found("FAIL", "gpus", f"{seen}; {words}", to_do)
    return trial.found("ok", "gpus", f"{seen}; {wanted} per node asked for")


def _of_other_builds(trial: Trial, firsts: Sequence[Facts]) -> CheckResult | None:
    """What is to be said of a PyTorch that is built for other GPUs than NVIDIA's."""
    for node in firsts:
        torch = node["modules"].get("torch", {})
        build, found = str(torch.get("build", "")), torch.get("devices", 0)
        if not build.startswith(("ROCm", "XPU")):
            continue
        seen = f"PyTorch on {node['host']} is built for {build}, and sees {found} GPUs"
        if build.startswith("XPU"):
            to_do = "dlperf_hpc has no back end for XPU: install a build for CUDA"
            return trial.found("FAIL", "gpus", seen, f'{to_do}, or say device = "cpu"')
        if not found:
            to_do = "look at gpus in the site profile, and at rocminfo on that node"
            return trial.found("FAIL", "gpus", seen, to_do)
        to_do = "dlperf_hpc has not been tried on ROCm: look at the first runs' logs"
        return trial.found("warn", "gpus", seen, to_do)
    return None


def _blind_modules(firsts: Sequence[Facts], wanted: int) -> Iterator[str]:
    """Frameworks that see fewer GPUs than there are."""
    for node in firsts:
        # It is a first rank's framework: it need not see what only other ranks are shown.
        least = min(wanted, node["gpus"].get("visible_here", wanted))
        for name, facts in node["modules"].items():
            if facts.get("devices", wanted) < least:
                build = f" (built for {facts.get('build')})" * ("build" in facts)
                yield f"{name}{build} in this environment sees {facts['devices']}"


def _has_gpus(trial: Trial) -> bool:
    return any(node.get("gpus", {}).get("devices") for node in trial.reported("node"))


def _describe_gpus(node: Facts) -> str:
    found, visible = node["gpus"]["devices"], node["gpus"]["visible"]
    handed = f"CUDA_VISIBLE_DEVICES={visible}" if visible is not None else "none handed out"
    if found is None:
        why_not = node["gpus"].get("no_nvml", "")
        return f"no NVIDIA driver answers ({handed}{f'; {why_not}' * bool(why_not)})"
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
        remap, why = device.get("remap") or {}, throttle_words(device.get("throttle") or 0)
        pids = ", ".join(map(str, device.get("others") or ()))
        signs = {
            f"{device.get('ecc')} uncorrected memory errors since the last restart": device.get(
                "ecc"
            ),
            "memory rows could not be remapped": remap.get("failed"),
            "remapped memory rows wait for a restart": remap.get("pending"),
            f"throttled ({why})": why,
            f"in use by other processes (pid {pids})": pids,
        }
        yield from (f"{name}: {words}" for words, present in signs.items() if present)


def _cpus(trial: Trial, nodes: Sequence[Facts]) -> CheckResult:
    """Cores that a rank may use, against what was asked and what its neighbours use."""
    fewest = min((len(node["cpus"]) for node in nodes), default=0)
    ranks, cores = Counter(node["host"] for node in nodes), dict[str, set[int]]()
    for node in nodes:
        cores.setdefault(node["host"], set()).update(node["cpus"])
    threads = min((str(node["omp"]) for node in nodes), default="None")
    omp = f"OMP_NUM_THREADS {threads}".replace(" None", " not set")
    seen = f"{fewest} for each rank at least; {omp}"
    for host, count in ranks.items():
        if count > len(cores[host]):
            seen = f"{count} ranks of {host} share {len(cores[host])} cores; {omp}"
            to_do = "set cpus_per_task in the site profile, or ask for fewer ranks per node"
            return trial.found("warn", "cpus", seen, to_do)
    wanted = trial.site.cpus_per_task or 0
    if fewest < wanted:
        to_do = f"the site profile asks for {wanted}: is srun's --cpus-per-task heard here?"
        return trial.found("warn", "cpus", seen, to_do)
    if fewest < FEW_CORES and trial.target.wants_gpus and _has_gpus(trial):
        to_do = f"a rank that feeds a GPU needs {FEW_CORES} cores or more (Slurm's default is 1)"
        return trial.found("warn", "cpus", seen, f"{to_do}: set cpus_per_task in the site profile")
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
    worlds, wanted = trial.reported("world"), trial.target.ranks
    came = f"{len(worlds)} of {wanted} ranks came through MPI_Init"
    if re.search(PMI2_FAULT, trial.output) and len(worlds) < wanted:
        return trial.found("FAIL", "mpi", f"{came}: {last_words(trial)}", _NOT_MPI)
    for error in (world["error"] for world in worlds if "error" in world):
        grade: Grade = "skipped" if "ModuleNotFoundError" in error else "FAIL"
        to_do = (
            "install an MPI library beside mpi4py (the extra 'mpi'), or load the site's in setup"
        )
        return trial.found(grade, "mpi", f"cannot be started: {error}", to_do)
    how = f"under {trial.engine.launcher(trial.environment)}"
    if trial.engine.without_mpi(trial.environment, [trial.target.array]):
        how = "under no launcher"
    if len(worlds) < wanted:
        seen = f"{came} {how}: {last_words(trial)}"
        return trial.found("FAIL", "mpi", seen, _mpi_to_do(trial))
    sizes, library = {world["size"] for world in worlds}, worlds[0]["library"]
    if sizes != {wanted}:
        seen = f"world sizes {listed(sorted(sizes))}, {wanted} ranks {how}; {library}"
        if sizes == {1}:
            seen = f"{wanted} ranks each believe they are alone (world size 1) {how}; {library}"
        return trial.found("FAIL", "mpi", seen, _mpi_to_do(trial))
    seen = f"world size {wanted} {how}"
    if stuck := stuck_in(trial):
        to_do = "the ranks find each other but do not get through: which network does MPI choose?"
        return trial.found("FAIL", "mpi", f"{seen}, but stuck in {stuck}", to_do)
    if trial.code and not trial.reported("comm"):
        seen += f", but then: {last_words(trial)}"
        return trial.found("FAIL", "mpi", seen, _mpi_to_do(trial))
    if wanted == 1:
        seen += " (a single rank: nothing to find)"
    return trial.found("ok", "mpi", f"{seen}; {library}")


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
    errors = [each["gpu_error"] for each in trial.reported("comm") if "gpu_error" in each]
    for error in errors[:1]:
        to_do = "see NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME in env of the site profile"
        yield trial.found("FAIL", "all-reduce on GPUs", error, to_do)
    if comm is None:
        return
    skipped = comm.get("gpu_skipped")
    if skipped and trial.target.wants_gpus and _has_gpus(trial):
        yield trial.found("skipped", "all-reduce on GPUs", skipped)
    for rate in comm["rates"]:
        size = f"{rate['bytes'] >> 20} MiB in {1e3 * rate['seconds']:.3g} ms"
        bus = f"{rate['gb_per_s']:.3g} GB/s bus bandwidth"
        yield trial.found("ok", "all-reduce", f"{rate['what']}: {size}, {bus}")
