"""A sweep file is read whole or refused whole: every issue at once, each at its place."""

from __future__ import annotations

import itertools
import json
import re
from datetime import date, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT
from spec_samples import issues_of, load, write

from dlperf_hpc.errors import SpecError
from dlperf_hpc.model.case import Limits, Measure, Topology
from dlperf_hpc.sweepfile import casetables
from dlperf_hpc.sweepfile import load as loading
from dlperf_hpc.sweepfile.casetables import SweepFile
from dlperf_hpc.sweepfile.keys import KEYS
from dlperf_hpc.sweepfile.load import clock_seconds, load_sweep
from dlperf_hpc.train.registry import registry

REPOSITORY = ROOT


def test_the_smallest_file_gets_the_stated_defaults(tmp_path: Path) -> None:
    sweep = load(write(tmp_path))
    assert sweep.name == "sample"
    assert (sweep.repeats, sweep.base, sweep.cluster, sweep.site) == (7, "1n1g", "auto", None)
    assert sweep.time_limit_s == {Topology(1, 1): 1800}
    assert (sweep.measure, sweep.limits) == (Measure(20, 100, 0, 0), Limits())
    assert sweep.notes == ()


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "sweeps").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_sweep_of_the_project_loads_without_a_note(path: Path) -> None:
    sweep = load_sweep(path, registry())
    assert sweep.cases and not sweep.notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1\nb = = 2\n", "line 2, column 5"),
        ("a = " + "[" * 4000, "nested too deeply"),
        ("a = " + "9" * 5000, "digits"),
        ("a = 1\na = 2\n", "line 2, "),
    ],
)
def test_toml_that_is_none_is_told_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    (issue,) = issues_of(path)
    assert issue.startswith("TOML syntax: ") and said in issue


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert issues_of(tmp_path / "no.toml") == ["file: there is no such file"]
    assert "cannot be read" in issues_of(tmp_path)[0]
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    assert "cannot be read" in issues_of(tmp_path / "latin.toml")[0]


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path).cases


