"""The published tables' sweeps, with tiny models, by the back end of each on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from frameworks import environments
from places import ROOT
from sweeping import Workplace, local_environment

pytestmark = pytest.mark.timeout(1800)  # of a machine with much else to do
SWEEPS = ROOT / "sweeps"
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
    # As published, without a run on one device.
    "gpt2_optimizer_placement": {"model": "gpt2-tiny", "topologies": "1n2g", "base": "1n2g"},
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
    "gpt2_optimizer_placement": 2,
    "bert_large_lamb_16k": 4,
    "ngc_tf_bert_lamb": 2,
}


@pytest.mark.parametrize("name", EACH)
def test_a_published_tables_sweep_runs_with_the_tiny_model(tmp_path: Path, name: str) -> None:
    place = Workplace(tmp_path, local_environment())
    site = place.write("site.toml", environments())
    framework = {"tf2_bert": "tensorflow", "ngc_tf_bert_lamb": "horovod"}.get(name, "deepspeed")
    environment = "default" if name == "gpt2_optimizer_placement" else framework
    asked = {**TINY, **SEEDS[name], "environment": environment}
    options = [word for key, value in asked.items() for word in ("--set", f"{key}={value}")]
    command = (SWEEPS / f"{name}.toml", "--cluster", "local", "--site", site, *options)
    done = place.verb("sweep", *command, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = place.table(name)
    assert len(rows) == ROWS[name]
    assert all(row["runs_ok"] == "1" and int(row["optimizer_steps"]) >= 1 for row in rows)
