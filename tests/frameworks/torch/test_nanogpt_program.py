"""A ready program around a script that has its options and its lines."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from ready_programs import PROGRAMS, smallest
from sweeping import Workplace, local_environment

from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.logfile import read_log


def test_nanogpts_table(tmp_path: Path) -> None:
    """Two processes and two micro-batches of each, of which nanoGPT counts four."""
    place = Workplace(tmp_path, {**local_environment(), "GLOO_SOCKET_IFNAME": "lo"})
    for name in ("steps.py", "tiny_gpt.py"):
        shutil.copy(PROGRAMS / name, tmp_path / name)
    shutil.copy(PROGRAMS / "nanogpt_like.py", tmp_path / "train.py")
    spec = place.write("gpt.toml", smallest("nanogpt", "1n2g", "seq_len = 16\naccumulation = 2"))
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    with open(place.directory("gpt") / "report" / "runs.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # Where its lines came in bunches, the milliseconds that it prints are the better clock.
    factors = {"arrival": "16.0", "printed": "16000.0"}
    found = [(row["format"], row["factor"]) for row in rows]
    assert found == [("nanogpt", factors[row["basis"]]) for row in rows]
    assert all(float(row["samples_per_s"]) > 0 for row in rows)
    by_arrival = [row for row in rows if row["basis"] == "arrival"]
    assert all(float(row["check_samples_per_s"]) > 0 for row in by_arrival)
    result, _ = full_results(place.directory("gpt")).results
    tables = read_log(Path(result.log)).tables
    assert "--gradient_accumulation_steps=4" in tables["program"]["argv"]
    assert tables["program_end"]["ended"] == "by us after the window"
