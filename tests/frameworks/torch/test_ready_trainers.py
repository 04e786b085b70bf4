"""The ready programs of trainers, around scripts as their own pages have them."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from ready_programs import PROGRAMS, smallest
from sweeping import Workplace, local_environment


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "library", "script"),
    [
        ("hf_trainer", "transformers", "hf_trainer.py"),
        ("hf_trainer_accelerate", "accelerate", "hf_trainer.py"),
        ("lightning", "lightning", "lightning_fit.py"),
    ],
)
def test_a_trainer_runs_twice_in_one_directory(
    tmp_path: Path, name: str, library: str, script: str
) -> None:
    """LightningCLI does not write over the config.yaml that the run before has left."""
    pytest.importorskip(library)
    place = Workplace(tmp_path, {**local_environment(), "GLOO_SOCKET_IFNAME": "lo"})
    shutil.copy(PROGRAMS / script, tmp_path / script)
    spec = place.write("fit.toml", smallest(name, "1n2g", f'script = "{script}"'))
    done = place.verb("sweep", spec, "--cluster", "local", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(place.directory("fit") / "report" / "runs.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert all(float(row["samples_per_s"]) > 0 for row in rows)
