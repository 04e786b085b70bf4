"""The Pythons of the frameworks that the tests' own Python does not hold, and checks run in them.

``make envs`` builds one for all of them, ``.envs/frameworks``; ``.envs/<name>``, of one framework,
does where that is not. ``DLPERF_ENVS`` names another folder than ``.envs``;
``DLPERF_DEEPSPEED_PYTHON``, ``DLPERF_TENSORFLOW_PYTHON`` and ``DLPERF_HOROVOD_PYTHON`` name other
Pythons. A test that needs one fails without it: a framework that was not tested must not look as if
it had been.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from places import BUSY, ROOT

from dlperf_hpc.engines.base import clean_environment
from dlperf_hpc.engines.local import find_mpiexec

FRAMEWORKS = ("deepspeed", "tensorflow", "horovod")


def framework_python(name: str) -> str:
    """Full path of the Python that has this framework; the test fails if there is none."""
    assert name in FRAMEWORKS, name
    variable = f"DLPERF_{name.upper()}_PYTHON"
    envs = Path(os.environ.get("DLPERF_ENVS") or ROOT / ".envs")
    built = [envs / each / "bin" / "python" for each in ("frameworks", name)]
    places = [Path(os.environ[variable])] if os.environ.get(variable) else built
    for python in places:
        if os.access(python, os.X_OK):
            return os.path.abspath(python)
    pytest.fail(f"{places[-1]} is no Python: run `make env-{name}`, or set {variable}")


def environments() -> str:
    """The tables of a site profile for every back end, on this machine and under srun."""
    env = 'mpi = "pmi2"\nenv = { GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self"'
    tables = [f"[environment.default]\n{env} }}\n"]
    for name in FRAMEWORKS:
        python = f'python = "{framework_python(name)}"'
        quiet = 'TF_CPP_MIN_LOG_LEVEL = "2"'
        tables.append(f"[environment.{name}]\n{python}\n{env}, {quiet} }}\n")
    return "\n".join(tables)


def run_checks(
    name: str,
    script: Path,
    directory: Path,
    ranks: int = 2,
    timeout: float = 280,
    arguments: Sequence[str] = (),
    killed: bool = False,
    **env: str,
) -> dict[str, Any]:
    """``mpiexec -n RANKS PYTHON -m mpi4py SCRIPT RESULTS.json`` in a framework's environment.

    The script writes one JSON object to the file named by its first argument (what a framework
    prints does not get in its way): that object. ``arguments`` follow it, ``env`` are more
    variables. With the name "torch", PYTHON is the tests' own. AssertionError with the end of what
    was printed if it fails, or does not where it is ``killed``; nothing it started outlives the
    call.
    """
    python = sys.executable if name == "torch" else framework_python(name)
    results = directory / f"{'-'.join([script.stem, *arguments[:1]])}-{ranks}.json"
    results.unlink(missing_ok=True)
    mpiexec = find_mpiexec()
    assert mpiexec, "no mpiexec: install the mpich wheel"
    argv = [mpiexec, "-n", str(ranks), python, "-m", "mpi4py"]
    process = subprocess.Popen(
        [*argv, str(script), str(results), *arguments],
        env={**clean_environment(), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=BUSY * timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert bool(process.returncode) == killed and results.exists(), output[-6000:]
    found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    return found
