"""Apptainer for real: ranks of a sweep, each in a container, under srun of a real Slurm.

The image is a directory of links; the machine's own /usr and Python are bound into it, the Python
under a name that exists in the container alone. What is tried is the way in: srun, Apptainer
without setuid, MPI's start through PMI-2, mounts, variables, and ranks that find each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures_slurm import ONEBOX
from places import ROOT
from sweeping import Workplace

from dlperf_hpc.model.result import Status

APPTAINER = ROOT / ".envs" / "apptainer" / "root" / "usr" / "bin" / "apptainer"
INSIDE = "/inside"
# Apptainer refuses root with fewer capabilities than all; under this it is some user's.
_SOME_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    assert APPTAINER.is_file(), "there is no Apptainer to try: make containers"
    assert not Path(INSIDE).exists()
    image = tmp_path / "image"
    for folder in ("usr", "etc", "dev", "proc", "sys", "tmp", "root", "home", "var/tmp"):
        (image / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (image / name).symlink_to(f"usr/{name}")
    # A variable of the image itself, with which ranks would not find each other; and the file that
    # images have, behind which Apptainer puts the user's variables.
    variables = image / ".singularity.d" / "env"
    variables.mkdir(parents=True)
    (variables / "90-environment.sh").write_text("export GLOO_SOCKET_IFNAME=none0\n")
    (variables / "99-base.sh").touch()
    for file in ("passwd", "group"):
        (image / "etc" / file).touch()
    path = f"{APPTAINER.parent}{os.pathsep}{os.environ['PATH']}"
    return Workplace(tmp_path, {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"})


def site(place: Workplace, *options: str) -> Path:
    binds = ["/usr", sys.base_prefix, str(ROOT), f"{sys.prefix}:{INSIDE}"]
    return place.write(
        "site.toml",
        f"""\
        partition = "main"
        exclusive = false
        poll_s = 1.0
        [environment.default]
        python = "{INSIDE}/bin/python"
        apptainer = {{ image = "{place.root}/image", binds = {binds}, options = {list(options)} }}
        [environment.default.env]
        GLOO_SOCKET_IFNAME = "lo"
        UCX_TLS = "tcp,self"
        LD_LIBRARY_PATH = "{INSIDE}/lib"
        """,
    )


def on_a_cluster(place: Workplace, line: str) -> subprocess.CompletedProcess[str]:
    """A shell's line on a one-machine Slurm of its own, which belongs to the same user."""
    dlperf = f'dlperf() {{ {sys.executable} -m dlperf_hpc "$@"; }}; '
    argv = [*_SOME_USER, sys.executable, str(ONEBOX), "run", "--", "sh", "-c", dlperf + line]
    return subprocess.run(
        argv, cwd=place.root, env=place.env, capture_output=True, text=True, timeout=240
    )


def test_ranks_on_one_node_and_on_two(place: Workplace) -> None:
    spec = place.tiny("boxed", ["1n1g", "1n2g", "2n1g"])
    sweep = f"dlperf sweep {spec} --site {site(place, '--sharens')} --wait"
    done = on_a_cluster(place, sweep)
    assert done.returncode == 0, done.stdout + done.stderr
    results = place.results("boxed")
    assert {shape: result.status for shape, result in results.items()} == dict.fromkeys(
        ("1n1g", "1n2g", "2n1g"), Status.OK
    )


def test_doctor_says_why_ranks_of_one_node_do_not_reach_each_other(place: Workplace) -> None:
    spec = place.tiny("apart", ["1n2g"])
    done = on_a_cluster(place, f"dlperf doctor {spec} --site {site(place)}")
    assert done.returncode == 1, done.stdout + done.stderr
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert told.startswith("FAIL     mpi: ") and 'options = ["--sharens"]' in told
