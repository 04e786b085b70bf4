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

from dlperf_hpc.acceptance.pack import CARD, FAIL, NOTED, OK, Finding, judged, skipped
from dlperf_hpc.analysis import machines
from dlperf_hpc.errors import WorldError
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.telemetry import find_device, gpu_state

_SWEEP = """\
cluster = "local"
topologies = ["1n1g"]
repeats = 1
time_limit = "00:10:00"
[case]
framework = "ddp"
model = "{model}"
device = "{device}"
batch_size = {batch_size}
[limits]
startup_s = {startup_s}
iteration_s = 60
[measure]
warmup = 4
iterations = 20
min_seconds = {min_seconds}
[matrix]
precision = {precisions}
"""
_DEFAULTS = {"model": "bert-tiny", "batch_size": 4, "startup_s": 300, "min_seconds": 0}
_DEFAULTS |= {"precisions": '["fp32"]'}
_CARD_COLUMNS = ("mfu", "gpu_util", "gpu_memory_mb_max", "gpu_joules_per_sample")
_FIGURES: dict[str, dict[str, Any]] = {
    "cpu": {"precisions": '["fp32", "bf16"]'},
    # NVML's utilisation and energy are a second's.
    "cuda": {"precisions": '["fp32", "bf16", "tf32"]', "min_seconds": 2},
}
_DRILLS = ("kill", "raise", "hang")
_TOO_LARGE: dict[str, Any] = {"model": "gpt2-tiny", "batch_size": 1 << 15}
"""More than 400 GB of scores on any card, and on the host 16 MB of tokens."""
_HANG_S, _SHARING_S = 25, 60.0  # the former: PyTorch's import from a cold disk took 11 s
_SHARING = "2 ranks on "
_CHOOSE = """\
from dlperf_hpc.acceptance.training import case
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.torch.device import choose_device
choose_device(case("bert-tiny", "cuda"), discover())
"""


def environment(device: str) -> Iterator[Finding]:
    """The facts that every other row rests on."""
    from dlperf_hpc.train.torch.device import built_for

    torch = importlib.import_module("torch")
    built = f"torch {torch.__version__}, built for {built_for()}"
    yield Finding("versions", f"Python {platform.python_version()}, {built}")
    if device == "cuda" and not torch.cuda.is_available():
        yield judged(CARD, "torch.cuda.is_available() is False", "a card", False)
        return
    try:
        world = discover()
        yield Finding("ranks", f"{world.size} on {world.host}; MPI: {world.without_mpi or 'there'}")
        yield _all_reduced(torch, world, device)
    except (WorldError, RuntimeError) as error:  # PyTorch's, and that of NCCL
        yield judged("all-reduce", f"{error}"[-400:], "a world of one rank", False)
    if device == "cuda":
        yield from _card(torch)


def _card(torch: Any) -> Iterator[Finding]:
    name, properties = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0)
    known = machines.accelerator(name)
    words = f"known as {known.name}" if known else "not in the table: there will be no MFU"
    value = f"{torch.cuda.device_count()} x {name}, {properties.total_memory / 2**30:.1f} GiB"
    yield Finding(CARD, f"{value}, {words}", verdict=(NOTED, OK)[bool(known)])
    state = gpu_state(find_device(str(properties.uuid)))
    yield Finding("state", ", ".join(f"{k} {v}" for k, v in state.items()) or "NVML says nothing")


def _all_reduced(torch: Any, world: World, device: str) -> Finding:
    from dlperf_hpc.train.torch.session import join

    values = torch.ones(1024, device=device)
    join(world, values.device)
    torch.distributed.all_reduce(values)
    value = f"{torch.distributed.get_backend()}: sum {values.sum().item():g} of 1024 ones"
    torch.distributed.destroy_process_group()
    return judged("all-reduce", value, "1024", bool((values == 1).all()))


