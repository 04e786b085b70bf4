"""What this machine is, and checks that run the package's own commands, as a user does."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlperf_hpc.acceptance.pack import OK, Finding, judged, skipped
from dlperf_hpc.analysis import machines
from dlperf_hpc.errors import WorldError
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.telemetry import find_device, gpu_state

_SWEEP = """\
cluster = "local"
topologies = ["{topology}"]
repeats = 1
time_limit = "00:10:00"
[case]
framework = "ddp"
model = "bert-tiny"
device = "{device}"
batch_size = {batch_size}
[limits]
iteration_s = {iteration_s}
[measure]
warmup = 4
iterations = 20
[matrix]
precision = {precisions}
"""
_DEFAULTS = {"topology": "1n1g", "batch_size": 4, "iteration_s": 60, "precisions": '["fp32"]'}
_CARD_COLUMNS = ("mfu", "gpu_util", "gpu_memory_mb_max", "gpu_joules_per_sample")
_DRILLS = {"kill": "failed", "raise": "failed", "oom": "out_of_memory", "hang": "failed"}
_TOO_LARGE = 1 << 22
_HANG_S = 20
_SHARING_S = 60.0
_SHARING = "2 ranks on "


def environment(device: str) -> Iterator[Finding]:
    """The facts that every other row rests on; FAIL where there is no card, or no MPI."""
    torch = importlib.import_module("torch")
    built = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none: built for CPUs'}"
    yield Finding("versions", f"Python {platform.python_version()}, {built}")
    try:
        world = discover()
        yield Finding("MPI", f"{world.size} rank on {world.host}", verdict=OK)
    except WorldError as error:
        yield judged("MPI", str(error), "a world of one rank", False)
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        yield judged("card", "torch.cuda.is_available() is False", "a card", False)
        return
    name, card = torch.cuda.get_device_name(), f"{torch.cuda.device_count()} x "
    if known := machines.accelerator(name):
        yield Finding("card", f"{card}{name}, known as {known.name}", verdict=OK)
    else:
        yield Finding("card", f"{card}{name}, not in the table: there will be no MFU")
    properties = torch.cuda.get_device_properties(0)
    yield Finding("memory", f"{properties.total_memory / 2**30:.1f} GiB")
    state = gpu_state(find_device(str(properties.uuid)))
    yield Finding("state", ", ".join(f"{k} {v}" for k, v in state.items()) or "NVML says nothing")


class _Machine:
    """Runs sweeps of this machine in a directory of their own."""

    def __init__(self, here: str, device: str, **fields: object) -> None:
        self.here = Path(here)
        self.path, self.results = self.here / "acceptance.toml", self.here / "logs" / "acceptance"
        self.path.write_text(_SWEEP.format(**{**_DEFAULTS, "device": device, **fields}))

    def dlperf(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        """``dlperf WORDS`` by this Python; what it prints is caught."""
        command = [sys.executable, "-m", "dlperf_hpc", *map(str, words)]
        return subprocess.run(
            command, cwd=self.here, env={**os.environ, **env}, capture_output=True, text=True
        )

    def sweep(self, **env: str) -> subprocess.CompletedProcess[str]:
        return self.dlperf("sweep", self.path, "--logs", self.here / "logs", "--no-check", **env)

    def json_of(self, verb: str, path: Path) -> Any:
        return json.loads(self.dlperf(verb, path, "--json").stdout)


def sweep(device: str) -> Iterator[Finding]:
    """The first steps of a user. No line of doctor says FAIL; each case of a sweep has a figure,
    and on a card what belongs to it."""
    precisions = {"cuda": '["fp32", "bf16", "tf32"]', "cpu": '["fp32", "bf16"]'}[device]
    with tempfile.TemporaryDirectory() as here:
        machine = _Machine(here, device, precisions=precisions)
        findings = machine.json_of("doctor", machine.path)["findings"]
        bad = [f"{each['check']}: {each['seen']}" for each in findings if each["grade"] == "FAIL"]
        yield judged("doctor", "; ".join(bad) or f"{len(findings)} checks", "no FAIL", not bad)
        done = machine.sweep()
        last = done.stderr.strip().rpartition("\n")[2]
        yield judged("sweep", f"exit code {done.returncode} {last}", "0", done.returncode == 0)
        cases = machine.json_of("report", machine.results)["cases"]
    for case in cases:
        what, rate = f"{case['model']} {case['precision']}", case["samples_per_s"] or 0.0
        yield judged(what, f"{rate:.1f} samples/s", "a figure", rate > 0)
        if device == "cuda":
            missing = [name for name in _CARD_COLUMNS if case[name] is None]
            yield judged(f"{what}: figures of the card", f"missing: {missing}", "none", not missing)


def endings(device: str) -> Iterator[Finding]:
    """Each drill as a sweep of one run; on a card also a batch that no card holds."""
    drills = list(_DRILLS.items())
    if device == "cuda":
        yield _ended("batch too large", device, "out_of_memory", batch_size=_TOO_LARGE)
    else:
        del drills[1:]
    for kind, status in drills:
        yield _ended(kind, device, status, f"{kind}@0")
    yield _ended("none, after these", device, "ok")


def _ended(what: str, device: str, status: str, fault: str = "", **fields: object) -> Finding:
    row = _run_alone(device, {"DLPERF_FAULT": fault}, iteration_s=_HANG_S, **fields)
    value = f"{row['status']}: {row['reason']}"[:200]
    return judged(what, value, status, row["status"] == status)


def _run_alone(device: str, env: dict[str, str], **fields: object) -> dict[str, Any]:
    """What ``status`` says of a sweep of one run."""
    with tempfile.TemporaryDirectory() as here:
        machine = _Machine(here, device, **fields)
        machine.sweep(**env)
        found: dict[str, Any] = machine.json_of("status", machine.results)["runs"][0]
    return found


def sharing(device: str) -> Iterator[Finding]:
    """Two ranks that see one card between them end with a message, at once."""
    what = "a sweep of two ranks that see one card"
    # Where the local engine looks: beside this Python, then on the PATH.
    if not (Path(sys.executable).with_name("mpiexec").exists() or shutil.which("mpiexec")):
        yield skipped(what, "no mpiexec beside this Python or on the PATH")
        return
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    started = time.monotonic()
    row = _run_alone(device, {"CUDA_VISIBLE_DEVICES": first, "DLPERF_MPI": ""}, topology="1n2g")
    seconds = time.monotonic() - started
    value = f"{row['status']} after {seconds:.0f} s: {row['reason']}"[:300]
    holds = row["status"] == "failed" and _SHARING in row["reason"] and seconds < _SHARING_S
    yield judged(what, value, f"failed within {_SHARING_S:.0f} s, saying why", holds)
