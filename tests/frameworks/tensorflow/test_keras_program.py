"""Keras' ``fit`` as a program of a sweep, by its ready table."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from frameworks import framework_python
from ready_programs import PROGRAMS, smallest
from sweeping import Workplace, local_environment


def test_fit_is_timed_from_epoch_to_epoch(tmp_path: Path) -> None:
    place = Workplace(tmp_path, local_environment())
    shutil.copy(PROGRAMS / "keras_fit.py", tmp_path / "keras_fit.py")
    python = framework_python("tensorflow")
    site = place.write("here.toml", f'[environment.default]\npython = "{python}"\n')
    text = smallest("keras", "1n1g", 'script = "keras_fit.py"')
    # An epoch has 20 steps: the window lies between the ends of the first and of the second.
    spec = place.write("fit.toml", text.replace("warmup = 3", "warmup = 20"))
    done = place.verb("sweep", spec, "--site", site, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    with open(place.directory("fit") / "report" / "runs.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["status"], row["format"]) for row in rows] == [("ok", "keras")] * 2
    assert all(float(row["samples_per_s"]) > 0 and row["factor"] == "4.0" for row in rows)
    assert rows[0]["basis"] == "arrival"
