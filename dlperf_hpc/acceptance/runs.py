"""Checks that run the package's own commands, as a user does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlperf_hpc.acceptance.pack import Finding, judged, skipped
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.train.ranks import Alone, World, gpu_indices

_SPEC = """\
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
_OF_A_CARD = ("mfu", "gpu_util", "gpu_memory_mb_max", "gpu_joules_per_sample")
_DRILLS = {"raise": "failed", "oom": "out_of_memory", "kill": "failed", "hang": "failed"}
_TOO_LARGE = 1 << 22
_HANG_S = 20
_SHARING_S = 60.0
_SHARING = "2 ranks on "


def _dlperf(
    words: Sequence[object], cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``dlperf WORDS`` by this Python; what it prints is caught."""
    command = [sys.executable, "-m", "dlperf_hpc", *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True
    )


def _spec(here: Path, device: str, **fields: object) -> Path:
    """A sweep file for this machine."""
    path = here / "acceptance.toml"
    default = {"topology": "1n1g", "batch_size": 4, "iteration_s": 60, "precisions": '["fp32"]'}
    path.write_text(_SPEC.format(**{**default, "device": device, **fields}))
    return path


def _run(device: str, env: Mapping[str, str], **fields: object) -> dict[str, Any]:
    """What ``status`` says of a sweep of one run."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        path = _spec(here, device, **fields)
        _dlperf(["sweep", path, "--logs", here / "logs", "--no-check"], here, env)
        printed = _dlperf(["status", here / "logs" / "acceptance", "--json"], here).stdout
        (row,) = json.loads(printed)["runs"]
    found: dict[str, Any] = row
    return found


def sweep(device: str) -> Iterator[Finding]:
    """As a user begins. No line of doctor says FAIL; each case of a sweep has a figure, and on a
    card what belongs to it."""
    precisions = ["fp32", "bf16"]
    if device == "cuda":
        precisions.append("tf32")
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        path = _spec(here, device, precisions=json.dumps(precisions))
        findings = json.loads(_dlperf(["doctor", path, "--json"], here).stdout)["findings"]
        bad = [f"{each['check']}: {each['seen']}" for each in findings if each["grade"] == "FAIL"]
        value = "; ".join(bad) or f"{len(findings)} checks"
        yield judged("doctor", value, "no FAIL", not bad)
        done = _dlperf(["sweep", path, "--logs", here / "logs", "--no-check"], here)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        yield judged("sweep", f"exit code {done.returncode} {last}", "0", done.returncode == 0)
        report = _dlperf(["report", here / "logs" / "acceptance", "--json"], here).stdout
        for case in json.loads(report)["cases"]:
            yield from _of_case(case, device)


def _of_case(case: dict[str, Any], device: str) -> Iterator[Finding]:
    what, rate = f"{case['model']} {case['precision']}", case["samples_per_s"]
    yield judged(what, f"{rate or 0:.1f} samples/s", "a figure", bool(rate))
    if device == "cpu":
        yield skipped(f"{what}: figures of the card", "no card")
        return
    missing = [name for name in _OF_A_CARD if case[name] is None]
    yield judged(f"{what}: figures of the card", f"missing: {missing}", "none", not missing)


def endings(device: str) -> Iterator[Finding]:
    """Each drill as a sweep of one run; on a card also a batch that no card holds."""
    if device == "cpu":
        yield _ended("kill", device, "failed", "kill@0")
    else:
        for kind, status in _DRILLS.items():
            yield _ended(kind, device, status, f"{kind}@0")
        yield _ended("batch too large", device, "out_of_memory", "", batch_size=_TOO_LARGE)
    yield _ended("none, after these", device, "ok", "")


def _ended(what: str, device: str, status: str, fault: str, **fields: object) -> Finding:
    row = _run(device, {"DLPERF_FAULT": fault}, iteration_s=_HANG_S, **fields)
    value = f"{row['status']}: {row['reason']}"[:200]
    return judged(what, value, status, row["status"] == status)


def sharing(device: str) -> Iterator[Finding]:
    """Two ranks that see one card between them end with a message, at once: the choice itself over
    lists of UUIDs; on a card a sweep of two ranks that see the first."""
    refused = _chosen(["GPU-0"])
    what = "two ranks that see 1 GPU by their lists"
    holds = any(_SHARING in text for text in refused)
    yield judged(what, "; ".join(refused), "refused", holds)
    taken = _chosen(["GPU-0", "GPU-1"])
    what = "two ranks that see 2 GPUs by their lists"
    yield judged(what, "; ".join(taken), "one each", taken == ["0", "1"])
    if device == "cuda":
        yield _two_ranks()


def _chosen(uuids: list[str]) -> list[str]:
    """Which GPU each of two ranks takes, or why it takes none."""
    found = []
    for rank in range(2):
        world = World(rank, ("n1", "n1"), Alone())
        try:
            found.append(", ".join(map(str, gpu_indices(world, [uuids, uuids]))))
        except DeviceError as error:
            found.append(str(error))
    return found


def _two_ranks() -> Finding:
    what = "a sweep of two ranks that see one card"
    # As the local engine looks for it: beside this Python, then on the PATH.
    if not (Path(sys.executable).with_name("mpiexec").exists() or shutil.which("mpiexec")):
        return skipped(what, "no mpiexec beside this Python or on the PATH")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    started = time.monotonic()
    row = _run("cuda", {"CUDA_VISIBLE_DEVICES": first, "DLPERF_MPI": ""}, topology="1n2g")
    seconds = time.monotonic() - started
    value = f"{row['status']} after {seconds:.0f} s: {row['reason']}"[:300]
    holds = row["status"] == "failed" and _SHARING in row["reason"] and seconds < _SHARING_S
    return judged(what, value, f"failed within {_SHARING_S:.0f} s, saying why", holds)
