"""What Slurm's commands tell of submit limits and of GPUs, on sites that are not at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlperf_hpc.engines.base import run
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm import remedies
from dlperf_hpc.engines.slurm.remedies import other_gpus, submit_remedy
from dlperf_hpc.errors import SiteError

# As sacctmgr --noheader --parsable2 prints a limit of qualities of service, and of associations.
QOS = "normal| long|30 debug|5 closed|0 gpu|4"
ASSOCIATIONS = "thesis|40 thesis| course|7"
COMMANDS = {
    "sacctmgr": f"""case "$*" in *qos*) rows='{QOS}' ;; *) rows='{ASSOCIATIONS}' ;; esac
for row in $rows; do echo "$row"; done""",
    "scontrol": "case $3 in gpu) echo '   AllocNodes=ALL QoS=gpu' ;; *) echo QoS=N/A ;; esac",
    "sinfo": "echo gpu:a100:4,gpu:v100:2\necho gpu:8",
    "squeue": "exit 1",
}
PER_USER = "sbatch: error: QOSMaxSubmitJobPerUserLimit"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that begins with a directory of Slurm's commands, as such a site would have them."""
    for name, text in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    remedies._value.cache_clear()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "site", "to_do"),
    [
        (PER_USER, Site(qos="debug", partition="main"), "set max_submit = 5 in the site profile: "),
        (PER_USER, Site(qos="normal", partition="gpu"), "set max_submit = 4 in the site profile: "),
        (PER_USER, Site(qos="closed", partition="main"), "no job is taken: set another qos or"),
        (PER_USER, Site(), "set max_submit = N in the site profile, N being what `sacctmgr show"),
        ("AssocMaxSubmitJobLimit", Site(account="thesis"), "set max_submit = 40 in the site"),
        ("AssocMaxSubmitJobLimit", Site(), "set max_submit = N in the site profile, N being"),
    ],
)
def test_the_limit_that_sbatch_names(slurm: Path, words: str, site: Site, to_do: str) -> None:
    """A value is told only where it can be no other's."""
    assert submit_remedy(words, site).startswith(to_do)


def test_words_that_name_no_limit_of_the_users(slurm: Path) -> None:
    full = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    for words in (full, "sbatch: error: invalid partition specified: x"):
        assert submit_remedy(words, Site()) == ""


def test_types_of_gpus_are_named_where_the_profile_has_none_of_them(slurm: Path) -> None:
    assert other_gpus(Site()).startswith(
        'set in the site profile gpu_type to a100 or v100, or gpus to "gres", or gpus to "none"'
    )
    assert "gpu_type" not in other_gpus(Site(gpu_type="v100"))
    assert '"gres"' not in other_gpus(Site(gpu_type="h100", gpus="gres"))


def test_commands_that_are_absent_or_may_not_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    remedies._value.cache_clear()
    assert "sacctmgr show qos" in submit_remedy(PER_USER, Site()) and "gpus to" in other_gpus(
        Site()
    )
    (tmp_path / "sinfo").write_text("no program")
    (tmp_path / "sinfo").chmod(0o755)
    with pytest.raises(SiteError, match="sinfo: cannot be run: Exec format error"):
        run(["sinfo"])
