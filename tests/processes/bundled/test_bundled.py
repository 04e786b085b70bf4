"""Sweeps, site profiles and recipes by name; `init`, `env`, `onebox`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc import bundled
from dlperf_hpc.__main__ import main
from dlperf_hpc.errors import SpecError


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, of a user without profiles."""
    place = tmp_path / "empty"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DLPERF_SITE", "DLPERF_SITES"):
        monkeypatch.delenv(name, raising=False)
    return place


def test_a_checkout_uses_its_own_folders() -> None:
    assert bundled.is_checkout()
    for name in ("sweeps", "programs", "slurm", "requirements"):
        assert bundled.folder(name) == ROOT / name
    assert bundled.ready_sweeps() == sorted(path.stem for path in ROOT.glob("sweeps/*.toml"))


def test_a_sweep_by_name_and_by_path(empty: Path) -> None:
    ready = ROOT / "sweeps" / "quickstart.toml"
    assert bundled.sweep_file(Path("quickstart")) == ready
    (empty / "quickstart").mkdir()  # a directory of that name is no sweep file
    assert bundled.sweep_file(Path("quickstart")) == ready
    (empty / "sweeps").mkdir()
    (empty / "sweeps" / "quickstart.toml").write_text("")
    assert bundled.sweep_file(Path("quickstart")) == Path("sweeps/quickstart.toml")
    (empty / "tf2_bert").write_text("")
    assert bundled.sweep_file(Path("tf2_bert")) == Path("tf2_bert")
    for path in ("mine.toml", "some/where", "sweeps/quickstart.toml", str(ready)):
        assert bundled.sweep_file(Path(path)) == Path(path)


def test_a_sweep_that_is_not_there(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError, match=r"did you mean 'quickstart'\?"):
        bundled.sweep_file(Path("quikstart"))
    with pytest.raises(SpecError, match=r"write its name alone: quickstart"):
        bundled.sweep_file(Path("sweeps/quickstart.toml"))
    assert main(["sweep", "x1"]) == main(["doctor", "x1"]) == 2
    told = capsys.readouterr().err
    assert told.count("there is no file and no sweep of this name (there are: bert_fp16, ") == 2


