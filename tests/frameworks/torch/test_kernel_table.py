"""The acceptance pack's table of kernels, over made events, and which model gets one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch.autograd import DeviceType

from dlperf_hpc.acceptance.speed import as_words, is_short, times_by_kernel
from dlperf_hpc.acceptance.training import case


def event(key: str, us: float, kind: Any, named: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        key=key,
        self_device_time_total=us,
        self_cpu_time_total=us,
        device_type=kind,
        is_user_annotation=named,
    )


def test_kernels_alone_count_on_a_card() -> None:
    gpu, cpu = DeviceType.CUDA, DeviceType.CPU
    kernels = [event(f"kernel<{n}, {'x' * 90}>", 300.0 * n, gpu) for n in range(1, 11)]
    others = [event("aten::addmm", 5e5, cpu), event("Optimizer.step", 5e5, gpu, named=True)]
    times = times_by_kernel([*kernels, *others], card=True)
    assert sum(times.values()) == 5.5  # ms of one of three iterations
    told = as_words(times)
    assert told.startswith("5.5 ms an iteration: 18.2% kernel<10, xxx")
    assert told.endswith("...; 8 of 10, 95%")
    assert max(map(len, told.split(", "))) < 70


def test_a_model_that_is_short_of_its_goal_gets_a_table() -> None:
    gpt2 = case("gpt2-small", "cuda", "bf16", seq_len=1024, mode="tuned")
    assert is_short(0.44, gpt2) and not is_short(0.46, gpt2)
    assert not is_short(None, gpt2)  # a card of unknown peak
    assert not is_short(0.44, replace(gpt2, seq_len=512))  # no goal
    assert is_short(None, case("bert-tiny", "cpu"))
