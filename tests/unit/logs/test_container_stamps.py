"""Stamps of containers and journals: when a line was collected, and no clock of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import RunResult

PREFIXES = {
    "cri": "2026-01-05T10:{:02d}:{:02d}.123456789Z stdout F ",
    "kubectl": "2026-01-05T10:{:02d}:{:02d}.123456789Z ",
    "compose": "trainer-1  | ",
    "compose -t": "trainer-1  | 2026-01-05T10:{:02d}:{:02d}.123456789Z ",
    "journald": "Jan 05 10:{:02d}:{:02d} gpu07 python[4711]: ",
    "journald iso": "2026-01-05T10:{:02d}:{:02d}+0000 gpu07 python3[4711]: ",
}
LINE = (
    "{} iteration {:8d}/     500 | consumed samples: {:12d} | elapsed time per iteration (ms): "
    "500.0 | learning rate: 1.500E-04 | global batch size:    64 | lm loss: 2.6E+00 |"
)


def read(tmp_path: Path, lines: list[str]) -> RunResult:
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines) + "\n")
    stated = {"nodes": 1, "gpus_per_node": 8}
    (result,) = gather([log], rule(), stated, ScanCache(None)).results
    return result


@pytest.mark.parametrize("bunched", [False, True])
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_they_are_taken_off_and_are_no_clock(tmp_path: Path, prefix: str, bunched: bool) -> None:
    """The program's lines have no stamps: its own milliseconds count."""
    lines = []
    for n in range(1, 131):
        seconds = 60 * (n // 60) if bunched else n
        stamp = prefix.format(seconds // 60, seconds % 60)
        lines.append(stamp + LINE.format("", n, 64 * n))
    result = read(tmp_path, lines)
    assert result.external is not None and result.external.basis == "printed"
    assert result.samples_per_s == pytest.approx(128.0)
    assert result.external.check is None
    assert any("no clock of the program" in warning for warning in result.warnings)


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_the_program_s_own_clock_behind_them_counts(tmp_path: Path, prefix: str) -> None:
    lines = []
    for n in range(1, 131):
        own = f" [2026-01-05 10:{n // 2 // 60:02d}:{n // 2 % 60:02d}.{5 * (n % 2)}00000]"
        lines.append(prefix.format(55, 7) + LINE.format(own, n, 64 * n))
    result = read(tmp_path, lines)
    assert result.external is not None and result.external.basis == "clock"
    assert result.samples_per_s == pytest.approx(128.0)
    assert not any("no clock of the program" in warning for warning in result.warnings)
