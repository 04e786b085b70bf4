"""``mode`` and its older name ``compile``: one case, one tag, whichever of them asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_samples import cases, issues_of, load, write

from dlperf_hpc.model.case import Case


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
    assert [case.mode for case in found[1]] == ["eager", "compile"]
    assert all("compile" not in dict(case.options) for case in found[0])


def test_a_single_value_and_the_command_lines(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, case='batch_size = 8\nmode = "compile"')
    assert case.id.endswith("_fp32-compile") and case.mode == "compile"
    (case,) = load(write(tmp_path), mode="compile").cases
    assert case.tags == ("compile",)


@pytest.mark.parametrize("wanted", ['mode = "compile"', "compile = true"])
def test_rules_compare_with_either_word(tmp_path: Path, wanted: str) -> None:
    for axis in ("compile = [false, true]", "mode = ['eager', 'compile']"):
        tables = f"[matrix]\n{axis}\n[[exclude]]\n{wanted}"
        assert [case.mode for case in cases(tmp_path, tables=tables)] == ["eager"]


@pytest.mark.parametrize(
    ("case", "tables", "told"),
    [
        ("mode = 'eager'\ncompile = true", "", "mode: is given twice: in [case] and [case] as"),
        ("mode = 'eager'", "[matrix]\ncompile = [true]", "in [case] and [matrix] as compile (keep"),
        ("", "[[exclude]]\nmode = 'compile'\ncompile = true", "in exclude[0] and exclude[0] as"),
    ],
)
def test_both_words_are_refused(tmp_path: Path, case: str, tables: str, told: str) -> None:
    (found,) = issues_of(write(tmp_path, case=f"batch_size = 8\n{case}", tables=tables))
    assert found.startswith("mode: is given twice: ") and told in found


def test_a_programs_own_key_of_either_name(tmp_path: Path) -> None:
    """It is no mode, and stays what the program calls it."""
    path = tmp_path / "sample.toml"
    for key in ("compile", "mode"):
        path.write_text(
            'topologies = ["1n1g"]\n[case]\nframework = "mine"\nmodel = "toy"\nbatch_size = 8\n'
            f"[matrix]\n{key} = [false, true]\n"
            f'[program.mine]\nlaunch = "rank"\nrun = ["true", "{{{key}}}"]\nkeys.{key} = false'
        )
        found = load(path).cases
        assert [dict(case.options) for case in found] == [{key: False}, {key: True}]
        assert [case.tags for case in found] == [(), (key,)]


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


def test_tuned_is_ddps_alone(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, case='batch_size = 8\nmode = "tuned"')
    assert (case.mode, case.tags, case.option("bucket_mb")) == ("tuned", ("tuned",), 100)
    path = tmp_path / "sample.toml"
    for framework in ("deepspeed", "horovod-torch"):
        path.write_text(
            f'topologies = ["1n1g"]\n[case]\nframework = "{framework}"\nmodel = "bert-tiny"\n'
            'batch_size = 8\nmode = "tuned"'
        )
        told = f"mode: {framework} has no 'tuned' (it has eager, compile)"
        assert issues_of(path) == [told]


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
        compiled = before.pop("mode") == "compile"
        before["options"].update(compile=compiled, bucket_mb=25)
        assert Case.from_dict(before) == case
        assert case.option("bucket_mb") == (100 if compiled else 25)


@pytest.mark.parametrize(
    ("mode", "given", "used", "tags"),
    [
        ("eager", None, 25, ()),
        ("eager", 25, 25, ()),
        ("eager", 100, 100, ("bucketmb100",)),
        ("compile", None, 100, ("compile",)),
        ("compile", 25, 25, ("bucketmb25", "compile")),
        ("compile", 100, 100, ("bucketmb100", "compile")),
    ],
)
def test_buckets_are_larger_where_a_compiled_case_does_not_say(
    tmp_path: Path, mode: str, given: int | None, used: int, tags: tuple[str, ...]
) -> None:
    text = f"batch_size = 8\nmode = '{mode}'" + (f"\nbucket_mb = {given}" if given else "")
    (case,) = cases(tmp_path, case=text)
    assert (case.option("bucket_mb"), case.tags) == (used, tags)
