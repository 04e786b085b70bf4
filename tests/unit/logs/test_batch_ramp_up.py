"""A batch that grows as a run goes on: each line's setting is that of its own iterations.

The lines are as Megatron-LM's ``training_log`` prints them with ``--rampup-batch-size``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import RunResult

MS = 500.0


def line(n: int, consumed: int | None, batch: int, ms: float = MS, stamp: str = "") -> str:
    told = f" consumed samples: {consumed:12d} |" if consumed is not None else ""
    return (
        f"{stamp} iteration {n:8d}/     500 |{told} elapsed time per iteration (ms): {ms:.1f} |"
        f" learning rate: 1.500E-04 | global batch size: {batch:5d} | lm loss: 2.6E+00 |"
        " loss scale: 1.0 | grad norm: 1.520 |"
    )


def log(every: int = 1, last: int = 200, change: int = 70, samples: bool = True) -> list[str]:
    """Batches of 16 up to iteration ``change``, of 512 behind it; an iteration takes MS x batch."""
    lines, consumed, spent = [], 0, 0.0
    for n in range(1, last + 1):
        batch = 16 if n <= change else 512
        consumed, spent = consumed + batch, spent + MS * batch / 16
        if n % every == 0:
            lines.append(line(n, consumed if samples else None, batch, spent / every))
            spent = 0.0
    return lines


def read(tmp_path: Path, lines: list[str], by: str = "default", **stated: int) -> RunResult:
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    known = {"nodes": 1, "gpus_per_node": 8, **stated}
    (result,) = gather([path], rule(by), known, ScanCache(None)).results
    return result


def test_a_window_far_behind_the_change_has_its_own_batch(tmp_path: Path) -> None:
    lines = log(change=70)
    result = read(tmp_path, lines, "printed[100:200]")
    assert result.samples_per_s == pytest.approx(512 / (MS * 32 / 1000))
    assert result.run.case.global_batch == 512
    assert result.warnings == ()
    before = read(tmp_path, lines, "printed[10:60]")
    assert before.samples_per_s == pytest.approx(16 / (MS / 1000))
    assert before.run.case.global_batch == 16 and before.warnings == ()


@pytest.mark.parametrize("samples", [True, False])
def test_a_window_over_a_change_counts_its_lines_own_samples(tmp_path: Path, samples: bool) -> None:
    """50 iterations of 16 in 25 s, 50 of 512 in 800 s: 26400 samples."""
    result = read(tmp_path, log(samples=samples), "printed[20:120]")
    assert result.samples_per_s == pytest.approx(26400 / 825)
    assert result.run.case.global_batch is None
    assert any("from 16" in told and "up to 512" in told for told in result.warnings)


def test_between_two_lines_only_consumed_samples_tell_what_was_trained(tmp_path: Path) -> None:
    whole = read(tmp_path, log(every=10, change=75), "printed[20:120]")
    assert whole.samples_per_s == pytest.approx((55 * 16 + 45 * 512) / (27.5 + 45 * 16.0))
    silent = read(tmp_path, log(every=10, change=75, samples=False), "printed[20:120]")
    assert silent.samples_per_s is None
    assert "16 to 512" in silent.reason and "from 70 to 80" in silent.reason


def test_the_clock_counts_them_too(tmp_path: Path) -> None:
    lines, consumed, seconds = [], 0, 0.0
    for n in range(1, 131):
        batch = 16 if n <= 70 else 512
        consumed, seconds = consumed + batch, seconds + batch / 32
        minute, second = divmod(seconds, 60)
        stamp = f" [2026-01-05 {10 + int(minute) // 60}:{int(minute) % 60:02d}:{second:09.6f}]"
        lines.append(line(n, consumed, batch, 1000 * batch / 32, stamp))
    result = read(tmp_path, lines)
    assert result.external is not None and result.external.basis == "clock"
    assert result.samples_per_s == pytest.approx(32.0, rel=1e-4)
    assert result.external.check == pytest.approx(32.0, rel=1e-4)


def test_means_of_lines_over_a_change(tmp_path: Path) -> None:
    result = read(tmp_path, log(), "mean[20:120]")
    assert result.samples_per_s == pytest.approx(26400 / 825)


def test_consumed_samples_that_belie_the_batch_leave_no_number(tmp_path: Path) -> None:
    lines = [line(n, 4 * 16 * n, 16) for n in range(1, 131)]
    result = read(tmp_path, lines)
    assert result.samples_per_s is None
    assert "consumed are 64 an iteration, the global batch is 16" in result.reason


def test_a_constant_batch_is_as_before(tmp_path: Path) -> None:
    lines = [line(n, 16 * n, 16) for n in range(1, 131)]
    result = read(tmp_path, lines, global_batch=32)
    assert result.samples_per_s == pytest.approx(32.0)
    assert any("the log says 16" in told for told in result.warnings)


def test_a_single_line_has_no_window(tmp_path: Path) -> None:
    """Nothing says how many iterations it stands for, so that there is no number."""
    result = read(tmp_path, [line(10, 2560, 256)], "lines")
    assert result.samples_per_s is None
    assert "no iteration lies behind iteration 10" in result.reason
