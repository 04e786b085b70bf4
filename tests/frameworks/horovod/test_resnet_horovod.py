"""ResNet under Horovod for PyTorch, on two ranks under real mpiexec."""

from __future__ import annotations

from pathlib import Path

import pytest
from frameworks import run_checks
from places import SUPPORT


def test_horovods_losses_are_ddps(tmp_path: Path) -> None:
    """Of each rank, which normalises its own images; the weights lie in another order."""
    script = SUPPORT / "resnet_checks.py"
    for found in run_checks("horovod", script, tmp_path, arguments=("horovod",))["horovod"]:
        assert found["horovod"] == pytest.approx(found["ddp"], rel=1e-4)
