"""Checks that train tiny models, and what they share with others: cases, sessions, windows."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from dlperf_hpc.acceptance.pack import Finding, judged, skipped
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import MODES, OPTIMIZERS, Case, Topology
from dlperf_hpc.train.measurement import timed_loop, warm_up
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.torch.device import AUTOCAST, observed_fp32

SMALL = {"bert-tiny": 64, "gpt2-tiny": 64}
"""Models that fit any device, and tokens of a sample."""
TUNED = MODES[2]

_SLOW, _EXTRA_S, _STEP_S = 7, 0.05, 0.005
_WINDOW = 10  # iterations
_LOSSES_APART = 1e-3
"""Kernels on a GPU add in another order from run to run."""

# As CUDA's runtime and PyTorch call them.
_WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
_COPIES, _MEMORY = ("Memcpy DtoH",), ("cudaMalloc", "cudaFree")
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")


def case(model: str, device: str, precision: str = "fp32", **more: Any) -> Case:
    """A case of one rank with every option at its default, but for those among ``more``."""
    declared = registry()
    mode = more.get("mode", MODES[0])
    options = {o.name: o.default_in(mode) for o in declared.options("ddp", model)}
    options.update({name: more.pop(name) for name in list(more) if name in options})
    seq_len = SMALL.get(model, declared.workloads[model].default_seq_len)
    fields = {"batch_size": 4, "seq_len": seq_len, **more}
    return Case(
        framework="ddp",
        model=model,
        topology=Topology(1, 1),
        precision=precision,
        device=device,
        options=tuple(sorted(options.items())),
        **fields,
    )


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


def warm(opened: DdpSession, iterations: int) -> float:
    """Untimed iterations; seconds of one."""
    return warm_up(opened, iterations, _nothing)


def window(opened: DdpSession, iterations: int) -> float:
    """Seconds of a window, timed as a run times it."""
    opened.open_window(iterations)
    opened.synchronize()
    return timed_loop(opened, iterations, _nothing) / 1e9


def _nothing() -> None:
    """In place of a watchdog's beat."""


def in_turn(sides: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """What each side gives, round by round; each round begins with another side, so that a drift
    of the machine meets all alike."""
    found: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        for place in range(len(sides)):
            side = (number + place) % len(sides)
            found[side].append(sides[side]())
    return found


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(over, under)]


