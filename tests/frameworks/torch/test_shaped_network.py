"""The all-reduce probe and what is predicted by it, in a network whose speed is known.

``benchmarks/shaped_network.py`` has the network, and the long form. Other work on the machine can
only slow a link down: a measurement that it disturbed is made anew.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from shaped_network import BAR, PAYLOAD, Foretold, Network, NoNamespaces, Settings, foretell

MBIT = 40
TRIES = 5


def misses(rows: list[Foretold]) -> list[str]:
    """The figures beyond the bars."""
    found = []
    for row in rows:
        if row.probe is not None:
            share = row.probe.total_bus_gb_s * 8e3 / MBIT / PAYLOAD
            if abs(share - 1) > BAR:
                found.append(f"{row.nodes} nodes: the probe has {share:.3f} of the limit")
        if row.by_probe_s is not None and abs(row.by_probe_s / row.step_s - 1) > BAR:
            found.append(f"{row.nodes} nodes: {row.by_probe_s:.3f} s of {row.step_s:.3f} s")
    return found


@pytest.mark.timeout(900)  # of a machine that has much else to do
def test_the_probe_finds_the_limit_and_its_prediction_the_step(tmp_path: Path) -> None:
    for _ in range(TRIES):
        try:
            rows = foretell(MBIT, (1, 2, 4), Settings(), tmp_path)
        except NoNamespaces as error:
            pytest.skip(f"this machine does not let us make network namespaces: {error}")
        assert [row.probe is None for row in rows] == [True, False, False]
        assert rows[-1].by_probe_s is not None
        if not (wrong := misses(rows)):
            break
    assert not wrong, wrong


def test_a_network_is_removed_also_after_a_failure() -> None:
    try:
        with pytest.raises(ZeroDivisionError), Network.of(2, MBIT) as network:
            names = network.names
            raise ZeroDivisionError
    except NoNamespaces as error:
        pytest.skip(f"this machine does not let us make network namespaces: {error}")
    left = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert not [name for name in names if name in left or name in links]
