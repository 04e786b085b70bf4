"""``cancel``: whatever is left of a directory, its own jobs end and no others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from queueing import printed_by_squeue
from record_samples import a_sweep, many, token_of
from report_samples import case
from sweeping import wait_until

from dlperf_hpc.cli import cancel
from dlperf_hpc.engines.slurm import SlurmEngine
from dlperf_hpc.engines.slurm.query import BEGIN, END
from dlperf_hpc.engines.submit import stop_request, submit_lock
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import Submission, add_submission

TOKEN, OTHER = "dlperf-00112233445566aa", "dlperf-ffeeddccbbaa9988"
# `jobs` has job|state|reason|nodes|name|comment of every job; what scancel got is in `cancelled`.
SQUEUE = f"""\
#!/bin/sh
show() {{{{ printf '%s%s%s\\n' '{BEGIN}' "$1" '{END}'; }}}}
case "$*" in *--me*) show 'A|B|C'; own=1 ;; *) show 'A|B|C|D|E|F|G|H|U|I' ;; esac
while IFS='|' read -r job state reason nodes name comment; do
    if [ "$own" ]; then show "${{{{job%_*}}}}|$state|$comment"
    else case ",$(echo "$*" | sed 's/.*--jobs //;s/ .*//')," in
        *",${{{{job%_*}}}},"*) show "$job|$state|$reason|$nodes|||||$name|$comment" ;;
    esac; fi
