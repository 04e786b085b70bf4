"""What a batch script does on a cluster: environments, setups that fail, requeues, and how the
real sbatch reads its options. conda, modules, Apptainer and pyxis are stood in for by shell
functions here: what counts is what they are called with."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from record_samples import a_run, a_sweep, paths
from script_samples import (
    ENCLOSING_JOB,
    TASK,
    array_of,
    bash,
    options_of,
    script_of,
    setup_of,
    site_of,
    srun_words,
    steps_of,
)

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import clean_environment, run_program
from dlperf_hpc.engines.local import queued_task
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.engines.slurm.script import batch_script
from dlperf_hpc.errors import LedgerError, SpecError
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.logfile import result_of_log

WORKER = ["-u", "-m", "dlperf_hpc.train"]
CLEARED = "unset PYTHONHOME PYTHONPATH VIRTUAL_ENV"
APPTAINER = "/img/a b.sif"
KINDS = {
    "plain": "",
    "python": 'python = "/opt/py/bin/python3"',
    "venv": 'venv = "/opt/my venv/"',
    "conda": 'conda = "tf-2"',
    "conda_path": 'conda = "/envs/tf 2"\nconda_root = "/opt/mini forge"',
    "modules": 'modules = ["cuda/12.4", "python/3.11"]\nmodules_purge = true\npython = "python3"',
    "apptainer": f"""
apptainer = {{image = "{APPTAINER}", binds = ["/d:/e:ro", "/s"], options = ["--rocm"], nv = false}}
mpi = "pmix"
""",
    "singularity": 'apptainer = {image = "docker://a/b:1", program = "singularity"}',
    "pyxis": """
pyxis = {image = "nvcr.io#n/t:24", mounts = ["/d", "/s:/t:ro"], options = ["--no-container-x"]}
python = "/usr/bin/python"
env = {A = "1", B = "2"}
""",
    "setup": "setup = [\"x='a  b'; echo $x\", 'export Y=1']\nenv = {Z = \"it's $x\"}",
}


def of_kind(directory: Path, kind: str) -> str:
    return script_of(directory, site_of(directory, f"[environment.e]\n{KINDS[kind]}"))


def launched(script: str) -> list[str]:
    """What srun starts on each rank, up to the worker's own words."""
    words = srun_words(script)
    end = next(i for i in range(len(words)) if words[i : i + 3] == WORKER)
    start = next(i for i in range(words.index("--label"), end + 1) if words[i][:2] != "--")
    return words[start:end]


# --- environments


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("plain", [sys.executable]),
        ("python", ["/opt/py/bin/python3"]),
        ("venv", ["/opt/my venv/bin/python"]),
        ("conda", ["python"]),
        ("conda_path", ["/envs/tf 2/bin/python"]),
        ("modules", ["python3"]),
        ("pyxis", ["/usr/bin/python"]),
        ("setup", [sys.executable]),
    ],
)
def test_each_kind_has_its_python(tmp_path: Path, kind: str, command: list[str]) -> None:
    script = of_kind(tmp_path, kind)
    assert launched(script) == command
    assert (setup_of(script)[:1] == [CLEARED]) == (kind in ("python", "venv", "modules", "pyxis"))


def test_apptainer_runs_every_rank_in_the_image(tmp_path: Path) -> None:
    script = of_kind(tmp_path, "apptainer")
    root = tmp_path / "logs"
    binds = [f"--bind={root}", "--bind=/d:/e:ro", "--bind=/s"]
    assert launched(script) == ["apptainer", "exec", *binds, "--rocm", APPTAINER, "python3"]
    assert "--mpi=pmix" in srun_words(script)
    other = launched(of_kind(tmp_path, "singularity"))
    assert other == ["singularity", "exec", "--nv", f"--bind={root}", "docker://a/b:1", "python3"]


@pytest.mark.parametrize("program", ["apptainer", "singularity"])
def test_env_wins_over_the_images_own_variables(tmp_path: Path, program: str) -> None:
    """Apptainer lets a shell read them: there a '$' would be expanded."""
    value, told = r"its \ $x `y`", r"its \\ \$x \`y\`"
    box = f'apptainer = {{image = "/x.sif", program = "{program}"}}'
    site = site_of(tmp_path, f"[environment.e]\n{box}\nenv = {{A = '{value}'}}")
    name = f"{program.upper()}ENV_A"
    exports = [f"export A='{value}'", f"export {name}='{told}'"]
    assert setup_of(script_of(tmp_path, site))[1:] == exports
    given = site.environment_named("e").local_variables()
    assert (given["A"], given[name]) == (value, told)


