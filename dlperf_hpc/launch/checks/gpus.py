"""GPUs that the nodes show against those asked for, and their health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlperf_hpc.launch.checks.finding import Finding
from dlperf_hpc.launch.checks.trial import Trial

Facts = Mapping[str, Any]
# nvml.h, nvmlClocksThrottleReasons: those that mean heat or power, not a limit somebody has set.
_THROTTLES = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}


def gpu_findings(trial: Trial, firsts: Sequence[Facts]) -> Iterator[Finding]:
    """``firsts`` are the facts of each node's first rank."""
    environment = trial.target.environment
    if not trial.target.wants_gpus:
        yield Finding("skipped", "gpus", "every case says device = cpu", "", environment)
        return
    yield _count(trial, firsts)
    devices = {node["host"]: node["gpus"]["devices"] for node in firsts if node["gpus"]["devices"]}
    if not devices:
        return
    if any(node["gpus"]["source"] != "NVML" for node in firsts if node["gpus"]["devices"]):
        seen = "no nvidia-ml-py in this environment to ask"
        yield Finding("skipped", "gpu health", seen, "pip install nvidia-ml-py", environment)
        return
    ill = [f"{host} {ailment}" for host, found in devices.items() for ailment in _ailments(found)]
    if ill:
        to_do = "free or leave out the node, and tell the administrators"
        yield Finding("warn", "gpu health", "; ".join(ill), to_do, environment)
        return
    seen = "no uncorrected memory errors, no throttling, nobody else's processes"
    yield Finding("ok", "gpu health", seen, "", environment)


def _count(trial: Trial, firsts: Sequence[Facts]) -> Finding:
    environment, asked = trial.target.environment, trial.target.topology.gpus_per_node
    seen = "; ".join(f"{node['host']} {_told(node)}" for node in firsts)
    counts = [_number(node) for node in firsts]
    if any(count == 0 for count in counts):
        computed = "runs with device = auto compute on CPUs"
        if "cuda" in trial.target.devices:
            to_do = "cases with device = cuda will fail: look at gpus in the site profile"
            return Finding("FAIL", "gpus", seen, to_do, environment)
        to_do = f"{computed}; meant so? say device = cpu. Else look at gpus in the site profile"
        return Finding("warn", "gpus", seen, to_do, environment)
    if any(count < asked for count in counts):
        to_do = f"{asked} per node asked for: look at gpus and gpu_type in the site profile"
        return Finding("FAIL", "gpus", seen, to_do, environment)
    blind = [
        f"{name} in this environment sees {facts['devices']}"
        for node in firsts
        for name, facts in node["modules"].items()
        if facts.get("devices", asked) < asked
    ]
    if blind:
        to_do = "a build without CUDA, or one newer than the driver: install the fitting one"
        return Finding("FAIL", "gpus", f"{seen}; {blind[0]}", to_do, environment)
    return Finding("ok", "gpus", f"{seen}; {asked} per node asked for", "", environment)


def _number(node: Facts) -> int:
    return len(node["gpus"]["devices"] or [])


def _told(node: Facts) -> str:
    found, visible = node["gpus"]["devices"], node["gpus"]["visible"]
    handed = f"CUDA_VISIBLE_DEVICES={visible}" if visible is not None else "none handed out"
    if found is None:
        return f"no NVIDIA driver answers ({handed})"
    if not found:
        return f"0 ({handed})"
    names = list(dict.fromkeys(str(device["name"]) for device in found))
    return f"{len(found)} x {' and '.join(names)}"


def _ailments(devices: Sequence[Facts]) -> Iterator[str]:
    for device in devices:
        name = f"GPU {device['index']}"
        if device.get("ecc"):
            yield f"{name}: {device['ecc']} uncorrected memory errors since the last restart"
        remap = device.get("remap") or {}
        if remap.get("failed"):
            yield f"{name}: memory rows could not be remapped"
        if remap.get("pending"):
            yield f"{name}: remapped memory rows wait for a restart"
        bits = device.get("throttle") or 0
        why = [text for bit, text in _THROTTLES.items() if bits & bit]
        if why:
            yield f"{name}: throttled ({', '.join(why)})"
        if device.get("others"):
            pids = ", ".join(map(str, device["others"]))
            yield f"{name}: in use by other processes (pid {pids})"
