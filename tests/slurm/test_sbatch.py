"""How the real sbatch reads the scripts: only its client is needed, no cluster."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from script_samples import (
    ENCLOSING_JOB,
    HOSTILE,
    array_of,
    as_sbatch_reads,
    as_sbatch_unquotes,
    script_of,
    site_of,
)

from dlperf_hpc.engines.base import clean_environment
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm.script import batch_script

WHOLE = """
partition = "gpu"
account = "it's"
qos = 'a\\b"c"'
constraint = "a100&[ib|eth]#x"
reservation = "résumé_日本"
exclude = "n[1-3],n5"
gpus = "gres"
gpu_type = "a100"
cpus_per_task = 12
mem_per_cpu = "3800M"
ntasks = true
export = "ALL,A=1"
requeue = 2
sbatch = { mail-user = "a b; $(c) `d` # e", licenses = "m:1", hold = true }
"""


def test_sbatch_itself_reads_every_option_as_it_was_meant(tmp_path: Path) -> None:
    read = as_sbatch_reads(script_of(tmp_path, site_of(tmp_path, WHOLE)), tmp_path)
    texts = {
        "account": "it's",
        "constraint": "a100&[ib|eth]#x",
        "exclude": "n[1-3],n5",
        "export": "ALL,A=1",
        "job-name": "2n4g.sample",
        "licenses": "m:1",
        "mail-user": "a b; $(c) `d` # e",
        "output": f"{tmp_path}/logs/jobs/%A_%a.out",
        "partition": "gpu",
        "qos": 'a\\b"c"',
        "reservation": "résumé_日本",
    }
    assert {name: read[name] for name in texts} == texts
    assert (read["nodes"], read["ntasks"], read["ntasks-per-node"]) == ("2", "8", "4")
    assert {"gres", "mem-per-cpu", "cpus-per-task", "requeue", "hold", "exclusive"} <= read.keys()


def test_the_real_sbatch_is_not_led_astray(tmp_path: Path) -> None:
    site = Site(partition="mine", requeue=1)
    script = script_of(tmp_path, site)
    led = as_sbatch_reads(script, tmp_path, {**os.environ, **ENCLOSING_JOB})
    assert led["partition"] == "evil"  # it would be: the environment goes before the script
    read = as_sbatch_reads(script, tmp_path, clean_environment({**os.environ, **ENCLOSING_JOB}))
    plain = as_sbatch_reads(script, tmp_path, clean_environment())
    assert read == plain and (read["partition"], read["export"]) == ("mine", "ALL")


@settings(max_examples=60)
@given(texts=st.lists(HOSTILE, min_size=3, max_size=3))
def test_sbatch_itself_reads_values_as_they_were_meant(tmp_path: Path, texts: list[str]) -> None:
    """... and our idea of its reader, which needs no sbatch, reads the same."""
    keys = ("mail-user", "hint", "licenses")
    wanted = {key: text for key, text in zip(keys, texts) if text.isprintable()}
    site = Site(sbatch=wanted)
    script = batch_script(tmp_path / "logs", array_of(tmp_path, site), site)
    wanted.pop("hint", None)  # sbatch knows its values and refuses others
    read = as_sbatch_reads(script.replace("#SBATCH --hint=", "# "), tmp_path, _environment())
    assert {key: read.get(key, "") for key in wanted} == wanted
    lines = [line.removeprefix("#SBATCH ") for line in script.split("\n")]
    unquoted = {as_sbatch_unquotes(line) for line in lines if line.startswith("--")}
    assert {f"--{key}={text}" for key, text in wanted.items()} <= unquoted


def _environment() -> dict[str, str]:
    return {**clean_environment(os.environ), "LC_ALL": "C"}
