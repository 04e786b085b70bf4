"""2000 logs of each family whose speed is known: the long form of the unit test of that name."""

from __future__ import annotations

import pytest
from log_truth import FAMILIES, written
from log_verdicts import verdict, verdicts


@pytest.mark.parametrize("family", FAMILIES)
def test_no_speed_is_wrong_without_a_word(family: str) -> None:
    wrong = []
    for seed in range(2000):
        found, told = verdict(*written(family, seed))
        if found == "silent":
            wrong.append(f"seed {seed}: {told}")
    assert not wrong, "\n".join([f"{family}: {len(wrong)} of 2000", *wrong[:5]])


@pytest.mark.parametrize("family", FAMILIES)
def test_clean_logs_have_the_right_speed(family: str) -> None:
    found = verdicts(family, range(400), clean=True)
    assert found["right"] >= 0.85 * 400, found
