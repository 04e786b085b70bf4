"""Nothing that a profile, a sweep, a directory or a node is called is ever run by a shell.

Scripts are run where there is not a single command, with functions in place of srun and the like
that tell what they were given: anything else that ran would tell, complain, or leave a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from script_samples import HOSTILE, array_of, as_sbatch_unquotes, bash, setup_of, steps_of
from spec_samples import load, write

from dlperf_hpc.engines.base import run_program
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.engines.slurm.script import batch_script, srun_arguments
from dlperf_hpc.errors import DlperfError, SpecError
from dlperf_hpc.records.manifest import Array

# With what each kind of value has to begin, so that enough of them get as far as a script.
FULL = st.tuples(st.sampled_from(["/", "/", "/x", ""]), HOSTILE).map("".join)
FLAG = st.tuples(st.sampled_from(["--x=", "--y", ""]), HOSTILE).map("".join)
BOX = st.tuples(st.sampled_from(["--container-x=", "--no-container-", ""]), HOSTILE).map("".join)
SOME = {"apptainer": FLAG, "pyxis": BOX}
SHORT = settings(max_examples=150)


def _container(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    mounts = "binds" if kind == "apptainer" else "mounts"
    image = FULL if kind == "apptainer" else HOSTILE
    lists = {mounts: st.lists(FULL, max_size=2), "options": st.lists(SOME[kind], max_size=2)}
    return st.fixed_dictionaries({"image": image}, optional=lists)


KIND = st.one_of(
    st.fixed_dictionaries({"python": HOSTILE}),
    st.fixed_dictionaries({"venv": FULL}),
    st.fixed_dictionaries({"conda": FULL | HOSTILE}),
    st.fixed_dictionaries({"conda": FULL, "conda_root": FULL}),
    st.fixed_dictionaries({"apptainer": _container("apptainer")}),
    st.fixed_dictionaries({"pyxis": _container("pyxis")}),
)
ENVIRONMENT = st.tuples(
    KIND,
    st.fixed_dictionaries(
        {"mpi": HOSTILE, "env": st.fixed_dictionaries({"A": HOSTILE})},
        optional={"modules": st.lists(HOSTILE, max_size=2)},
    ),
).map(lambda both: {**both[0], **both[1]})
NAMES = ("partition", "account", "qos", "constraint", "reservation", "gpu_type")
STRICT = ("exclude", "export", "mem", "mem_per_cpu")
PROFILE = st.fixed_dictionaries(
    {
        **dict.fromkeys(NAMES, HOSTILE),
        "srun": st.lists(FLAG, max_size=2),
        "sbatch": st.dictionaries(st.sampled_from(["mail-user", "hint", "licenses"]), HOSTILE),
        "environment": st.fixed_dictionaries({"e": ENVIRONMENT}),
        "requeue": st.sampled_from([None, 0, 2]),
        "cpus_per_task": st.sampled_from([None, 3]),
    },
    optional=dict.fromkeys(STRICT, HOSTILE),
)


def accepted(tables: dict[str, Any]) -> Site:
    """The profile without what is refused in it."""
    while True:
        try:
            return Site.model_validate(tables)
        except ValidationError as error:
            for item in error.errors():
                _drop(tables, [part for part in item["loc"] if part != "[key]"])


def _drop(tables: Any, loc: list[Any]) -> None:
    where = 2 if loc[0] == "environment" else 0
    for part in loc[:where]:
        tables = tables[part]
    tables.pop(loc[where], None)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


SPIES = f"""
say() {{ printf '%s\\0' "$@"; }}
srun() {{ say srun "$@"; say "A=$A" "V=$VIRTUAL_ENV"; return 4; }}
module() {{ say module "$@"; }}
source() {{ say source "$@"; }}
conda() {{ CONDA_PREFIX=$PWD; [ "$1" = shell.bash ] || say conda "$@"; }}
scontrol() {{ say scontrol "$@"; }}
command_not_found_handle() {{ say RAN "$@" >>ran; }}
function {sys.executable} {{ say epilogue "$@"; return 75; }}
"""


@SHORT
@given(tables=PROFILE, token=HOSTILE, name=HOSTILE)
def test_no_value_reaches_a_shell_or_slurm_as_anything_but_itself(
    tmp_path: Path, tables: dict[str, Any], token: str, name: str
) -> None:
    event(_check(tmp_path, accepted(tables), token, name))


NASTY = "x$(touch pwned)`touch pwned`\"'; touch pwned; ' > pwned | & ! * # ~ {a} ${HOME} \\"
WORD = NASTY.replace(" ", "${IFS}")


@pytest.mark.parametrize(
    "kind",
    [
        {"python": "/x" + WORD.replace("$", "").replace("~", "")},
        {"venv": f"/{NASTY}"},
        {"conda": f"/{NASTY}", "conda_root": f"/{NASTY}"},
        {"apptainer": {"image": f"/{NASTY}", "binds": [f"/{NASTY}"], "options": [f"-x={NASTY}"]}},
        {"pyxis": {"image": WORD, "mounts": [f"/{NASTY}"], "options": [f"--container-x={NASTY}"]}},
    ],
)
def test_no_value_of_any_kind_of_environment_is_run(tmp_path: Path, kind: dict[str, Any]) -> None:
    environment = {**kind, "mpi": WORD, "env": {"A": NASTY}}
    tables = {
        **dict.fromkeys(NAMES, WORD),
        "srun": [f"--x={NASTY}"],
        "sbatch": {"mail-user": NASTY},
        "environment": {"e": environment},
    }
    assert _check(tmp_path, Site.model_validate(tables), NASTY, NASTY) == "ran"


def _check(tmp_path: Path, site: Site, token: str, name: str) -> str:
    """Run the script of a site; says what became of it."""
    assert not [text for text in _texts(site.to_dict()) if re.search(r"[\x00-\x1f\x7f]", text)]
    python = tmp_path / "bin" / "python"  # conda's
    python.parent.mkdir(exist_ok=True)
    python.touch(mode=0o755)
    before = {*tmp_path.rglob("*"), tmp_path / "sample.toml"}
    array = dataclasses.replace(array_of(tmp_path, site), token=token)
    root = tmp_path / re.sub(r"[\x00-\x1f\x7f%\\/]", "", f"x{name}")  # what no script can hold
    try:
        script = batch_script(root, array, site)
    except DlperfError as error:
        return type(error).__name__  # of such a token, or a directory no container can have
    _check_options(script, site, root, token)
    run = bash(SPIES + script, tmp_path)
    marks = f"dlperf_hpc: array {token}\ndlperf_hpc: launch 100_0.0\n"
    assert run.stdout.startswith(marks)
    words = run.stdout.removeprefix(marks).split("\0")[:-1]
    assert words == [*_expected_steps(site), *_expected_ranks(array, site, root)]
    assert (run.returncode, run.stderr) == (4, "")
    assert {*tmp_path.rglob("*")} == before
    return "ran"


def _check_options(script: str, site: Site, root: Path, token: str) -> None:
    lines = [line for line in script.split("\n") if line.startswith("#SBATCH")]
    read = {as_sbatch_unquotes(line.removeprefix("#SBATCH ")) for line in lines}
    assert len(read) == len(lines) and "--uid=0" not in read
    names = ("partition", "account", "qos", "constraint", "reservation", "exclude", "export")
    given = {name: getattr(site, name) for name in (*names, "mem", "mem_per_cpu")}
    given.update({"comment": token, "output": str(root / "jobs" / "%A_%a.out"), **site.sbatch})
    wanted = {f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value}
    assert wanted <= read
    assert f"--gpus-per-node={site.gpu_type + ':' if site.gpu_type else ''}4" in read


def _expected_steps(site: Site) -> Iterator[str]:
    environment = site.environment["e"]
    for module in environment.modules:
        yield from ("module", "load", module)
    if environment.conda_root:
        yield from ("source", f"{environment.conda_root.rstrip('/')}/etc/profile.d/conda.sh")
    if environment.conda:
        yield from ("conda", "activate", environment.conda)


def _expected_ranks(array: Array, site: Site, root: Path) -> Iterator[str]:
    environment = site.environment["e"]
    command = environment.command(root, run_program(root, array).arguments)
    told = [*srun_arguments(root, array, site), *command]
    assert {f"--mpi={environment.mpi}", environment.interpreter, *site.srun} <= {*told}
    for box in (environment.apptainer, environment.pyxis):
        assert box is None or {*box.options} <= {*told}
    yield from ("srun", "--unbuffered", "--output", str(root / "jobs" / "%A_%a_%t_log.out"), *told)
    yield f"A={environment.env.get('A', '')}"
    yield f"V={(environment.venv or '').rstrip('/')}"
    yield from ("epilogue", "-m", "dlperf_hpc.engines.epilogue", str(root), "2n4g.sample-e", "4")
    if site.requeue:
        yield from ("scontrol", "requeue", "100_0")


@SHORT
@given(lines=st.lists(HOSTILE, min_size=1, max_size=3))
def test_lines_of_setup_are_the_shells_and_arrive_as_they_stand(
    tmp_path: Path, lines: list[str]
) -> None:
    kept = [line for line in lines if not re.search(r"[\x00-\x1f\x7f]", line)]
    with contextlib.suppress(ValidationError):
        Environment(setup=lines)
        assert kept == lines
    assume(kept)
    site = Site(environment={"e": Environment(setup=kept)})
    array = array_of(tmp_path, site)
    script = batch_script(tmp_path / "logs", array, site)
    assert steps_of(script) == [line for line in kept if line]
    assert setup_of(script)[-1] == "dlperf_line="
    run = bash(SPIES + 'eval() { say eval "$@"; }\n' + script, tmp_path)
    words = run.stdout.partition("100_0.0\n")[2].split("\0")
    assert words[: 2 * len(kept)] == [word for line in kept for word in ("eval", line)]
    assert words[2 * len(kept)] == "srun" and (run.returncode, run.stderr) == (4, "")


@settings(max_examples=300)
@given(text=HOSTILE)
def test_what_a_sweep_may_be_called_needs_no_quotes(tmp_path: Path, text: str) -> None:
    path = write(tmp_path)
    for key in ("name", "environment"):
        try:
            load(path, **{key: text})
        except SpecError:
            continue
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text)