def test_pyxis_is_told_by_options_of_srun_of_that_environment_alone(tmp_path: Path) -> None:
    words = srun_words(of_kind(tmp_path, "pyxis"))
    root = tmp_path / "logs"
    assert [word for word in words if "container" in word] == [
        "--container-image=nvcr.io#n/t:24",
        f"--container-mounts={root}:{root},/d:/d,/s:/t:ro",
        "--container-env=A,B",
        "--no-container-x",
    ]
    assert words.index("--no-container-x") < words.index("/usr/bin/python")
    site = site_of(tmp_path, f"[environment.x]\n{KINDS['pyxis']}")
    assert "container" not in script_of(tmp_path, site)


def test_a_venv_is_activated_without_its_script(tmp_path: Path) -> None:
    assert setup_of(of_kind(tmp_path, "venv"))[1:] == [
        "export VIRTUAL_ENV='/opt/my venv'",
        'export PATH="$VIRTUAL_ENV/bin:$PATH"',
    ]


def test_steps_stand_in_order_modules_conda_setup(tmp_path: Path) -> None:
    text = 'modules = ["a"]\nconda = "c"\nsetup = ["s"]\nenv = {E = "1"}'
    script = script_of(tmp_path, site_of(tmp_path, f"[environment.e]\n{text}"))
    find, *rest = steps_of(script)
    assert find.startswith("type module ")
    assert rest == [
        "module load a",
        'dlperf_hook="$(conda shell.bash hook)" && eval "$dlperf_hook"',
        "conda activate c",
        '[ -x "$CONDA_PREFIX/bin/python" ]',
        "s",
    ]
    assert setup_of(script)[-2:] == ["dlperf_line=", "export E=1"]
    assert setup_of(script)[0] == f"{CLEARED} CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL"


@pytest.mark.parametrize("kind", KINDS)
def test_bash_can_read_every_script(tmp_path: Path, kind: str) -> None:
    run = subprocess.run(
        ["bash", "-n"], input=of_kind(tmp_path, kind), capture_output=True, text=True, check=True
    )
    assert run.stderr == ""


SPIES = 'srun() { printf "%s\\n" "PATH=$PATH" "$@"; }\n'
NO_EPILOGUE = f"function {sys.executable} {{ :; }}\n"


def spied(
    directory: Path, script: str, prelude: str = SPIES, env: Mapping[str, str] | None = None
) -> list[str]:
    """Lines that a script prints after its marks; it must end well."""
    run = bash(NO_EPILOGUE + prelude + script, directory, env)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.splitlines()[2:]


def test_modules_are_loaded_where_module_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "bash").write_text('module() { printf "%s|" module "$@"; echo; }\n')
    printed = spied(tmp_path, of_kind(tmp_path, "modules"), env={"LMOD_PKG": str(tmp_path)})
    assert printed[:3] == ["module|purge|", "module|load|cuda/12.4|", "module|load|python/3.11|"]
    # Where it is there, it is not sought.
    there = 'module() { echo mine "$@"; }\n' + SPIES
    printed = spied(tmp_path, of_kind(tmp_path, "modules"), there, {"LMOD_PKG": str(tmp_path)})
    assert printed[0] == "mine purge"


HOOK = """conda() {
  if [ "$1" = activate ]; then CONDA_PREFIX="$PWD/envs/$2"; PATH="$CONDA_PREFIX/bin:$PATH"; fi
}
"""


def a_conda_environment(directory: Path, name: str) -> Path:
    python = directory / "envs" / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return python


def test_conda_is_activated_in_a_shell_that_has_no_bashrc(tmp_path: Path) -> None:
    python = a_conda_environment(tmp_path, "tf-2")
    # As an executable on the PATH would: it prints the shell code that makes it a function.
    conda = f"conda() {{ [ \"$*\" = 'shell.bash hook' ] && printf '%s' '{HOOK}'; }}\n"
    printed = spied(tmp_path, of_kind(tmp_path, "conda"), conda + SPIES)
    assert printed[0].startswith(f"PATH={python.parent}:")
    # By its root: the same from conda.sh.
    root = tmp_path / "mini forge"
    (root / "etc" / "profile.d").mkdir(parents=True)
    (root / "etc" / "profile.d" / "conda.sh").write_text(HOOK)
    site = Site(environment={"e": Environment(conda="tf-2", conda_root=f"{root}/")})
    assert spied(tmp_path, script_of(tmp_path, site))[0].startswith(f"PATH={python.parent}:")


