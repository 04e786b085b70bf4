"""The engines' registry, and what of submitit is used: both stand in one place."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import submitit
import tomllib
from places import ROOT
from queueing import row_of_task
from script_samples import array_of
from submitit.slurm.slurm import SlurmExecutor

from dlperf_hpc.engines import AUTO, CHOICES, NAMES, choose_engine, get_engine
from dlperf_hpc.engines.base import Engine, Response, clean_environment, run_program
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm import query, response_to, script
from dlperf_hpc.engines.slurm.query import BEGIN, END
from dlperf_hpc.engines.slurm.script import PRIVATE, batch_script
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.sweepfile.casetables import SweepFile

PACKAGE = ROOT / "dlperf_hpc"
SCRIPT = PACKAGE / "engines" / "slurm" / "script.py"


def parsed() -> Iterator[tuple[Path, ast.Module]]:
    for path in PACKAGE.rglob("*.py"):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))


def test_the_registry() -> None:
    for name in NAMES:
        engine = get_engine(name)
        assert isinstance(engine, Engine) and engine.name == name and engine is get_engine(name)
    assert (AUTO, *NAMES) == CHOICES
    with pytest.raises(LedgerError, match="engine 'pbs': this version has slurm, local"):
        get_engine("pbs")


def test_auto_is_slurm_where_sbatch_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_engine(None) is choose_engine("auto") is get_engine("local")
    assert choose_engine("slurm") is get_engine("slurm")
    (tmp_path / "sbatch").touch(mode=0o755)
    assert choose_engine(None) is get_engine("slurm")


def test_a_sweep_file_may_name_what_the_command_line_may() -> None:
    assert get_args(SweepFile.model_fields["cluster"].annotation) == CHOICES


def test_no_code_compares_the_names_of_engines() -> None:
    """Who needs to know asks the engine. Only the registry knows the names."""
    for path, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Compare, ast.Match)):
                found = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                assert not found & set(NAMES), f"{path}:{node.lineno}"


# --- submitit


def test_submitit_is_imported_in_one_file() -> None:
    importing = {
        str(path)
        for path, tree in parsed()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("submitit"))
        or (isinstance(node, ast.Import) and "submitit" in node.names[0].name)
    }
    assert importing == {"engines/slurm/script.py"}


def test_its_private_methods_in_use_are_listed_and_are_as_they_were() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
    }
    replaced = {
        method.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == "_Executor"
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name.startswith("_")
    }
    assert used | replaced == set(PRIVATE)
    for name, parameters in PRIVATE.items():
        assert tuple(inspect.signature(getattr(SlurmExecutor, name)).parameters) == parameters
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (pin,) = (each for each in project["dependencies"] if each.startswith("submitit"))
    minor = ".".join(submitit.__version__.split(".")[:2])
    assert pin.startswith(f"submitit>={minor}.") and pin.count(",<") == 1


SBATCH = """\
#!/bin/sh
cp "$2" '{place}/seen'
{answer}
"""


# Jobs as squeue shows them for this format; TOKEN is that of the job submitted last.
SQUEUE = """\
#!/bin/sh
token=$(sed -n 's/^#SBATCH --comment=//p' '{place}/seen')
show() {{ printf '%s%s%s\\n' '{begin}' "$1" '{end}'; }}
show 'JOBID|and|so|on|as|it|goes|to|the|end'
case "$*" in {cases} esac
"""


def submitted(
    place: Path, answer: str, monkeypatch: pytest.MonkeyPatch, squeue: str = "#!/bin/sh\nexit 1\n"
) -> Response:
    """What an sbatch that answers so makes of an array; by default squeue does not answer."""
    commands = place / "bin"
    commands.mkdir()
    for name, text in (("sbatch", SBATCH.format(place=place, answer=answer)), ("squeue", squeue)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    array, root = array_of(place, Site()), place / "logs"
    return get_engine("slurm").submit(root, array, Site(), run_program(root, array))


def test_what_is_submitted_is_the_script_and_stays_beside_the_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = submitted(tmp_path, "echo Submitted batch job 4711", monkeypatch)
    assert response == Response(job_id="4711")
    array, jobs = array_of(tmp_path, Site()), tmp_path / "logs" / "jobs"
    seen = (tmp_path / "seen").read_text()
    token = next(line for line in seen.splitlines() if line.startswith("#SBATCH --comment="))
    script = batch_script(tmp_path / "logs", array, Site())
    assert seen == script.replace(array.token, token.partition("comment=")[2])
    assert (jobs / "4711_submission.sh").read_text() == seen
    assert not list(jobs.glob("*.pkl"))


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ("echo 'sbatch: error: Batch job submission failed: No' >&2; exit 1", "error", "No"),
        ("echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1", "limit", "QOSMax"),
        ("echo 'sbatch: error: Unable to contact controller' >&2; exit 1", "silence", "contact"),
        ("echo 'sbatch: error: fetch_config: DNS SRV lookup failed' >&2; exit 1", "limit", "DNS"),
        ("exit 137", "silence", ""),
        ("echo Welcome to the cluster", "silence", "Welcome"),
    ],
)
def test_what_sbatch_answers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    answer: str,
    kind: str,
    words: str,
) -> None:
    response = submitted(tmp_path, answer, monkeypatch)
    assert [name for name, text in vars(response).items() if text] == [kind]
    assert words in getattr(response, kind)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "to_do"),
    [
        ("fetch_config: DNS SRV lookup failed", "set $SLURM_CONF to its slurm.conf"),
        ("sbatch: fatal: Could not establish a configuration source", "log in to a login node"),
        ("Unable to contact slurm controller (connect failure)", "type the same command again"),
        ("Job violates accounting/QOS policy", ""),
    ],
)
def test_what_to_do_where_the_controller_is_out_of_reach(words: str, to_do: str) -> None:
    said = get_engine("slurm").out_of_reach(words)
    assert to_do in said and bool(said) == bool(to_do)
    assert not said or "Slurm's controller cannot be reached from this machine" in said
    assert not said or "--cluster local" in said
    assert get_engine("local").out_of_reach(words) == ""


def a_squeue(place: Path, by_token: str = "", by_number: str = "") -> str:
    """What squeue says of this user's jobs (``job|state|comment``), and of jobs by number."""
    mine = f"""*--me*) show "{by_token}" ;;""" if by_token else ""
    asked = f"""*--jobs*) show "{row_of_task(by_number)}" ;;""" if by_number else ""
    return SQUEUE.format(place=place, begin=BEGIN, end=END, cases=f"{mine} {asked} *) ;;")


