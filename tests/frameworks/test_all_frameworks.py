"""One sweep, every back end: the same model, data and timer, on two nodes of a real Slurm."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures_slurm import Onebox
from frameworks import environments
from places import BUSY
from sweeping import Workplace

from dlperf_hpc.analysis.flops import flops_of_case
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.record import read_record

pytestmark = pytest.mark.timeout(1800)  # of a machine with much else to do
SITE = 'partition = "main"\nexclusive = false\npoll_s = 1.0\narray_parallelism = 1\n'
TOPOLOGY = "2n2g"
ENVIRONMENTS = {
    "ddp": "default",
    "fsdp": "default",
    "deepspeed": "deepspeed",
    "tensorflow": "tensorflow",
    "horovod-torch": "horovod",
    "horovod-tensorflow": "horovod",
}
NAMES = {
    "ddp": "PyTorch",
    "fsdp": "PyTorch",
    "deepspeed": "DeepSpeed",
    "tensorflow": "TensorFlow",
    "horovod-torch": "Horovod",
    "horovod-tensorflow": "Horovod",
}
CHECKPOINT = ("save_s", "load_s", "mb_per_rank", "save_mb_s", "load_mb_s")
# The same initial loss tells that it is the same model on the same data: equal seeds do not give
# equal weights in two libraries, but a fresh model guesses all tokens alike.
EVERY = f"""
[zip]
framework = {list(ENVIRONMENTS)}
environment = {list(ENVIRONMENTS.values())}
""".replace("[zip]", "[[zip]]")


def _spec(place: Workplace, weights: Path, steps: int) -> Path:
    """A tiny sweep over every back end, which all begin with these weights, with a checkpoint."""
    # A checkpoint is not tried with the time limit near, which a busy machine would come to.
    text = place.tiny("curves", [TOPOLOGY], time_limit="00:20:00", more=EVERY).read_text()
    options = f'initial_weights = "{weights}"\ndropout = 0.0\n'
    text = text.replace('framework = "ddp"\n', options).replace("bert-tiny", "gpt2-tiny")
    text = text.replace("iterations = 6", f"iterations = {steps}\ncheckpoint = true")
    return place.write("curves.toml", text)


def _why(place: Workplace) -> list[str]:
    """What the runs' logs say of their checkpoints."""
    logs = place.directory("curves").rglob("*.log")
    lines = [line for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "checkpoint" in line]


def _all_rows(place: Workplace, name: str, steps: int) -> None:
    """Every back end has every row, and they measured the same thing."""
    rows = {row["framework"]: row for row in place.table(name)}
    assert set(rows) == set(ENVIRONMENTS)
    results = full_results(place.directory(name)).results
    assert {result.status for result in results} == {Status.OK}
    assert not list(place.directory(name).rglob("*.checkpoint*"))
    for result in results:
        world = result.facts["world"]
        assert world["framework_name"] == NAMES[result.run.case.framework]
        assert re.match(r"\d+\.\d+", world["framework_version"])
        assert isinstance(result.run.case, Case)
        assert world["flops_per_sample"] == flops_of_case(result.run.case)
    for row in rows.values():
        assert float(row["samples_per_s"]) > 0 and row["runs_ok"] == "1"
        assert row["topology"] == TOPOLOGY
        assert row["optimizer_steps"] == str(steps) and row["skipped_steps"] == "0"
        assert all(float(row[f"checkpoint_{name}"] or 0) > 0 for name in CHECKPOINT), _why(place)
    assert len({row["global_batch"] for row in rows.values()}) == 1
    told = [result.window.loss_first for result in results if result.window]
    losses = [loss for loss in told if loss is not None]
    assert len(losses) == len(results) and max(losses) - min(losses) < 0.5


# A window of 48 steps is most of the time, and tells no more of the code than the first 16.
@pytest.mark.parametrize("steps", [16, pytest.param(48, marks=pytest.mark.long)])
def test_every_back_end_on_four_ranks_of_two_nodes_has_every_row_and_the_same_curve(
    tmp_path: Path, onebox: Onebox, steps: int
) -> None:
    """Equal weights and data; steps of AdamW in fp32, without dropout, which the other sweeps of
    back ends have: they agree to 1e-4 at every step."""
    place = Workplace(tmp_path, onebox.env)
    weights = tmp_path / "weights.npz"
    make = [sys.executable, "-m", "dlperf_hpc.train.make_weights", "gpt2-tiny", str(weights)]
    subprocess.run(make, env=dict(place.env), check=True, timeout=120 * BUSY)
    site = place.write("site.toml", SITE + environments())
    done = place.verb("sweep", _spec(place, weights, steps), "--site", site, "--wait", timeout=880)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    _all_rows(place, "curves", steps)
    curves = {}
    for result in full_results(place.directory("curves")).results:
        record = read_record(RunPaths(place.directory("curves"), result.run.id).record)
        assert record is not None, result.reason
        curves[result.run.case.framework] = record["detail"]["loss"]
    assert set(curves) == set(ENVIRONMENTS)
    reference = curves.pop("ddp")
    assert len(reference) == steps and reference[-1] < reference[0] - 1
    for framework, curve in curves.items():
        assert curve == pytest.approx(reference, rel=1e-4), framework