def test_what_led_another_python_astray_is_gone(tmp_path: Path) -> None:
    hostile = {"PYTHONPATH": "/other", "PYTHONHOME": "/other", "VIRTUAL_ENV": "/other"}
    show = 'srun() { echo "${PYTHONPATH-}|${PYTHONHOME-}|${VIRTUAL_ENV-}"; }\n'
    own = site_of(tmp_path, '[environment.e]\npython = "/opt/py"\nenv = {PYTHONPATH = "/mine"}')
    assert spied(tmp_path, script_of(tmp_path, own), show, hostile) == ["/mine||"]
    # This Python keeps what it was found by.
    same = script_of(tmp_path, Site())
    assert spied(tmp_path, same, show, hostile) == ["/other|/other|/other"]


def test_the_local_engine_takes_what_needs_no_batch_script(tmp_path: Path) -> None:
    def started(text: str) -> list[str]:
        site = site_of(tmp_path, f"[environment.e]\n{text}")
        array, root = array_of(tmp_path, site), tmp_path / "logs"
        task = queued_task(root, array, site, run_program(root, array), "1_0")
        assert task.env.get("PYTHONPATH", "") in ("", "/mine")
        return list(task.argv[3:])

    assert started(KINDS["venv"])[0] == "/opt/my venv/bin/python"
    assert started('conda = "/envs/c"\nenv = {PYTHONPATH = "/mine"}')[0] == "/envs/c/bin/python"
    assert started(KINDS["apptainer"])[:2] == ["apptainer", "exec"]
    for kind, words in (("pyxis", "pyxis is a part of"), ("conda", "'tf-2' is found by a batch")):
        site = site_of(tmp_path, f"[environment.e]\n{KINDS[kind]}")
        array, root = array_of(tmp_path, site), tmp_path / "logs"
        with pytest.raises(SpecError, match=words):
            get_engine("local").submit(root, array, site, run_program(root, array))


# --- a setup that fails, and what follows the ranks


def carried_out(
    root: Path, site: Site, prelude: str, env: Mapping[str, str] | None = None
) -> tuple[int, str, RunResult]:
    """Run a task's script with the real epilogue: exit code, what it printed, what it recorded."""
    run = a_run()
    sweep = a_sweep(root, [run], "slurm")
    (array,) = sweep.arrays
    script = batch_script(root, array, site)
    (root / layout.JOBS).mkdir()
    output = root / layout.JOBS / "100_0.out"
    with open(output, "w", encoding="utf-8") as file:
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-c", prelude + script],
            cwd=root,
            env={**clean_environment(), **TASK, **(env or {})},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
    return done.returncode, output.read_text(), result_of_log(paths(root, run).log)


RANKS = 'srun() { echo "srun was called"; }\n'


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ('modules = ["cuda/12.4"]', 127, "exit code 127: module load cuda/12.4; last output:"),
        ('conda = "c"', 127, "exit code 127: dlperf_hook="),
        ('setup = ["true", "(exit 9)", "echo no"]', 9, "exit code 9: (exit 9)"),
        ('setup = ["[ -e /no ] || exit 3"]', 3, "exit code 3: [ -e /no ] || exit 3"),
        ('setup = ["exit"]', 0, "exit code 0: exit"),
        ('setup = ["echo why; false"]', 1, "exit code 1: echo why; false; last output: why"),
        # Not even a line that is no shell code gets in the way of the record.
        ('setup = ["echo \'abc"]', 2, "exit code 2: echo 'abc; last output:"),
        ('setup = ["if true; then"]', 2, "exit code 2: if true; then"),
        ('setup = ["(", "echo )"]', 2, "exit code 2: (; last output"),
        ('setup = ["set -eu", "echo $no_such"]', 1, "exit code 1: echo $no_such"),
        ('setup = ["export PATH=/no PYTHONHOME=/no; false"]', 1, "exit code 1: export PATH"),
    ],
)
def test_a_setup_that_fails_ends_the_task_and_is_on_record(
    tmp_path: Path, text: str, code: int, words: str
) -> None:
    site = site_of(tmp_path, f"[environment.default]\n{text}")
    left, output, result = carried_out(tmp_path / "sweep", site, RANKS + "unset -f module conda\n")
    assert left == code
    assert "srun was called" not in output and "\nno\n" not in output
    assert result.status is Status.FAILED and words in result.reason, result.reason
    assert "setup failed with" in result.reason


def test_what_setup_does_to_the_shell_ends_with_the_ranks(tmp_path: Path) -> None:
    setup = ["export PYTHONHOME=/no PATH=/no", "set -eu", "trap 'echo trapped' TERM", "cd /"]
    site = Site(environment={"default": Environment(setup=setup, env={"PYTHONPATH": "/no"})})
    ranks = 'srun() { echo "ranks: $PYTHONHOME"; return 5; }\n'
    left, output, result = carried_out(tmp_path / "sweep", site, ranks)
    assert left == 5 and "ranks: /no" in output
    assert "the launcher left with exit code 5; last output: ranks: /no" in result.reason