BANNER = "echo 'Welcome! Your latest job 24 has ended.'"


@pytest.mark.parametrize("answer", ["echo 4711", "echo '4711;jupiter'", f"{BANNER} >&2; echo 4711"])
def test_what_sbatch_alone_prints_is_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    assert submitted(tmp_path, answer, monkeypatch) == Response(job_id="4711")


@pytest.mark.parametrize(
    "answer",
    [
        f"{BANNER}; echo 4711",
        "echo 24; echo 4711",
        "echo Submitted batch job 24; echo 4711",
        "printf 'Gr\\374\\337e: job 24\\n'; echo 4711",
        BANNER,
        "true",
    ],
)
def test_a_job_among_other_words_is_found_by_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    squeue = a_squeue(tmp_path, by_token="4711|PENDING|billing:3 $token")
    response = submitted(tmp_path, answer, monkeypatch, squeue)
    assert response == Response(job_id="4711")
    if answer != "true" and answer != BANNER:
        assert (tmp_path / "logs/jobs/4711_submission.sh").exists()


@pytest.mark.parametrize(
    ("row", "job"),
    [
        ("4711_0|PENDING|Priority||2n4g.sample|(null)", "4711"),
        ("4711_0|PENDING|Priority||thesis|(null)", ""),
        ("4711_0|PENDING|Priority||2n4g.sample|what a plug-in wrote", "4711"),
        ("", ""),
    ],
)
def test_without_comments_a_job_among_other_words_must_bear_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, job: str
) -> None:
    """Else nobody knows what became of it, and it is looked for before anything is sent again."""
    monkeypatch.setattr(query, "_BETWEEN_S", 0.0)
    squeue = a_squeue(tmp_path, by_token="24|PENDING|(null)", by_number=row)
    response = submitted(tmp_path, f"{BANNER}; echo 4711", monkeypatch, squeue)
    assert response.job_id == job
    if not job:
        assert "does not tell the job's id: Welcome!" in response.silence


def test_who_waits_for_sbatch_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "_SAYS_SO_AFTER_S", 0.1)
    assert submitted(tmp_path, "sleep 1; echo 4711", monkeypatch).job_id == "4711"
    told = capfd.readouterr().err
    assert (
        told.startswith("sbatch has not answered for 0.1 s (2n4g.sample") and told.count("\n") == 1
    )


def test_a_limit_is_named_with_the_line_before_the_last() -> None:
    complaint = (
        "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: limits"
    )
    wanted = "AssocMaxSubmitJobLimit: Batch job submission failed: limits"
    assert response_to(complaint) == Response(limit=wanted)


def test_a_controller_that_was_asked_too_often_is_asked_again() -> None:
    """src/common/slurm_errno.c: nothing was accepted, and nothing is wrong with the job."""
    words = "Batch job submission failed: Rate limit exceeded, please retry later"
    response = response_to(f"sbatch: error: {words}\n")
    assert response == Response(limit=words) and "a minute" in query.out_of_reach(response.limit)


def test_sites_with_auth_slurm_are_asked_with_their_keys() -> None:
    sack = {f"SLURM_SACK_{name}": "/x" for name in ("SOCKET", "KEY", "JWKS")}
    assert clean_environment({**sack, "SLURM_JOB_ID": "7", "PMI_RANK": "0"}) == sack
