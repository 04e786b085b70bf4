"""From tables to cases: products, overrides, excludes, and names that no two variants share."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from spec_samples import cases, issues_of, load, write

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.model.case import Case, Option, Topology, repeat_major, tag
from dlperf_hpc.sweepfile.casetables import SweepFile, read_tables
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.expand import expand
from dlperf_hpc.sweepfile.keys import KEYS, read_value
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry


def test_matrix_times_every_zip_times_topologies(tmp_path: Path) -> None:
    tables = """
        [matrix]
        batch_size = [8, 16, 32]
        compile = [false, true]
        [[zip]]
        precision = ["fp32", "bf16"]
        threads = [1, 4]
        [[zip]]
        seed = [1, 2, 3]
        optimizer.lr = [0.1, 0.2, 0.3]
    """
    found = cases(tmp_path, top='topologies = ["1n1g", "2n2g"]', case="", tables=tables)
    assert len(found) == len({case.id for case in found}) == 3 * 2 * 2 * 3 * 2
    assert {(case.precision, case.threads) for case in found} == {("fp32", 1), ("bf16", 4)}
    assert {(case.seed, case.optimizer.lr) for case in found} == {(1, 0.1), (2, 0.2), (3, 0.3)}
    # The topology turns fastest, then the last table: neighbours differ little.
    assert [(case.seed, str(case.topology)) for case in found[:4]] == [
        *((1, "1n1g"), (1, "2n2g"), (2, "1n1g"), (2, "2n2g"))
    ]


def test_zipped_lists_of_unequal_length(tmp_path: Path) -> None:
    path = write(tmp_path, tables="[[zip]]\nseed = [1, 2]\nthreads = [1]")
    assert issues_of(path) == [
        "zip[0]: lists that advance together differ in length: seed has 2, threads has 1"
    ]


def test_a_key_given_twice(tmp_path: Path) -> None:
    tables = "[matrix]\nbatch_size = [8]\n[[zip]]\nseed = [1]\n[[zip]]\nseed = [2]"
    assert issues_of(write(tmp_path, tables=tables)) == [
        "batch_size: is given twice: in [case] and [matrix] (keep one of them)",
        "seed: is given twice: in zip[0] and zip[1] (keep one of them)",
    ]


def test_a_value_listed_twice(tmp_path: Path) -> None:
    (found,) = issues_of(write(tmp_path, tables="[matrix]\nseed = [3, 4, 3]"))
    assert found.startswith("matrix.seed: has 3 twice, which would measure one case twice")


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("batch_size = 8", 4),
        ("topology = '2n2g'", 4),
        ("batch_size = 8\ntopology = '2n2g'", 6),
        ("precision = 'fp32'", 4),
        ("framework = 'ddp'\nprecision = 'bf16'\nbatch_size = 16", 6),
        # What the file leaves to its default holds all the same.
        ("compile = false\nbatch_size = 8", 4),
        ("seq_len = 64\nprecision = 'bf16'", 4),
        ("optimizer.name = 'adamw'\ntopology = '1n1g'", 4),
        ("accumulation = 1\ntopology = '1n1g'", 4),
    ],
)
def test_exclude_matches_what_holds_for_a_case(tmp_path: Path, pattern: str, left: int) -> None:
    tables = f"""
