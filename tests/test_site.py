"""A site profile is checked like a sweep, and each of its keys puts one thing into the script."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_samples import load, write

from dlperf_hpc.errors import SpecError
from dlperf_hpc.launch import site as site_module
from dlperf_hpc.launch.executors import slurm_executor
from dlperf_hpc.launch.plan import make_manifest
from dlperf_hpc.launch.site import Environment, Site, load_site
from dlperf_hpc.records.manifest import Array

REPOSITORY = Path(__file__).resolve().parent.parent

MARK = (
    'echo "dlperf_hpc: launch'
    ' ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}.${SLURM_RESTART_COUNT:-0}"'
)


def profile(directory: Path, text: str) -> Path:
    path = directory / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


def site_issues(directory: Path, text: str) -> list[str]:
    path = profile(directory, text)
    with pytest.raises(SpecError) as caught:
        load_site(str(path))
    assert str(caught.value).startswith(str(path))
    return [str(issue) for issue in caught.value.issues]


def array_of(directory: Path, site: Site, **parts: str) -> Array:
    parts = {"top": 'topologies = ["2n4g"]\nrepeats = 5\ntime_limit = "12:30"', **parts}
    (array,) = make_manifest(load(write(directory, **parts)), site, "slurm").arrays
    return array


def script_of(directory: Path, site: Site, **parts: str) -> str:
    array = array_of(directory, site, **parts)
    return slurm_executor(directory / "logs", array, site).script(len(array.tasks))


def options_of(script: str) -> set[str]:
    return {
        line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")
    }


def srun_of(script: str) -> str:
    (line,) = [line for line in script.splitlines() if line.startswith("srun ")]
    return line


# --- the script


def test_the_whole_script_of_a_plain_site(tmp_path: Path) -> None:
    site = Site()
    array = array_of(tmp_path, site)
    root = tmp_path / "logs"
    script = slurm_executor(root, array, site).script(5)
    python = sys.executable
    log = f"{root}/jobs/%A_%a"
    train = f"{python} -u -m dlperf_hpc.train {root} sample-2n4g"
    epilogue = f'{python} -m dlperf_hpc.launch.epilogue {root} sample-2n4g "$dlperf_code"'
    assert [line for line in script.splitlines() if line] == [
        "#!/bin/bash",
        "# Parameters",
        "#SBATCH --array=0-4%5",
        f"#SBATCH --comment={array.token}",
        "#SBATCH --exclusive",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --job-name=sample-2n4g",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={log}.out",
        "#SBATCH --signal=USR2@10",
        "#SBATCH --time=13",
        "# setup",
        MARK,
        "# command",
        "export SUBMITIT_EXECUTOR=slurm",
        f"srun --unbuffered --output {log}_%t_log.out --output=all --label --kill-on-bad-exit=1"
        f" --wait=60 --mpi=pmi2 {train}",
        "# teardown",
        "dlperf_code=$?",
        epilogue,
        "exit $dlperf_code",
    ]


@pytest.mark.parametrize(
    ("text", "added", "removed"),
    [
        ('partition = "gpu"', {"--partition=gpu"}, set()),
        ('account = "p1"', {"--account=p1"}, set()),
        ('qos = "high"', {"--qos=high"}, set()),
        ('constraint = "a100&ib"', {"--constraint='a100&ib'"}, set()),
        ('reservation = "r1"', {"--reservation=r1"}, set()),
        ('mem = "0"', {"--mem=0"}, set()),
        ("cpus_per_task = 8", {"--cpus-per-task=8"}, set()),
        ("exclusive = false", set(), {"--exclusive"}),
        ("array_parallelism = 2", {"--array=0-4%2"}, {"--array=0-4%5"}),
        ("array_parallelism = 99", set(), set()),
        ('gpus = "none"', set(), {"--gpus-per-node=4"}),
        ('gpus = "gres"', {"--gres=gpu:4"}, {"--gpus-per-node=4"}),
        ('gpu_type = "a100"', {"--gpus-per-node=a100:4"}, {"--gpus-per-node=4"}),
        (
            'gpus = "gres"\ngpu_type = "a100"',
            {"--gres=gpu:a100:4"},
            {"--gpus-per-node=4"},
        ),
        (
            'sbatch = {licenses = "m:1", hint = "nomultithread", requeue = true, nice = 5}',
            {"--licenses=m:1", "--hint=nomultithread", "--requeue", "--nice=5"},
            set(),
        ),
        ('sbatch = {gres = "tmp:1G"}', {"--gres=tmp:1G"}, set()),
        (
            'exclusive = false\nsbatch = {exclusive = "user"}',
            {"--exclusive=user"},
            {"--exclusive"},
        ),
        ('description = "x"\npoll_s = 5', set(), set()),
    ],
)
def test_each_key_puts_its_option_into_the_script(
    tmp_path: Path, text: str, added: set[str], removed: set[str]
) -> None:
    plain = options_of(script_of(tmp_path, Site()))
    options = options_of(script_of(tmp_path, load_site(str(profile(tmp_path, text)))))
    unlike = {"--comment="}  # a token, new each time
    changed = {o for o in options ^ plain if not o.startswith(tuple(unlike))}
    assert changed == added | removed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpus_per_task = 8", ["--cpus-per-task=8"]),  # srun does not inherit it
        ("srun_wait_s = 7", ["--wait=7"]),
        ('srun = ["--cpu-bind=cores", "--export=A B;C"]', ["--cpu-bind=cores", "'--export=A B;C'"]),
        ('[environment.default]\nmpi = "pmix"', ["--mpi=pmix"]),
        ('[environment.default]\npython = "/opt/py/bin/python3"', ["/opt/py/bin/python3 -u -m"]),
    ],
)
def test_what_srun_is_told(tmp_path: Path, text: str, words: list[str]) -> None:
    line = srun_of(script_of(tmp_path, load_site(str(profile(tmp_path, text)))))
    assert all(f" {word} " in line for word in words)


def test_extra_srun_words_come_after_ours(tmp_path: Path) -> None:
    line = srun_of(script_of(tmp_path, Site(srun=["--wait=5"])))
    assert line.index("--wait=60") < line.index("--wait=5 ")


def test_a_case_gets_the_environment_it_names(tmp_path: Path) -> None:
    text = """
