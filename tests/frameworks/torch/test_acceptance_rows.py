"""Each row of the acceptance pack passes on a healthy machine that is faked, and finds the faults
that are planted here."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlperf_hpc.acceptance import numerics, runs, speed, training
from dlperf_hpc.acceptance.pack import CHECKS, FAIL, NOTED, OK, SKIPPED, Finding
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.train.probe.node import Device
from dlperf_hpc.train.ranks import World, alone
from dlperf_hpc.train.registry import registry

H100 = "NVIDIA H100 80GB HBM3"
Patch = pytest.MonkeyPatch
Rows = Callable[[Patch, str], Iterable[Finding]]


def card(patch: Patch, capability: tuple[int, int] = (9, 0)) -> None:
    """What torch.cuda says of an H100."""
    properties = SimpleNamespace(uuid="GPU-1", total_memory=80 * 2**30)
    fake: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda *_: H100,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: properties,
        "set_sync_debug_mode": lambda _mode: None,
        "synchronize": lambda *_: None,
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda: None,
    }
    for name, value in fake.items():
        patch.setattr(torch.cuda, name, value)


def environment(patch: Patch, fault: str) -> Iterable[Finding]:
    card(patch)
    patch.setattr(runs, "discover", lambda: World(0, ("node",), alone()))
    if fault == "no card":
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return runs.environment("cuda")
    before = torch.distributed.all_reduce

    def reduced(values: torch.Tensor) -> None:
        if fault == "NCCL refuses":
            raise torch.distributed.DistBackendError("NCCL error: unhandled system error")
        before(values)
        values *= 1 + (fault == "wrong sum")

    patch.setattr(torch.distributed, "all_reduce", reduced)
    try:
        return list(runs.environment("cpu"))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def ceilings(patch: Patch, fault: str) -> Iterable[Finding]:
    card(patch)
    tflops = 400 if fault else 790
    patch.setattr(training, "seconds", lambda _work: 2 * 64**3 / tflops / 1e12)
    patch.setattr(speed, "peak_tflops", lambda *_: 989.0)
    return [speed._product("cpu", "bf16", 64)]


def clock(_patch: Patch, fault: str) -> Iterable[Finding]:
    times = [0.005] * 20
    times[7 + (fault == "in the next iteration")] = 0.03 if fault == "too short" else 0.055
    return training._clock(times, sum(times) + 0.01 * (fault == "lost time"), "cuda")


def trained(
    patch: Patch, fault: str, mode: str = training.EAGER, capability: tuple[int, int] = (9, 0)
) -> Iterable[Finding]:
    card(patch, capability)
    precision = "bf16" if fault == "all skipped" else "fp32"
    told = SimpleNamespace(
        losses=[10.0, float("nan") if fault == "not finite" else 9.0],
        optimizer_steps=6,
        skipped_steps=6 * (fault == "all skipped"),
        moved=fault not in ("all skipped", "did not move"),
        execution={"graphs": 1, "graph_breaks": fault == "break", "recompiles": fault == "again"},
    )

    @contextlib.contextmanager
    def session(_config: Any) -> Iterator[Any]:
        if fault == "computed in tf32, refused":
            raise DeviceError("precision fp32 was asked for, but products are computed in tf32")
        kind = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        yield SimpleNamespace(autocast=lambda: kind, device=torch.device("cpu"), world=None)

    patch.setattr(training, "session", session)
    patch.setattr(training, "warm", lambda *_: 0.01)
    patch.setattr(training, "measure_window", lambda *_: told)
    seen = "tf32" if fault == "computed in tf32" else "fp32"
    patch.setattr(training, "observed_fp32", lambda _device: seen)
    return [training._trained(training.case("bert-tiny", "cuda", precision, mode=mode))]


def matrix(patch: Patch, fault: str) -> Iterable[Finding]:
    return trained(patch, fault, training.COMPILED)


def waiting(patch: Patch, fault: str) -> Iterable[Finding]:
    card(patch)
    counts = {"cudaLaunchKernel": 900, "cudaDeviceSynchronize": 2, "aten::mm": 90}
    counts |= {"one wait more": {"cudaStreamSynchronize": 1}}.get(fault, {})
    counts |= {"a copy": {"Memcpy DtoH (Device -> Pageable)": 1}}.get(fault, {})
    counts |= {"memory": {"cudaMalloc": 1}}.get(fault, {})
    if fault == "the profiler sees no call":
        counts = {"aten::mm": 90}
    warmed = []

    def profiled(*_: Any) -> list[Any]:
        if fault == "an error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return [SimpleNamespace(key=key, count=count) for key, count in counts.items()]

    patch.setattr(training, "profiled", profiled)
    patch.setattr(training, "warm", lambda _session, iterations: warmed.append(iterations))
    rows = list(training._waits("bert-tiny", SimpleNamespace()))  # type: ignore[arg-type]
    assert min(warmed) >= 11  # DDP's logger looks at the eleventh, too
    return rows


class NvmlError(Exception):
    """Of a library that is faked."""


def nvml(fault: str) -> Any:
    """A card at 400 W, by NVML's calls."""
    joules = {"0 J": lambda: 0.0, "another's energy": lambda: 800 * time.monotonic()}
    watts = 400e3 * (fault != "0 W")
    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=97 * (fault != "0 %")),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=2**30),
        nvmlDeviceGetClockInfo=lambda *_: 1980,
        nvmlDeviceGetPowerUsage=lambda _: watts,
        nvmlDeviceGetTemperature=lambda *_: 50,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0,
        nvmlDeviceGetTotalEnergyConsumption=lambda _: (
            1e3 * joules.get(fault, lambda: 400 * time.monotonic())()
        ),
    )