@pytest.mark.parametrize(
    ("parts", "where", "nearest"),
    [
        ({"top": 'topologies = ["1n1g"]\nrepaets = 3'}, "repaets", "did you mean 'repeats'?"),
        ({"tables": "[measure]\niteration = 3"}, "measure.iteration", "did you mean 'iterations'?"),
        ({"tables": "[limits]\nstartup = 3"}, "limits.startup", "did you mean 'startup_s'?"),
        ({"case": "batch_size = 8\nbucket = 3"}, "case.bucket", "did you mean 'bucket_mb'?"),
        (
            {"case": "batch_size = 8\noptimizer.lrr = 3"},
            "case.optimizer.lrr",
            "did you mean 'optimizer.lr'?",
        ),
        ({"tables": "[matrix]\nseqlen = [3, 4]"}, "matrix.seqlen", "did you mean 'seq_len'?"),
        ({"tables": "[[zip]]\ncompil = [true]"}, "zip[0].compil", "did you mean 'compile'?"),
        ({"tables": "[[exclude]]\ndevise = 'cpu'"}, "exclude[0].devise", "did you mean 'device'?"),
        (
            {"tables": "[[override]]\nwhen = {sed = 1}\nset = {thread = 2}"},
            "override[0].when.sed",
            "did you mean 'seed'?",
        ),
        (
            {"tables": "[[override]]\nwhen = {seed = 1}\nset = {thread = 2}"},
            "override[0].set.thread",
            "did you mean 'threads'?",
        ),
        (
            {"tables": "[[override]]\nif = {seed = 1}\nwhen = {seed = 1}\nsett = {threads = 2}"},
            "override[0].sett",
            "did you mean 'set'?",
        ),
        ({"tables": "[time_limit]\ndefualt = '10:00'"}, "time_limit.defualt", "'default'"),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest_name(
    tmp_path: Path, parts: dict[str, str], where: str, nearest: str
) -> None:
    (issue,) = [i for i in issues_of(write(tmp_path, **parts)) if i.startswith(f"{where}:")]
    assert nearest in issue


def test_keys_in_the_wrong_half_of_the_file_are_shown_their_place(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        top='topologies = ["1n1g"]\nbatch_size = 8',
        case="batch_size = 8\nrepeats = 3\ntopology = '1n1g'",
    )
    assert issues_of(path) == [
        "batch_size: unknown key 'batch_size'"
        " (batch_size is a key of a case: put it under [case] or [matrix])",
        "case.repeats: 'repeats' is not a key of a case"
        " (repeats stands at the top of the file, above the first [table])",
        "case.topology: topologies are listed at the top: topologies = [...]",
    ]


@pytest.mark.parametrize(
    ("parts", "issue"),
    [
        ({"case": 'batch_size = "8"'}, 'case.batch_size: "8" is invalid'),
        ({"case": "batch_size = true"}, "case.batch_size: true is invalid"),
        ({"case": "batch_size = 8.0"}, "case.batch_size: 8.0 is invalid"),
        ({"case": "batch_size = 0"}, "case.batch_size: 0 is invalid"),
        ({"case": "batch_size = 8\nseed = -1"}, "case.seed: -1 is invalid"),
        ({"case": "batch_size = 8\ncompile = 1"}, "case.compile: 1 is invalid"),
        ({"case": "batch_size = 8\nbucket_mb = -1"}, "case.bucket_mb: -1 is invalid"),
        ({"case": "batch_size = 8\ndropout = nan"}, "case.dropout: NaN is invalid"),
        ({"case": "batch_size = 8\nlayer_norm = 'mid'"}, 'case.layer_norm: "mid" is invalid'),
        ({"case": "batch_size = 8\noptimizer.beta1 = 1.0"}, "case.optimizer.beta1: 1.0 is invalid"),
        ({"case": "batch_size = 8\noptimizer.lr = inf"}, "case.optimizer.lr: Infinity is invalid"),
        ({"case": "batch_size = 8\nenvironment = 'a/b'"}, 'case.environment: "a/b" is invalid'),
        ({"case": "batch_size = 8\ndata_path = 'a\tb'"}, 'case.data_path: "a\\tb" is invalid'),
        ({"case": "batch_size = 8\ndevice = 'tpu'"}, 'case.device: "tpu" is invalid'),
        ({"tables": "[matrix]\nseq_len = 64"}, "matrix.seq_len: 64 is invalid: write a list"),
        ({"tables": "[matrix]\nseq_len = []"}, "matrix.seq_len: [] is invalid"),
        ({"tables": "[matrix]\nseq_len = [64, '8']"}, 'matrix.seq_len[1]: "8" is invalid'),
        ({"tables": "[zip]\nseq_len = [64]"}, "zip: stands in single brackets"),
        ({"tables": "[exclude]\nseq_len = 64"}, "exclude: stands in single brackets"),
        ({"tables": "[[exclude]]"}, "exclude[0]: is empty, so that it would apply to every case"),
        ({"tables": "[measure]\niterations = 1"}, "measure.iterations: 1 is invalid"),
        (
            {"tables": "[measure]\nkeep_checkpoint = true"},
            "measure.keep_checkpoint: there is none to keep: set measure.checkpoint = true too",
        ),
        ({"tables": "[limits]\nstartup_s = inf"}, "limits.startup_s: Infinity is invalid"),
        ({"top": "topologies = '1n1g'"}, 'topologies: "1n1g" is invalid'),
        ({"top": "topologies = []"}, "topologies: [] is invalid"),
        ({"top": "repeats = 3"}, "topologies: is missing"),
        ({"top": 'topologies = ["1n1g"]\nrepeats = 0'}, "repeats: 0 is invalid"),
        ({"top": 'topologies = ["1n1g"]\ncluster = "pbs"'}, 'cluster: "pbs" is invalid'),
        ({"top": 'topologies = ["1n1g"]\nname = "a b"'}, 'name: "a b" is invalid: write at most'),
        ({"top": 'topologies = ["1n1g"]\nname = "../x"'}, 'name: "../x" is invalid'),
        ({"top": 'topologies = ["1n1g"]\nname = ""'}, 'name: "" is invalid'),
    ],
)
def test_a_value_that_cannot_be_is_refused_where_it_stands(
    tmp_path: Path, parts: dict[str, str], issue: str
) -> None:
    (found,) = issues_of(write(tmp_path, **parts))
    assert found.startswith(issue)


@pytest.mark.parametrize(
    "text", ["4g", "0n1g", "1n0g", "01n1g", "1n1G", " 1n1g", "1n1g\\n", "1n٣g"]
)
def test_a_topology_has_one_form(tmp_path: Path, text: str) -> None:
    (found,) = issues_of(write(tmp_path, top=f'topologies = ["1n1g", "{text}"]'))
    assert found.startswith("topologies[1]: ") and "is not a topology: write <nodes>n<GPUs" in found


def test_topologies_twice_or_not_text(tmp_path: Path) -> None:
    path = write(tmp_path, top='topologies = ["1n1g", "2n8g", "1n1g", 4]')
    assert issues_of(path) == [
        "topologies[2]: '1n1g' is there twice (leave one out)",
        "topologies[3]: 4 is not a topology: write a string such as '4n8g'",
    ]


def test_the_base_is_one_of_the_topologies(tmp_path: Path) -> None:
    (found,) = issues_of(write(tmp_path, top='topologies = ["1n8g", "2n8g"]\nbase = "1n1g"'))
    assert found == "base: '1n1g' is not among the topologies (did you mean '1n8g'?)"
    (found,) = issues_of(write(tmp_path, top='topologies = ["1n1g"]\nbase = ""'))
    assert found == "base: '' is not among the topologies (there are: 1n1g)"
    assert load(write(tmp_path, top='topologies = ["1n8g"]\nbase = "1n8g"')).base == "1n8g"
    assert load(write(tmp_path, top='topologies = ["1n8g"]')).base is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("05:00", 300),
        ("90:00", 5400),
        ("00:00:30", 30),
        ("01:30:00", 5400),
        ("1-00:00:00", 86400),
        ("2-03:04:05", 183845),
    ],
)
def test_time_limits_are_slurms_forms_with_a_colon(text: str, seconds: int) -> None:
    assert clock_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["5", "", "1-05:00", "0:00", "00:00:00", "1:2", "-1:00", "1h", "٣:00"]
)
def test_a_time_that_is_none_or_means_something_else_in_slurm(tmp_path: Path, text: str) -> None:
    (found,) = issues_of(write(tmp_path, top=f'topologies = ["1n1g"]\ntime_limit = "{text}"'))
    assert found.startswith("time_limit: ")


