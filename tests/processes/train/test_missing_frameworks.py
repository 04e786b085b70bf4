"""A back end whose framework is not installed says which command mends that."""

from __future__ import annotations

import subprocess
import sys

import pytest

_OPEN = """
import sys
for name in ("torch", "tensorflow"):
    sys.modules[name] = None  # as if it were not installed
from dlperf_hpc.train.registry import registry
try:
    registry().backends[sys.argv[1]].open_session(None, None, None)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("backend", "mends"),
    [
        ("ddp", f"{sys.executable} -m pip install torch numpy"),
        ("fsdp", "python -m pip install 'torch>=2.6' numpy"),
        ("deepspeed", f"{sys.executable} -m pip install torch numpy"),
        ("tensorflow", "dlperf env make tensorflow"),
        ("horovod-torch", "dlperf env make horovod"),
        ("horovod-tensorflow", "dlperf env make horovod"),
    ],
)
def test_the_command_that_mends_it(backend: str, mends: str) -> None:
    argv = [sys.executable, "-c", _OPEN, backend]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("RunError: ") and "cannot be imported by" in done.stdout
    assert mends in done.stdout and "environment = ..." in done.stdout
