"""One sweep, every back end: the same models, data and timer, on this machine and on real Slurm."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures_slurm import Onebox
from frameworks import framework_python
from places import ROOT
from sweeping import Workplace, local_environment

from dlperf_hpc.analysis.flops import flops_of_case
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.record import read_record

pytestmark = pytest.mark.timeout(1800)  # of a machine with much else to do
SWEEPS = ROOT / "sweeps"
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
# What makes a published table's sweep a matter of seconds on two ranks of a CPU.
TINY = {
    "topologies": "1n1g,1n2g",
    "base": "1n1g",
    "repeats": "1",
    "seq_len": "16",
    "batch_size": "2",
    "precision": "fp32",
    "measure.warmup": "2",
    "measure.iterations": "4",
}
SEEDS = {
    "bert_fp32": {"model": "bert-tiny"},
    "bert_fp16": {"model": "bert-tiny"},
    "tf2_bert": {"model": "bert-tiny"},
    "gpt2_optimizer_placement": {"model": "gpt2-tiny"},
    "bert_large_lamb_16k": {"model": "bert-tiny", "global_batch": "8"},
    "ngc_tf_bert_lamb": {"model": "bert-tiny", "global_batch": "8"},
}
# One for each environment stands for the others, of which tests/unit makes dry runs.
USUAL = {"bert_fp32", "tf2_bert", "gpt2_optimizer_placement", "ngc_tf_bert_lamb"}
EACH = [pytest.param(name, marks=[] if name in USUAL else pytest.mark.long) for name in SEEDS]
ROWS = {
    "bert_fp32": 2,
    "bert_fp16": 2,
    "tf2_bert": 4,
    "gpt2_optimizer_placement": 4,
    "bert_large_lamb_16k": 4,
    "ngc_tf_bert_lamb": 2,
}


def _site(place: Workplace, top: str = "") -> Path:
    tables = [
        f'[environment.{name}]\npython = "{framework_python(name)}"\nmpi = "pmi2"\n'
        f'env = {{ GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self", TF_CPP_MIN_LOG_LEVEL = "2" }}\n'
        for name in ("deepspeed", "tensorflow", "horovod")
    ]
    default = '[environment.default]\nmpi = "pmi2"\n'
    default += 'env = { GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self" }\n'
    return place.write("site.toml", "\n".join([top, default, *tables]))


def _spec(
    place: Workplace, name: str, topologies: list[str], options: str = "", iterations: int = 4
) -> Path:
    """A tiny sweep over every back end, with a checkpoint; ``options`` go into [case]."""
    spec = place.tiny(name, topologies, more=EVERY)
    text = spec.read_text().replace('framework = "ddp"\n', options)
    text = text.replace("iterations = 6", f"iterations = {iterations}\ncheckpoint = true")
    spec.write_text(text)
    return spec


def _all_rows(place: Workplace, name: str, topologies: list[str], steps: int = 4) -> None:
    """Every back end has every row, and they measured the same thing."""
    rows = {(row["framework"], row["topology"]): row for row in place.table(name)}
    assert set(rows) == {(f, topology) for f in ENVIRONMENTS for topology in topologies}
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
        assert row["optimizer_steps"] == str(steps) and row["skipped_steps"] == "0"
        assert all(float(row[f"checkpoint_{name}"]) > 0 for name in CHECKPOINT)
    for topology in topologies:
        assert len({rows[f, topology]["global_batch"] for f in ENVIRONMENTS}) == 1
    told = [result.window.loss_first for result in results if result.window]
    losses = [loss for loss in told if loss is not None]
    assert len(losses) == len(results) and max(losses) - min(losses) < 0.5


def test_every_back_end_has_every_row_and_on_four_ranks_the_same_curve(tmp_path: Path) -> None:
    """Equal weights and data; 50 steps of AdamW in fp32, without dropout, which the other sweeps
    here have: the back ends agree to 1e-3 at every step."""
    place = Workplace(tmp_path, local_environment())
    weights = tmp_path / "weights.npz"
    make = [sys.executable, "-m", "dlperf_hpc.train.make_weights", "bert-tiny", str(weights)]
    subprocess.run(make, env=dict(place.env), check=True, timeout=120)
    options = f'initial_weights = "{weights}"\ndropout = 0.0\n'
    topologies = ["1n4g"]
    spec = _spec(place, "curves", topologies, options, iterations=48)
    done = place.verb("sweep", spec, "--cluster", "local", "--site", _site(place), timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    _all_rows(place, "curves", topologies, steps=48)
    curves = {}
    for result in full_results(place.directory("curves")).results:
        record = read_record(RunPaths(place.directory("curves"), result.run.id).record)
        assert record is not None, result.reason
        curves[result.run.case.framework] = record["detail"]["loss"]
    assert set(curves) == set(ENVIRONMENTS)
    reference = curves.pop("ddp")
    assert len(reference) == 48 and reference[-1] < reference[0] - 0.1
    for framework, curve in curves.items():
        assert curve == pytest.approx(reference, rel=1e-3), framework


def test_every_back_end_under_srun_on_two_nodes(tmp_path: Path, onebox: Onebox) -> None:
    place = Workplace(tmp_path, onebox.env)
    site = _site(
        place, 'partition = "main"\nexclusive = false\npoll_s = 1.0\narray_parallelism = 1'
    )
    spec = _spec(place, "wide", ["2n2g"])
    spec.write_text(spec.read_text().replace("bert-tiny", "gpt2-tiny"))
    done = place.verb("sweep", spec, "--site", site, "--wait", timeout=280)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    _all_rows(place, "wide", ["2n2g"])


@pytest.mark.parametrize("name", EACH)
def test_a_published_tables_sweep_runs_with_the_tiny_model(tmp_path: Path, name: str) -> None:
    place = Workplace(tmp_path, local_environment())
    framework = {"tf2_bert": "tensorflow", "ngc_tf_bert_lamb": "horovod"}.get(name, "deepspeed")
    environment = "default" if name == "gpt2_optimizer_placement" else framework
    asked = {**TINY, **SEEDS[name], "environment": environment}
    options = [word for key, value in asked.items() for word in ("--set", f"{key}={value}")]
    command = (SWEEPS / f"{name}.toml", "--cluster", "local", "--site", _site(place), *options)
    done = place.verb("sweep", *command, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = place.table(name)
    assert len(rows) == ROWS[name]
    assert all(row["runs_ok"] == "1" and int(row["optimizer_steps"]) >= 1 for row in rows)
