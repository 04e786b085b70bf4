"""Names and forms of other programs in a sweep file: the hint says what they are called here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from spec_samples import write

from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.errors import SpecError, meanings, meant
from dlperf_hpc.model.case import Measure
from dlperf_hpc.sweepfile.casetables import SweepFile
from dlperf_hpc.sweepfile.keys import KEYS, key_hint, known_keys, name_hint
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.sweepfile.tomlfile import hint
from dlperf_hpc.train.registry import registry


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("optimizer", 'optimizer.name = "adam" under [case]; the names are adam, adamw, sgd, lamb'),
        ("schedule", "schedule.name = "),
        ("lr", "called optimizer.lr"),
        ("learning_rate", "called optimizer.lr"),
        ("grad_clip", "called optimizer.grad_clip"),
        ("nodes", 'topologies = ["2n4g"]'),
        ("gpus", 'topologies = ["2n4g"]'),
        ("account", "site profile"),
        ("walltime", 'time_limit = "00:30:00"'),
        ("epochs", "[measure]"),
        ("warmup", "schedule.warmup"),
        ("startup_s", "[limits]"),
        ("dtype", "called precision"),
    ],
)
def test_keys_that_belong_elsewhere(tmp_path: Path, key: str, says: str) -> None:
    """Under [case] and at the top of the file, in one message with everything else."""
    for path in (
        write(tmp_path, case=f"batch_size = 8\n{key} = 1"),
        write(tmp_path, top=f'topologies = ["1n1g"]\n{key} = 1'),
    ):
        with pytest.raises(SpecError) as wrong:
            load_sweep(path, registry())
        (issue,) = wrong.value.issues
        assert issue.message == f"unknown key {key!r}" and says in (issue.hint or "")


def test_every_key_that_a_hint_names_is_one() -> None:
    """And no word is in two rows of a table, where the second would never be read."""
    of_a_case = {*known_keys(registry()), *SweepFile.model_fields, *vars(Measure())}
    assert {name.removeprefix("measure.") for name in meanings()["set"]} <= of_a_case
    assert meanings()["place"].keys() <= meanings()["set"].keys()
    assert {name.split()[0] for name in meanings()["slurm"]} - {"*"} <= Site.model_fields.keys()
    assert meanings()["ranks"].keys() - {"*"} <= Environment.model_fields.keys()
    assert meanings()["framework"].keys() - {"horovod"} <= registry().backends.keys()
    assert meanings()["model"].keys() <= registry().workloads.keys()
    for section, rows in meanings().items():
        words = Counter(word for row in rows.values() for word in set(row.split()))
        assert section in ("place", "example") or max(words.values()) == 1, words.most_common(3)
    assert key_hint("colour", KEYS) is None and meant("option", "--colour") is None


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (
            "framework",
            "pytorch",
            "write 'ddp'; with torch train also: deepspeed, fsdp, horovod-torch",
        ),
        (
            "framework",
            "Torch",
            "write 'ddp'; with torch train also: deepspeed, fsdp, horovod-torch",
        ),
        ("framework", "tf", "write 'tensorflow'; with tensorflow train also: horovod-tensorflow"),
        ("framework", "tensorflow2", "write 'tensorflow'"),
        ("framework", "hvd", "write one of 'horovod-torch', 'horovod-tensorflow'"),
        ("framework", "horovod", "write one of 'horovod-torch', 'horovod-tensorflow'"),
        ("model", "gpt2", "write one of 'gpt2-small', 'gpt2-medium', 'gpt2-large',"),
        ("model", "GPT-2", "write one of 'gpt2-small', 'gpt2-medium', 'gpt2-large',"),
        ("model", "bert", "write one of 'bert-base', 'bert-large', 'bert-tiny'"),
        ("precision", "half", "write 'fp16'"),
        ("precision", "bfloat16", "write 'bf16'"),
    ],
)
def test_names_that_are_others_here(kind: str, value: str, says: str) -> None:
    assert (name_hint(kind, value, registry()) or "").startswith(says)


@pytest.mark.parametrize("kind", ["framework", "model", "precision"])
def test_of_a_name_that_means_nothing_nothing_is_said(kind: str) -> None:
    assert name_hint(kind, "xyz", registry()) is None and name_hint(kind, "", registry()) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("case:\n  model: gpt2\n", "looks like YAML"),
        ("---\n- a\n- b\n", "looks like YAML"),
        ('{"case": 1}', "looks like JSON"),
        ("model = bert-base\n", 'write model = "bert-base"'),
        ("a = [ddp]\n", 'write "ddp" in the list of a'),
        ("compile = False  # off\n", "write compile = false"),
        ("base = None\n", "leave the line out"),
        ("model = \u201cbert\u201d\n", "straight quotes"),
        ('path = "C:\\data"\n', "single quotes"),
        ('model = "bert\nseed = 1\n', "a quote at the end"),
        ("[case]\n[case]\n", "the table is there twice"),
        ("a = 1\na = 2\n", "twice"),
        ("a = [1, 2\n", "write ] at the end"),
        ("a = 1,\n", "the line is: a = 1,"),
        ("a =", "the file ends too early"),
    ],
)
def test_text_that_is_no_toml(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as wrong:
        load_sweep(path, registry())
    (issue,) = wrong.value.issues
    assert issue.where == "TOML syntax" and issue.message.startswith(("line ", "end of document: "))
    assert says in (issue.hint or "")


@pytest.mark.parametrize("complaint", ["", "Invalid value (at line 7, column 1)", "is nested"])
def test_a_complaint_about_no_line_of_the_text_has_a_hint_too(complaint: str) -> None:
    assert hint("", complaint) == "the file ends too early"
