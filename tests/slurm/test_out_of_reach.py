"""Slurm's own commands on a machine that has them, and no cluster that they could reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import BUSY
from spec_samples import write

CLOSED = """\
ClusterName=away
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
AuthType=auth/none
CredType=cred/none
GresTypes=gpu
MessageTimeout=2
"""
UNREACHED = "Slurm's controller cannot be reached from this machine"


def typed(place: Path, *arguments: str, conf: str) -> subprocess.CompletedProcess[str]:
    """A verb of somebody whose Slurm is configured by ``conf``, or not at all."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    if conf:
        (place / "slurm.conf").write_text(conf)
        env["SLURM_CONF"] = str(place / "slurm.conf")
    argv = [sys.executable, "-m", "dlperf_hpc", *arguments]
    return subprocess.run(
        argv, cwd=place, env=env, text=True, capture_output=True, timeout=120 * BUSY
    )


@pytest.mark.parametrize(
    ("conf", "words", "to_do"),
    [
        ("", "DNS SRV lookup failed", "log in to a login node"),
        (CLOSED, "Unable to contact slurm controller", "type the same command again"),
    ],
)
def test_a_sweep_says_what_to_do(tmp_path: Path, conf: str, words: str, to_do: str) -> None:
    spec = write(tmp_path)
    done = typed(tmp_path, "sweep", spec.name, "--cluster", "slurm", conf=conf)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert words in done.stderr and UNREACHED in done.stderr
    assert to_do in done.stderr and "--cluster local" in done.stderr