def telemetry(patch: Patch, fault: str) -> Iterable[Finding]:
    card(patch)
    found = Device(nvml(fault), "handle")
    patch.setattr(speed, "find_device", lambda _uuid: None if fault == "no NVML" else found)
    patch.setattr(torch, "matmul", lambda *_: time.sleep(0.001))
    patch.setattr(speed, "_LOAD_S", 0.3)
    patch.setattr(training, "session", lambda _case: contextlib.nullcontext())
    patch.setattr(training, "warm", lambda *_: 0.01)
    watched = 1.03 if fault == "watching costs" else 1.002
    patch.setattr(training, "in_turn", lambda *_: [[watched] * 8, [1.0] * 8])
    before = torch.randn
    patch.setattr(torch, "randn", lambda *_, **__: before(2, 2))
    return list(speed.telemetry("cuda"))


class Held:
    """A session that takes memory for as long as it is there; it refers to itself, as DDP does."""

    alive = 0

    def __init__(self, mb: float) -> None:
        self.mb, self.itself = mb, self
        Held.alive += 1

    def __del__(self) -> None:
        Held.alive -= 1

    def memory_mb(self) -> float:
        return self.mb


def memory(patch: Patch, fault: str) -> Iterable[Finding]:
    card(patch)
    kept = []

    @contextlib.contextmanager
    def session(config: Any) -> Iterator[Held]:
        power = 2 if fault == "no line" else 1
        held = Held(100 + 5 * config.batch_size**power)
        if fault == "sessions stay":
            kept.append(held)
        yield held

    patch.setattr(training, "session", session)
    patch.setattr(training, "warm", lambda *_: 0.01)
    # And cuBLAS' workspace on Hopper.
    patch.setattr(torch.cuda, "memory_allocated", lambda: (32 + 90 * Held.alive) * 2**20)
    return list(speed.memory("cuda"))


