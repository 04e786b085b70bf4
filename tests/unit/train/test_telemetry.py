"""A GPU's own account of the window: reduced, logged, read back. NVML itself needs a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from record_samples import a_run, begun, manifest, timed

from dlperf_hpc.analysis.speedup import summarise as summarise_cases
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.results import GpuUse
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS, rows
from dlperf_hpc.train.communication import Communication
from dlperf_hpc.train.joblog import Measured, end_ok, log_gpus, log_window
from dlperf_hpc.train.telemetry import Sample, Watch, find_device, gpu_state, summarise


def test_samples_become_means_maxima_and_every_reason() -> None:
    samples = [Sample(90, 1000, 1400, 300, 60, 0b01), Sample(95, 1200, 1380, 320, 64, 0b10)]
    assert summarise(samples) == {
        "samples": 2,
        "util": 92.5,
        "memory_mb": 1200,
        "sm_mhz": 1390,
        "watts": 310,
        "celsius": 64,
        "throttle": 0b11,
    }
    assert summarise([]) == {}


def test_without_a_gpu_there_is_nothing_to_tell() -> None:
    assert find_device(None) is None
    assert find_device("GPU-00000000-0000-0000-0000-000000000000") is None
    assert gpu_state(None) == {} and Watch(None).summary() == {}


def test_devices_are_put_together_and_what_is_no_number_is_left_out() -> None:
    told: list[dict[str, Any]] = [
        {"rank": 0, "util": 90, "memory_mb": 1000.0, "watts": 300, "joules": 5.0, "throttle": 4},
        {"rank": 1, "util": 80, "memory_mb": 1100.0, "watts": "?", "joules": 6.0, "throttle": 1},
    ]
    used = GpuUse.of_devices(told)
    assert used == GpuUse(util=85, memory_mb=1100, watts=300, joules=11, throttle=5)
    assert GpuUse.of_devices([]) is None and GpuUse.of_devices([{"util": float("nan")}]) is None


def test_from_the_log_into_both_tables(tmp_path: Path) -> None:
    attempt = begun(tmp_path, a_run())
    window = {"samples": 3, "util": 90.0, "memory_mb": 5603.0, "joules": 48.0, "throttle": 0}
    states = [{"before": {"watts": 90.0}, "window": window, "after": {"watts": 99.0}}, {}]
    log_gpus(attempt, states)
    measured = Measured(manifest([attempt.run]).measure, timed(), Communication())
    log_window(attempt, measured)
    end_ok(attempt, measured)
    result = result_of_log(attempt.paths.log)
    assert result.gpu == GpuUse(util=90, memory_mb=5603, joules=48, throttle=0)
    (run,) = rows(RUN_COLUMNS, [result])
    assert (run["gpu_util"], run["gpu_memory_mb"], run["gpu_joules"]) == (90, 5603, 48)
    assert run["gpu_watts"] is None and run["gpu_throttle"] == 0
    (case,) = rows(CASE_COLUMNS, summarise_cases([result]))
    assert result.window is not None
    assert case["gpu_joules_per_sample"] == 48 / result.window.samples
    assert (case["gpu_util"], case["gpu_memory_mb_max"]) == (90, 5603)
