"""The entry points: `dlperf VERB`, `python -m dlperf_hpc VERB`, `python -m dlperf_hpc.sweep`."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from record_samples import a_run, a_sweep

from dlperf_hpc import version_line
from dlperf_hpc.__main__ import main, verbs


def call(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, timeout=60)


def test_the_summaries_are_those_of_the_modules() -> None:
    """`dlperf --help` reads them as text; what Python makes of the modules is the same."""
    names = [path.stem for path in (ROOT / "dlperf_hpc" / "cli").glob("[a-z]*.py")]
    modules = {name: importlib.import_module(f"dlperf_hpc.cli.{name}") for name in names}
    found = {name: each.SUMMARY for name, each in modules.items() if hasattr(each, "SUMMARY")}
    assert found == verbs() and len(found) > 10
    assert all(callable(modules[name].main) for name in found)


def test_without_arguments_the_verbs_are_listed_as_an_error(capsys: Any) -> None:
    assert main([]) == 2
    output = capsys.readouterr()
    assert output.out == "" and all(f"\n  {verb} " in output.err for verb in verbs())


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_verbs(option: str, capsys: Any) -> None:
    assert main([option]) == 0
    output = capsys.readouterr()
    assert output.err == "" and all(f"\n  {verb} " in output.out for verb in verbs())


def test_the_version_is_told(capsys: Any) -> None:
    assert main(["--version"]) == 0
    told = capsys.readouterr().out
    assert told == f"{version_line()}\n"
    # The commit is told of a checkout alone: a source distribution that is tested may know none.
    commit = r" \(commit [0-9a-f]{12}(\+changes)?\)" if (ROOT / ".git").exists() else ".*"
    assert re.fullmatch(r"dlperf_hpc \d+\.\d+\.\d+" + commit + "\n", told)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("stauts", " (did you mean 'status'?)"), ("Report", " (did you mean 'report'?)"), ("x", "")],
)
def test_a_mistyped_verb_gets_the_nearest(typed: str, hint: str, capsys: Any) -> None:
    assert main([typed, "--help"]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == (
        "",
        f"error: there is no verb {typed!r}{hint}; `dlperf --help` lists the verbs\n",
    )


@pytest.mark.parametrize("typed", ["options", "messages", "../cli/sweep", "cli.sweep", "-"])
def test_what_is_no_verb_is_not_imported(typed: str, capsys: Any) -> None:
    assert main([typed]) == 2
    assert "there is no verb" in capsys.readouterr().err


def test_all_spellings_of_sweep_do_the_same() -> None:
    command = shutil.which("dlperf", path=str(Path(sys.executable).parent))
    assert command, "the package is not installed"
    arguments = ("sweeps/quickstart.toml", "--dry-run")
    spellings = [
        (command, "sweep"),
        (sys.executable, "-m", "dlperf_hpc", "sweep"),
        (sys.executable, "-m", "dlperf_hpc.sweep"),
        (sys.executable, "-m", "dlperf_hpc.cli.sweep"),
    ]
    done = [call(*spelling, *arguments) for spelling in spellings]
    assert [each.returncode for each in done] == [0, 0, 0, 0], done[0].stderr
    assert len({each.stdout for each in done}) == 1 and "9 runs" in done[0].stdout


def test_prepare_has_its_earlier_name_too(capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        main(["data", "prepare", "--help"])
    assert left.value.code == 0 and "usage: dlperf prepare" in capsys.readouterr().out


def test_a_shell_completes_verbs_options_sweeps_and_runs(tmp_path: Path) -> None:
    """By the lines that `dlperf completion bash` prints, in a real bash."""
    run = a_run("1n1g")
    a_sweep(tmp_path / "logs" / "first", [run])
    lines = ["st", "sweep --dry", "status logs/", "sweep quicks", "logs logs/first torch/"]
    script = """eval "$(dlperf completion bash)"; IFS=$'\\n'; COMP_TYPE=9
    for COMP_LINE; do COMP_POINT=${#COMP_LINE}; COMPREPLY=(); _python_argcomplete dlperf
    echo "${COMPREPLY[*]}"; done"""
    argv = ["bash", "-c", script, "bash", *(f"dlperf {line}" for line in lines)]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60)
    found = list(map(str.strip, done.stdout.splitlines()))
    assert found == ["status", "--dry-run", "logs/first", "quickstart", run.id], done.stderr


def test_a_reader_that_goes_away_is_no_error_and_ends_the_verb_as_a_shell_has_it() -> None:
    late = f"({sys.executable} -m dlperf_hpc env list; echo $? >&2) | exec 0<&- sleep 0"
    done = call("bash", "-c", late)
    assert done.stderr == "141\n"


def test_help_of_a_verb_has_80_columns_at_most(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for verb in verbs():
        if verb != "onebox":  # a program of its own
            with pytest.raises(SystemExit):
                main(["help", verb])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_the_commands_of_a_recipe_are_json_where_that_is_asked_for(capfd: Any) -> None:
    assert main(["env", "make", "tensorflow", "--dir", "/nowhere", "--dry-run", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["name"], found["venv"], found["made"]) == ("tensorflow", "/nowhere", False)
    assert found["commands"][0].endswith("-m venv /nowhere")
