"""The acceptance pack of a GPU node, rehearsed on this machine's CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc.acceptance.pack import CHECKS


@pytest.mark.timeout(900)  # of a machine that has much else to do
def test_the_pack_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dlperf_hpc.acceptance", "--device", "cpu", "--out"]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "acceptance.json").read_text())
    assert written["ok"]
    assert {row["check"] for row in written["rows"]} == {check.name for check in CHECKS}
    assert not [row for row in written["rows"] if row["what"].startswith("not ")]
    assert sum(row["verdict"] == "ok" for row in written["rows"]) >= 15
