"""Arrays that a limit keeps back, and submitting that somebody stops: with a Slurm of scripts."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from queueing import printed_by_squeue
from spec_samples import write

from dlperf_hpc.cli import rerun, sweep
from dlperf_hpc.engines.plan import pieces_of
from dlperf_hpc.engines.slurm import remedies
from dlperf_hpc.engines.submit import submit_lock
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import add_array, read_ledger
from dlperf_hpc.records.manifest import Array

# Takes arrays of up to MOST tasks, and numbers them; `$here/befalls` is run before each.
SBATCH = """\
#!/bin/sh
here='{here}'
[ ! -e "$here/befalls" ] || . "$here/befalls"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$2")
if [ "$last" -ge "${{MOST:-3}}" ]; then
    echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2
    echo 'sbatch: error: Batch job submission failed: Job violates policy' >&2
    exit 1
fi
echo x >> "$here/jobs"
wc -l < "$here/jobs"
"""
SITE = "poll_s = 1.0\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a sweep of eight runs, in a cluster with a limit of three."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    remedies._value.cache_clear()
    (tmp_path / "bin").mkdir()
    command(tmp_path, "sbatch", SBATCH.format(here=tmp_path))
    command(tmp_path, "squeue", f"#!/bin/sh\necho '{printed_by_squeue()}'\n")
    command(tmp_path, "scontrol", "#!/bin/sh\necho 'MaxArraySize = 1001'\n")
    command(tmp_path, "sacctmgr", "#!/bin/sh\nprintf 'normal|3\\nlong|\\n'\n")
    write(tmp_path, top='topologies = ["1n1g"]\nrepeats = 8\ntime_limit = "00:05:00"')
    return tmp_path


def command(here: Path, name: str, text: str) -> None:
    (here / "bin" / name).write_text(text)
    (here / "bin" / name).chmod(0o755)


def typed(here: Path, *options: str, site: str = SITE) -> int:
    (here / "site.toml").write_text(site)
    return sweep.main(["sample.toml", "--cluster", "slurm", "--site", "site.toml", *options])


def root(here: Path) -> Path:
    return here / "logs" / "sample"


def taken(here: Path) -> list[Array]:
    """Arrays that a job stands for, in the order of their jobs."""
    ledger = read_ledger(root(here))
    arrays = {array.token: array for array in ledger.arrays}
    return [arrays[row.token] for row in ledger.submissions if row.job_id]


def every_run_once(here: Path) -> bool:
    found = [run.id for array in taken(here) for run in array.tasks]
    return found == [run.id for run in read_ledger(root(here)).manifest.runs]


def test_an_array_above_the_limit_is_split_when_the_profile_says_so(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ((), ("--wait",)):
        assert typed(here, *options) == 1
        told = capsys.readouterr().err
        assert "(QOSMaxSubmitJobPerUserLimit is 3)" in told, told
        assert "1n1g.sample has 8 tasks, more than may ever be" in told
        assert "write `max_submit = 3` in the site profile" in told
    before = (root(here) / layout.MANIFEST).read_bytes()
    assert typed(here, site=f"{SITE}max_submit = 3\n") == 0
    assert [(array.name, array.size) for array in taken(here)] == [
        *(("1n1g.sample.p1", 3), ("1n1g.sample.p2", 3), ("1n1g.sample.p3", 2))
    ]
    assert every_run_once(here) and (root(here) / layout.MANIFEST).read_bytes() == before
    capsys.readouterr()
    assert typed(here) == 0 and "nothing is missing" in capsys.readouterr().out
    assert rerun.main([str(root(here)), "--status", "rejected"]) == 0
    assert len(taken(here)) == 3


def test_a_limit_whose_value_nobody_tells(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing of the user's is in the queue, to wait would be for ever."""
    command(here, "sacctmgr", "#!/bin/sh\nprintf 'normal|3\\nlong|5\\n'\n")
    assert typed(here, "--wait") == 1
    told = capsys.readouterr().err
    assert "none of your jobs is in the queue, and yet 1n1g.sample has 8 tasks too many" in told
    assert "write `max_submit = N` in the site profile, N being what the site allows," in told
    row = printed_by_squeue("5_0|RUNNING|None|n1|x|y")
    command(here, "squeue", f"#!/bin/sh\necho '{row}'\n")
    assert typed(here) == 1
    assert "when some of your jobs have ended" in capsys.readouterr().err


