"""Repeats on other nodes each: what a repeat shall not have, and what the batch script does."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from record_samples import a_run, manifest

from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm.script import batch_script
from dlperf_hpc.engines.slurm.spread import FILE, main, noted, to_leave_out
from dlperf_hpc.records import layout

NODES = ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("had", "needed", "left_out"),
    [
        ([], 1, []),
        (["n1"], 1, ["n1"]),
        (["n1", "n2", "n3"], 1, ["n1", "n2", "n3"]),
        (["n1", "n2", "n3", "n4"], 1, ["n2", "n3", "n4"]),  # n1 was longest ago
        (["n1 n2"], 2, ["n1", "n2"]),
        (["n1 n2", "n3 n4"], 2, ["n3", "n4"]),
        (["n1 n2"], 3, []),
        (["n9", "n1"], 2, ["n1"]),  # a node that is out of service
    ],
)
def test_what_earlier_repeats_had_is_left_out_while_enough_is_left(
    had: list[str], needed: int, left_out: list[str]
) -> None:
    assert to_leave_out([each.split() for each in had], NODES, needed) == left_out


def test_lines_that_are_none_of_ours_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / layout.JOBS).mkdir()
    path = tmp_path / layout.JOBS / FILE
    path.write_text(
        '{"case": "a", "nodes": ["n1"]}\n[]\n{"case": "a"}\nnoise\n'
        '{"case": "a", "nodes": ["--x", "n2"]}\n{"case": "a", "nodes": ["n3", "n4"]}\n'
        '{"case": "b", "nodes": ["n1,ALL"]}\n'
    )
    assert noted(tmp_path) == {"a": [("n1",), ("n3", "n4")]}
    path.unlink()
    assert noted(tmp_path) == {}


def test_the_script_spreads_where_the_profile_asks(tmp_path: Path) -> None:
    (array,) = manifest([a_run()]).arrays
    without = batch_script(tmp_path, array, Site())
    assert "slurm.spread" not in without
    asked = batch_script(tmp_path, array, Site(spread=True, exclude="n[7-9]"))
    (line,) = [line for line in asked.splitlines() if "slurm.spread" in line]
    assert line.startswith("DLPERF_EXCLUDED='n[7-9]' ") and line.endswith("|| true")
    assert f" {tmp_path} {array.name} " in line


def test_it_never_keeps_a_run_from_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "absent"]) == 0
    assert "repeats run where Slurm puts them" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["constraint", "reservation"])
def test_nodes_that_nobody_can_count_cannot_be_spread_over(key: str) -> None:
    with pytest.raises(ValidationError, match="nobody knows which nodes are left"):
        Site.model_validate({"spread": True, key: "a100"})
