"""What several checks share: small cases, sessions that are closed again, times of the device."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from dlperf_hpc.sweepfile.case import MODES, Case, Topology
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession

SMALL = {"bert-tiny": 64, "gpt2-tiny": 64}
"""Models that fit any device, and tokens of a sample."""


def case(
    model: str, device: str, precision: str = "fp32", batch_size: int = 4, **more: Any
) -> Case:
    """A case of one rank with every option at its default, but for those among ``more``."""
    declared = registry()
    mode = more.get("mode", MODES[0])
    options = {o.name: o.default_in(mode) for o in declared.options("ddp", model)}
    options.update({name: more.pop(name) for name in list(more) if name in options})
    made = Case(
        framework="ddp",
        model=model,
        topology=Topology(1, 1),
        precision=precision,
        batch_size=batch_size,
        seq_len=SMALL.get(model, declared.workloads[model].default_seq_len),
        device=device,
        options=tuple(sorted(options.items())),
    )
    return replace(made, **more)


@contextlib.contextmanager
def session(asked: Case, kind: type[DdpSession] = DdpSession) -> Iterator[DdpSession]:
    """A DDP session of one rank, or of a kind of its own; what it held is given back after it."""
    torch.compiler.reset()
    opened = kind(asked, discover(), registry().workloads[asked.model])
    try:
        yield opened
    finally:
        opened.close()
        if asked.device == "cuda":
            torch.cuda.empty_cache()


def seconds(work: Callable[[], object], device: str, times: int = 10, warmup: int = 3) -> float:
    """Median seconds of a call, the device's own work included."""
    for _ in range(warmup):
        work()
    found = []
    for _ in range(times):
        wait(device)
        begun = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def wait(device: str) -> None:
    """Until a GPU has done what it was asked; a CPU's work is done when a call returns."""
    if device == "cuda":
        torch.cuda.synchronize()


def device_name(device: str) -> str:
    """The card's name; ``cpu``."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"
