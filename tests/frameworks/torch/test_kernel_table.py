"""The acceptance pack's table of kernels, over made events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch.autograd import DeviceType

from dlperf_hpc.acceptance.speed import kernel_text


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
    rest = [event("aten::addmm", 5e5, cpu), event("Optimizer.step", 5e5, gpu, named=True)]
    text = kernel_text([*kernels, *rest], card=True)
    # 16.5 ms of three iterations.
    assert text.startswith("5.5 ms an iteration: 18.2% kernel<10, xxx")
    assert text.endswith("xxx; 8 of 10")
    assert max(map(len, text.split(", "))) < 70
    assert kernel_text(rest, card=False) == (
        "333 ms an iteration: 50.0% aten::addmm, 50.0% Optimizer.step; 2 of 2"
    )
