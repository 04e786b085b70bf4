"""Lists and ranges in [[exclude]] and in the ``when`` of an [[override]]."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_samples import cases, issues_of, load, write

from dlperf_hpc.sweepfile.casetables import counts_of, read_condition
from dlperf_hpc.train.registry import registry

TOP = 'topologies = ["1n1g", "1n4g", "2n8g", "4n8g"]'
MATRIX = "[matrix]\nbatch_size = [4, 8, 16]\nprecision = ['fp32', 'bf16']\n"
ALL = 4 * 3 * 2


@pytest.mark.parametrize(
    ("rule", "matched"),
    [
        ("batch_size = [4, 16]", 16),
        ("batch_size = '4..8'", 16),
        ("batch_size = ' 4 .. 8 '", 16),
        ("batch_size = '5..7'", 0),
        ("batch_size = '>= 8'", 16),
        ("batch_size = '>8'", 8),
        ("batch_size = '< 8'", 8),
        ("batch_size = '<=8'", 16),
        ("batch_size = [4, '> 8']", 16),
        ("batch_size = ['<5', '>15']", 16),
        ("precision = ['bf16']", 12),
        ("topology = ['1n1g', '4n8g']", 12),
        ("nodes = 2", 6),
        ("nodes = '>= 2'", 12),
        ("nodes = [1, '4..8']", 18),
        ("gpus_per_node = [1, 4]", 12),
        ("devices = '> 16'", 6),
        ("devices = '2..16'", 12),
        ("nodes = '>= 2'\nprecision = 'bf16'\nbatch_size = ['>= 16', 4]", 4),
        ("optimizer.lr = '1e-5..1e-3'", 24),
        ("optimizer.lr = '< 1e-4'", 0),
        ("dropout = ['0.05..0.2', 0.5]", 24),
        ("compile = [true, false]", 24),
        ("bucket_mb = '25..25'", 24),
        ("global_batch = '>= 1'", 0),  # it is given by no case
    ],
)
def test_what_a_rule_is_for(tmp_path: Path, rule: str, matched: int) -> None:
    """Equal cases are left out by an exclude and changed by an override."""
    path = write(tmp_path, top=TOP, case="", tables=f"{MATRIX}[[exclude]]\n{rule}\nseed = 1\n")
    one = f"[[override]]\nset = {{threads = 3}}\n[override.when]\nseed = 1\n{rule}\n"
    changed = [c for c in cases(tmp_path, top=TOP, case="", tables=MATRIX + one) if c.threads == 3]
    assert len(changed) == matched
    excluding = f"{MATRIX}[[exclude]]\n{rule}\nseed = 1\n"
    path = write(tmp_path, top=TOP, case="", tables=excluding)
    if matched == ALL:
        assert issues_of(path) == ["exclude: leaves no case at all"]
    else:
        sweep = load(path)
        left = {case.id for case in sweep.cases}
        assert len(left) == ALL - matched and not left & {case.id for case in changed}
        assert sweep.notes == (("exclude[0] matches no case",) if not matched else ())


def test_a_table_in_one_line(tmp_path: Path) -> None:
    """As one writes it who has several rules, above the first table."""
    rules = """exclude = [
        { precision = ["bf16", "fp16"], nodes = ">= 4" },
        { batch_size = "> 8" },
    ]"""
    found = cases(tmp_path, top=f"{TOP}\n{rules}", case="", tables=MATRIX)
    assert len(found) == 4 * 2 * 2 - 2
    assert not [c for c in found if c.precision == "bf16" and c.topology.nodes == 4]


FORMS = 'write a number, or a range: "2..8" (both included), "> 4", ">= 4", "< 4" or "<= 4"'


@pytest.mark.parametrize(
    ("rule", "issue"),
    [
        ("batch_size = '4-8'", f'exclude[0].batch_size: "4-8" is no range ({FORMS})'),
        ("batch_size = '8'", f'exclude[0].batch_size: "8" is no range ({FORMS})'),
        ("batch_size = '=> 8'", f'exclude[0].batch_size: "=> 8" is no range ({FORMS})'),
        ("batch_size = '4..'", f'exclude[0].batch_size: "4.." is no range ({FORMS})'),
        ("batch_size = ''", f'exclude[0].batch_size: "" is no range ({FORMS})'),
        ("batch_size = '8..4'", f'exclude[0].batch_size: "8..4" is empty: 8 is above 4 ({FORMS})'),
        (
            "nodes = '>= 1.5'",
            f'exclude[0].nodes: ">= 1.5" is no range of whole numbers ({FORMS})',
        ),
        (
            "optimizer.lr = '> 1e999'",
            f'exclude[0].optimizer.lr: "> 1e999" has a number that is too large ({FORMS})',
        ),
        (
            f"nodes = '> {'9' * 60}'",
            f'exclude[0].nodes: "> {"9" * 60}" is no range ({FORMS})'.replace(
                f'"> {"9" * 60}"', f"'> {'9' * 10}...{'9' * 13}'"
            ),
        ),
        ("batch_size = []", "exclude[0].batch_size: is empty, so that it would match no case"),
        (
            "batch_size = [4, '4-8']",
            f'exclude[0].batch_size[1]: "4-8" is no range ({FORMS})',
        ),
        ("precision = ['fp32', 'fp31']", "exclude[0].precision[1]: there is no precision 'fp31'"),
        ("model = '>= 4'", 'exclude[0].model: ">= 4" is invalid: write at most 64 letters'),
        ("compile = '>= 1'", 'exclude[0].compile: ">= 1" is invalid: write true or false'),
        ("nodes = 0", "exclude[0].nodes: 0 is invalid: write 1 or more"),
        ("nodes = true", "exclude[0].nodes: true is invalid: write a whole number"),
        ("batch_size = [[4]]", "exclude[0].batch_size[0]: [4] is invalid"),
        ("node = 2", "exclude[0].node: unknown key 'node' (did you mean 'nodes'?)"),
        ("topology = ['1n1g', '9n9g']", "exclude[0].topology: '9n9g' is not among the topologies"),
        ("topology = ['1n1g', 3]", "exclude[0].topology[1]: 3 is not a topology"),
    ],
)
def test_what_is_no_condition_is_told_with_its_place(tmp_path: Path, rule: str, issue: str) -> None:
    tables = f"{MATRIX}[[exclude]]\n{rule}"
    (found,) = issues_of(write(tmp_path, top=TOP, case="", tables=tables))
    assert found.startswith(issue)
    when = f"{MATRIX}[[override]]\nset = {{threads = 3}}\n[override.when]\n{rule}"
    (found,) = issues_of(write(tmp_path, top=TOP, case="", tables=when))
    assert found.startswith(issue.replace("exclude[0]", "override[0].when"))


def test_ranges_and_lists_belong_to_no_other_table(tmp_path: Path) -> None:
    tables = "[[override]]\nwhen = {batch_size = 4}\nset = {threads = '2..4', seed = [1, 2]}"
    found = issues_of(write(tmp_path, top=TOP, case="", tables=MATRIX + tables))
    assert [line.partition(" ")[0] for line in found] == [
        "override[0].set.threads:",
        "override[0].set.seed:",
    ]
    (issue,) = issues_of(write(tmp_path, top=TOP, case="batch_size = '>= 4'"))
    assert issue.startswith('case.batch_size: ">= 4" is invalid')
    (issue,) = issues_of(write(tmp_path, top=TOP, case="batch_size = 4\nnodes = 2"))
    assert issue.startswith("case.nodes: ")


def test_the_ranges_of_a_rule_count_as_comparisons(tmp_path: Path) -> None:
    """A list of values is looked up at once."""
    seeds = f"[matrix]\nseed = {list(range(5_000))}\n[[exclude]]\nseed = "
    top = 'topologies = ["1n1g"]'
    path = write(tmp_path, top=top, tables=seeds + str(list(range(1, 5_000))))
    assert len(load(path).cases) == 1
    ranges = [f"{n}..{n}" for n in range(1, 202)]
    (issue,) = issues_of(write(tmp_path, top=top, tables=seeds + str(ranges)))
    assert "201 ranges and rules of [[exclude]] and [[override]] x 5000 cases" in issue


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_a_range_holds_what_the_comparison_holds(low: int, high: int, value: int) -> None:
    def holds(text: str) -> bool:
        condition, issues = read_condition("here", "nodes", text, registry())
        assert issues == []
        return condition.holds(value)

    assert holds(f">= {low}") == (value >= low) and holds(f"> {low}") == (value > low)
    assert holds(f"<= {low}") == (value <= low) and holds(f"< {low}") == (value < low)
    if low <= high:
        assert holds(f"{low}..{high}") == (low <= value <= high)
    assert counts_of(f"{low}n{high}g") == {
        "nodes": low, "gpus_per_node": high, "devices": low * high,
    }  # fmt: skip
