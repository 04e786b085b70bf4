"""How many modules of the package verbs load, in all their processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_NOTE = """\
import atexit, os, sys

def note():
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "dlperf_hpc")
    with open(os.path.join(os.environ["LOADED"], str(os.getpid())), "w") as out:
        out.write("\\n".join(loaded))

atexit.register(note)
"""
_SWEEP = """\
cluster = "local"
topologies = ["1n1g"]
repeats = 1
[case]
framework = "ddp"
model = "bert-tiny"
precision = "fp32"
batch_size = 2
[measure]
warmup = 1
iterations = 3
"""
_SETTINGS = "batch_size = 12\nblock_size = 1024\ntokens per iteration will be: 12,288\n"
_LOG = _SETTINGS + "".join(
    f"iter {n}: loss {9 - n / 100:.4f}, time {100 + n % 3}.25ms, mfu 12.30%\n" for n in range(200)
)


def _loads(place: Path, *arguments: str) -> int:
    """How many of the package's modules a verb and the processes that it starts load, together."""
    noted = Path(tempfile.mkdtemp(dir=place))
    (noted / "sitecustomize.py").write_text(_NOTE, encoding="utf-8")
    loaded = noted / "loaded"
    loaded.mkdir()
    env = {**os.environ, "PYTHONPATH": str(noted), "LOADED": str(loaded), "DLPERF_MPI": "none"}
    env.update(XDG_CACHE_HOME=str(place / "cache"), OMP_NUM_THREADS="1")
    argv = [sys.executable, "-m", "dlperf_hpc", *arguments]
    done = subprocess.run(argv, cwd=place, env=env, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
    return len({name for path in loaded.iterdir() for name in path.read_text().splitlines()})


def measure_loaded() -> dict[str, float]:
    """The numbers of modules that are loaded, by their names in ``metrics.toml``."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "sweep.toml").write_text(_SWEEP, encoding="utf-8")
        (place / "1n1g").mkdir()
        (place / "1n1g" / "nanogpt.log").write_text(_LOG, encoding="utf-8")
        return {
            "loaded_by_sweep": _loads(place, "sweep", "sweep.toml", "--name", "one"),
            "loaded_by_report": _loads(place, "report", "logs/one"),
            "loaded_by_log": _loads(place, "report", "1n1g/nanogpt.log", "--out", "table"),
        }
