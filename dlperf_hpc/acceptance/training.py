"""Checks that train tiny models, and what they share with others: cases, sessions, windows."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from dlperf_hpc.acceptance.pack import FAIL, SKIPPED, Finding, judged
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import MODES, OPTIMIZERS, Case, Topology
from dlperf_hpc.model.statistics import median_interval
from dlperf_hpc.train.measurement import measure_window, timed_loop, warm_up
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.torch.device import AUTOCAST, observed_fp32

SMALL = ["bert-tiny", "gpt2-tiny"]  # a sample has 64 tokens
EAGER, COMPILED, TUNED = MODES
_PRECISIONS = ["fp32", "tf32", *AUTOCAST]

_SLOW, _LONGER, _STEP_S = 7, 11, 0.005
_WINDOW = 10  # iterations
_WARM_UP = 12  # DDP's own logger looks at the first ten, and once more at the next
_LOSSES_APART = 1e-3  # kernels on a GPU add in another order from run to run
_CONTROL = 10
"""How much farther a run must end from the whole one if its optimizer's state is lost."""
_CYCLES = 100_000_000
_AMPERE = (8, 0)  # computes bf16 and tf32

_MANY = 1 << 30
_BOUNDS = {
    "waits": (("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"), 1, 2),
    "copies from the device": (("Memcpy DtoH",), 0, 0),
    "calls for memory": (("cudaMalloc", "cudaFree"), 0, 0),
    "launches": (("cudaLaunch", "cuLaunch"), _WINDOW, _MANY),
}
"""Fewest and most events of a window by their names. The window waits once, at its end; the
profiler once more for itself. One that sees no launch sees no wait either."""


def case(model: str, device: str, precision: str = "fp32", **more: Any) -> Case:
    """A case of one rank with every option at its default, but for those among ``more``."""
    mode = more.get("mode", EAGER)
    options = {o.name: o.default_in(mode) for o in registry().options("ddp", model)}
    options.update({name: more.pop(name) for name in list(more) if name in options})
    return Case(
        framework="ddp",
        model=model,
        topology=Topology(1, 1),
        precision=precision,
        device=device,
        options=tuple(sorted(options.items())),
        **{"batch_size": 4, "seq_len": 64, **more},
    )


@contextlib.contextmanager
def session(config: Case, kind: type[DdpSession] = DdpSession) -> Iterator[DdpSession]:
    """A DDP session of one rank, or of a kind of its own; what it held is given back after it."""
    torch.compiler.reset()
    opened = kind(config, discover(), registry().workloads[config.model])
    try:
        yield opened
    finally:
        opened.close()
        torch.cuda.empty_cache()


def _no_beat() -> None:
    """No watchdog waits for it."""


def warm(opened: DdpSession, iterations: int) -> float:
    """Untimed iterations; seconds of one."""
    return warm_up(opened, iterations, _no_beat)


def window(opened: DdpSession, iterations: int) -> float:
    """Seconds of a window, timed as a run times it."""
    opened.open_window(iterations)
    opened.synchronize()
    return timed_loop(opened, iterations, _no_beat) / 1e9


def in_turn(sides: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """What each side gives, round by round, each of which begins with another side."""
    found: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        for place in range(len(sides)):
            side = (number + place) % len(sides)
            found[side].append(sides[side]())
    return found


def median_ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, str]:
    """The median of the ratios of two rounds or more, and a text of it and its interval."""
    ratios = [a / b for a, b in zip(over, under)]
    median, interval = statistics.median(ratios), median_interval(ratios)
    assert interval is not None
    return median, f"{median:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def seconds(work: Callable[[], object]) -> float:
    """Median seconds of a call, the device's own work included."""
    return float(Timer("work()", globals={"work": work}).blocked_autorange().median)


def profiled(opened: DdpSession, iterations: int) -> Any:
    """Events of a window under ``torch.profiler``, averaged by name."""
    opened.open_window(iterations)
    opened.synchronize()
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + (opened.device.type == "cuda")]
    with profile(activities=kinds) as profiler:
        timed_loop(opened, iterations, _no_beat)
    return profiler.key_averages()


