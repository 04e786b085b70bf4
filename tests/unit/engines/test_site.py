"""A site profile is checked like a sweep, and each of its keys puts one thing into the script."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT
from script_samples import (
    MARK,
    array_of,
    options_of,
    script_of,
    setup_of,
    site_issues,
    site_of,
    srun_of,
    srun_words,
)
from spec_samples import load, write

from dlperf_hpc.engines import site as site_module
from dlperf_hpc.engines.plan import make_manifest
from dlperf_hpc.engines.site import Apptainer, Environment, Pyxis, Site, load_site
from dlperf_hpc.engines.slurm.script import batch_script
from dlperf_hpc.errors import SpecError

REPOSITORY = ROOT


# --- the script


def test_the_whole_script_of_a_plain_site(tmp_path: Path) -> None:
    site = Site()
    array = array_of(tmp_path, site)
    root = tmp_path / "logs"
    script = batch_script(root, array, site)
    python = sys.executable
    log = f"{root}/jobs/%A_%a"
    train = f"{python} -u -m dlperf_hpc.train {root} 2n4g.sample"
    epilogue = f'{python} -m dlperf_hpc.engines.epilogue {root} 2n4g.sample "$dlperf_code"'
    gate = f"{python} -m dlperf_hpc.engines.holding {root} 2n4g.sample"
    assert [line for line in script.splitlines() if line] == [
        "#!/bin/bash",
        "# Parameters",
        "#SBATCH --array=0-4%5",
        f"#SBATCH --comment={array.token}",
        "#SBATCH --exclusive",
        "#SBATCH --export=ALL",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --job-name=2n4g.sample",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={log}.out",
        "#SBATCH --signal=USR2@10",
        "#SBATCH --time=13",
        "# setup",
        f"echo 'dlperf_hpc: array {array.token}'",
        MARK,
        "(",
        f"if [ -f {root}/held-back.default.json ] && {gate}; then exit 0; fi",
        "# command",
        "export SUBMITIT_EXECUTOR=slurm",
        f"srun --unbuffered --output {log}_%t_log.out --output=all --label --kill-on-bad-exit=1"
        f" --wait=60 --export=ALL --mpi=pmi2 {train}",
        ")",
        "# teardown",
        "dlperf_code=$?",
        epilogue,
        "exit $dlperf_code",
    ]


def test_the_script_of_repeats_in_turn(tmp_path: Path) -> None:
    top = 'topologies = ["2n4g"]\nrepeats = 6\nrepeats_per_job = 3\ntime_limit = "12:30"'
    script = script_of(tmp_path, Site(), top=top)
    assert {"--array=0-1%2", "--time=38"} <= options_of(script)
    lines = script.splitlines()
    first = lines.index("for DLPERF_TURN in 0 1 2; do")
    assert lines[first + 1] == "export DLPERF_TURN DLPERF_JOB_SECONDS=$SECONDS"
    assert lines[first + 2] == f'{MARK[:-1]}.$DLPERF_TURN"'
    assert lines[-4:] == [
        "dlperf_ended=$?",
        "if [ $dlperf_ended -eq 75 ] || [ $dlperf_ended -eq 76 ]; then break; fi",
        "done",
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
        ('mem_per_cpu = "3800M"', {"--mem-per-cpu=3800M"}, set()),
        ("cpus_per_task = 8", {"--cpus-per-task=8"}, set()),
        ("ntasks = true", {"--ntasks=8"}, set()),
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
        ('gpus = "none"\ngpu_type = "a100"', set(), {"--gpus-per-node=4"}),
        ('gpu_bind = "none"', set(), set()),  # for srun alone
        ('exclude = "n1,n[3-5]"', {"--exclude='n1,n[3-5]'"}, set()),
        ('export = "NONE"', {"--export=NONE"}, {"--export=ALL"}),
        ('export = "ALL,A=1,B"', {"--export=ALL,A=1,B"}, {"--export=ALL"}),
        ("requeue = 0", {"--no-requeue"}, set()),
        ("requeue = 3", {"--requeue"}, set()),
        (
            'sbatch = {licenses = "m:1", hint = "nomultithread", hold = true, nice = 5}',
            {"--licenses=m:1", "--hint=nomultithread", "--hold", "--nice=5"},
            set(),
        ),
        ('sbatch = {gres = "tmp:1G"}', {"--gres=tmp:1G"}, set()),
        ('gpus = "none"\nsbatch = {gpus = 8}', {"--gpus=8"}, {"--gpus-per-node=4"}),
        (
            'exclusive = false\nsbatch = {exclusive = "user"}',
            {"--exclusive=user"},
            {"--exclusive"},
        ),
        ('description = "x"\npoll_s = 5', set(), set()),
        ("max_array_size = 100\nmax_submit = 50", set(), set()),
    ],
)
def test_each_key_puts_its_option_into_the_script(
    tmp_path: Path, text: str, added: set[str], removed: set[str]
) -> None:
    plain = options_of(script_of(tmp_path, Site()))
    options = options_of(script_of(tmp_path, site_of(tmp_path, text)))
    unlike = {"--comment="}  # a token, new each time
    changed = {o for o in options ^ plain if not o.startswith(tuple(unlike))}
    assert changed == added | removed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpus_per_task = 8", ["--cpus-per-task=8"]),  # srun does not inherit it
        ("ntasks = true", ["--ntasks=8", "--ntasks-per-node=4"]),
        ("srun_wait_s = 7", ["--wait=7"]),
        ('gpu_bind = "none"', ["--gpu-bind=none"]),
        ('gpu_bind = "tres-none"', ["--tres-bind=gres/gpu:none"]),
        ('srun = ["--cpu-bind=cores", "--x=A B;C"]', ["--cpu-bind=cores", "--x=A B;C"]),
        # Whatever sbatch was told: what the setup exports is for the ranks.
        ('export = "NONE"', ["--export=ALL"]),
        *(
            (f'[environment.default]\nmpi = "{name}"', [f"--mpi={name}"])
            for name in ("pmix", "pmi2", "none", "cray_shasta", "pmix_v4")
        ),
        ('[environment.default]\npython = "/opt/py/bin/python3"', ["/opt/py/bin/python3", "-u"]),
    ],
)
def test_what_srun_is_told(tmp_path: Path, text: str, words: list[str]) -> None:
    told = srun_words(script_of(tmp_path, site_of(tmp_path, text)))
    assert [word for word in told if word in words] == words
    names = [word.partition("=")[0] for word in told if word.startswith("--")]
    names.remove("--output")  # submitit's, which ours undoes
    assert len(set(names)) == len(names)


def test_srun_and_what_it_starts_see_the_cpus_of_a_rank(tmp_path: Path) -> None:
    script = script_of(tmp_path, Site(cpus_per_task=8))
    assert setup_of(script) == ["export SRUN_CPUS_PER_TASK=8"]
    assert "SRUN_CPUS" not in script_of(tmp_path, Site())


def test_extra_srun_words_come_after_ours(tmp_path: Path) -> None:
    line = srun_of(script_of(tmp_path, Site(srun=["--cpu-bind=cores"], gpu_bind="none")))
    ours = ("--wait=60", "--mpi=pmi2", "--gpu-bind=none")
    assert max(line.index(each) for each in ours) < line.index("--cpu-bind=cores ")


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
        ("partition = 3", "partition: 3 is invalid: write a text in quotes"),
        ("partition = 'a b'", 'partition: "a b" is invalid: write one word without blanks'),
        ("partition = ''", 'partition: "" is invalid: write one word without blanks'),
        ("gpus = 'gpu'", 'gpus: "gpu" is invalid'),
        ("gpu_bind = 'closest'", 'gpu_bind: "closest" is invalid'),
        ("mem = '16 GB'", 'mem: "16 GB" is invalid: write an amount'),
        ("mem = '0'\nmem_per_cpu = '1G'", 'mem_per_cpu: "1G" is invalid: mem is there already'),
        ("exclude = 'n1 n2'", 'exclude: "n1 n2" is invalid: write nodes as Slurm does'),
        ("export = 'ALL, A'", 'export: "ALL, A" is invalid: write ALL, NONE, NIL, or'),
        ("export = 'NONE,A'", 'export: "NONE,A" is invalid'),
        ("requeue = -1", "requeue: -1 is invalid"),
        ("requeue = true", "requeue: true is invalid"),
        ("max_array_size = 0", "max_array_size: 0 is invalid"),
        ("ntasks = 8", "ntasks: 8 is invalid"),
        ("exclusive = 1", "exclusive: 1 is invalid"),
        ("cpus_per_task = 0", "cpus_per_task: 0 is invalid"),
        ("cpus_per_task = true", "cpus_per_task: true is invalid"),
        ("array_parallelism = 0", "array_parallelism: 0 is invalid"),
        ("poll_s = 0", "poll_s: 0 is invalid"),
        ("poll_s = inf", "poll_s: Infinity is invalid"),
        ("srun = '--x'", 'srun: "--x" is invalid'),
        ('srun = ["a\\nb"]', 'srun[0]: "a\\nb" is invalid'),
        ("[environment.'a b']\nmpi='pmix'", 'environment.a b: "a b" is invalid'),
        ("[environment.default.env]\n'A-B'='x'", 'environment.default.env.A-B: "A-B" is invalid'),
        ("[environment.default.env]\nA=1", "environment.default.env.A: 1 is invalid"),
        ('[environment.default.env]\nA="a\\nb"', 'environment.default.env.A: "a\\nb" is invalid'),
        (
            '[environment.default]\nsetup=["a\\nb"]',
            'environment.default.setup[0]: "a\\nb" is invalid',
        ),
        ("[environment.default]\npython='~/py'", 'environment.default.python: "~/py" is invalid'),
        (
            "[environment.default]\npython='$HOME/py'",
            'environment.default.python: "$HOME/py" is invalid',
        ),
        (
            "[environment.default]\npython='apptainer exec x.sif python'",
            'environment.default.python: "apptainer exec x.sif python" is invalid',
        ),
    ],
)
def test_a_profile_that_cannot_be_is_refused_where_it_stands(
    tmp_path: Path, text: str, issue: str
) -> None:
    (found,) = site_issues(tmp_path, text)
    assert found.startswith(issue)


E_ = "[environment.e]\n"


@pytest.mark.parametrize(
    ("text", "issue"),
    [
        ("venv = 'v'", 'venv: "v" is invalid: write a full path'),
        ("venv = '/v'\npython = '/p'", 'venv: "/v" is invalid: python names another Python'),
        ("venv = '/v'\nconda = 'c'", 'conda: "c" is invalid: venv names another Python'),
        ("conda = '-n x'", 'conda: "-n x" is invalid: write the name of a conda environment'),
        ("conda_root = '/c'", 'conda_root: "/c" is invalid: says where conda is'),
        ("modules = ['-f']", 'modules[0]: "-f" is invalid: write a module'),
        ("modules = ['a; b']", 'modules[0]: "a; b" is invalid: write a module'),
        ("modules = 'cuda'", 'modules: "cuda" is invalid'),
        ("apptainer = {}", "apptainer.image: is missing"),
        ("apptainer = {image = 'x.sif'}", 'apptainer.image: "x.sif" is invalid: write the image'),
        (
            "apptainer = {image = '/x', bind = []}",
            "apptainer.bind: unknown key 'bind' (did you mean 'binds'?)",
        ),
        ("apptainer = {image = '/x', binds = ['/a,/b']}", 'apptainer.binds[0]: "/a,/b" is invalid'),
        ("apptainer = {image = '/x', program = 'sh'}", 'apptainer.program: "sh" is invalid'),
        ("apptainer = {image = '/x', options = ['sh']}", 'apptainer.options[0]: "sh" is invalid'),
        ("pyxis = {image = 'a b'}", 'pyxis.image: "a b" is invalid'),
        (
            "pyxis = {image = 'a', options = ['--nodes=3']}",
            'pyxis.options[0]: "--nodes=3" is invalid',
        ),
        (
            "pyxis = {image = 'a'}\napptainer = {image = '/x'}",
            "pyxis: {'image': 'a'} is invalid: apptainer names another",
        ),
    ],
)
def test_an_environment_that_cannot_be(tmp_path: Path, text: str, issue: str) -> None:
    (found,) = site_issues(tmp_path, E_ + text)
    assert found.startswith(f"environment.e.{issue}")


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
        ("sbatch = {hold = false}", "hold needs a text, a whole number, or true"),
        ("sbatch = {requeue = true}", "requeue belongs to the profile's own key requeue"),
        ("sbatch = {no-requeue = true}", "no-requeue belongs to the profile's own key requeue"),
        ("sbatch = {exclude = 'n1'}", "exclude belongs to the profile's own key exclude"),
        ("sbatch = {export = 'ALL'}", "export belongs to the profile's own key export"),
        ("mem = '1G'\nsbatch = {mem-per-gpu = '1G'}", "own key mem or mem_per_cpu"),
        ("gpu_bind = 'none'\nsbatch = {gpu-bind = 'closest'}", "own key gpu_bind"),
        ("sbatch = {outp = 'x'}", "outp is decided by the sweep"),  # Slurm takes it for output
        ("sbatch = {parsable = true}", "parsable is decided by the sweep"),
        ("sbatch = {wait = true}", "wait is decided by the sweep"),
        ("sbatch = {nice = 1.5}", "nice needs a text, a whole number, or true"),
        ('sbatch = {hint = "a\\nb"}', "hint must be one line"),
    ],
)
def test_sbatch_options_that_would_undo_ours_are_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    (found,) = site_issues(tmp_path, text)
    assert found.startswith("sbatch: ") and said in found


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--output=x", "output is decided by the sweep"),
        ("--outp=x", "outp is decided by the sweep"),
        ("-n3", "ntasks is decided by the sweep"),
        ("--kill-on-bad-exit=0", "kill-on-bad-exit is decided by the sweep"),
        ("--mpi=pmix", "mpi belongs to the profile's own key mpi of an environment"),
        ("--wait=3", "wait belongs to the profile's own key srun_wait_s"),
        ("-c3", "cpus-per-task belongs to the profile's own key cpus_per_task"),
        ("cores", "write an option as one word"),  # srun would run it in place of the ranks
        (":", "write an option as one word"),  # another component of a heterogeneous job
        ("--", "write an option as one word"),
    ],
)
def test_srun_options_that_would_undo_ours_are_refused(
    tmp_path: Path, flag: str, said: str
) -> None:
    (found,) = site_issues(tmp_path, f'srun = ["--cpu-bind=cores", "{flag}"]')
    assert found.startswith("srun[1]: ") and said in found


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
    with pytest.raises(SpecError, match=r"no site profile 'jupitr' in slurm/, .* \(did you mean"):
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


@settings(max_examples=200)
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
    models = (Site, Environment, Apptainer, Pyxis)
    assert documented_rows(page) == {name for model in models for name in model.model_fields}
    for name, field in [pair for model in models[:2] for pair in model.model_fields.items()]:
        (row,) = re.findall(rf"^\| `{name}` \| (.*?) \|", page, re.MULTILINE)
        if field.default not in (None, {}, []) and name != "python":
            assert row == f"`{json.dumps(field.default)}`", name


def test_the_pages_examples_are_profiles(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "site-profiles.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    site = site_of(tmp_path, examples[-1])
    assert "--gres=gpu:a100:4" in options_of(script_of(tmp_path, site))
    kinds = site_of(tmp_path, examples[0]).environment
    assert {kind for each in kinds.values() for kind in each.model_fields_set} >= {
        *("python", "venv", "conda", "modules", "apptainer", "pyxis")
    }


def test_the_template_names_every_key_and_loads_with_all_of_them(tmp_path: Path) -> None:
    text = (REPOSITORY / "slurm" / "template.toml").read_text(encoding="utf-8")
    plain = site_of(tmp_path, text)
    assert plain == Site(description=plain.description, environment={"default": Environment()})
    whole = re.sub(r"^# (?=[a-z_]+ = |\[)", "", text, flags=re.MULTILINE)
    site = site_of(tmp_path, whole)
    assert {*Site.model_fields} - site.model_fields_set == {"mem_per_cpu"}  # it or mem
    assert "# or: mem_per_cpu = " in text
    named = {name for each in site.environment.values() for name in each.model_fields_set}
    assert named == {*Environment.model_fields}
    assert "--licenses=scratch:1" in options_of(script_of(tmp_path, site))
