"""The table of nodes over odd names, and nodes.csv as docs/csv.md has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from places import ROOT
from report_samples import case, oks

from dlperf_hpc.analysis.slow_nodes import examine, hosts_of
from dlperf_hpc.model.result import RankTime, RunResult
from dlperf_hpc.reporting.node_tables import NODE_COLUMNS, nodes_of, print_nodes, sentences
from dlperf_hpc.reporting.table import Column, rows

EVIL = "n\x1b[2J\u202e;$(true)"


def runs() -> list[RunResult]:
    """Twelve runs of one case on two nodes each; those on the odd one are 10 % slower."""
    names = [EVIL, "b", "c", "d"]
    pairs = [(names[i], names[j]) for i in range(4) for j in range(i)] * 2
    speeds = [90 + 0.1 * i if EVIL in pair else 100 + 0.1 * i for i, pair in enumerate(pairs)]
    made = oks(case("2n1g"), *speeds)
    return [
        replace(
            run,
            facts={"world": {"hosts": list(pair)}},
            rank_times=tuple(RankTime(host, 0, 10.0) for host in pair),
        )
        for run, pair in zip(made, pairs)
    ]


def test_odd_names_are_shown_and_quoted_in_what_is_to_be_pasted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examine([runs()])
    assert found.slow_nodes == (EVIL,)
    monkeypatch.setenv("COLUMNS", "80")
    print_nodes(found)
    text = capsys.readouterr().out
    assert "\x1b" not in text and "\u202e" not in text and max(map(len, text.split("\n"))) <= 80
    assert any(f"--exclude-nodes '{EVIL}'" in line for line in sentences(found))
    (odd,) = [row for row in rows(NODE_COLUMNS, nodes_of(found)) if row["slow"]]
    assert odd["node"] == "n\\x1b[2J\\u202e;$(true)"


def test_more_hosts_than_the_topology_has_are_no_hosts() -> None:
    (run,) = oks(case("1n1g"), 100.0)
    assert hosts_of(replace(run, facts={"world": {"hosts": ["a", "b"]}})) == frozenset()
    for odd in (None, 3, "n1", {"hosts": 3}):
        assert hosts_of(replace(run, facts={"world": odd})) == frozenset()


@pytest.mark.parametrize("column", NODE_COLUMNS, ids=lambda column: str(column.name))
def test_docs_name_every_column(column: Column[object]) -> None:
    section = (ROOT / "docs" / "csv.md").read_text().split("\n## nodes.csv\n")[1].split("\n## ")[0]
    assert f"| `{column.name}` | {column.unit} | {column.meaning} |\n" in section
