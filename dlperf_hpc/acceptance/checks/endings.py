"""Runs that raise, are killed, hang or run out of memory end as what they are; the next is ok."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dlperf_hpc.acceptance.checks.commands import dlperf, spec
from dlperf_hpc.acceptance.finding import Finding, judged

_DRILLS = {"raise": "failed", "oom": "out_of_memory", "kill": "failed", "hang": "failed"}
_TOO_LARGE = 1 << 22
_HANG_S = 20


def run(device: str) -> Iterator[Finding]:
    """Each drill as a sweep of one run; on a card also a batch that no card holds."""
    drills = _DRILLS if device == "cuda" else {"kill": "failed"}
    for kind, status in drills.items():
        yield _ended(kind, device, status, {"DLPERF_FAULT": f"{kind}@0"})
    if device == "cuda":
        yield _ended("batch too large", device, "out_of_memory", {}, batch_size=_TOO_LARGE)
    yield _ended("none, after these", device, "ok", {})


def _ended(
    what: str, device: str, status: str, env: dict[str, str], batch_size: int = 4
) -> Finding:
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        path = spec(here, "ending", 'model = "bert-tiny"', device, _HANG_S)
        more = ["--set", f"batch_size={batch_size}"]
        words = ["sweep", path, "--logs", here / "logs", "--no-check", *more]
        dlperf(words, here, {"DLPERF_FAULT": "", **env})
        told = dlperf(["status", here / "logs" / "ending", "--json"], here).stdout
        (row,) = json.loads(told)["runs"]
    value = f"{row['status']}: {row['reason']}"[:200]
    return judged(what, value, status, row["status"] == status)