class Steps:
    """A session of a small module, with what a checkpoint needs."""

    fault = ""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.module = torch.nn.Linear(8, 8)
        self.optimizer: Any = torch.optim.AdamW(self.module.parameters(), lr=0.01)
        self._losses: list[float] = []

    def iterate(self) -> None:
        loss = (self.module(torch.ones(4, 8)) - torch.arange(8.0)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._losses.append(loss.item())

    def losses(self) -> list[float]:
        return self._losses

    def save(self, path: Path) -> None:
        torch.save({"module": self.module.state_dict(), "it": self.optimizer.state_dict()}, path)

    def load(self, path: Path) -> None:
        state = torch.load(path)
        if self.fault != "parameters lost":
            self.module.load_state_dict(state["module"])
        if self.fault != "state lost":
            self.optimizer.load_state_dict(copy.deepcopy(state["it"]))


def checkpoint(patch: Patch, fault: str) -> Iterable[Finding]:
    def several(opened: Steps, iterations: int) -> float:
        for _ in range(iterations):
            opened.iterate()
        return 0.01

    def session(_config: Any) -> Any:
        return contextlib.nullcontext(Steps())

    for name, value in {"session": session, "warm": several, "window": several}.items():
        patch.setattr(training, name, value)
    patch.setattr(Steps, "fault", fault)
    return list(training.checkpoint("cpu"))


def wrapper(patch: Patch, fault: str) -> Iterable[Finding]:
    patch.setattr(training, "session", lambda _case: contextlib.nullcontext())
    patch.setattr(training, "warm", lambda *_: 0.01)
    mine = 1.05 if fault else 1.01
    patch.setattr(training, "in_turn", lambda *_: [[mine] * 60, [1.0] * 60])
    return list(speed.wrapper("cuda"))


def sharing(patch: Patch, fault: str) -> Iterable[Finding]:
    words = "dlperf_hpc.errors.DeviceError: 2 ranks on node, 1 GPU each, but ...\n"
    words = {"another reason": "RuntimeError: 2 ranks on node"}.get(fault, words)
    done = SimpleNamespace(returncode=int(fault != "both run"), stderr=words)
    patch.setattr("shutil.which", lambda *_, **__: "/usr/bin/mpiexec")
    patch.setattr(runs, "_two_ranks", lambda *_: done)
    return list(runs.sharing("cuda"))


def sweep(patch: Patch, fault: str) -> Iterable[Finding]:
    figures = {"mfu": 0.01, "gpu_util": 90.0, "gpu_memory_mb_max": 900.0}
    figures |= {"gpu_joules_per_sample": 0.1, "samples_per_s": 5.0}
    figures |= {name: 0.0 for name in figures if fault == f"{name} is 0"}
    row = {"model": "bert-tiny", "precision": "fp32", **figures}
    grade = "FAIL" if fault == "doctor fails" else "ok"
    said: dict[str, Any] = {"doctor": {"findings": [{"grade": grade, "check": "MPI", "seen": "x"}]}}
    said["report"] = {"cases": [row]}
    done = SimpleNamespace(returncode=int(fault == "the sweep fails"), stderr="")
    machine = SimpleNamespace(json_of=lambda verb, _: said[verb], sweep=lambda: done)
    machine.path = machine.results = Path("x")
    patch.setattr(runs, "_Machine", lambda *_, **__: machine)
    return list(runs.sweep("cuda"))


def endings(patch: Patch, fault: str) -> Iterable[Finding]:
    def alone(_device: str, env: dict[str, str], **fields: Any) -> dict[str, str]:
        kind = env["DLPERF_FAULT"].partition("@")[0] or fields.get("model", "")
        status = {"": "ok", "gpt2-tiny": "out_of_memory"}.get(kind, "failed")
        if fault == kind + "!":
            status = "ok" if status == "failed" else "failed"
        return {"status": status, "reason": ""}

    patch.setattr(runs, "_run_alone", alone)
    return list(runs.endings("cuda"))


def compared(_patch: Patch, fault: str) -> Iterable[Finding]:
    ours = [torch.full((4,), 1 + 0.05 * (fault == "gradients"), dtype=torch.float64)]
    theirs = [torch.ones(4, dtype=torch.float64)] * (1 + (fault == "a gradient is missing"))
    loss = 1.05 if fault == "the loss" else 1.0
    return [
        numerics._compared(precision, (loss, ours), (1.0, theirs), precision)
        for precision in ("fp32", "tf32", "bf16", "fp16")
    ]


def beside(patch: Patch, fault: str, mode: str = training.EAGER) -> Iterable[Finding]:
    """bert-base in turn with transformers': faster by a tenth, or slower with a lucky round."""
    card(patch)
    rates = {"dlperf_hpc": [900.0] * 11 + [1200.0] if fault else [1100.0] * 12}
    seconds = 9.0 if fault == "few iterations" else 0.02

    def session(config: Any, _world: Any, workload: Any) -> str:
        if fault == "refused" or (fault == "others raise" and workload is other):
            raise DeviceError("no GPU")
        lone = dict(config.options)["one_rank"] == "plain"
        return "huggingface" if workload is other else "dlperf_hpc" + "-no-ddp" * lone

    other = replace(registry().workloads["bert-base"])
    patch.setattr(speed, "DdpSession", session)
    patch.setattr(speed, "discover", lambda: None)
    patch.setattr(training, "warm", lambda *_: seconds)
    patch.setattr(
        training,
        "in_turn",
        lambda sides, _: [rates.get(side.args[0], [1000.0] * 12) for side in sides],
    )
    patch.setattr(training, "profiled", lambda *_: [])
    config = training.case("bert-base", "cuda", "bf16", seq_len=128, batch_size=256, mode=mode)
    return list(speed._compared(config, None if mode == training.TUNED else other))


def compiled(patch: Patch, fault: str) -> Iterable[Finding]:
    return beside(patch, fault, training.COMPILED)


def tuned(patch: Patch, fault: str) -> Iterable[Finding]:
    return beside(patch, fault, training.TUNED)


RUN = ("not finite", "did not move", "all skipped", "computed in tf32", "computed in tf32, refused")
COLUMNS = ("mfu", "gpu_util", "gpu_memory_mb_max", "gpu_joules_per_sample", "samples_per_s")
ROWS: dict[str, tuple[Rows, tuple[str, ...]]] = {
    "environment": (environment, ("no card", "NCCL refuses", "wrong sum")),
    "ceilings": (ceilings, ("slow",)),
    "clock": (clock, ("in the next iteration", "too short", "lost time")),
    "trained": (trained, RUN),
    "matrix": (matrix, (*RUN, "break", "again")),
    "waiting": (
        waiting,
        ("one wait more", "a copy", "memory", "the profiler sees no call", "an error"),
    ),
    "telemetry": (
        telemetry,
        ("no NVML", "0 J", "0 W", "0 %", "another's energy", "watching costs"),
    ),
    "memory": (memory, ("no line", "sessions stay")),
    "checkpoint": (checkpoint, ("state lost", "parameters lost")),
    "wrapper": (wrapper, ("slow",)),
    "sharing": (sharing, ("both run", "another reason")),
    "sweep": (
        sweep,
        ("doctor fails", "the sweep fails", *(f"{name} is 0" for name in COLUMNS)),
    ),
    "endings": (endings, ("gpt2-tiny!", "kill!", "raise!", "hang!", "!")),
    "numerics": (compared, ("gradients", "the loss", "a gradient is missing")),
    "models": (beside, ("slow", "refused")),
    "tuned": (tuned, ("refused",)),
    "compiled": (compiled, ("slow", "refused")),
}
"""By check: what makes its rows, and the faults that are planted; "" is a healthy machine."""


def verdicts(rows: Iterable[Finding]) -> list[str]:
    return [row.verdict for row in rows]


def test_every_check_is_here() -> None:
    assert set(ROWS) == {check.name for check in CHECKS}


@pytest.mark.parametrize("name", ROWS)
def test_a_healthy_machine_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(ROWS[name][0](monkeypatch, ""))
    assert OK in verdicts(rows) and FAIL not in verdicts(rows), rows


FAULTS = [(name, fault) for name, (_, faults) in ROWS.items() for fault in faults]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_planted_fault_is_found(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(ROWS[name][0](monkeypatch, fault))
    assert FAIL in verdicts(rows), rows


def test_a_card_too_old_for_a_precision_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = trained(monkeypatch, "computed in tf32, refused", capability=(7, 0))
    assert verdicts(rows) == [SKIPPED]


def test_too_few_windows_give_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(beside(monkeypatch, "few iterations"))
    assert verdicts(rows) == [OK, OK, NOTED]
    assert all("6 x 1" in row.what for row in rows)


def test_what_others_raise_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(beside(monkeypatch, "others raise", training.COMPILED))
    assert [(row.verdict, "huggingface" in row.what) for row in rows] == [
        (SKIPPED, True),
        (OK, False),
    ]
