"""One line of a log: whatever is written is read back, and a line stays one line."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlperf_hpc.records.lines import decode, encode, flatten, read_line, unflatten, utc, write_line

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)
ODD = st.sampled_from(
    ["", " ", "\n", "\r\n", "\x00", "\x1b[31m", '"', '\\"', "\\", "=", "a=b", "a b", "1", "-1.5"]
    + ["1e5", "true", "null", "NaN", "Infinity", "-Infinity", "nan", "[", "{}", "[1]", '"x"', "é"]
    + ["\u2028", "\u0085", "\ud800", "\U0001f600", "\x7f", "dlperf ", "1n1g", "/a/b", "#", "\u00a0"]
)
TEXT = st.one_of(ODD, st.text(), st.characters(codec=None).map(str))
PLAIN = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
LISTS = st.recursive(
    st.lists(st.one_of(PLAIN, st.none()), max_size=4),
    lambda inner: st.lists(st.one_of(PLAIN, inner, st.dictionaries(TEXT, inner)), max_size=3),
    max_leaves=8,
)
TABLES = st.recursive(
    st.dictionaries(NAMES, st.one_of(PLAIN, LISTS), max_size=5),
    lambda inner: st.dictionaries(NAMES, st.one_of(PLAIN, inner), max_size=4),
    max_leaves=12,
)


def pruned(table: dict[str, Any]) -> dict[str, Any]:
    """A table without the empty tables in it: those leave no trace in a line."""
    below = {
        key: pruned(value) if isinstance(value, dict) else value for key, value in table.items()
    }
    return {key: value for key, value in below.items() if value != {}}


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same type: 1 is not 1.0 and not true."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@given(st.one_of(PLAIN, LISTS))
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert same(decode(encode(value)), value)


@given(TABLES)
def test_a_line_comes_back_as_it_was(table: dict[str, Any]) -> None:
    line = read_line(write_line("event", table))
    assert line is not None and line.event == "event"
    assert same(unflatten(line.values), pruned(table))


@given(TABLES)
def test_a_line_is_one_line_of_plain_ascii(table: dict[str, Any]) -> None:
    text = write_line("event", table)
    assert text.isascii() and text.isprintable()
    assert len(text.splitlines()) == 1
    assert not any(unicodedata.category(character).startswith("C") for character in text)


@given(TABLES, st.data())
def test_no_beginning_of_a_line_gives_another_value(table: dict[str, Any], data: Any) -> None:
    """Why a reader takes a line for whole only with its newline: the last value may be cut."""
    text = write_line("event", table)
    cut = read_line(text[: data.draw(st.integers(0, len(text)))])
    whole = list(flatten(pruned(table)).items())
    if cut is not None:
        seen = list(cut.values.items())
        assert all(same(a, b) for a, b in zip(seen[:-1], whole))


@given(st.text())
def test_no_text_upsets_the_reader(text: str) -> None:
    read_line(text)
    read_line(f"dlperf 2026-11-21T14:53:20.696482Z event {text}")
    read_line(f"dlperf 2026-11-21T14:53:20.696482Z event key={text}")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [1.0, math.nan]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        write_line("event", {"key": value})


def test_what_is_no_number_is_not_read_as_one() -> None:
    line = read_line(
        "dlperf 2026-11-21T14:53:20.696482Z event a=NaN b=-Infinity c=Infinity d=[NaN]"
    )
    assert line is not None
    assert line.values == {"a": "NaN", "b": "-Infinity", "c": "Infinity", "d": "[NaN]"}


@pytest.mark.parametrize("key", ["", "a b", "1a", "a=b", "a\n", "é", "-a", "a\tb"])
def test_names_that_could_not_be_read_back_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not names for a log line"):
        write_line("event", {key: 1})


@pytest.mark.parametrize("event", ["", "Event", "an event", "event\n", "event="])
def test_events_that_could_not_be_read_back_are_refused(event: str) -> None:
    with pytest.raises(ValueError, match="not names for a log line"):
        write_line(event, {"key": 1})


def test_no_data_is_left_out() -> None:
    line = read_line(write_line("event", {"a": None, "b": 0, "c": "", "d": {"e": None}}))
    assert line is not None and line.values == {"b": 0, "c": ""}


def test_a_line_as_people_see_it() -> None:
    values = {
        "host": "n1",
        "cpu": "AMD EPYC",
        "torch": "2.13.0",
        "hosts": ["a b", 1],
        "x": {"y": 2},
    }
    text = write_line("world", values, "2026-11-21T14:53:20.696482Z")
    assert text == (
        'dlperf 2026-11-21T14:53:20.696482Z world host=n1 cpu="AMD EPYC" torch="2.13.0"'
        r' hosts=["a\u0020b",1] x.y=2'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dlperf",
        "dlperf 2026-11-21T14:53:20.696482Z",
        "dlperf 2026-11-21 14:53:20 event a=1",
        "dlperf 2026-11-21T14:53:20.696482Z event a",
        "dlperf 2026-11-21T14:53:20.696482Z event  a=1",
        "dlperf 2026-11-21T14:53:20.696482Z event a=1 ",
        "dlperf 2026-11-21T14:53:20.696482Z event.a=1",
        'dlperf 2026-11-21T14:53:20.696482Z event a="1"b=2',
        "0: dlperf 2026-11-21T14:53:20.696482Z event a=1",
        " dlperf 2026-11-21T14:53:20.696482Z event a=1",
        "dlperf ٢٠٢٦-11-21T14:53:20.696482Z event a=1",
    ],
)
def test_other_lines_are_not_ours(text: str) -> None:
    assert read_line(text) is None


def test_deep_nesting_is_only_text() -> None:
    line = read_line("dlperf 2026-11-21T14:53:20.696482Z event a=" + "[" * 100_000)
    assert line is not None and line.values["a"].startswith("[[[")


@pytest.mark.parametrize("values", [{"a": 1, "a.b": 2}, {"a.b": 1, "a.b.c": 2}])
def test_a_key_that_is_value_and_table(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="value already"):
        unflatten(values)


def test_time_is_utc_with_microseconds() -> None:
    assert utc(0) == "1970-01-01T00:00:00.000000Z"
    assert utc(1_700_000_000.123456) == "2023-11-14T22:13:20.123456Z"
    assert utc() > "2024"
