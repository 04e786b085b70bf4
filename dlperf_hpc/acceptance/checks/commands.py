"""Running the package's own commands, and a checkout's benchmarks, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dlperf_hpc

BENCHMARKS = Path(dlperf_hpc.__file__).parents[1] / "benchmarks"
"""Beside the package in a checkout; a wheel has none."""

SPEC = """\
cluster = "local"
topologies = ["1n1g"]
repeats = 1
time_limit = "00:10:00"
[case]
framework = "ddp"
device = "{device}"
batch_size = 4
{case}
[limits]
iteration_s = {iteration_s}
[measure]
warmup = 4
iterations = 20
"""


def spec(directory: Path, name: str, case: str, device: str, iteration_s: int = 60) -> Path:
    """A sweep file for this machine; ``case`` are the lines that end its ``[case]``."""
    path = directory / f"{name}.toml"
    path.write_text(SPEC.format(device=device, case=case, iteration_s=iteration_s))
    return path


def dlperf(
    words: Sequence[object], cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``dlperf WORDS`` by this Python; what it prints is caught."""
    command = [sys.executable, "-m", "dlperf_hpc", *map(str, words)]
    return _run(command, cwd, {**os.environ, **(env or {})})


def report(root: Path) -> dict[str, Any]:
    """What ``dlperf report --json`` says of a sweep's directory."""
    told: dict[str, Any] = json.loads(dlperf(["report", root, "--json"], root.parent).stdout)
    return told


def benchmark(name: str, *words: object) -> Any | None:
    """What a benchmark prints as JSON; None without a checkout. RuntimeError if it fails."""
    program = BENCHMARKS / name
    if not program.is_file():
        return None
    done = _run([sys.executable, str(program), *map(str, words), "--json"], BENCHMARKS, None)
    if done.returncode:
        raise RuntimeError(f"{name}: exit code {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _run(
    command: list[str], cwd: Path, env: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