def test_time_limits_by_topology(tmp_path: Path) -> None:
    top = 'topologies = ["1n1g", "2n1g"]\ntime_limit = {default = "10:00", 2n1g = "20:00"}'
    sweep = load(write(tmp_path, top=top))
    assert sweep.time_limit_s == {Topology(1, 1): 600, Topology(2, 1): 1200}


def test_time_limits_refused_by_topology(tmp_path: Path) -> None:
    top = 'topologies = ["1n1g"]\ntime_limit = {1n1g = 00:10:00, 1n2g = "10:00", default = "x"}'
    assert issues_of(write(tmp_path, top=top)) == [
        'time_limit.1n1g: 00:10:00 is invalid (write it in quotes: "00:10:00")',
        "time_limit.1n2g: '1n2g' is not among the topologies (did you mean '1n1g'?)",
        "time_limit.default: 'x' is not a time: write MM:SS, HH:MM:SS or D-HH:MM:SS;"
        " 1 hour is 01:00:00",
    ]


def test_a_time_limit_table_without_default_is_noted(tmp_path: Path) -> None:
    top = 'topologies = ["1n1g", "2n1g"]\ntime_limit = {1n1g = "10:00"}'
    sweep = load(write(tmp_path, top=top))
    assert sweep.time_limit_s[Topology(2, 1)] == 1800
    assert sweep.notes == ("time_limit has no default: 2n1g get 00:30:00",)


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        top='topologies = ["1n1g", "4g", "1n3g"]\nrepeats = "3"\nbase = "2n2g"\nnmae = "x"',
        case="""
            precision = "fp8"
            zero_stage = 4
            typo = 1
            batch_size = 8
        """,
        tables="""
            [matrix]
            global_batch = [32, 0]
            seq_len = [64, 1024]
            [[exclude]]
            model = "bert-bsae"
            [measure]
            warmup = true
            [[override]]
            when = {seed = 1}
            set = {batch_size = 0}
            [time_limit]
            default = "soon"
        """,
    )
    found = issues_of(path)
    places = [issue.split(": ")[0] for issue in found]
    assert places == [
        *("repeats", "measure.warmup", "nmae"),
        *("topologies[1]", "base", "time_limit.default"),
        *("matrix.global_batch[1]", "case.precision", "case.zero_stage", "case.typo"),
        *("exclude[0].model", "override[0].set.batch_size"),
        *("global_batch", "seq_len"),  # what is wrong with whole cases is told along with it
    ]
    with pytest.raises(SpecError, match=f"sample.toml: {len(found)} errors\n  repeats: "):
        load(path)


