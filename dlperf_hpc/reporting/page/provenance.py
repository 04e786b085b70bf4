"""What runs were made on and with: first in what they differ, then all of it. What a run does not
tell is no difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlperf_hpc.analysis.setups import facts_of
from dlperf_hpc.errors import number_of, printable
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.reporting.page import Section
from dlperf_hpc.reporting.table import Column, Table, figures, words
from dlperf_hpc.reporting.text import listed, natural

_MOST_VALUES = 8
_MOST_NAMED = 6
_FOLLOWS = ("ranks", "nodes")  # from the topology
_MOST_KEYS = 500
_LONGEST = 300

Line = tuple[str, str, int, str]
"""What differs, a value of it, the runs that have it, and their topologies."""

_COLUMNS: tuple[Column[Line], ...] = (
    words("what", lambda line: line[0]),
    words("value", lambda line: line[1], long=True),
    figures("runs", lambda line: line[2], form=str),
    words("topologies", lambda line: line[3]),
)
_ALL_COLUMNS: tuple[Column[tuple[str, str]], ...] = (
    words("what", lambda line: line[0]),
    words("value", lambda line: line[1], long=True),
)


def provenance_sections(runs: Sequence[RunResult]) -> list[Section]:
    """What differs between the runs, and all that their logs tell of machine and software."""
    facts = [_texts(run) for run in runs]
    values: dict[str, Counter[str]] = {}
    for name, text in (item for each in facts for item in each.items()):
        if name in values or len(values) < _MOST_KEYS:
            values.setdefault(name, Counter())[text] += 1
    if not values:
        return []
    rows: list[Line] = []
    for name, texts in values.items():
        if name not in _FOLLOWS and len(texts) > 1:
            rows += _differing_rows(name, texts, facts, runs)
    lines, table = ["All runs were made alike, as far as their logs tell."], None
    if rows:
        lines = ["Machine, software and settings in which the runs are not alike."]
        table = Table("In what the runs differ", _COLUMNS, rows, name="differs")
    lines_of_all = [(name, _all_values(texts)) for name, texts in values.items()]
    everything = Table("All that the logs tell", _ALL_COLUMNS, lines_of_all, name="provenance")
    return [
        Section("differs", "Provenance: what differs", tuple(lines), table),
        Section("provenance", "Provenance: all of it", (), everything, folded=True),
    ]


def _texts(run: RunResult) -> dict[str, str]:
    return {name: _text(value) for name, value in facts_of(run).items()}


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ", ".join(dict.fromkeys(map(str, value)))
    text = printable(str(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _differing_rows(
    name: str, values: Mapping[str, int], facts: Sequence[Mapping[str, str]],
    runs: Sequence[RunResult],
) -> list[Line]:  # fmt: skip
    """A row for each value; where nearly every run has its own, one row."""
    if len(values) > _MOST_VALUES:
        some = ", ".join(sorted(values, key=natural)[:2])
        text = f"{number_of(len(values), 'value')}: {some} ..."
        return [(name, text, sum(values.values()), "")]
    rows = []
    for value in sorted(values, key=lambda each: (-values[each], natural(each))):
        where = _topologies(run for run, each in zip(runs, facts) if each.get(name) == value)
        rows.append((name, value or "(empty)", values[value], where))
    return rows


def _topologies(runs: Iterator[RunResult]) -> str:
    found = {run.run.case.topology for run in runs}
    names = [str(each) for each in sorted(found, key=lambda t: (t.devices, t))]
    return listed(names, _MOST_NAMED)


def _all_values(values: Mapping[str, int]) -> str:
    return listed(sorted(values, key=natural), _MOST_VALUES, "; ")