def clock(device: str) -> Iterator[Finding]:
    """A window of iterations of 5 ms, one of them 55 ms, made of nothing but waiting: the
    iterations' times are the window's, and the long one is seen."""
    wait: Callable[[float], object] = time.sleep
    if device == "cuda":
        cycles_per_s = _CYCLES / seconds(lambda: torch.cuda._sleep(_CYCLES))
        wait = lambda seconds: torch.cuda._sleep(int(seconds * cycles_per_s))  # noqa: E731 - as short as time.sleep

    class Waiting(DdpSession):
        done = -_WARM_UP

        def iterate(self) -> None:
            wait(_STEP_S * (1, _LONGER)[self.done == _SLOW])
            self.done += 1

    with session(case("bert-tiny", device), Waiting) as opened:
        warm(opened, _WARM_UP)  # a card's clock rises
        timed = measure_window(opened, opened.world, 20, _no_beat)
    yield from _clock(timed.step_times, timed.elapsed_s, device)


def _clock(times: list[float], elapsed_s: float, device: str) -> Iterator[Finding]:
    value = f"{sum(times) * 1e3:.2f} ms of {elapsed_s * 1e3:.2f} ms"
    holds = abs(sum(times) - elapsed_s) <= 0.003 * elapsed_s + 5e-4
    yield judged("sum of iterations and window", value, "0.3 % + 0.5 ms", holds)
    slowest = max(range(len(times)), key=times.__getitem__)
    # Beside the median: what a card's clock is at does not matter. A busy CPU's waits grow longer.
    longer = times[slowest] / statistics.median(times)
    holds = slowest == _SLOW and abs(longer / _LONGER - 1) < {"cuda": 0.1, "cpu": 0.9}[device]
    value = f"iteration {slowest}, {longer:.2f} times the median"
    yield judged("the long iteration", value, f"iteration {_SLOW}, {_LONGER} times", holds)


def waiting(device: str) -> Iterator[Finding]:
    """BERT and GPT-2, without and with a loss scale, profiled over a short window in which nothing
    may wait for the device, copy from it, or ask the driver for memory."""
    for model, name in itertools.product(SMALL, AUTOCAST):
        with session(case(model, device, name)) as opened:
            yield from _waits(f"{model} {name}", opened)


def _waits(what: str, opened: DdpSession) -> Iterator[Finding]:
    warm(opened, _WARM_UP)
    torch.cuda.set_sync_debug_mode("error")
    try:
        events = profiled(opened, _WINDOW)
    except RuntimeError as error:
        yield judged(what, f"waits: {str(error).splitlines()[0]}", "no wait", False)
        return
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, (names, fewest, most) in _BOUNDS.items():
        count = sum(event.count for event in events if event.key.startswith(names))
        goal = f"{fewest} to {most}" if most < _MANY else f">= {fewest}"
        yield judged(f"{what}: {name}", f"{count}", goal, fewest <= count <= most)


def trained(device: str) -> Iterator[Finding]:
    """A line for each: products computed as requested, losses finite, parameters moved."""
    precisions, optimizers = ["fp32", "bf16"], ["lamb"]
    if device == "cuda":
        precisions, optimizers = _PRECISIONS, list(OPTIMIZERS)
    for model, name in itertools.product(SMALL, precisions):
        yield _trained(case(model, device, name))
    for optimizer in optimizers:
        yield _trained(_with_optimizer(device, optimizer))
    yield _trained(case("bert-tiny", device, accumulation=3))


def matrix(device: str) -> Iterator[Finding]:
    """The same compiled, and in mode ``tuned``, whose trying of kernels takes its time: the graph
    is whole, and PyTorch's two ways of setting TF32 were not mixed."""
    models, precisions = SMALL[:1], ["fp32"]
    if device == "cuda":
        models, precisions = SMALL, _PRECISIONS
    for model, name in itertools.product(models, precisions):
        yield _trained(case(model, device, name, mode=COMPILED))
    if device == "cuda":
        for model in SMALL:
            yield _trained(case(model, device, "bf16", mode=TUNED))


