"""What Slurm's commands tell of submit limits and of GPUs, on sites that are not at hand."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from dlperf_hpc.engines.base import run
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm.remedies import other_gpus, submit_check, submit_limits, submit_remedy
from dlperf_hpc.errors import SiteError

# As sacctmgr --noheader --parsable2 prints associations, and qualities of service.
USER = """\
thesis|here|thesis||normal,long|long|40
thesis|here|thesis|debug|debug||2
thesis|here|course||course||
thesis|there|thesis||normal||1
"""
QOS = """\
normal|||
long|100||30
debug|5||
course|7|6|
gpu|4||
"""
COMMANDS = {
    "sacctmgr": f"case \"$*\" in *qos*) cat <<'E'\n{QOS}E\n;; *) cat <<'E'\n{USER}E\n;; esac",
    "scontrol": "case $3 in gpu) echo '   AllocNodes=ALL QoS=gpu' ;; *) echo QoS=N/A ;; esac",
    "sinfo": "echo gpu:a100:4,gpu:v100:2\necho gpu:8",
}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that begins with a directory of Slurm's commands, as such a site would have them."""
    for name, text in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


@pytest.mark.parametrize(
    ("site", "found"),
    [
        (Site(), ["30 QOS long", "40 account thesis", "100 QOS long"]),
        (Site(qos="debug"), ["5 QOS debug", "40 account thesis"]),
        (Site(account="course"), ["6 QOS course", "7 QOS course"]),
        (Site(account="course", partition="gpu"), ["4 QOS gpu", "6 QOS course", "7 QOS course"]),
        (Site(partition="debug", qos="normal"), ["2 account thesis", "40 account thesis"]),
        (Site(account="nobody"), []),
    ],
)
def test_the_limits_that_a_profile_meets(slurm: Path, site: Site, found: list[str]) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    limits = submit_limits(site, "here")
    assert [
        f"{limit.most} {limit.holder}".replace(f", user {user}", "") for limit in limits
    ] == found


def test_another_cluster_of_the_same_database_does_not_count(slurm: Path) -> None:
    assert submit_limits(Site(qos="normal"), "there")[0].most == 1
    assert submit_limits(Site(qos="normal"), "here")[0].most == 40


def test_a_user_for_whom_the_machine_has_no_name(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, or while the directory service is away."""
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert submit_limits(Site(qos="debug"), "here")[1].holder == "account thesis, user 2147483641"


def test_a_profile_that_keeps_to_the_limit_is_well(slurm: Path) -> None:
    limits = submit_limits(Site(), "here")
    assert submit_check(limits, [], Site(max_submit=30)).grade == "ok"
    loose = submit_check(limits, [], Site(max_submit=31))
    assert loose.grade == "warn" and "set max_submit = 30" in loose.to_do
    assert "QOSGrpSubmitJobsLimit = 30 (QOS long)" in loose.seen
    assert "sacctmgr show qos" in submit_remedy([])


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
    assert submit_limits(Site()) == [] and "gpus to" in other_gpus(Site())
    (tmp_path / "sinfo").write_text("no program")
    (tmp_path / "sinfo").chmod(0o755)
    with pytest.raises(SiteError, match="sinfo: cannot be run: Exec format error"):
        run(["sinfo"])
