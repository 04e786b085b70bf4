"""Where the time of an iteration goes, for a model that falls short of its goal."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.sweepfile.case import Case
from dlperf_hpc.train.window import timed_loop, warm_up

_ITERATIONS = 3
_MOST = 8
_LONGEST = 60  # characters of a kernel's name: templates have hundreds


def where_time_goes(case: Case) -> str:
    """The kernels that take most time on the device, each with its share of all kernels' time, by
    torch.profiler over a few iterations. On a CPU the operators, by their own time."""
    card = case.device == "cuda"
    with tiny.session(case) as session:
        warm_up(session, _ITERATIONS, lambda: None)
        session.open_window(_ITERATIONS)
        session.synchronize()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if card else [])]
        with profile(activities=activities) as profiled:
            timed_loop(session, _ITERATIONS, lambda: None)
    return as_words(times_by_kernel(profiled.key_averages(), card))


def times_by_kernel(events: Any, card: bool) -> dict[str, float]:
    """Milliseconds of an iteration by kernel, of events as ``key_averages`` gives them. Ranges that
    somebody named (``Optimizer.step``) lie over kernels on a card and would count them twice."""
    found: dict[str, float] = {}
    for event in events:
        if not card:
            found[event.key] = event.self_cpu_time_total / 1e3 / _ITERATIONS
        elif event.device_type == DeviceType.CUDA and not _is_range(event):
            found[event.key] = event.self_device_time_total / 1e3 / _ITERATIONS
    return found


def _is_range(event: Any) -> bool:
    return bool(getattr(event, "is_user_annotation", False))


def as_words(times: dict[str, float]) -> str:
    """``12.3 ms an iteration: 41.0% aten::addmm, ...; 8 of 30, 92%``."""
    total = sum(times.values())
    if not total:
        return f"torch {torch.__version__}'s profiler saw no kernel"
    top = sorted(times.items(), key=lambda item: -item[1])[:_MOST]
    told = ", ".join(f"{each / total:.1%} {_short(name)}" for name, each in top)
    share = sum(each for _, each in top) / total
    return f"{total:.3g} ms an iteration: {told}; {len(top)} of {len(times)}, {share:.0%}"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."
