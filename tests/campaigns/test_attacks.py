"""Every attack of the campaign once; ``make attacks`` prints the table."""

from __future__ import annotations

import pytest
from attacks.attacks import ATTACKS, Attack
from attacks.campaign import COLUMNS, Trial, page, possible, tried
from attacks.scene import Effect


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_nothing_comes_of(attack: Attack) -> None:
    """Nothing written, executed or leaked, no crash, and what is wrong was told."""
    if attack not in possible():
        pytest.skip("rests on an owner: only root can be two users")
    trial = tried(attack)
    assert trial.effect.tried > 0 and trial.good, "\n".join(trial.found())


def test_the_page_shows_what_an_attack_did() -> None:
    bitten = Effect(tried=2, told=1, executed=["dlperf rerun: setup"], untold=["dlperf rerun"])
    text = page("here", [Trial("a", bitten), Trial("b", Effect(tried=1, told=1))])
    assert "| a | 2 | 1 | 0 | 1 | 0 | 0 | 0 | 0 |" in text and "| all | 3 | 2 | 0 | 1 |" in text
    assert "- a: executed: dlperf rerun: setup" in text and "| ".join(COLUMNS[:1]) in text
