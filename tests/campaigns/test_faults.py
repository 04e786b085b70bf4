"""Every fault of the campaign once, and four kills; ``make faults`` runs all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.campaign import COLUMNS, run, staged, table
from faults.drills import DRILLS
from faults.kills import FAULT
from faults.stage import Trial

KILLS = 4

pytestmark = pytest.mark.timeout(2400)  # the first test pays for all, beside the frameworks' tests


@pytest.fixture(scope="module")
def trials() -> Iterator[dict[str, Trial]]:
    with staged() as stage:
        yield {trial.fault: trial for trial in run(stage, DRILLS, KILLS, seed=1)}


@pytest.mark.parametrize("fault", [*(drill.fault for drill in DRILLS), FAULT])
def test_after(trials: dict[str, Trial], fault: str) -> None:
    """The sweep was completed: nothing lost, nothing measured twice, nothing altered."""
    trial = trials[fault]
    assert not trial.error, trial.error
    assert (trial.lost, trial.duplicated, trial.altered) == (0, 0, 0)
    assert trial.runs >= 1 and trial.attempts >= 1


def test_the_table(trials: dict[str, Trial]) -> None:
    text = table(list(trials.values()), took_s=60.0)
    header, *rows = text.split("\n\n")[0].splitlines()
    assert header.split() == list(COLUMNS)
    assert len(rows) == len(DRILLS) + 2 and rows[-1].split()[3:] == ["0", "0", "0", "60"]