def test_without_topologies_nothing_is_held_to_them(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        top='topologys = ["2n2g"]\nbase = "2n2g"\ntime_limit = {2n2g = "10:00"}',
        tables="[[exclude]]\ntopology = '2n2g'",
    )
    assert issues_of(path) == [
        'topologies: is missing (write topologies = ["1n1g"] at the top of the file)',
        "topologys: unknown key 'topologys' (did you mean 'topologies'?)",
    ]


def test_missing_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bare.toml"
    path.write_text('topologies = ["1n1g"]')
    assert issues_of(path) == [
        f"case.{key}: is missing: give it in [case] or [matrix]"
        for key in ("framework", "model", "batch_size")
    ]


@pytest.mark.parametrize(
    ("stem", "name"), [("my sweep!", "my_sweep_"), (".hidden", "hidden"), ("-", "sweep")]
)
def test_a_file_without_a_name_lends_its_own(tmp_path: Path, stem: str, name: str) -> None:
    path = write(tmp_path).rename(tmp_path / f"{stem}.toml")
    assert load(path).name == name


# --- --set


def test_set_replaces_a_top_level_key_and_a_key_of_a_table(tmp_path: Path) -> None:
    path = write(tmp_path, tables="[measure]\nwarmup = 3")
    sweep = load(path, repeats=2, **{"measure.iterations": 9, "limits.startup_s": 5})
    assert (sweep.repeats, sweep.measure.warmup, sweep.measure.iterations) == (2, 3, 9)
    assert sweep.limits.startup_s == 5


def test_set_takes_the_place_of_every_value_the_file_gives_a_case_key(tmp_path: Path) -> None:
    tables = """
        [matrix]
        seq_len = [64, 128]
        optimizer.lr = [0.1, 0.2]
        [[zip]]
        precision = ["fp32", "bf16"]
        threads = [1, 2]
        [[override]]
        when = {threads = 1}
        set = {compile = true, seq_len = 32}
    """
    path = write(tmp_path, tables=tables)
    assert any("comes out twice" in issue for issue in issues_of(path))  # all lengths become 32
    sweep = load(path, seq_len=96, **{"optimizer.lr": 1e-5})
    assert {case.seq_len for case in sweep.cases} == {96}
    assert {case.optimizer.lr for case in sweep.cases} == {1e-5}
    assert [(case.threads, case.mode) for case in sweep.cases] == [(1, "compile"), (2, "eager")]
    sweep = load(path, seq_len=96, **{"case.precision": "fp16"})
    assert {case.precision for case in sweep.cases} == {"fp16"}


def test_set_of_a_list_makes_a_matrix(tmp_path: Path) -> None:
    sweep = load(write(tmp_path), batch_size=[4, 16], **{"optimizer": {"lr": [0.5, 1]}})
    assert [(case.batch_size, case.optimizer.lr) for case in sweep.cases] == [
        *((4, 0.5), (4, 1.0), (16, 0.5), (16, 1.0))
    ]


def test_set_topologies_as_in_only(tmp_path: Path) -> None:
    sweep = load(write(tmp_path), topologies="1n1g, 2n2g")
    assert sweep.topologies == (Topology(1, 1), Topology(2, 2))


def test_fewer_topologies_leave_the_files_other_mentions_alone(tmp_path: Path) -> None:
    top = 'topologies = ["1n1g", "2n1g"]\ntime_limit = {default = "10:00", 2n1g = "20:00"}'
    path = write(tmp_path, top=top, tables="[[exclude]]\ntopology = '2n1g'\nseed = 7")
    assert load(path, topologies="1n1g").notes == ("exclude[0] matches no case",)
    (found,) = issues_of(write(tmp_path, tables="[[exclude]]\ntopology = '2n1g'"))
    assert found.startswith("exclude[0].topology: '2n1g' is not among the topologies")


def test_set_one_time_limit_keeps_the_others(tmp_path: Path) -> None:
    path = write(tmp_path, top='topologies = ["1n1g", "2n1g"]\ntime_limit = "10:00"')
    sweep = load(path, **{"time_limit.2n1g": "20:00"})
    assert list(sweep.time_limit_s.values()) == [600, 1200]


