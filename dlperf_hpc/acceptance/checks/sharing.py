"""Two ranks that see one card between them end with a message, at once."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dlperf_hpc.acceptance.checks.commands import dlperf, spec
from dlperf_hpc.acceptance.finding import Finding, judged, skipped
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.train.ranks import Alone, World, gpu_indices

_MOST_S = 60.0
_SAYS = "2 ranks on "


def run(device: str) -> Iterator[Finding]:
    """The choice itself over lists of UUIDs; on a card a sweep of two ranks that see the first."""
    for uuids, refused in ((["GPU-0"], True), (["GPU-0", "GPU-1"], False)):
        told = [_chosen(rank, uuids) for rank in range(2)]
        what = f"two ranks that see {len(uuids)} GPU{'s' * (len(uuids) > 1)} by their lists"
        holds = any(_SAYS in text for text in told) if refused else told == ["0", "1"]
        yield judged(what, "; ".join(told), "refused" if refused else "one each", holds)
    if device == "cuda":
        yield _sweep()


def _chosen(rank: int, uuids: list[str]) -> str:
    world = World(rank, ("n1", "n1"), Alone())
    try:
        return ", ".join(map(str, gpu_indices(world, [uuids, uuids])))
    except DeviceError as error:
        return str(error)


def _sweep() -> Finding:
    what = "a sweep of two ranks that see one card"
    # As the local engine looks for it: beside this Python, then on the PATH.
    if not (Path(sys.executable).with_name("mpiexec").exists() or shutil.which("mpiexec")):
        return skipped(what, "no mpiexec beside this Python or on the PATH")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        path = spec(here, "sharing", 'model = "bert-tiny"', "cuda")
        path.write_text(path.read_text().replace('"1n1g"', '"1n2g"'))
        begun = time.monotonic()
        words = ["sweep", path, "--logs", here / "logs", "--no-check"]
        dlperf(words, here, {"CUDA_VISIBLE_DEVICES": first, "DLPERF_MPI": ""})
        seconds = time.monotonic() - begun
        (row,) = json.loads(dlperf(["status", here / "logs" / "sharing", "--json"], here).stdout)[
            "runs"
        ]
    value = f"{row['status']} after {seconds:.0f} s: {row['reason']}"[:300]
    holds = row["status"] == "failed" and _SAYS in row["reason"] and seconds < _MOST_S
    return judged(what, value, f"failed within {_MOST_S:.0f} s, saying why", holds)
