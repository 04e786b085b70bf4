"""``[program.NAME.read]``: which tables hold, and what is said of those that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlperf_hpc.errors import SpecError
from dlperf_hpc.logs.scanned import Unit
from dlperf_hpc.records.forms import read_table_of
from dlperf_hpc.sweepfile.patterns import LONGEST, PatternError, compiled, fixed_texts
from dlperf_hpc.sweepfile.programtables import read_program, read_table, read_table_file
from dlperf_hpc.sweepfile.readtable import GROUPS, UNITS, ReadTable

LINE = r"step (?P<iteration>[0-9]+) .* (?P<printed>[0-9.]+) tok/s .* loss (?P<loss>[0-9.]+)"
PRINTED = {"unit": "tokens/s", "scope": "device", "averaging": "since-last-line"}
TABLE: dict[str, Any] = {
    "line": LINE,
    "printed": PRINTED,
    "counts": "micro-steps",
    "first": 0,
    "fail": ["loss: nan", "watchdog"],
    "must": ["training completed"],
}
TOTAL = {"total": r"Performance: ([0-9.]+) GFLOP/s", "unit": "GFLOP/s"}
FORMATS = ["megatron", "nanogpt"]


def issues(table: Any) -> list[str]:
    program = {"launch": "rank", "run": ["x"], "read": table}
    return [str(issue) for issue in read_program("mine", program, FORMATS)[1]]


@pytest.mark.parametrize(
    "table",
    [
        {},
        TABLE,
        TOTAL,
        {**TABLE, **TOTAL},
        {"format": "megatron", "must": ["done"]},
        {"line": "loss (?P<loss>[0-9.]+)", "each": 10},
        {"line": "(?P<epoch>[0-9]+)/(?P<iteration>[0-9]+) (?P<time>.*)"},
        {"fail": ["nan"]},
    ],
)
def test_tables_that_hold_are_read_back(table: dict[str, Any]) -> None:
    read, wrong = read_table(table, FORMATS)
    assert wrong == []
    assert read_table_of(read.to_dict()) == read
    assert read.tells_format == bool(read.line or read.total)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (7, "read: 7 is invalid: write a table, as [name] with its keys below it"),
        ({"lin": ""}, "read.lin: unknown key 'lin' (did you mean 'line'?)"),
        ({"format": "megaton"}, "read.format: there is no log format 'megaton' (did you mean"),
        ({"format": "megatron", "line": LINE}, "read.line: stands beside format = 'megatron'"),
        ({"line": "(?P<iteration>[0-9]+"}, 'read.line: "(?P<iteration>[0-9]+" is no pattern'),
        ({"line": "step [0-9]+"}, "read.line: has no group with a name that is known (name what"),
        ({"line": "(?P<iteraton>[0-9]+)"}, "no group 'iteraton' (did you mean 'iteration'?)"),
        ({"line": "loss (?P<loss>.*)"}, "read.line: has no group iteration (add (?P<iteration>"),
        ({"line": 3}, "read.line: 3 is invalid: write a text in quotes"),
        ({**TABLE, "printed": "tokens/s"}, 'read.printed: "tokens/s" is invalid (write a table: '),
        ({**TABLE, "printed": {}}, "read.printed.unit: is missing (say what the figure is"),
        ({**TABLE, "printed": {"unit": "tokens/s"}}, "read.printed.scope: is missing (say of what"),
        ({**TABLE, "printed": {**PRINTED, "unit": "tok/s"}}, "it is written 'tokens/s' here"),
        ({**TABLE, "printed": {**PRINTED, "unit": "seconds"}}, "there is no unit 'seconds' (there"),
        ({**TABLE, "printed": {**PRINTED, "scale": 0}}, "read.printed.scale: 0 is invalid"),
        ({**TABLE, "printed": {**PRINTED, "scope": "gpu"}}, "there is no scope 'gpu' (there"),
        ({"line": LINE}, "read.printed: is missing: what the group printed of line is (write"),
        ({"line": "(?P<iteration>.)", "printed": PRINTED}, "is told, and line has no group of"),
        ({**TABLE, "each": 10}, "read.each: stands beside the group iteration of line (leave out"),
        ({"each": 10}, "read.each: is of no use without line (write line, or leave it out)"),
        ({**TABLE, "first": -1}, "read.first: -1 is invalid: write 0 or more"),
        ({**TABLE, "counts": "steps"}, "read.counts: there is no counts 'steps' (there are"),
        ({"total": "([0-9]+)"}, "read.unit: is missing: that of total (one of samples/s"),
        ({"unit": "GFLOP/s"}, "read.unit: is that of total, which is missing (write total"),
        ({**TOTAL, "total": "P: [0-9]+"}, "read.total: has 0 groups, and must have one"),
        ({**TOTAL, "unit": "images/s"}, "read.unit: there is no unit 'images/s' (it is written"),
        ({**TOTAL, "unit": "a|b/s"}, "read.unit: there is no unit 'a|b/s' (there are: samples/s"),
        ({"fail": "nan"}, "read.fail: \"nan\" is invalid (write a list of at most 100 patterns"),
        ({"must": ["ok", "a("]}, "read.must[1]: \"a(\" is no pattern: missing )"),
        ({"fail": [""]}, "read.fail[0]: \"\" is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_the_key_and_what_to_do(table: Any, told: str) -> None:
    (found,) = issues(table)
    assert told in found


def test_units_are_those_of_the_formats() -> None:
    assert {*UNITS} == {unit.value for unit in Unit if unit is not Unit.OWN}


def test_a_file_tells_the_same_table(tmp_path: Path) -> None:
    top, inside, known = (tmp_path / name for name in ("own.toml", "program.toml", "known.toml"))
    text = "line = 'it (?P<iteration>[0-9]+) (?P<time>.*)'\nfirst = 0\n"
    top.write_text(text)
    inside.write_text(f'launch = "rank"\n[read]\n{text}')
    known.write_text('format = "megatron"\n')
    name, read = read_table_file(top, FORMATS)
    assert (name, read.first, read.line[:3]) == ("own", 0, "it ")
    assert read_table_file(inside, FORMATS) == ("program", read)
    sweep = tmp_path / "sweep.toml"
    tables = "".join(f"[program.{n}.read]\n{text}" for n in ("one", "two"))
    sweep.write_text(f"[program.other]\n{tables[: len(tables) // 2]}")
    assert read_table_file(sweep, FORMATS) == ("one", read)
    sweep.write_text(tables)
    with pytest.raises(SpecError, match=r"program: 2 programs have a table \[program.NAME.read\]"):
        read_table_file(sweep, FORMATS)
    with pytest.raises(SpecError, match=r"known.toml names the known format 'megatron' \(write"):
        read_table_file(known, FORMATS)
    top.write_text("line = 'x'\n")
    with pytest.raises(SpecError, match=r"own.toml: 1 error\n  line: has no group with a name"):
        read_table_file(top, FORMATS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r"(?=x)y", "looks around or back, which may take a time without bound"),
        (r"(a)\1", "looks around or back"),
        (r"(?<=a)b", "looks around or back"),
        (r"((a{100}){100}){100}", "explodes when its repetitions are written out"),
        (r"(?x) a", "is no pattern that RE2 reads: invalid perl operator"),
        ("(" * 1500, "is no pattern"),
        ("a" * (LONGEST + 1), "has more than 2000 characters"),
        ("", "is empty"),
    ],
)
def test_what_is_no_pattern_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        compiled(text)


def test_no_line_takes_a_pattern_long() -> None:
    """Python's own engine takes longer for these than anybody waits."""
    assert not compiled("(a+)+$").fits("a" * 60_000 + "!")
    assert not compiled(r"^(\w+\s?)*$").fits("word " * 10_000 + "!")
    assert not compiled(LINE).fits("step 1 " * 9_000)
    assert compiled("(x+x+)+y").first("x" * 30_000) is None


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (LINE, (" tok/s ",)),
        (r"^\bIter: ([0-9]+)$", ("Iter: ",)),
        (r"(?:epoch )+([0-9])", ("epoch ",)),
        (r"WR\w+\s.*\s(\S+)$", ("WR",)),
        (r"a|b", tuple("0123456789")),
        (r"(?i)step ([0-9]+)", tuple("0123456789")),
        (r"\| ([0-9]+) \|", tuple("0123456789")),
        (r"(?:step )?it ([0-9]+)", ("it ",)),
    ],
)
def test_the_text_that_each_line_has(text: str, texts: tuple[str, ...]) -> None:
    assert fixed_texts(text) == texts


def test_groups_of_a_line_in_any_script() -> None:
    pattern = compiled("(?P<iteration>[0-9]+) é(?P<loss>[0-9.]*)")
    assert pattern.groups == ("iteration", "loss") and set(pattern.groups) < set(GROUPS)
    assert pattern.named("\ud800 12 é") == {"iteration": "12"}
    assert ReadTable().to_dict() == {}