done < '{{here}}/jobs'
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep with one array and a submission of job 7, in a queue with three jobs."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "bin").mkdir()
    command(tmp_path, "squeue", SQUEUE.format(here=tmp_path))
    command(tmp_path, "scancel", f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/cancelled'\n")
    command(tmp_path, "sbatch", "#!/bin/sh\nexit 1\n")
    made = tmp_path / "sweep"
    a_sweep(made, many([case("1n1g")], 3), engine="slurm")
    manifest = made / layout.MANIFEST
    manifest.write_text(manifest.read_text().replace(token_of("1n1g"), TOKEN))
    add_submission(made, Submission("1n1g.sample", TOKEN, job_id="7"))
    queue(
        tmp_path,
        f"7_0|RUNNING|None|n1|1n1g.sample|{TOKEN}",
        f"7_1|PENDING|Priority||1n1g.sample|{TOKEN}",
        f"8_0|RUNNING|None|n1|other|{OTHER}",
        "24|RUNNING|None|n1|thesis|(null)",
    )
    return made


def command(here: Path, name: str, text: str) -> None:
    (here / "bin" / name).write_text(text)
    (here / "bin" / name).chmod(0o755)


def queue(here: Path, *rows: str) -> None:
    (here / "jobs").write_bytes("".join(f"{row}\n" for row in rows).encode("latin-1"))


def cancelled(root: Path) -> list[str]:
    told = root.parent / "cancelled"
    return told.read_text().split() if told.exists() else []


def test_the_jobs_of_a_whole_directory(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cancel.main([str(root), "--dry-run"]) == 0
    assert capsys.readouterr().out == "scancel 7\n" and cancelled(root) == []
    assert cancel.main([str(root)]) == 0
    assert capsys.readouterr().out == "cancelled: 7\n" and cancelled(root) == ["7"]


def test_a_wrong_number_is_not_cancelled_and_the_right_one_is_found(root: Path) -> None:
    """A version before this one could take a number in a site's greeting for the job's."""
    text = (root / layout.SUBMISSIONS).read_text()
    (root / layout.SUBMISSIONS).write_text(text.replace('"7"', '"24"'))
    assert cancel.main([str(root)]) == 0 and cancelled(root) == ["7"]


def test_comments_in_any_encoding(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue(
        root.parent,
        f"7_0|RUNNING|None|n1|1n1g.sample|\xfc {TOKEN}",
        "8_0|RUNNING|None|n1|Gr\xf6\xdfe|\xfc",
    )
    assert cancel.main([str(root)]) == 0 and cancelled(root) == ["7"]


def no_manifest(root: Path) -> None:
    (root / layout.MANIFEST).unlink()


def half_a_manifest(root: Path) -> None:
    path = root / layout.MANIFEST
    path.write_text(path.read_text()[:-200])
    (root / layout.SUBMISSIONS).unlink()


def no_submissions(root: Path) -> None:
    (root / layout.SUBMISSIONS).unlink()


def damaged_submissions(root: Path) -> None:
    with open(root / layout.SUBMISSIONS, "a") as file:
        file.write('{"array": 7}\n[[[\n{"array": "x", "token": [1]}\n')


def only_the_scripts(root: Path) -> None:
    no_manifest(root)
    no_submissions(root)
    (root / layout.JOBS).mkdir()
    (root / layout.JOBS / "7_submission.sh").write_text(f"#SBATCH --comment={TOKEN}\n")


def a_rerun_without_its_file(root: Path) -> None:
    add_submission(root, Submission("1n1g.sample.r1", "dlperf-abcdefabcdefabcd", job_id="9"))


def a_damaged_rerun(root: Path) -> None:
    (root / layout.ARRAYS).mkdir()
    (root / layout.ARRAYS / "1n1g.sample.r1.json").write_text('{"token": "dlperf-1"')


@pytest.mark.parametrize(
    "befalls",
    [
        no_manifest,
        half_a_manifest,
        no_submissions,
        damaged_submissions,
        only_the_scripts,
        a_rerun_without_its_file,
        a_damaged_rerun,
    ],
)
def test_jobs_end_whatever_is_lost_of_the_directory(
    root: Path, befalls: Callable[[Path], None]
) -> None:
    befalls(root)
    assert cancel.main([str(root)]) == 0 and cancelled(root) == ["7"]


def test_a_directory_without_any_token(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    no_manifest(root)
    (root / layout.SUBMISSIONS).write_text("")
    assert cancel.main([str(root)]) == 2 and cancelled(root) == []
    told = capsys.readouterr().err
    assert "nothing was cancelled. `squeue --me -o '%A %j %k'` shows your jobs" in told
    assert "`scancel JOB`" in told
    assert cancel.main([str(root.parent)]) == 2
    assert "not a sweep's directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("squeue", "told"),
    [
        ("echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1", "Unable to contact"),
        ("echo '<html>Please log in</html>'", "cannot be understood (<html>Please log in</html>)"),
        ("true", "cannot be understood (nothing)"),
        (f"echo '{printed_by_squeue('7_0|RUNNING')}'", "cannot be understood"),
        (f"echo '{printed_by_squeue('x|RUNNING|None|n1|a|b')}'", "x is no job id"),
    ],
)
def test_where_squeue_does_not_answer_nothing_is_cancelled_and_that_is_said(
    root: Path, capsys: pytest.CaptureFixture[str], squeue: str, told: str
) -> None:
    command(root.parent, "squeue", f"#!/bin/sh\n{squeue}\n")
    assert cancel.main([str(root)]) == 1
    message = capsys.readouterr().err
    assert told in message and "; nothing was cancelled: when the scheduler answers" in message
    assert cancelled(root) == []


def test_who_is_submitting_is_asked_to_stop(root: Path) -> None:
    """... and waited for: what that process submits meanwhile ends as well."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # the other process
        code = 1
        try:
            with submit_lock(root, 0):
                before = stop_request(root)
                os.write(writing, b"x")
                wait_until(lambda: stop_request(root) != before, 30, "the wish to stop")
                add_submission(root, Submission("1n1g.sample", TOKEN, job_id="9"))
                with open(root.parent / "jobs", "a") as jobs:
                    jobs.write(f"9_0|PENDING|None||sample|{TOKEN}\n")
            code = 0
        finally:
            os._exit(code)
    os.read(reading, 1)
    assert cancel.main([str(root)]) == 0
    assert os.waitpid(child, 0)[1] == 0 and cancelled(root) == ["7", "9"]


def test_who_cannot_be_stopped_is_told_of(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmEngine, "lock_patience_s", 0.0)
    with submit_lock(root, 0):
        assert cancel.main([str(root), "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["tasks"] == ["7"] and cancelled(root) == ["7"]
    assert "arrays that are submitted from now on are not cancelled" in told.err
