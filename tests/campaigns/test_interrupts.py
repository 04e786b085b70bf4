"""Sweeps on this machine, struck, and ranks that are killed; ``interrupts.py`` and ``ranks.py`` do
it a hundred times."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from faults.interrupts import SWEEPS, TOKEN, _Sweep, _verb, interrupt
from faults.ranks import campaign, ends
from sweeping import Workplace, local_environment, wait_until

from dlperf_hpc.cli import status


@pytest.mark.parametrize("strike", ["Ctrl-C twice", "SIGKILL"])
def test_an_interrupted_sweep_has_ends_and_no_ranks(tmp_path: Path, strike: str) -> None:
    """Its ranks have started processes in sessions of their own, which do not heed SIGTERM."""
    count = interrupt(tmp_path, strike, "nested", 0.5, random.Random(1))
    assert count.good and count.runs == 3 and count.interrupted >= 1
    assert count.otherwise == 0 and count.ok_before + count.interrupted == 3


def test_a_sweep_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    """Whoever looks at it, or at a copy of its directory, ends nothing of it."""
    place = Workplace(tmp_path, {**local_environment(), TOKEN: str(tmp_path)})
    root, copy = place.directory("struck"), tmp_path / "copy"
    sweep = _Sweep(place, place.write("struck.toml", SWEEPS["any program"]))
    try:
        wait_until(lambda: sweep.lives() and any(root.rglob("*_1.log")), 60, "the first run")
        shutil.copytree(root, copy)
        before = {row["status"] for row in _verb(status.main, root)["runs"]}
        of_copy = {row["status"] for row in _verb(status.main, copy)["runs"]}
        wait_until(lambda: not sweep.lives(), 90, "the sweep's end")
    finally:
        sweep.close()
    after = {row["status"] for row in _verb(status.main, root)["runs"]}
    assert "cancelled" not in before and "cancelled" in of_copy and after == {"ok"}


def test_killed_ranks_and_supervisors(tmp_path: Path) -> None:
    """Ranks do not wait for each other: nobody but a supervisor knows that one has gone."""
    victims = [("a program", 1, 0.5), ("a supervisor", 0, 0.5)]
    kills, alive = campaign(tmp_path, victims)
    assert not alive
    assert len(kills) == 2 and not any(each.wrong for each in kills), kills


@pytest.mark.long
def test_one_event_has_one_end(tmp_path: Path) -> None:
    """A rank that ends with exit code 1 within the window; ``ranks.py --same one`` does it 100
    times and more."""
    (end,) = ends(tmp_path, "one", 5).items()
    assert end[0][:3] == ("failed", "", "[-15, 1]") and end[1] == 5