def seconds(work: Callable[[], object], device: str, times: int = 10, warmup: int = 3) -> float:
    """Median seconds of a call, the device's own work included."""
    found = []
    for _ in range(warmup + times):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - started)
    return statistics.median(found[warmup:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def device_name(device: str) -> str:
    """The card's name; ``cpu``."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def profiled(opened: DdpSession, iterations: int) -> Any:
    """Events of a window under ``torch.profiler``, averaged by name."""
    opened.open_window(iterations)
    opened.synchronize()
    activities = [ProfilerActivity.CPU]
    if opened.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        timed_loop(opened, iterations, _nothing)
    return profiler.key_averages()


def precision(device: str) -> Iterator[Finding]:
    """fp32 and tf32 before and after a compiled step; the dtype that autocast computes in."""
    mode = MODES[device == "cuda"]
    for asked in ("fp32", "tf32"):
        try:
            with session(case("bert-tiny", device, asked, mode=mode)) as opened:
                opened.iterate()
                opened.iterate()
                found = observed_fp32(opened.device)
                flag = torch.backends.cuda.matmul.allow_tf32  # raises where both APIs were mixed
        except DeviceError as error:
            yield skipped(asked, str(error))
            continue
        value = f"products in {found}, allow_tf32 {flag}, after a compiled step"
        yield judged(asked, value, asked, found == asked and flag == (asked == "tf32"))
    for asked, kind in AUTOCAST.items():
        if device == "cpu" and asked != "bf16":
            continue
        with session(case("bert-tiny", device, asked)) as opened, opened.autocast():
            square = torch.ones(8, 8, device=opened.device)
            found_kind = (square @ square).dtype
        yield judged(asked, f"products in {found_kind}", f"{kind}", found_kind == kind)


def clock(device: str) -> Iterator[Finding]:
    """A window of iterations of 5 ms, one of them 50 ms longer, made of nothing but waiting: the
    iterations' times are the window's, and the long one is seen."""
    cycles = _cycles_per_second() if device == "cuda" else 0.0

    class Waiting(DdpSession):
        done = 0

        def iterate(self) -> None:
            wait_s = _STEP_S + (_EXTRA_S if self.done == _SLOW else 0.0)
            self.done += 1
            if device == "cuda":
                torch.cuda._sleep(int(wait_s * cycles))
            else:
                _busy(wait_s)

    with session(case("bert-tiny", device), Waiting) as opened:
        elapsed = window(opened, 20)
        times = opened.step_times()
    off = abs(sum(times) - elapsed)
    value = f"{sum(times) * 1e3:.2f} ms of {elapsed * 1e3:.2f} ms"
    holds = off <= 0.003 * elapsed + 5e-4
    yield judged("sum of iterations and window", value, "0.3 % + 0.5 ms", holds)
    slowest = max(range(len(times)), key=times.__getitem__)
    extra = times[slowest] - sorted(times)[len(times) // 2]
    value = f"iteration {slowest}, {extra * 1e3:.1f} ms longer than the median"
    # A CPU that others use waits longer than asked, never less.
    near = abs(extra - _EXTRA_S) < 0.1 * _EXTRA_S or (device == "cpu" and extra > 0.9 * _EXTRA_S)
    yield judged("50 ms in iteration 7", value, f"iteration {_SLOW}", slowest == _SLOW and near)


def _cycles_per_second() -> float:
    """Of the kernel that waits so many cycles of the card's clock."""
    cycles = 100_000_000
    return cycles / seconds(lambda: torch.cuda._sleep(cycles), "cuda", times=3, warmup=1)


def _busy(wait_s: float) -> None:
    until = time.perf_counter() + wait_s
    while time.perf_counter() < until:
        pass


def waiting(device: str) -> Iterator[Finding]:
    """BERT and GPT-2, without and with a loss scale, profiled over a short window in which nothing
    may wait for the device, copy from it, or ask the driver for memory."""
    precisions = ("bf16", "fp16") if device == "cuda" else ("bf16",)
    for model in SMALL if device == "cuda" else ("bert-tiny",):
        for asked in precisions:
            with session(case(model, device, asked)) as opened:
                yield from _waits(f"{model} {asked}", opened, device)


def _waits(what: str, opened: DdpSession, device: str) -> Iterator[Finding]:
    # DDP asks for no more memory from its third iteration on.
    warm(opened, _WINDOW)
    if device == "cpu":  # where reading a value waits for nothing
        counts = _counts(opened)
        yield Finding(f"{what}: values read", f"{_sum(counts, _READS)}")
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        counts = _counts(opened)
    except RuntimeError as error:
        yield judged(what, f"waits: {str(error).splitlines()[0]}", "no wait", False)
        return
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = _sum(counts, _WAITS)
    # The window's own, at its end; the profiler waits once more for itself.
    yield judged(f"{what}: waits", f"{waits}", "<= 2", waits <= 2)
    for words, names in (("copies from the device", _COPIES), ("calls for memory", _MEMORY)):
        count = _sum(counts, names)
        yield judged(f"{what}: {words}", f"{count}", "0", count == 0)


def _counts(opened: DdpSession) -> Counter[str]:
    return Counter({event.key: event.count for event in profiled(opened, _WINDOW)})


def _sum(counts: Counter[str], beginnings: tuple[str, ...]) -> int:
    return sum(count for key, count in counts.items() if key.startswith(beginnings))


def matrix(device: str) -> Iterator[Finding]:
    """A line for each combination: losses finite, parameters moved, the graph whole."""
    card = device == "cuda"
    for model in SMALL if card else ("bert-tiny",):
        for asked in ("fp32", "tf32", "bf16", "fp16") if card else ("fp32",):
            for mode in MODES[:2]:
                yield _trained(f"{model} {asked} {mode}", case(model, device, asked, mode=mode))
    for name in OPTIMIZERS if card else ("lamb",):
        yield _trained(f"bert-tiny {name}", _with_optimizer(case("bert-tiny", device), name))
    yield _trained("bert-tiny accumulation 3", case("bert-tiny", device, accumulation=3))
    for model in SMALL if card else ():  # last, since trying kernels takes its time
        yield _trained(f"{model} bf16 tuned", case(model, device, "bf16", mode=TUNED))


def _with_optimizer(asked: Case, name: str) -> Case:
    return replace(asked, optimizer=replace(asked.optimizer, name=name))


def _trained(what: str, asked: Case) -> Finding:
    counters.clear()
    try:
        with session(asked) as opened:
            for _ in range(3):
                opened.iterate()
            graphs = counters["stats"]["unique_graphs"]
            for _ in range(3):
                opened.iterate()
            before = opened.fingerprint()
            opened.open_window(6)
            timed_loop(opened, 6, _nothing)
            losses, (steps, missed) = opened.losses(), opened.counts()
            moved = opened.fingerprint() != before
    except DeviceError as error:
        return skipped(what, str(error))
    except (torch.OutOfMemoryError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        return judged(what, f"{type(error).__name__}: {first}", "trains", False)
    breaks = sum(counters["graph_break"].values())
    late = counters["stats"]["unique_graphs"] - graphs
    value = f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {steps} steps, {missed} skipped"
    if asked.mode != MODES[0]:
        value += f", {graphs} graphs, {breaks} breaks, {late} compiled late"
    finite = all(map(math.isfinite, losses))
    holds = finite and (moved or missed == steps) and breaks == 0 and late == 0
    return judged(what, value, "finite, moved, no break, none late", holds)


def checkpoint(device: str) -> Iterator[Finding]:
    """10 iterations, a checkpoint, and 10 more are 20 iterations, for AdamW, LAMB, and a loss
    scale; dropout goes on where it was."""
    pairs = [("adamw", "fp32")]
    if device == "cuda":
        pairs += [("adamw", "fp16"), ("lamb", "fp32"), ("lamb", "fp16")]
    for optimizer, asked in pairs:
        whole, halves = _losses(_with_optimizer(case("bert-tiny", device, asked), optimizer))
        apart = abs(whole - halves) / abs(whole)
        value = f"loss {whole:.6f} and {halves:.6f}"
        if not apart:
            value += ", to the last bit"
        yield judged(f"{optimizer} {asked}", value, f"{_LOSSES_APART:g}", apart <= _LOSSES_APART)


def _losses(asked: Case) -> tuple[float, float]:
    """The last loss of 20 iterations in one session, and of 10 and 10 in two."""
    with session(asked) as opened:
        _iterate(opened)
        window(opened, _WINDOW)
        whole = opened.losses()[-1]
    with tempfile.TemporaryDirectory() as directory:
        saved = Path(directory) / "checkpoint"
        with session(asked) as opened:
            _iterate(opened)
            opened.save(saved)
        with session(asked) as opened:
            opened.load(saved)
            window(opened, _WINDOW)
            return whole, opened.losses()[-1]


def _iterate(opened: DdpSession) -> None:
    for _ in range(_WINDOW):
        opened.iterate()