def test_an_error_of_the_command_line_says_so(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(SpecError) as caught:
        load(path, bacth_size=3)
    assert str(caught.value).splitlines() == [
        f"{path} (with bacth_size of the command line): 1 error",
        "  case.bacth_size: unknown key 'bacth_size' (did you mean 'batch_size'?)",
    ]
    assert "did you mean 'repeats'?" in issues_of(path, repaets=3)[0]


# --- anything at all

_NAMES = st.sampled_from(
    [*SweepFile.model_fields, *KEYS, *casetables._Measure.model_fields]
    + ["when", "set", "topology", "optimizer", "compile", "dropout", "zero_stage", "x", "", "1n1g"]
)
_LEAVES = st.one_of(
    st.sampled_from(["ddp", "bert-tiny", "1n1g", "2n8g", "fp32", "bf16", "deepspeed", "00:10:00"]),
    st.integers(),
    st.integers(1, 9),
    st.booleans(),
    st.floats(),
    st.text(max_size=5),
    st.just(date(2020, 2, 2)),
    st.just(time(0, 10)),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_GOOD_START: dict[str, Any] = {
    "topologies": ["1n1g"],
    "case": {"framework": "ddp", "model": "bert-tiny", "batch_size": 1},
}


@settings(max_examples=300)
@given(tables=st.dictionaries(_NAMES, _VALUES, max_size=6), start=st.booleans())
def test_whatever_the_tables_hold_only_spec_errors_come_of_it(
    tables: dict[str, Any], start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if start:
        tables = {**_GOOD_START, **tables}
    monkeypatch.setattr(loading, "read_toml", lambda path: ("", tables))
    for overrides in ({}, dict(list(tables.items())[:1])):
        try:
            sweep = load_sweep(Path("any.toml"), registry(), overrides)
        except SpecError as error:
            assert error.issues
        else:
            assert sweep.cases


# --- the documentation

PAGE = (REPOSITORY / "docs" / "sweep-file.md").read_text(encoding="utf-8")


def row(name: str) -> list[str]:
    """The cells of the page's one table row whose first cell is that name."""
    (found,) = re.findall(rf"^\| `{re.escape(name)}` \|(.*)\|$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in found.split("|")]


def test_the_page_has_every_key_with_its_default() -> None:
    models = (SweepFile, casetables.Repeats, casetables._Measure, casetables._Limits)
    defaults = {
        name: field.default for model in models for name, field in model.model_fields.items()
    }
    defaults.update({name: key.default for name, key in KEYS.items()})
    for name, default in defaults.items():
        told = row(name)[0]
        if isinstance(default, (str, int, float)):
            assert told == f"`{json.dumps(default)}`", name
        else:
            assert not told.startswith("`") or name == "base", name


def test_the_pages_tables_are_what_is_declared() -> None:
    for model in registry().workloads.values():
        _, tokens = row(model.name)
        length = f"{model.default_seq_len}, {model.max_seq_len}"
        assert tokens == ("no tokens" if model.name.startswith("resnet") else length)
    assert row("checkpoint_activations")[0] == "`gpt2-*`, `llama3-*`"


def test_the_pages_rows_are_keys_that_exist() -> None:
    models = (SweepFile, casetables.Repeats, casetables._Measure, casetables._Limits)
    names = {name for table in models for name in table.model_fields} | {*KEYS}
    known = registry()
    names |= {*known.backends, *known.workloads}
    for framework, model in itertools.product(known.backends, known.workloads):
        names |= {option.name for option in known.options(framework, model)}
    assert set(re.findall(r"^\| `([\w.-]+)`", PAGE, re.MULTILINE)) == names


@pytest.mark.parametrize(
    ("number", "cases", "a_run"),
    [
        (0, 3, "ddp/bert-tiny/bz8/1n4g/bert-tiny_b8_fp32"),
        (2, 3 * 3 * 2 - 4 - 6 + 2, "ddp/gpt2-medium/bz32/2n8g/gpt2-medium_b32_fp32"),
        (
            3,
            4 * 2 * 2 - 1,
            "ddp/bert-base/bz32/4n8g/bert-base_b32_bf16-bucketmb50-compile-gbs2048-layernormpre",
        ),
    ],
)
def test_the_pages_examples_load(tmp_path: Path, number: int, cases: int, a_run: str) -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 4  # number 1 is a fragment
    path = tmp_path / "strong.toml"
    path.write_text(examples[number])
    sweep = load(path)
    assert len(sweep.cases) == cases and sweep.notes == ()
    assert any(case.id.startswith(a_run) for case in sweep.cases)
    if number == 3:
        assert f"logs/{sweep.name}/{a_run}_1.log" in PAGE


def test_the_pages_time_limits_load(tmp_path: Path) -> None:
    fragment = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]
    sweep = load(write(tmp_path, top=f'topologies = ["1n1g", "4n8g"]\n{fragment}'))
    assert list(sweep.time_limit_s.values()) == [1200, 3600]
