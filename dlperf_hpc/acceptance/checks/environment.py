"""Versions, the card and its state, and how MPI starts."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import torch

from dlperf_hpc.acceptance.finding import OK, TOLD, Finding, judged
from dlperf_hpc.analysis import accelerators
from dlperf_hpc.errors import WorldError
from dlperf_hpc.train import ranks
from dlperf_hpc.train.telemetry import find_device, gpu_state


def run(device: str) -> Iterator[Finding]:
    """The facts that every other row rests on; FAIL where there is no card, or no MPI."""
    built = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none: built for CPUs'}"
    yield Finding("versions", f"Python {platform.python_version()}, {built}")
    try:
        world = ranks.discover()
        yield Finding("MPI", f"{world.size} rank on {world.host}", verdict=OK)
    except WorldError as error:
        yield judged("MPI", str(error), "a world of one rank", False)
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        yield judged("card", "torch.cuda.is_available() is False", "a card", False)
        return
    yield from _card()


def _card() -> Iterator[Finding]:
    name, count = torch.cuda.get_device_name(), torch.cuda.device_count()
    known = accelerators.accelerator(name)
    told = f"known as {known.name}" if known else "not in the table: there will be no MFU"
    yield Finding("card", f"{count} x {name}, {told}", verdict=OK if known else TOLD)
    properties = torch.cuda.get_device_properties(0)
    yield Finding("memory", f"{properties.total_memory / 2**30:.1f} GiB")
    state = gpu_state(find_device(str(properties.uuid)))
    yield Finding("state", ", ".join(f"{k} {v}" for k, v in state.items()) or "NVML says nothing")