def _with_optimizer(device: str, name: str, precision: str = "fp32") -> Case:
    config = case("bert-tiny", device, precision)
    return replace(config, optimizer=replace(config.optimizer, name=name))


def _trained(config: Case) -> Finding:
    what = f"{config.model} {config.precision} {config.mode} {config.optimizer.name}"
    what += f", accumulation {config.accumulation}"
    goal = f"{config.precision}, finite, moved, no break, no recompile"
    try:
        with session(config) as opened:
            warm(opened, 3)
            timed = measure_window(opened, opened.world, 6, _no_beat)
            products = _products(opened)
            flag = torch.backends.cuda.matmul.allow_tf32  # raises where both APIs were mixed
    except (DeviceError, RuntimeError) as error:  # RuntimeError: PyTorch's, also where memory ends
        # A card too old for a precision cannot show it; one that has it did not obey.
        too_old = isinstance(error, DeviceError) and torch.cuda.get_device_capability() < _AMPERE
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        return Finding(what, first, goal, (FAIL, SKIPPED)[too_old])
    losses, steps, missed = timed.losses, timed.optimizer_steps, timed.skipped_steps
    value = f"{products}, loss {losses[0]:.3f} to {losses[-1]:.3f}, {steps} steps, {missed} skipped"
    broken = {name: timed.execution.get(name, 0) for name in ("graph_breaks", "recompiles")}
    holds = [*map(math.isfinite, losses), timed.moved, missed < steps]
    holds += [products == config.precision, flag == (products == "tf32")]
    value += "".join(f", {count} {name}" for name, count in broken.items() if count)
    return judged(what, value, goal, all(holds) and not any(broken.values()))


def _products(opened: DdpSession) -> str:
    with opened.autocast():
        square = torch.ones(8, 8, device=opened.device)
        kind = (square @ square).dtype
    names = {half: name for name, half in AUTOCAST.items()}
    return names.get(kind) or observed_fp32(opened.device)


def checkpoint(device: str) -> Iterator[Finding]:
    """10 iterations, a checkpoint, and 10 more are 20 iterations; without the optimizer's state
    they are not."""
    pairs = {"cuda": itertools.product(("adamw", "lamb"), ("fp32", "fp16"))}
    for optimizer, name in pairs.get(device, [("adamw", "fp32"), ("lamb", "fp32")]):
        config = _with_optimizer(device, optimizer, name)
        (loss, whole), (again, resumed), (_, wiped) = _ends(config)
        away, control = apart(resumed, whole), apart(wiped, whole)
        value = f"loss {loss:.6f} and {again:.6f}, parameters {away:.1e} apart"
        value += f", {control:.1e} without the optimizer's state"
        holds = abs(loss - again) <= _LOSSES_APART * abs(loss) and control > _CONTROL * away
        goal = f"{_LOSSES_APART:g}; {_CONTROL} times that without"
        yield judged(f"{optimizer} {name}", value, goal, holds)


def _ends(config: Case) -> Iterator[tuple[float, list[torch.Tensor]]]:
    """Last loss and parameters: whole, resumed, and resumed with an optimizer that begins anew."""
    saved = Path(tempfile.mkdtemp()) / "checkpoint"
    for part in ("whole", "resumed", "wiped"):
        with session(config) as opened:
            if part == "whole":
                warm(opened, _WINDOW)
                opened.save(saved)
            else:
                fresh = copy.deepcopy(opened.optimizer.state_dict())
                opened.load(saved)
                if part == "wiped":
                    opened.optimizer.load_state_dict(fresh)
            window(opened, _WINDOW)
            yield opened.losses()[-1], [p.detach().clone() for p in opened.module.parameters()]
    shutil.rmtree(saved.parent)


def apart(found: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """The norm of what differs over the norm of all."""
    differences = sum(float((a - b).double().square().sum()) for a, b in zip(found, reference))
    return math.sqrt(differences / sum(float(b.double().square().sum()) for b in reference))
