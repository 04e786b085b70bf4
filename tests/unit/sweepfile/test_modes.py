"""``mode`` and its older name ``compile``: one case, one tag, whichever of them asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_samples import cases, issues_of, load, write

from dlperf_hpc.sweepfile.case import Case


def test_a_mode_is_the_case_that_compile_was(tmp_path: Path) -> None:
    """Also among other tags: a sweep that is there finds its runs by these names."""
    rest = "batch_size = 8\ndropout = 0.0\ncheckpoint_activations = true\nmodel = 'gpt2-tiny'"
    text = '[case]\nframework = "ddp"\n{}\n[matrix]\n{}'
    found = []
    for axis in ("compile = [false, true]", "mode = ['eager', 'compile']"):
        path = tmp_path / "sample.toml"
        path.write_text('topologies = ["1n1g"]\n' + text.format(rest, axis))
        found.append(load(path).cases)
    assert found[0] == found[1]
    assert [case.tags for case in found[1]] == [
        ("checkpointactivations", "dropout0"),
        ("checkpointactivations", "compile", "dropout0"),
    ]
    assert [(case.mode, case.option("compile")) for case in found[1]] == [
        ("eager", False),
        ("compile", True),
    ]


def test_a_single_value_and_the_command_lines(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, case='batch_size = 8\nmode = "compile"')
    assert case.id.endswith("_fp32-compile") and case.run_mode == "compile"
    (case,) = load(write(tmp_path), mode="compile").cases
    assert case.tags == ("compile",)


@pytest.mark.parametrize("wanted", ['mode = "compile"', "compile = true"])
def test_rules_compare_with_either_word(tmp_path: Path, wanted: str) -> None:
    for axis in ("compile = [false, true]", "mode = ['eager', 'compile']"):
        tables = f"[matrix]\n{axis}\n[[exclude]]\n{wanted}"
        assert [case.mode for case in cases(tmp_path, tables=tables)] == ["eager"]


@pytest.mark.parametrize(("mode", "compiled"), [("eager", "true"), ("compile", "false")])
def test_both_in_contradiction_are_refused(tmp_path: Path, mode: str, compiled: str) -> None:
    given = f"batch_size = 8\nmode = '{mode}'\ncompile = {compiled}"
    (told,) = issues_of(write(tmp_path, case=given))
    assert told.startswith(f"mode: {mode!r} contradicts compile = {compiled} (mode alone is enough")


@pytest.mark.parametrize(("mode", "compiled"), [("eager", "false"), ("compile", "true")])
def test_both_alike_are_one(tmp_path: Path, mode: str, compiled: str) -> None:
    (case,) = cases(tmp_path, case=f"batch_size = 8\nmode = '{mode}'\ncompile = {compiled}")
    assert case.mode == mode


def test_a_back_end_without_the_mode_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "sample.toml"
    for framework in ("tensorflow", "horovod-tensorflow"):
        path.write_text(
            f'topologies = ["1n1g"]\n[case]\nframework = "{framework}"\nmodel = "bert-tiny"\n'
            'batch_size = 8\nmode = "compile"'
        )
        assert issues_of(path) == [
            f"mode: {framework} has no 'compile' (it has eager) (its own compiler is xla = true)"
        ]
        path.write_text(path.read_text().replace('"compile"', '"eager"'))
        (case,) = load(path).cases
        assert case.tags == () and case.mode == "eager"


def test_deepspeed_refuses_by_either_word(tmp_path: Path) -> None:
    path = tmp_path / "sample.toml"
    for word in ("compile = true", 'mode = "compile"'):
        path.write_text(
            'topologies = ["1n1g"]\n[case]\nframework = "deepspeed"\nmodel = "bert-tiny"\n'
            f"batch_size = 8\nzero_stage = 3\n{word}"
        )
        (told,) = issues_of(path)
        assert told.startswith("zero_stage: 3 is invalid with compile")


def test_a_mode_that_there_is_not(tmp_path: Path) -> None:
    (told,) = issues_of(write(tmp_path, case="batch_size = 8\nmode = 'compiled'"))
    assert told == "case.mode: there is no mode 'compiled' (did you mean 'compile'?)"


def test_a_case_of_an_earlier_version_is_the_same_case(tmp_path: Path) -> None:
    """Its manifest has no ``mode``: a sweep that grows compares the two."""
    for word in ("compile = true", "compile = false"):
        (case,) = cases(tmp_path, case=f"batch_size = 8\n{word}")
        before = case.to_dict()
        assert before.pop("mode") == case.mode
        assert Case.from_dict(before) == case