class _Machine:
    """Runs sweeps of this machine in a directory of their own, which the pack keeps or removes."""

    def __init__(self, device: str, **fields: object) -> None:
        self.here = Path(tempfile.mkdtemp(prefix="sweep-", dir=Path.cwd()))
        self.path, self.results = self.here / "acceptance.toml", self.here / "logs" / "acceptance"
        self.path.write_text(_SWEEP.format(**{**_DEFAULTS, "device": device, **fields}))

    def dlperf(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        """``dlperf WORDS`` by this Python; what it prints is caught."""
        command, env = [sys.executable, "-m", "dlperf_hpc", *map(str, words)], {**os.environ, **env}
        return subprocess.run(command, cwd=self.here, env=env, capture_output=True, text=True)

    def sweep(self, **env: str) -> subprocess.CompletedProcess[str]:
        return self.dlperf("sweep", self.path, "--logs", self.here / "logs", "--no-check", **env)

    def json_of(self, verb: str, path: Path) -> Any:
        return json.loads(self.dlperf(verb, path, "--json").stdout)


def sweep(device: str) -> Iterator[Finding]:
    """The first steps of a user. No line of doctor says FAIL; each case of a sweep has a figure,
    and on a card what belongs to it."""
    machine = _Machine(device, **_FIGURES[device])
    findings = machine.json_of("doctor", machine.path)["findings"]
    bad = [f"{each['check']}: {each['seen']}" for each in findings if each["grade"] != "ok"]
    holds = FAIL not in {each["grade"] for each in findings}
    yield judged("doctor", "; ".join([f"{len(findings)} checks", *bad]), "no FAIL", holds)
    done = machine.sweep()
    last = done.stderr.strip().rpartition("\n")[2]
    yield judged("sweep", f"exit code {done.returncode} {last}", "0", done.returncode == 0)
    if done.returncode:
        return
    for case in machine.json_of("report", machine.results)["cases"]:
        what, rate = f"{case['model']} {case['precision']}", case["samples_per_s"] or 0.0
        yield judged(what, f"{rate:.1f} samples/s", "a figure", rate > 0)
        if device == "cuda":
            missing = [name for name in _CARD_COLUMNS if not case[name]]
            value = f"missing or 0: {missing}"
            yield judged(f"{what}: figures of the card", value, "none", not missing)


def endings(device: str) -> Iterator[Finding]:
    """Each drill as a sweep of one run; on a card also a batch that no card holds."""
    if device == "cuda":
        yield _ended("batch too large", device, "out_of_memory", **_TOO_LARGE)
    for kind in _DRILLS[: {"cuda": 3, "cpu": 1}[device]]:
        yield _ended(kind, device, "failed", f"{kind}@0")
    yield _ended("none, after these", device, "ok")


def _ended(what: str, device: str, status: str, fault: str = "", **fields: object) -> Finding:
    row = _run_alone(device, {"DLPERF_FAULT": fault}, startup_s=_HANG_S, **fields)
    return judged(what, f"{row['status']}: {row['reason']}"[:200], status, row["status"] == status)


def _run_alone(device: str, env: dict[str, str], **fields: object) -> dict[str, Any]:
    machine = _Machine(device, **fields)
    machine.sweep(**env)
    found: dict[str, Any] = machine.json_of("status", machine.results)["runs"][0]
    return found


def sharing(device: str) -> Iterator[Finding]:
    """Two ranks that see one card between them end with a message, at once. mpiexec starts them:
    the local engine would not."""
    what = "two ranks that see one card"
    # Where the local engine looks: beside this Python, then on the PATH.
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join(places))
    if os.environ.get("DLPERF_MPI") or mpiexec is None:
        yield skipped(what, "MPI does not start here")
        return
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    started = time.monotonic()
    done = _two_ranks(mpiexec, {**os.environ, "CUDA_VISIBLE_DEVICES": first})
    seconds = time.monotonic() - started
    _, _, reason = done.stderr.partition("DeviceError: ")
    value = f"exit code {done.returncode} after {seconds:.0f} s: {reason.partition(chr(10))[0]}"
    holds = done.returncode != 0 and _SHARING in reason and seconds < _SHARING_S
    yield judged(what, value[:300], f"an end within {_SHARING_S:.0f} s that says why", holds)


def _two_ranks(mpiexec: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [mpiexec, "-n", "2", sys.executable, "-c", _CHOOSE]
    return subprocess.run(command, env=env, capture_output=True, text=True)