def test_the_value_of_the_profiles_qos(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(here, "sacctmgr", "#!/bin/sh\nprintf 'normal|9\\nlong|5\\n'\n")
    command(here, "scontrol", "#!/bin/sh\necho 'MaxArraySize = 1001'; echo 'Default=YES QoS=N/A'\n")
    assert typed(here, site=f'{SITE}qos = "long"\npartition = "main"\n') == 1
    assert "QOSMaxSubmitJobPerUserLimit is 5" in capsys.readouterr().err


def test_splitting_that_was_killed_goes_on(here: Path) -> None:
    assert typed(here) == 1
    ledger = read_ledger(root(here))
    (whole,) = ledger.arrays
    add_array(root(here), pieces_of(whole, whole.tasks, 2)[0])
    assert typed(here, site=f"{SITE}max_submit = 3\n") == 0
    assert [array.size for array in taken(here)] == [3, 3, 2]  # the rest goes first
    runs = [run.id for array in taken(here) for run in array.tasks]
    assert sorted(runs) == sorted(run.id for run in whole.tasks)


def test_a_piece_above_a_lower_limit_is_split_again(here: Path) -> None:
    (here / "befalls").write_text("MOST=1\n")
    assert typed(here, site=f"{SITE}max_submit = 3\n") == 1 and taken(here) == []
    assert typed(here, site=f"{SITE}max_submit = 1\n") == 0
    runs = [run.id for array in taken(here) for run in array.tasks]
    assert len(taken(here)) == 8 and len(set(runs)) == 8


def test_what_is_added_keeps_to_the_limit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = f"{SITE}max_submit = 3\n"
    assert typed(here, "--set", "repeats=1", site=site) == 0
    assert typed(here, site=site) == 0
    assert [(array.name, array.size) for array in taken(here)] == [
        *(("1n1g.sample", 1), ("1n1g.sample.g1.p1", 3), ("1n1g.sample.g1.p2", 3)),
        ("1n1g.sample.g1.p3", 1),
    ]
    assert every_run_once(here)
    capsys.readouterr()
    assert typed(here, site=site) == 0 and "nothing is missing" in capsys.readouterr().out


def test_who_holds_the_lock_is_told_and_how_to_go_on(here: Path) -> None:
    assert typed(here) == 1
    pid = rf"pid {os.getpid()} of \S+ on \S+, since 20"
    with submit_lock(root(here), 0), pytest.raises(LedgerError, match=pid):
        submit_lock(root(here), 0).__enter__()
    lock = root(here) / layout.LOCK
    lock.chmod(0o644)  # as earlier versions made it
    with open(lock) as stranger:
        fcntl.flock(stranger, fcntl.LOCK_SH)
        told = rf"pid {os.getpid()} of \S+ on this machine; wait .* can be removed: rm {lock}"
        with pytest.raises(LedgerError, match=told), submit_lock(root(here), 0):
            pass


def test_repeats_stay_in_their_jobs(here: Path) -> None:
    """Four jobs of two runs each; the pieces have two jobs at most."""
    (here / "befalls").write_text("MOST=2\n")
    assert typed(here, "--set", "repeats_per_job=2") == 1
    same = ("--set", "repeats_per_job=2")
    assert typed(here, *same, site=f"{SITE}max_submit = 2\n") == 0
    assert [(array.size, array.repeats_per_job) for array in taken(here)] == [(2, 2), (2, 2)]
    assert every_run_once(here)


def test_submitting_stops_when_somebody_cancels(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = f"[ ! -e $here/jobs ] || echo stop > {root(here) / layout.STOP}\n"
    (here / "befalls").write_text(stop)
    site = f"{SITE}max_submit = 2\n"
    assert typed(here, "--wait", site=site) == 1
    told = capsys.readouterr()
    assert [array.name for array in taken(here)] == ["1n1g.sample-1", "1n1g.sample-2"]
    assert "not yet submitted: 2 arrays with 4 runs: the jobs of this sweep were" in told.err
    assert "the same command again submits the rest" in told.err
    (here / "befalls").unlink()
    assert typed(here, site=site) == 0 and every_run_once(here)
