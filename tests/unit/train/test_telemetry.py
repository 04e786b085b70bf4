"""A GPU's own account of the window: reduced, logged, read back. NVML itself needs a GPU."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from record_samples import a_run, begun, manifest, timed

from dlperf_hpc.analysis.speedup import summarise as summarise_cases
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.model.result import GpuUse
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.supervision import Ending, window_of
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.table import rows
from dlperf_hpc.train import telemetry
from dlperf_hpc.train.joblog import Measured, end_ok, log_gpus, log_window
from dlperf_hpc.train.measurement import Communication
from dlperf_hpc.train.probe.node import Device
from dlperf_hpc.train.program import supervisor
from dlperf_hpc.train.program.supervisor import GpuSampler
from dlperf_hpc.train.telemetry import (
    GpuSample,
    GpuWatch,
    energy_of,
    find_device,
    gpu_state,
    summarise,
)


def test_samples_become_means_maxima_and_every_reason() -> None:
    samples = [GpuSample(90, 1000, 1400, 300, 60, 0b01), GpuSample(95, 1200, 1380, 320, 64, 0b10)]
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
    assert gpu_state(None) == {} and GpuWatch(None).summary() == {}


class Refused(Exception):
    """As NVML's own error."""


def a_small_nvml(**calls: Any) -> types.ModuleType:
    """A pynvml that knows one card, and of each figure what is given here: a value, or an error."""
    nvml = types.ModuleType("pynvml")

    def asked(answer: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call

    known = {"nvmlInit": None, "nvmlSystemGetDriverVersion": "580.1", **calls}
    for name, answer in known.items():
        setattr(nvml, name, asked(answer))
    constants = {"NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0}
    vars(nvml).update({"NVMLError": Refused, **constants})
    return nvml


def by_uuid(known: str) -> Callable[[str], str]:
    def handle(uuid: str) -> str:
        if uuid != known:
            raise Refused("Not Found")
        return uuid

    return handle


def test_what_a_card_refuses_does_not_cost_what_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = iter([1000, 8000])
    nvml = a_small_nvml(
        nvmlDeviceGetHandleByUUID=by_uuid("GPU-1"),
        nvmlDeviceGetUtilizationRates=Refused("Not Supported"),  # as in a virtual machine
        nvmlDeviceGetClockInfo=lambda _handle, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetMemoryInfo=types.SimpleNamespace(used=5 * 2**20),
        nvmlDeviceGetPowerUsage=700_000,
        nvmlDeviceGetTemperature=Refused("Not Supported"),
        # No nvmlDeviceGetCurrentClocksThrottleReasons: a pynvml that has dropped the name.
        nvmlDeviceGetTotalEnergyConsumption=lambda _handle: next(millijoules),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    device = find_device("1")
    watch = GpuWatch(device)
    window = watch.summary()  # at once: there is a sample all the same
    assert window.pop("samples") >= 1
    energy = {name: window.pop(name) for name in ("joules_by", "covered", "gap_s", "watched_s")}
    assert energy["joules_by"] == "counter" and energy["covered"] == 1
    assert set(window.pop("sm_mhz_at")) == {1980} and window.pop("at_s")[0] >= 0
    assert window == {"memory_mb": 5.0, "sm_mhz": 1980.0, "watts": 700.0, "joules": 7.0}
    state = gpu_state(device)
    assert state["sm_mhz"] == 1980 and state["watts"] == 700 and "celsius" not in state
    assert "nvmlDeviceGetUtilizationRates: Not Supported" in state["unreadable"]
    assert "nvmlDeviceGetCurrentClocksThrottleReasons" in state["unreadable"]


def test_a_card_that_tells_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "pynvml", a_small_nvml(nvmlDeviceGetHandleByUUID=by_uuid("GPU-1"))
    )
    device = find_device("GPU-1")
    assert GpuWatch(device).summary() == {}
    state = gpu_state(device)
    assert state.pop("unreadable").count("nvmlDevice") > 3 and state == {"driver": "580.1"}


def test_a_slice_of_a_card_is_found_by_its_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = a_small_nvml(nvmlDeviceGetHandleByUUID=by_uuid("MIG-7"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for name in ("7", "GPU-7", "MIG-7"):
        device = find_device(name)
        assert device is not None and device.handle == "MIG-7"
    assert find_device("8") is None


def test_devices_are_put_together_and_what_is_no_number_is_left_out() -> None:
    told: list[dict[str, Any]] = [
        {"rank": 0, "util": 90, "memory_mb": 1000.0, "watts": 300, "joules": 5.0, "throttle": 4},
        {"rank": 1, "util": 80, "memory_mb": 1100.0, "watts": "?", "joules": 6.0, "throttle": 1},
    ]
    used = GpuUse.of_devices(told)
    assert used == GpuUse(util=85, memory_mb=1100, watts=300, joules=11, throttle=5, devices=2)
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
    assert result.gpu == GpuUse(util=90, memory_mb=5603, joules=48, throttle=0, devices=1)
    (run,) = rows(RUN_COLUMNS, [result])
    assert (run["gpu_util"], run["gpu_memory_mb"], run["gpu_joules"]) == (90, 5603, 48)
    assert run["gpu_watts"] is None and run["gpu_throttle"] == 0
    (case,) = rows(CASE_COLUMNS, summarise_cases([result]))
    assert result.window is not None
    assert case["gpu_joules_per_sample"] == 48 / result.window.samples
    assert (case["gpu_util"], case["gpu_memory_mb_max"]) == (90, 5603)


def samples(*watts: float) -> list[GpuSample]:
    return [GpuSample(90, 1000, 1400, each, 60, 0) for each in watts]


def test_the_energy_of_a_counter_is_its_own_and_says_what_samples_cover() -> None:
    found = energy_of(samples(300, 300, 300), [10.5, 11.0, 14.0], 10.0, 14.5, counted=1234.5678)
    assert (found["joules"], found["joules_by"]) == (1234.568, "counter")
    assert (found["watched_s"], found["gap_s"]) == (4.5, 3.0)
    # A sample stands for as long before it and after it as the pause between two.
    assert found["covered"] == round((0.15 + 0.3 + 0.3 + 0.15) / 4.5, 3)


def test_without_a_counter_power_is_added_up_over_time() -> None:
    found = energy_of(samples(100, 200), [1.0, 3.0], 0.0, 4.0, counted=None)
    assert (found["joules"], found["joules_by"]) == (100 * 2 + 200 * 2, "power")
    nothing = energy_of([], [], 0.0, 4.0, counted=None)
    assert nothing == {}  # a device without power and counter


def test_of_devices_the_least_covered_and_the_weakest_way_counts() -> None:
    told: list[dict[str, Any]] = [
        {"joules": 5.0, "joules_by": "counter", "covered": 0.9, "gap_s": 1.0, "watched_s": 10.0},
        {"joules": 6.0, "joules_by": "power", "covered": 0.4, "gap_s": 6.0, "watched_s": 11.0},
        {"util": 3},
    ]
    used = GpuUse.of_devices(told)
    assert used == GpuUse(
        util=3, joules=11, devices=2, joules_by="power", covered=0.4, gap_s=6.0, watched_s=11.0
    )


def watched(
    folder: Path, env: dict[str, str], most: int = 2, gpus: int = 2
) -> tuple[list[dict[str, Any]], str]:
    """What a process beside a program tells of half a second, once it has found so many GPUs."""
    variables = {"CUDA_VISIBLE_DEVICES": "0,1", "FAKE_NVML": "GPU-a,GPU-b", **env}
    folder.mkdir(exist_ok=True)
    case = Case("mine", "toy", Topology(1, most), "fp32", 4, 0, launch="rank")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SUPPORT / "nvml")
        for name, value in variables.items():
            patch.setenv(name, value)
        sampler = GpuSampler(folder, case, os.environ)
        try:
            while len(list(folder.glob("*.gpu"))) < gpus:
                time.sleep(0.05)
            time.sleep(1.0)
            now = time.time()
            return sampler.lines((now - 0.6, now - 0.1))
        finally:
            sampler.close()


@pytest.mark.processes
def test_the_gpus_of_a_program_are_sampled_once_each_from_beside_it(tmp_path: Path) -> None:
    lines, why = watched(tmp_path, {})
    assert not why and [(each["uuid"], each["when"]) for each in lines] == [
        (uuid, when) for uuid in ("GPU-a", "GPU-b") for when in ("before", "window", "after")
    ]
    first, second = (each for each in lines if each["when"] == "window")
    assert (first["util"], first["sm_mhz"], first["watts"], first["throttle"]) == (90, 1000, 100, 4)
    assert first["watched_s"] == 0.5
    # 100 W and 200 W; on a busy machine a moment may be another than the counter's.
    assert first["joules"] == pytest.approx(50, rel=0.3)
    assert second["joules"] == pytest.approx(100, rel=0.3)
    assert lines[0]["driver"] == "580.1"
    # The supervisor of another rank of that attempt sees the same GPUs.
    assert watched(tmp_path, {}) == ([], "")
    lines, _ = watched(tmp_path / "other", {"FAKE_NVML_FAULT": "no-counter"})
    assert (lines[1]["joules_by"], lines[1]["joules"]) == ("power", pytest.approx(50))


@pytest.mark.processes
def test_of_more_gpus_than_the_case_uses_those_count_that_its_processes_are_on(
    tmp_path: Path,
) -> None:
    pid = tmp_path / "pid"
    used = {"FAKE_NVML_USED": "1", "FAKE_NVML_PID": str(pid)}
    pid.write_text(str(os.getpid()))
    lines, why = watched(tmp_path, used, most=1)
    assert not why and {each["uuid"] for each in lines} == {"GPU-b"}
    pid.write_text("1")  # somebody else's
    lines, why = watched(tmp_path / "other", used, most=1)
    assert (lines, why) == ([], "2 are visible, the case uses 1, and NVML does not tell which")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("missing", "NVMLError: NVML Shared Library Not Found"),
        ("crash", "the process that asked NVML died"),
        ("hang", "NVML did not answer within 0.2 s"),
    ],
)
def test_a_driver_that_fails_is_told_and_nothing_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    monkeypatch.setattr(supervisor, "_ANSWER_S", 0.2 if fault == "hang" else 5.0)
    gpus = 0 if fault == "missing" else 2
    assert watched(tmp_path, {"FAKE_NVML_FAULT": fault}, gpus=gpus) == ([], why)


@pytest.mark.parametrize(
    ("device", "visible"), [("cpu", "0,1"), ("auto", ""), ("cuda", "-1"), ("auto", "NoDevFiles")]
)
def test_a_program_without_gpus_has_no_process_beside_it(
    tmp_path: Path, device: str, visible: str
) -> None:
    case = Case("mine", "toy", Topology(1, 1), "fp32", 4, 0, launch="rank", device=device)
    sampler = GpuSampler(tmp_path, case, {"CUDA_VISIBLE_DEVICES": visible})
    assert sampler.pid is None and sampler.lines((0.0, 1.0)) == ([], "")


def test_the_counter_at_the_windows_ends_lies_between_two_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((10.0, 10.2, 10.4, 10.6, 20.0))
    monkeypatch.setattr(telemetry, "time", types.SimpleNamespace(time=lambda: next(clock)))
    joules = iter((0, 0, 20_000, 60_000, 120_000, 0))
    nvml = a_small_nvml(
        nvmlDeviceGetPowerUsage=50_000,
        nvmlDeviceGetTotalEnergyConsumption=lambda _: next(joules),
    )
    series = telemetry.GpuSeries("GPU-a", Device(nvml, "GPU-a"))
    next(joules)
    for _ in range(5):
        series.look()
    window = series.lines(10.1, 10.5, 0.15)[1]
    assert (window["joules"], window["joules_by"], window["samples"]) == (80, "counter", 2)
    # Where a sample is late there is no line between two: the power of the samples is added up.
    late = series.lines(10.1, 15.0, 0.15)[1]
    assert (late["joules"], late["joules_by"], late["gap_s"]) == (245, "power", 4.4)


def test_samples_of_a_long_program_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second one is dropped; what is left still covers the window, at a longer interval."""
    monkeypatch.setattr(telemetry, "_MOST_SAMPLES", 8)
    clock = iter(range(100, 200))
    monkeypatch.setattr(telemetry, "time", types.SimpleNamespace(time=lambda: float(next(clock))))
    nvml = a_small_nvml(nvmlDeviceGetPowerUsage=200_000)
    series = telemetry.GpuSeries("GPU-a", Device(nvml, "GPU-a"))
    thinned = 0
    for _ in range(12):
        series.look()
        thinned += series.thin()
    assert thinned == 2
    window = series.lines(100.0, 112.0, 4.0)[1]
    assert (window["watts"], window["joules"], window["covered"]) == (200, 2400, 1)
    assert series.lines(10.0, 90.0, 4.0) == []  # no sample, no figure


def test_the_window_is_a_timers_else_that_of_the_lines() -> None:
    lines = Ending(0, "n1", 0, opened=1.0, reached=2.0)
    timed = Ending(1, "n2", 0, timed_from=1.1, timed_until=2.1)
    assert window_of([lines, timed]) == (1.1, 2.1)
    assert window_of([Ending(1, "n2", 0, opened=1.0), lines]) == (1.0, 2.0)
    assert window_of([Ending(1, "n2", 0, opened=1.0)]) is None
