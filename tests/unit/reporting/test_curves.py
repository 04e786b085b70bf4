"""What a run has over time: from its log, from another program's, and never from damage."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from record_samples import COMMUNICATION, FACTS, a_run, begun, ended_ok, manifest, timed
from report_samples import case, oks

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.model.statistics import pieces
from dlperf_hpc.records.lines import write_line
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.store import log_event
from dlperf_hpc.reporting.contents import Report, json_text
from dlperf_hpc.reporting.curves import MOST_RUNS, curves_of, runs_with_curves
from dlperf_hpc.train import joblog
from dlperf_hpc.train.telemetry import GpuSample, over_time


def with_gpus(root: Path, *rows: dict[str, Any]) -> RunResult:
    """A run with 150 iterations whose log has these lines of GPUs."""
    run = a_run()
    attempt = begun(root, run)
    for rank, row in enumerate(rows):
        log_event(attempt, "gpu", {"rank": rank, "when": "window", **row})
    measured = joblog.Measured(manifest([run]).measure, timed(2, 150), COMMUNICATION, FACTS)
    joblog.log_window(attempt, measured)
    joblog.end_ok(attempt, measured, None)
    return result_of_log(attempt.paths.log)


def test_samples_over_time_are_medians_of_their_pieces() -> None:
    samples = [GpuSample(float(n % 7), 1.0, 1000.0 + n, 1.0, 1.0, 0) for n in range(200)]
    times = [50.0 + 0.15 * n for n in range(200)]
    found = over_time(samples, times, 50.0)
    assert len(found["at_s"]) == len(found["util_at"]) == 50  # four samples a piece
    assert found["util_at"][3] == median([12 % 7, 13 % 7, 14 % 7, 15 % 7])
    assert found["sm_mhz_at"][-1] == 1197.5
    assert found["at_s"][:2] == [pytest.approx(0.225, abs=0.01), pytest.approx(0.825, abs=0.01)]
    assert len(write_line("gpu", found)) < 1500
    silent = [GpuSample(None, 1.0, None, 1.0, 1.0, 0)]
    assert over_time(silent, [1.0], 0.0) == {} == over_time([], [], 0.0)
    some = over_time([*silent, samples[1]], [0.0, 1.0], 0.0)
    assert some["util_at"] == [None, 1.0]


@pytest.mark.parametrize(("count", "widths"), [(0, []), (3, [1] * 3), (61, [2] * 30 + [1])])
def test_pieces_are_equally_long(count: int, widths: list[int]) -> None:
    found = pieces(range(count), 60)
    assert [len(part) for part in found] == widths
    assert [n for part in found for n in part] == list(range(count))


def test_the_curves_of_our_own_log(tmp_path: Path) -> None:
    """The loss is the mean over both ranks, of the last iteration of each piece."""
    at_s = [0.5, 1.5, 2.5, 3.5]
    result = with_gpus(
        tmp_path,
        {"at_s": at_s, "util_at": [90.0, 80.0, 75.0, 60.0], "sm_mhz_at": [1000] * 4},
        {"at_s": at_s, "util_at": [50.0, 80.0, 70.0, 30.0]},
    )
    found = curves_of(result)
    loss = found["loss"]
    assert len(loss.x) == 50
    assert loss.x[:2] == (8, 11) and loss.x[-1] == 155  # after five of warm-up, every third
    assert loss.y == pytest.approx([10.005 - 0.1 * (n - 6) for n in loss.x], rel=1e-4)
    util = found["gpu_util"]
    assert util.x == (0.5, 1.5, 2.5, 3.5) and util.y == (70.0, 80.0, 72.5, 45.0)
    assert (util.low, util.high) == ((50.0, 80.0, 70.0, 30.0), (90.0, 80.0, 75.0, 60.0))
    assert found["gpu_sm_mhz"].low == ()  # one device tells it
    report = json.loads(json_text(Report("a", [result])))
    (row,) = report["curves"]
    assert row["run"] == result.run.id and row["loss"]["x"] == list(loss.x)
    assert json.loads(json_text(Report("a", oks(case(), 1.0))))["curves"] == []


@pytest.mark.parametrize(
    "row",
    [
        {"at_s": [1.0], "util_at": [1.0, 2.0]},
        {"at_s": "x", "util_at": [1.0]},
        {"at_s": [0.0, 1.0], "util_at": ["x", {}]},
        {"at_s": [0.0, 1e300], "util_at": [1.0, 2.0]},
        {"at_s": list(range(9999)), "util_at": [1] * 9999},
    ],
)
def test_damaged_lines_are_no_curve(tmp_path: Path, row: dict[str, Any]) -> None:
    result = with_gpus(tmp_path, row)
    assert set(curves_of(result)) == {"loss"}
    Path(result.log).unlink()
    assert curves_of(result) == {}


def test_the_losses_of_another_programs_log() -> None:
    """By the lines themselves: the last of each piece of those in the window."""
    place = Path(__file__).parents[1] / "logs" / "formats" / "nanotron.log"
    (result,) = gather([place], rule(), {"nodes": 1, "gpus_per_node": 8}, ScanCache(None)).results
    assert result.external is not None
    lines = [line.split("iteration: ")[1] for line in place.read_text().splitlines()
             if "lm_loss: " in line]  # fmt: skip
    losses = {
        int(line.split(" ")[0]): float(line.split("lm_loss: ")[1].split(" ")[0]) for line in lines
    }
    curve = curves_of(result)["loss"]
    ends = result.external.first, result.external.last
    assert None not in ends
    inside = {n: loss for n, loss in losses.items() if ends[0] < n <= ends[1]}  # type: ignore[operator]
    assert dict(zip(curve.x, curve.y)) == inside and len(inside) > 5
    assert math.isclose(curve.y[-1], result.external.loss_last or 0)


def test_of_many_runs_the_first_repeats_have_curves(tmp_path: Path) -> None:
    runs = [r for n in (1, 2, 3) for r in oks(case(batch_size=n), *[1.0 + n] * 100)]
    chosen = runs_with_curves(runs)
    assert len(chosen) == MOST_RUNS
    assert max(run.run.repeat for run in chosen) == 67
    assert runs_with_curves([ended_ok(tmp_path, a_run())])