[matrix]
batch_size = [8, 16]
precision = ["fp32", "bf16"]
[[exclude]]
{pattern}
"""
    path = write(tmp_path, top='topologies = ["1n1g", "2n2g"]', case="", tables=tables)
    assert len(load(path).cases) == left
    assert load(path).notes == ()


def test_exclude_sees_the_accumulation_that_a_global_batch_comes_to(tmp_path: Path) -> None:
    tables = "[[exclude]]\naccumulation = 4"
    found = cases(
        tmp_path,
        top='topologies = ["1n1g", "1n2g"]',
        case="batch_size = 8\nglobal_batch = 32",
        tables=tables,
    )
    assert [(str(case.topology), case.accumulation) for case in found] == [("1n2g", 2)]


def test_excluding_everything_is_an_error_and_nothing_a_note(tmp_path: Path) -> None:
    assert issues_of(write(tmp_path, tables="[[exclude]]\nbatch_size = 8")) == [
        "exclude: leaves no case at all"
    ]
    tables = "[[exclude]]\nbatch_size = 9\n[[override]]\nwhen = {seed = 2}\nset = {threads = 2}"
    assert load(write(tmp_path, tables=tables)).notes == (
        "exclude[0] matches no case",
        "override[0] matches no case",
    )


def test_overrides_apply_in_order_before_exclude(tmp_path: Path) -> None:
    tables = """
        [[override]]
        when = {topology = "2n2g"}
        set = {batch_size = 4, optimizer.lr = 0.5}
        [[override]]
        when = {framework = "ddp", batch_size = 4}
        set = {bucket_mb = 50}
        [[exclude]]
        bucket_mb = 50
        precision = "bf16"
        [matrix]
        precision = ["fp32", "bf16"]
    """
    found = cases(tmp_path, top='topologies = ["1n1g", "2n2g"]', tables=tables)
    assert [
        (str(c.topology), c.precision, c.batch_size, c.optimizer.lr, c.option("bucket_mb"))
        for c in found
    ] == [
        ("1n1g", "fp32", 8, 1e-4, 25),
        ("2n2g", "fp32", 4, 0.5, 50),
        ("1n1g", "bf16", 8, 1e-4, 25),
    ]


def test_an_override_sets_no_topology(tmp_path: Path) -> None:
    tables = "[[override]]\nwhen = {seed = 1}\nset = {topology = '9n9g'}"
    (found,) = issues_of(write(tmp_path, tables=tables))
    assert found.startswith("override[0].set.topology: topologies are listed at the top")


@pytest.mark.parametrize(
    ("case", "issue"),
    [
        (
            "batch_size = 8\nglobal_batch = 100",
            "global_batch: 100 does not divide by 24 = batch_size 8 x 3 devices of 1n3g",
        ),
        (
            "batch_size = 8\nglobal_batch = 24\naccumulation = 2",
            "global_batch: is given together with accumulation: give one of the two",
        ),
        (
            "batch_size = 8\nseq_len = 513",
            "seq_len: 513 is not within the 1 to 512 tokens of bert-tiny",
        ),
        (
            "batch_size = 8\nprocesses_per_node = 2",
            "processes_per_node: 2 is invalid on 1n3g: ddp runs one process per GPU,"
            " 3 on each node",
        ),
        (
            "batch_size = 8\noptimizer.name = 'lion'",
            "optimizer.name: ddp has no 'lion' (it has adam, adamw, sgd, lamb, lamb-nvidia,"
            " lamb-deepspeed)",
        ),
        (
            "batch_size = 8\ndata = 'real'",
            "data_path: is not given: data = 'real' needs a directory or a pattern",
        ),
        (
            "batch_size = 8\ndata = 'real'\ndata_path = '/no/such/*.hdf5'",
            "data_path: '/no/such/*.hdf5' does not exist (if only compute nodes see it, write it"
            " with a variable of theirs, as $TMPDIR/data)",
        ),
        ("batch_size = 8\ndata_path = '/d'", "data_path: is given, but data is not 'real'"),
        (
            "batch_size = 8\nprecision = 'fp8'",
            "case.precision: there is no precision 'fp8' (write 'fp32', 'tf32', 'bf16' or 'fp16')",
        ),
        (
            "batch_size = 8\nprecision = 'fp16'\ndevice = 'cpu'",
            "precision: fp16 needs a GPU: a CPU only imitates it, and the speed says nothing"
            " (take fp32 or bf16)",
        ),
    ],
)
def test_what_only_a_whole_case_shows(tmp_path: Path, case: str, issue: str) -> None:
    path = write(tmp_path, top='topologies = ["1n3g"]', case=case)
    found = issues_of(path)
    assert [text.replace("4 to 512", "1 to 512") for text in found] == [issue]


def test_global_batch_sets_accumulation_by_topology(tmp_path: Path) -> None:
    top = 'topologies = ["1n1g", "2n2g"]'
    found = cases(tmp_path, top=top, case="batch_size = 8\nglobal_batch = 64")
    assert [(case.accumulation, case.global_batch) for case in found] == [(8, 64), (2, 64)]
    # One speedup curve, whatever the accumulation came to.
    assert {case.series for case in found} == {"ddp/bert-tiny/bz8/fp32-gbs64"}


def test_an_int_where_a_float_belongs_is_that_float(tmp_path: Path) -> None:
    (one,) = cases(tmp_path, case="batch_size = 8\ndropout = 0\noptimizer.lr = 1")
    (other,) = cases(tmp_path, case="batch_size = 8\ndropout = -0.0\noptimizer.lr = 1.0")
    assert one == other and one.id == other.id
    assert isinstance(one.option("dropout"), float) and isinstance(one.optimizer.lr, float)
    assert one.id.endswith("bert-tiny_b8_fp32-dropout0-lr1")


def test_names_that_are_close_are_offered(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert issues_of(path, model="bert_base") == [
        "case.model: there is no model 'bert_base' (did you mean 'bert-base'?)"
    ]
    assert issues_of(path, framework="xyz")[0].startswith(
        "case.framework: there is no framework 'xyz' (there are: ddp"
    )


# --- back ends that lack something


def two_backends() -> Registry:
    """A second back end without bf16, with an option of its own, for models in another form."""
    known = registry()
    ddp = known.backends["ddp"]
    other = replace(
        ddp,
        name="other",
        precisions=("fp32",),
        options=(Option("ring", 2, "x", minimum=1, maximum=4), Option("shape", "a", "x")),
    )
    foreign = replace(other, name="foreign", library="elsewhere")
    return replace(known, backends={"ddp": ddp, "other": other, "foreign": foreign})


def expanded(known: Registry, **tables: Any) -> tuple[list[Case], list[Issue]]:
    file = SweepFile.model_validate({"topologies": ["1n1g"], **tables})
    read, issues = read_tables(file, known, file.topologies)
    expansion = expand(read, [Topology.parse(t) for t in file.topologies], known)
    return expansion.cases, [*issues, *expansion.issues]


def test_an_option_belongs_to_its_back_end() -> None:
    case = {"model": "bert-tiny", "batch_size": 8, "ring": 3}
    found, issues = expanded(two_backends(), case=case, matrix={"framework": ["ddp", "other"]})
    assert [case.framework for case in found] == ["other"]
    own = ", ".join(sorted(option.name for option in registry().options("ddp", "bert-tiny")))
    assert [str(issue) for issue in issues] == [
        f"ring: is no option of ddp or bert-tiny (they have {own})"
    ]


def test_an_override_gives_an_option_to_its_back_end_only() -> None:
    found, issues = expanded(
        two_backends(),
        case={"model": "bert-tiny", "batch_size": 8},
        matrix={"framework": ["ddp", "other"]},
        override=[{"when": {"framework": "other"}, "set": {"ring": 3}}],
        exclude=[{"ring": 2}],
    )
    assert issues == []
    assert [(case.framework, case.tags) for case in found] == [("ddp", ()), ("other", ("ring3",))]


def test_a_precision_the_back_end_lacks_and_a_model_in_another_form() -> None:
    case = {"model": "bert-tiny", "batch_size": 8, "precision": "bf16"}
    _, issues = expanded(two_backends(), case=case, matrix={"framework": ["ddp", "foreign"]})
    assert [str(issue) for issue in issues] == [
        "model: bert-tiny is not written for elsewhere, which foreign needs",
        "precision: foreign has no 'bf16' (it has fp32)",
    ]


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("ring", 1, True),
        ("ring", 4, True),
        ("ring", 0, False),
        ("ring", 5, False),
        ("ring", True, False),
        ("shape", "anything", True),
        ("shape", "two\nlines", False),
        ("shape", 3, False),
    ],
)
def test_an_options_default_and_bounds_are_its_type(name: str, value: Any, good: bool) -> None:
    _, issue = read_value("here", name, value, two_backends())
    assert (issue is None) == good


def test_too_many_cases_are_told_before_they_are_made() -> None:
    case = {"framework": "ddp", "model": "bert-tiny"}
    many = list(range(1, 200))
    matrix = {"batch_size": many, "seed": many, "threads": many}
    found, issues = expanded(registry(), case=case, matrix=matrix)
    assert not found
    assert [str(issue) for issue in issues] == ["matrix: makes 7880599 cases, above 10000"]


def test_issues_of_whole_cases_have_an_end() -> None:
    case = {"framework": "ddp", "model": "bert-tiny", "seq_len": 999}
    _, issues = expanded(registry(), case=case, matrix={"global_batch": [1], "batch_size": [2] * 9})
    assert len(issues) == 3  # the same words once, and that the matrix has a value twice
    matrix = {"batch_size": list(range(1000, 2000)), "global_batch": [999]}
    _, issues = expanded(registry(), case=case, matrix=matrix)
    assert 100 < len(issues) < 110 and "the check stopped here" in str(issues[-1])


# --- names

_POINTS: dict[str, st.SearchStrategy[Any]] = {
    "precision": st.sampled_from(["fp32", "tf32", "bf16", "fp16"]),
    "batch_size": st.integers(1, 10**9),
    "seq_len": st.integers(4, 512),
    "accumulation": st.integers(1, 10**9),
    "optimizer.name": st.sampled_from(["adam", "adamw", "sgd"]),
    "optimizer.lr": st.floats(0, 1e300) | st.sampled_from([1e-5, 1e5, 1e-05, 1e16]),
    "optimizer.weight_decay": st.floats(0, 1),
    "optimizer.beta1": st.floats(0, 1, exclude_max=True),
    "optimizer.beta2": st.floats(0, 1, exclude_max=True),
    "optimizer.eps": st.floats(0, 1),
    "optimizer.grad_clip": st.floats(0, 10) | st.integers(0, 10),
    "device": st.sampled_from(["auto", "cuda"]),  # cpu is not for every precision
    "environment": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
    | st.sampled_from(["a-seed2", "a", "a_b", "ab", "a-b", "a..b", "default"]),
    "threads": st.integers(1, 10**9),
    "seed": st.integers(0, 2**32 - 1) | st.integers(1, 3),
    "mode": st.sampled_from(["eager", "compile", "tuned"]),
    "bucket_mb": st.integers(1, 10**6) | st.sampled_from([25, 100]),
    "layer_norm": st.sampled_from(["pre", "post"]),
    "dropout": st.floats(0, 0.9) | st.sampled_from([0, 0.1]),
}


@st.composite
def points(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(sorted(_POINTS))))
    model = draw(st.sampled_from(["bert-tiny", "bert-base"]))
    drawn = {name: draw(_POINTS[name]) for name in sorted(names)}
    return {"framework": "ddp", "model": model, "batch_size": 8, **drawn}


def only_case(point: dict[str, Any], topology: str) -> Case:
    (case,), issues = expanded(registry(), topologies=[topology], case=point)
    assert issues == []
    return case


_TOPOLOGIES = st.sampled_from(["1n1g", "1n8g", "11n1g"])


@settings(max_examples=300)
@given(one=points(), other=points(), topologies=st.tuples(_TOPOLOGIES, _TOPOLOGIES))
def test_two_variants_never_share_a_name(
    one: dict[str, Any], other: dict[str, Any], topologies: tuple[str, str]
) -> None:
    first, second = only_case(one, topologies[0]), only_case(other, topologies[1])
    assert (first == second) == (first.id == second.id)


@settings(max_examples=200)
@given(point=points(), key=st.sampled_from(sorted(_POINTS)), data=st.data())
def test_one_key_alone_makes_another_name(
    point: dict[str, Any], key: str, data: st.DataObject
) -> None:
    changed = {**point, key: data.draw(_POINTS[key])}
    first, second = only_case(point, "1n1g"), only_case(changed, "1n1g")
    assume(replace(first, tags=()) != replace(second, tags=()))
    assert first.id != second.id and first.series != second.series


@settings(max_examples=200)
@given(point=points())
def test_a_name_is_a_safe_path_of_a_sane_length(point: dict[str, Any]) -> None:
    case = only_case(point, "11n8g")
    *folders, name = case.id.split("/")
    assert folders == ["ddp", case.model, f"bz{case.batch_size}", "11n8g"]
    assert name.startswith(f"{case.model}_b{case.batch_size}_{case.precision}")
    for part in (*folders, name):
        assert ".." not in part and not part.startswith((".", "-"))
        assert set(part) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-"
        )
    longest = f"{name}_1000.attempt99.rank9999.json"
    assert len(longest) <= 255
    assert "_" not in name.partition(case.precision)[2]


@settings(max_examples=100)
@given(point=points())
def test_a_case_survives_json(point: dict[str, Any]) -> None:
    case = only_case(point, "2n4g")
    assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


def test_a_case_of_a_newer_version_is_read_without_what_is_new() -> None:
    case = only_case({"framework": "ddp", "model": "bert-tiny", "batch_size": 8}, "1n1g")
    data = case.to_dict()
    newer = {**data, "new": 1, "optimizer": {**data["optimizer"], "new": 2}}
    assert Case.from_dict(newer) == case


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("compile", True, "compile"),
        ("compile", False, "nocompile"),
        ("bucket_mb", 50, "bucketmb50"),
        ("lr", 1e-05, "lr1e-05"),
        ("lr", 1.0, "lr1"),
        ("beta1", 0.95, "beta1-0.95"),
        ("env", "tf2.15", "envtf2.15"),
        ("", "sgd", "sgd"),
        ("env", "torch-2.4", "envtorch2.4.faf62b89"),
    ],
)
def test_tags_are_for_people(name: str, value: Any, text: str) -> None:
    assert tag(name, value) == text


def test_a_default_spelled_out_is_the_default(tmp_path: Path) -> None:
    (plain,) = cases(tmp_path)
    spelled = (
        "batch_size = 8\nseq_len = 64\ncompile = false\noptimizer = {name = 'adamw'}\nseed = 1"
    )
    (told,) = cases(tmp_path, case=spelled)
    assert told == plain and told.tags == ()


def test_keys_of_a_case_are_fields_of_a_case() -> None:
    data = only_case({"framework": "ddp", "model": "bert-tiny", "batch_size": 8}, "1n1g").to_dict()
    tables = ("optimizer", "schedule")
    named = {*data, *(f"{table}.{name}" for table in tables for name in data[table])}
    named.add("global_batch")
    assert set(KEYS) == named - {
        *("topology", *tables, "options", "tags", "launch", "replicas"),
    }
    for name, key in KEYS.items():
        table, dot, setting = name.partition(".")
        if key.default is not None and dot:
            assert data[table][setting] == key.default


def test_repeat_major_order() -> None:
    one = only_case({"framework": "ddp", "model": "bert-tiny", "batch_size": 8}, "1n1g")
    other = only_case({"framework": "ddp", "model": "bert-tiny", "batch_size": 9}, "1n1g")
    runs = [run for (run,) in repeat_major([(one,), (other,)], 3)]
    assert [(run.case.batch_size, run.repeat) for run in runs] == [
        *((8, 1), (9, 1), (8, 2), (9, 2), (8, 3), (9, 3))
    ]
    assert runs[1].id == "ddp/bert-tiny/bz9/1n1g/bert-tiny_b9_fp32_1"


@pytest.mark.parametrize("text", ["4g", "0n1g", "1n0g", "", "1n1gx", "1n1000g", "100000n1g"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not a topology"):
        Topology.parse(text)


def test_parse_and_print_a_topology() -> None:
    assert str(Topology.parse("12n8g")) == "12n8g" and Topology.parse("12n8g").devices == 96


def test_a_workload_says_what_a_case_may_not_ask(tmp_path: Path) -> None:
    def check(case: Case) -> list[tuple[str, str]]:
        odd = case.global_batch % 2
        return [("batch_size", f"{case.id} has an odd batch")] * odd

    declared = registry()
    model = replace(declared.workloads["bert-tiny"], check=check, layout=None)
    changed = replace(declared, workloads={**declared.workloads, "bert-tiny": model})
    path = write(tmp_path, case="", tables="[matrix]\nbatch_size = [2, 3]")
    with pytest.raises(SpecError) as refused:
        load_sweep(path, changed)
    assert [issue.where for issue in refused.value.issues] == ["batch_size"]
    path = write(tmp_path, case="batch_size = 2\ndata = 'real'")
    with pytest.raises(SpecError) as refused:
        load_sweep(path, changed)
    assert [issue.where for issue in refused.value.issues] == ["data"]
