"""Which device a rank of PyTorch takes, and what this PyTorch is built for."""

from __future__ import annotations

import re

import pytest
import torch

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.train.probe import node
from dlperf_hpc.train.probe.node import imported
from dlperf_hpc.train.ranks import World, alone
from dlperf_hpc.train.torch.device import built_for, choose_device

BUILDS = {"cuda": "CUDA 12.8", "hip": "ROCm 12.8", "xpu": "XPU 12.8"}


def a_case(device: str) -> Case:
    return Case("ddp", "bert-tiny", Topology(1, 1), "fp32", 2, 16, device=device)


@pytest.mark.parametrize("name", [*BUILDS, ""])
def test_a_build_for_gpus_computes_on_no_cpus_unasked(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    world = World(0, ("n1",), alone())
    monkeypatch.setattr(node, "_DEV", "/nonexistent")
    for each in BUILDS:
        monkeypatch.setattr(torch.version, each, "12.8" if each == name else None, raising=False)
    words = BUILDS.get(name, "CPUs")
    assert built_for() == words
    assert choose_device(a_case("cpu"), world).type == "cpu"
    with pytest.raises(DeviceError, match=re.escape(f"PyTorch (built for {words}) sees no GPU on")):
        choose_device(a_case("cuda"), world)
    if name in ("hip", "xpu"):
        with pytest.raises(DeviceError, match="the run would compute on CPUs"):
            choose_device(a_case("auto"), world)
    else:
        assert choose_device(a_case("auto"), world).type == "cpu"


def test_the_probe_says_the_same_of_a_torch() -> None:
    assert imported("torch")["build"] == built_for()