[environment.default]
python = "/default/python"
[environment.ngc]
python = "/ngc/python"
mpi = "pmix"
setup = ["module purge", "module load cuda/12 && true"]
env = {NCCL_DEBUG = "INFO", GREETING = "it's"}
"""
    site = load_site(str(profile(tmp_path, text)))
    script = script_of(tmp_path, site, case='batch_size = 8\nenvironment = "ngc"')
    assert "#SBATCH --job-name=sample-2n4g-ngc" in script
    assert "/ngc/python -u" in srun_of(script) and "--mpi=pmix" in srun_of(script)
    between = script[script.index("# setup") : script.index("# command")].split("\n")
    assert [line for line in between if line] == [
        "# setup",
        MARK,
        "module purge",
        "module load cuda/12 && true",
        "export NCCL_DEBUG=INFO",
        "export GREETING='it'\"'\"'s'",
    ]


NASTY = "x$(touch pwned)`touch pwned`\"'; touch pwned; ' > pwned | & ! * \\ # ~ {a,b} ${HOME}"


def test_no_value_reaches_the_shell_as_code(tmp_path: Path) -> None:
    site = Site(
        constraint="a;touch${IFS}pwned",
        account="$(touch${IFS}pwned)",
        partition="`touch${IFS}pwned`",
        sbatch={"mail-user": NASTY, "nice": 3},
        srun=[NASTY],
        environment={"default": Environment(env={"NASTY": NASTY}, mpi="none;touch${IFS}pwned")},
    )
    array = array_of(tmp_path, site)
    root = tmp_path / "log $(touch pwned) dir;"
    script = slurm_executor(root, array, site).script(5).partition("# teardown")[0]
    spy = 'srun() { printf "%s\\0" "$NASTY" "$@"; }\n'
    run = subprocess.run(
        ["bash", "-c", spy + script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    marked, _, printed = run.stdout.partition("\n")
    assert marked == "dlperf_hpc: launch _.0"  # no job, no index: this is no Slurm
    nasty, *words, _ = printed.split("\0")
    assert nasty == NASTY
    assert NASTY in words and "--mpi=none;touch${IFS}pwned" in words
    assert str(root) in words
    assert not list(tmp_path.rglob("*pwned")) and run.stderr == ""
    # Slurm reads the options as the shell would: one word each.
    options = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert len(options) == 16 and all(len(shlex.split(line)) == 2 for line in options)


def test_the_epilogue_keeps_the_exit_code_and_its_arguments(tmp_path: Path) -> None:
    array = array_of(tmp_path, Site())
    root = tmp_path / "a $(touch pwned) b"
    script = slurm_executor(root, array, Site()).script(5)
    spy = f'srun() {{ return 3; }}\nfunction {sys.executable} {{ printf "%s\\n" "$@"; }}\n'
    run = subprocess.run(
        ["bash", "-c", spy + script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 3
    assert run.stdout.splitlines()[1:] == [
        *("-m", "dlperf_hpc.launch.epilogue", str(root), "sample-2n4g", "3")
    ]
    assert not list(tmp_path.rglob("pwned"))


# --- what is refused


@pytest.mark.parametrize(
    ("text", "issue"),
    [
        ("partiton = 'x'", "partiton: unknown key 'partiton' (did you mean 'partition'?)"),
        ("device = 'x'", "device: unknown key 'device'"),
        (
            "[environment.default]\npyhton = 'x'",
            "environment.default.pyhton: unknown key 'pyhton' (did you mean 'python'?)",
        ),
        ("partition = 3", "partition: 3 will not do: input should be a valid string"),
        ("partition = 'a b'", 'partition: "a b" will not do: write one word without blanks'),
        ("partition = ''", 'partition: "" will not do: write one word without blanks'),
        ("gpus = 'gpu'", 'gpus: "gpu" will not do'),
        ("exclusive = 1", "exclusive: 1 will not do"),
        ("cpus_per_task = 0", "cpus_per_task: 0 will not do"),
        ("cpus_per_task = true", "cpus_per_task: true will not do"),
        ("array_parallelism = 0", "array_parallelism: 0 will not do"),
        ("poll_s = 0", "poll_s: 0 will not do"),
        ("poll_s = inf", "poll_s: Infinity will not do"),
        ("srun = '--x'", 'srun: "--x" will not do'),
        ('srun = ["a\\nb"]', 'srun[0]: "a\\nb" will not do'),
        ("[environment.'a b']\nmpi='pmix'", 'environment.a b: "a b" will not do'),
        ("[environment.default.env]\n'A-B'='x'", 'environment.default.env.A-B: "A-B" will not do'),
        ("[environment.default.env]\nA=1", "environment.default.env.A: 1 will not do"),
        ('[environment.default.env]\nA="a\\nb"', 'environment.default.env.A: "a\\nb" will not do'),
        ('[environment.default]\nsetup=["a\\nb"]', 'environment.default.setup[0]: "a\\nb" will'),
        ("[environment.default]\npython='~/py'", 'environment.default.python: "~/py" will not do'),
        ("[environment.default]\npython='$HOME/py'", 'environment.default.python: "$HOME/py" will'),
        (
            "[environment.default]\npython='apptainer exec x.sif python'",
            'environment.default.python: "apptainer exec x.sif python" will not do',
        ),
    ],
)
def test_a_profile_that_cannot_be_is_refused_where_it_stands(
    tmp_path: Path, text: str, issue: str
) -> None:
    (found,) = site_issues(tmp_path, text)
    assert found.startswith(issue)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sbatch = {array = '0-9'}", "array is decided by the sweep"),
        ("sbatch = {job_name = 'x'}", "job_name is decided by the sweep"),
        ("sbatch = {comment = 'x'}", "comment is decided by the sweep"),
        ("sbatch = {time = 3}", "time is decided by the sweep"),
        ("sbatch = {mem = '1G'}", "mem belongs to the profile's own key mem"),
        ("sbatch = {cpus-per-task = 2}", "cpus-per-task belongs to the profile's own key cpus_per"),
        ("sbatch = {gpus-per-node = 2}", "gpus-per-node belongs to the profile's own key gpus"),
        ("gpus = 'gres'\nsbatch = {gres = 'x:1'}", "gres belongs to the profile's own key gpus"),
        ("sbatch = {exclusive = 'user'}", "exclusive belongs to the profile's own key exclusive"),
        ("sbatch = {requeue = false}", "requeue needs a text, a whole number, or true"),
        ("sbatch = {nice = 1.5}", "nice needs a text, a whole number, or true"),
        ('sbatch = {hint = "a\\nb"}', "hint must be one line"),
    ],
)
def test_sbatch_options_that_would_undo_ours_are_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    (found,) = site_issues(tmp_path, text)
    assert found.startswith("sbatch: ") and said in found


def test_all_issues_of_a_profile_at_once(tmp_path: Path) -> None:
    assert len(site_issues(tmp_path, "partition = 1\nmemory = 2\nexclusive = 3")) == 3


def test_finding_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DLPERF_SITE", raising=False)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jupiter.toml").write_text('partition = "j"')
    (tmp_path / "other.toml").write_text('partition = "o"')
    assert load_site(None) == Site()
    assert load_site("jupiter").partition == load_site("slurm/jupiter.toml").partition == "j"
    assert load_site("other.toml").partition == load_site(str(tmp_path / "other.toml")).partition
    monkeypatch.setenv("DLPERF_SITE", "")
    assert load_site(None) == Site()
    monkeypatch.setenv("DLPERF_SITE", "jupiter")
    assert load_site(None).partition == "j" and load_site("other.toml").partition == "o"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_site("~/other.toml").partition == "o"
    with pytest.raises(SpecError, match=r"no site profile 'jupitr' in slurm/ \(did you mean"):
        load_site("jupitr")
    with pytest.raises(SpecError, match=r"there is no such file"):
        load_site("./no.toml")


def test_an_environment_that_is_not_there(tmp_path: Path) -> None:
    assert Site().environment_named("default") == Environment()
    sweep = load(write(tmp_path, case='batch_size = 8\nenvironment = "torhc"'))
    for engine in ("slurm", "local"):
        with pytest.raises(SpecError, match=r"a case names 'torhc', .*did you mean 'torch'\?"):
            make_manifest(sweep, Site(environment={"torch": Environment()}), engine)


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "slurm").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_profile_of_the_project_loads(path: Path) -> None:
    assert load_site(str(path)).description


def test_a_profile_goes_into_the_manifest_as_plain_values() -> None:
    site = Site(sbatch={"nice": 1}, environment={"a": Environment(env={"B": "c"})})
    assert Site.model_validate(site.to_dict()) == site


_VALUES = st.recursive(
    st.one_of(st.text(max_size=6), st.integers(), st.booleans(), st.floats()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
_KEYS = st.sampled_from([*Site.model_fields, "default", "x"])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables=st.dictionaries(_KEYS, _VALUES | st.dictionaries(_KEYS, _VALUES, max_size=2)))
def test_whatever_a_profile_holds_only_spec_errors_come_of_it(
    tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "read_toml", lambda path: ("", tables))
    try:
        assert isinstance(load_site("any.toml"), Site)
    except SpecError as error:
        assert error.issues


# --- the documentation


def documented_rows(page: str) -> set[str]:
    """First cells of the page's tables, if they are one name in code font."""
    return set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_the_page_has_every_key_and_no_other() -> None:
    page = (REPOSITORY / "docs" / "site-profiles.md").read_text(encoding="utf-8")
    assert documented_rows(page) == {*Site.model_fields, *Environment.model_fields}
    for fields in (Site.model_fields, Environment.model_fields):
        for name, field in fields.items():
            (row,) = re.findall(rf"^\| `{name}` \| (.*?) \|", page, re.MULTILINE)
            if field.default not in (None, {}, []) and name != "python":
                assert row == f"`{json.dumps(field.default)}`", name


def test_the_pages_example_is_a_profile(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "site-profiles.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    site = load_site(str(profile(tmp_path, example)))
    assert "--gres=gpu:a100:4" in options_of(script_of(tmp_path, site))


def test_the_template_names_every_key_and_loads_with_all_of_them(tmp_path: Path) -> None:
    text = (REPOSITORY / "slurm" / "template.toml").read_text(encoding="utf-8")
    plain = load_site(str(profile(tmp_path, text)))
    assert plain == Site(description=plain.description, environment={"default": Environment()})
    whole = re.sub(r"^# (?=[a-z_]+ = |\[)", "", text, flags=re.MULTILINE)
    site = load_site(str(profile(tmp_path, whole)))
    assert site.model_fields_set == set(Site.model_fields)
    assert site.environment["default"].model_fields_set == set(Environment.model_fields)
    assert "--licenses=scratch:1" in options_of(script_of(tmp_path, site))