def test_site_profiles_are_sought_in_four_places(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLPERF_SITES", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    places = [empty / "slurm", tmp_path / "a", tmp_path / "b", tmp_path / "config" / "dlperf_hpc"]
    with pytest.raises(SpecError) as wrong:
        bundled.profile_file("jupiter")
    for text in ("slurm/, ", *(f"{place}/, " for place in places[1:]), f"{ROOT / 'slurm'}/ ("):
        assert text in str(wrong.value)
    known = ", ".join(sorted(path.stem for path in ROOT.glob("slurm/*.toml")))
    wanted = f"there are: {known}; to make one, type `dlperf init . --site jupiter` and answer"
    assert wanted in str(wrong.value)
    for place in reversed(places):
        place.mkdir(parents=True)
        (place / "jupiter.toml").write_text("")
        assert bundled.profile_file("jupiter").absolute() == place / "jupiter.toml"
    assert bundled.profile_file("onebox") == ROOT / "slurm" / "onebox.toml"


def test_without_xdg_the_user_s_profiles_are_below_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path / ".config" / "dlperf_hpc" in bundled.profile_folders()


def test_a_ready_program_gives_way_to_a_copy(
    empty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep names it, and no file of it is at hand; then there is one in each place."""
    spec = tmp_path / "elsewhere" / "mine.toml"
    case = 'framework = "nanogpt"\nmodel = "gpt2"\nbatch_size = 4\nseq_len = 64\n'
    folders = [tmp_path / "config" / "dlperf_hpc", spec.parent, empty]
    for folder in folders:
        (folder / "programs").mkdir(parents=True)
    spec.write_text(f'topologies = ["1n2g"]\nrepeats = 1\n[case]\n{case}')
    argv = ["sweep", str(spec), "--cluster", "local", "--dry-run"]
    assert main(argv) == 0 and "nanogpt on 1n2g" in (told := capsys.readouterr().out)
    assert "train.py --dataset=openwebtext --n_layer=12" in told
    for number, folder in enumerate(folders):
        table = f'launch = "rank"\nrun = ["train{number}.py", "{{seq_len}}"]\n'
        (folder / "programs" / "nanogpt.toml").write_text(table)
        assert main(argv) == 0 and f" train{number}.py 64\n" in capsys.readouterr().out


def test_init_copies_and_never_overwrites(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (empty / "lab" / "sweeps").mkdir(parents=True)
    mine = empty / "lab" / "sweeps" / "quickstart.toml"
    mine.write_text("# mine\n")
    assert main(["init", "lab", "--site", "jupiter"]) == 0
    told = capsys.readouterr().out
    assert "was there, and stays: lab/sweeps/quickstart.toml\n" in told
    assert "cd lab && dlperf sweep sweeps/bert_fp32.toml --site jupiter --dry-run" in told
    assert mine.read_text() == "# mine\n"
    template = (ROOT / "slurm" / "template.toml").read_bytes()
    assert (empty / "lab" / "slurm" / "jupiter.toml").read_bytes() == template
    made = {path.stem for path in (empty / "lab" / "sweeps").iterdir()}
    assert made == set(bundled.ready_sweeps())
    programs = {path.name for path in (empty / "lab" / "programs").iterdir()}
    assert programs == {path.name for path in ROOT.glob("programs/*.toml")}
    assert main(["init", "lab", "--site", "jupiter", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["written"] == [] and len(again["kept"]) == len(made) + len(programs) + 1


def test_what_init_says_to_type_next_can_be_typed(
    empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "my lab\x1b[2J"]) == 0
    told = capsys.readouterr().out
    assert "  cd 'my lab" in told and "\x1b" not in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lab", "--site", "../x"], "--site: '../x' is not a profile's name"),
        (["file/lab"], "file/lab/programs/diffusers.toml: cannot be written: Not a directory"),
    ],
)
def test_init_says_why_it_cannot(
    arguments: list[str], said: str, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty / "file").touch()
    assert main(["init", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in empty.iterdir()] == ["file"]


def test_the_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "list", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    files = {path.stem for path in ROOT.glob("requirements/*.txt")} - {"constraints"}
    assert known.keys() == files and all(known.values())
    assert main(["env", "list"]) == 0
    assert "tensorflow   The environment of the TensorFlow back end\n" in capsys.readouterr().out


def test_the_commands_of_a_recipe_are_printed_and_not_run(
    empty: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["env", "make", "horovod", "--python", sys.executable, "--dir", "a b", "--dry-run"]
    assert main(argv) == 0
    lines = capfd.readouterr().out.splitlines()
    python = f"'{empty}/a b/bin/python'"
    assert lines[0] == f"{sys.executable} -m venv '{empty}/a b'"
    assert [line.startswith((python, "sh ")) for line in lines[1:]] == [True] * 4
    assert f"--constraint {ROOT}/requirements/constraints.txt" in lines[1]
    assert lines[3].startswith(f"sh {ROOT}/requirements/horovod.sh ")
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make", "tensorflw"], "there is no recipe 'tensorflw' (did you mean 'tensorflow'?)"),
        (["make"], "there is no recipe '' (there are: deepspeed, "),
        (["make", "horovod", "--constraints", "no.txt"], "--constraints: there is no file no.txt"),
    ],
)
def test_env_says_what_is_wrong(
    arguments: list[str], said: str, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", *arguments, "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_onebox_gets_its_own_arguments_and_exit_code(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "dlperf_hpc", "onebox", "status", "--json", str(tmp_path / "no")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("onebox: "), done.stderr


def test_packages_that_may_not_be_installed_are_named(empty: Path) -> None:
    script = ["/bin/sh", str(ROOT / "slurm" / "packages.sh")]
    for programs, code in (("sh", 0), ("sh nonesuch", 2)):
        path = str(empty if code else "/bin")  # without apt-get where it would be asked
        done = subprocess.run(
            [*script, programs, "first second", "RUNLEVEL=1"],
            env={"PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    assert done.stderr.startswith("not installed: ")
    assert " nonesuch\ninstall once, as root: apt-get update" in done.stderr
    assert done.stderr.endswith("--no-install-recommends first second\n")