NOTICE = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T15:10:10 DUE TO PREEMPTION ***"
PREEMPTED = f'srun() {{ echo "{NOTICE}"; return 1; }}\n'
SCONTROL = 'scontrol() { echo "scontrol $*"; }\n'


@pytest.mark.parametrize(
    ("site", "restarts", "again"),
    [
        (Site(), "", False),
        (Site(requeue=0), "", False),
        (Site(requeue=2), "", True),
        (Site(requeue=2), "1", True),
        (Site(requeue=2), "2", False),
    ],
)
def test_a_preempted_task_puts_itself_back_so_often(
    tmp_path: Path, site: Site, restarts: str, again: bool
) -> None:
    env = {"SLURM_RESTART_COUNT": restarts} if restarts else {}
    left, output, result = carried_out(tmp_path / "sweep", site, PREEMPTED + SCONTROL, env)
    assert left == 1 and result.status is Status.PREEMPTED
    assert ("scontrol requeue 100_0\n" in output) == again


def test_only_preemption_puts_a_task_back(tmp_path: Path) -> None:
    limit = PREEMPTED.replace("PREEMPTION", "TIME LIMIT")
    _, output, result = carried_out(tmp_path / "sweep", Site(requeue=2), limit + SCONTROL)
    assert result.status is Status.TIMEOUT and "scontrol" not in output


def test_a_task_put_back_too_often_ends_with_a_record(tmp_path: Path) -> None:
    env = {"SLURM_RESTART_COUNT": "3"}
    left, output, result = carried_out(tmp_path / "sweep", Site(requeue=2), RANKS + SCONTROL, env)
    assert left == 1 and "srun was called" not in output and "scontrol" not in output
    assert "put back more often than requeue allows" in result.reason


# --- nodes, directories, and what sbatch makes of it all


def test_nodes_to_leave_out_are_the_sites_and_the_arrays(tmp_path: Path) -> None:
    array = array_of(tmp_path, Site())

    def excluded(site: str | None, own: str) -> set[str]:
        made = dataclasses.replace(array, exclude=own)
        script = batch_script(tmp_path / "logs", made, Site(exclude=site))
        return {option for option in options_of(script) if option.startswith("--exclude=")}

    assert excluded(None, "") == set()
    assert excluded(None, "n3,n[5,7]") == {"--exclude='n3,n[5,7]'"}
    assert excluded("n1", "n3") == {"--exclude=n1,n3"}
    assert excluded("n1", "n1") == {"--exclude=n1"}
    for bad in ("n1 n2", "n1;touch x", "n1\n#SBATCH --uid=0", "$(x)"):
        with pytest.raises(SpecError, match="is no list of nodes"):
            excluded(None, bad)


@pytest.mark.parametrize("name", ["a\nb", "100%", "back\\slash", "tab\t", "broken\udcff"])
def test_a_directory_that_slurm_cannot_be_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(LedgerError, match="sweep with another --logs"):
        batch_script(tmp_path / name, array_of(tmp_path, Site()), Site())


@pytest.mark.parametrize("kind", ["apptainer", "pyxis"])
@pytest.mark.parametrize("name", ["a,b", "a:b"])
def test_a_directory_that_no_container_can_be_given(tmp_path: Path, kind: str, name: str) -> None:
    site = site_of(tmp_path, f"[environment.e]\n{KINDS[kind]}")
    with pytest.raises(LedgerError, match="a container cannot be given"):
        batch_script(tmp_path / name, array_of(tmp_path, site), site)


def test_a_manifest_that_was_changed_begins_no_line_of_its_own(tmp_path: Path) -> None:
    array, line = array_of(tmp_path, Site()), "x\n#SBATCH --uid=0"
    changed = (dataclasses.replace(array, name=line), dataclasses.replace(array, token=line))
    for each in changed:
        with pytest.raises(SpecError, match="has control characters"):
            batch_script(tmp_path / "logs", each, Site())


def test_nothing_of_an_enclosing_job_reaches_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**ENCLOSING_JOB, "SLURM_CONF": "/etc/slurm.conf", "MINE": "1"}.items():
        monkeypatch.setenv(name, value)
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\nenv > '{tmp_path}/seen'\necho Submitted batch job 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)
    array, root = array_of(tmp_path, Site()), tmp_path / "logs"
    response = get_engine("slurm").submit(root, array, Site(), run_program(root, array))
    assert response.job_id == "7"
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert not seen.keys() & ENCLOSING_JOB.keys()
    assert (seen["SLURM_CONF"], seen["MINE"]) == ("/etc/slurm.conf", "1")
    assert os.environ["SBATCH_PARTITION"] == "evil"  # given back
