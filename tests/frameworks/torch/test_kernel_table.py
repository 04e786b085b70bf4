"""The acceptance pack's table of kernels, over made events, and which model gets one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch.autograd import DeviceType

from dlperf_hpc.acceptance.checks.kernels import as_words, times_by_kernel
from dlperf_hpc.acceptance.checks.tuned import _short_of_goal


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
    def row(share: float | None, code: str = "dlperf_hpc") -> dict[str, Any]:
        return {"model": "gpt2-small", "mode": "tuned", "code": code, "samples_per_s": 1000,
                "share_of_peak": share}  # fmt: skip

    rows = [row(0.9, "dlperf_hpc-no-ddp"), row(0.44)]
    assert _short_of_goal(rows, 1024, card=True) == rows[1]
    assert _short_of_goal([row(0.46)], 1024, card=True) is None
    assert _short_of_goal([row(None)], 1024, card=True) is None  # a card of unknown peak
    assert _short_of_goal(rows, 512, card=True) is None  # no goal
    assert _short_of_goal([row(None)], 1024, card=False) == row(None)
