"""Checks that train tiny models, and what they share with others: cases, sessions, windows."""

from __future__ import annotations

import contextlib
import itertools
import math
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

from dlperf_hpc.acceptance.pack import Finding, judged, skipped
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import MODES, OPTIMIZERS, Case, Topology
from dlperf_hpc.model.statistics import median_interval
from dlperf_hpc.train.measurement import measure_window, timed_loop, warm_up
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.torch.device import AUTOCAST, observed_fp32

SMALL = ["bert-tiny", "gpt2-tiny"]
"""Models that fit any device; a sample has 64 tokens."""
EAGER, COMPILED, TUNED = MODES

_SLOW, _EXTRA_S, _STEP_S = 7, 0.05, 0.005
_WINDOW = 10  # iterations
_LOSSES_APART = 1e-3
"""Kernels on a GPU add in another order from run to run."""
_CYCLES = 100_000_000
_GRAPHS = ("graphs", "graph_breaks", "recompiles")

_BOUNDS = {
    "waits": (("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"), 2),
    "copies from the device": (("Memcpy DtoH",), 0),
    "calls for memory": (("cudaMalloc", "cudaFree"), 0),
}
"""Most events of a window by the names that CUDA's runtime and PyTorch have for them. The window
waits once, at its end; the profiler waits once more for itself."""


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
    """What each side gives, round by round; each round begins with another side, so that a drift
    of the machine meets all alike."""
    found: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        for place in range(len(sides)):
            side = (number + place) % len(sides)
            found[side].append(sides[side]())
    return found


def median_ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, str]:
    """The median of the ratios of two rounds or more, the upper end of its interval, and a text of
    both."""
    ratios = [a / b for a, b in zip(over, under)]
    median, interval = statistics.median(ratios), median_interval(ratios)
    assert interval is not None
    text = f"{median:.4f} [{interval.low:.4f}, {interval.high:.4f}]"
    return median, interval.high, text


def seconds(work: Callable[[], object]) -> float:
    """Median seconds of a call, the device's own work included."""
    median: float = Timer("work()", globals={"work": work}).blocked_autorange().median
    return median


def profiled(opened: DdpSession, iterations: int) -> Any:
    """Events of a window under ``torch.profiler``, averaged by name."""
    opened.open_window(iterations)
    opened.synchronize()
    activities = [ProfilerActivity.CPU]
    if opened.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        timed_loop(opened, iterations, _no_beat)
    return profiler.key_averages()


def precision(device: str) -> Iterator[Finding]:
    """In what products are computed; fp32 and tf32 on a card after a compiled step, too."""
    modes = dict.fromkeys(("fp32", "tf32", *AUTOCAST), EAGER)
    if device == "cuda":
        modes.update(fp32=COMPILED, tf32=COMPILED)
    else:
        del modes["fp16"]
    for name, mode in modes.items():
        try:
            with session(case("bert-tiny", device, name, mode=mode)) as opened:
                warm(opened, 2)
                found = _products(opened)
                flag = torch.backends.cuda.matmul.allow_tf32  # raises where both APIs were mixed
        except DeviceError as error:
            yield skipped(name, str(error))
            continue
        value = f"products in {found}, allow_tf32 {flag}, {mode}"
        yield judged(name, value, name, found == name and flag == (name == "tf32"))


def _products(opened: DdpSession) -> str:
    with opened.autocast():
        square = torch.ones(8, 8, device=opened.device)
        kind = (square @ square).dtype
    names = {half: name for name, half in AUTOCAST.items()}
    return names.get(kind) or observed_fp32(opened.device)


def clock(device: str) -> Iterator[Finding]:
    """A window of iterations of 5 ms, one of them 50 ms longer, made of nothing but waiting: the
    iterations' times are the window's, and the long one is seen."""
    cycles_per_s = 0.0
    if device == "cuda":
        cycles_per_s = _CYCLES / seconds(lambda: torch.cuda._sleep(_CYCLES))

    class Waiting(DdpSession):
        done = 0

        def iterate(self) -> None:
            wait_s = _STEP_S + _EXTRA_S * (self.done == _SLOW)
            self.done += 1
            if device == "cuda":
                torch.cuda._sleep(int(wait_s * cycles_per_s))
            else:
                time.sleep(wait_s)

    with session(case("bert-tiny", device), Waiting) as opened:
        timed = measure_window(opened, opened.world, 20, _no_beat)
    times, elapsed_s = timed.step_times, timed.elapsed_s
    value = f"{sum(times) * 1e3:.2f} ms of {elapsed_s * 1e3:.2f} ms"
    holds = abs(sum(times) - elapsed_s) <= 0.003 * elapsed_s + 5e-4
    yield judged("sum of iterations and window", value, "0.3 % + 0.5 ms", holds)
    slowest = max(range(len(times)), key=times.__getitem__)
    extra = times[slowest] - statistics.median(times)
    value = f"iteration {slowest}, {extra * 1e3:.1f} ms longer than the median"
    # A busy CPU waits longer than it should, never less.
    near = abs(extra - _EXTRA_S) < 0.1 * _EXTRA_S or (device == "cpu" and extra > 0.9 * _EXTRA_S)
    yield judged("50 ms in iteration 7", value, f"iteration {_SLOW}", slowest == _SLOW and near)


def waiting(device: str) -> Iterator[Finding]:
    """BERT and GPT-2, without and with a loss scale, profiled over a short window in which nothing
    may wait for the device, copy from it, or ask the driver for memory."""
    for model, name in itertools.product(SMALL, AUTOCAST):
        with session(case(model, device, name)) as opened:
            yield from _waits(f"{model} {name}", opened)


def _waits(what: str, opened: DdpSession) -> Iterator[Finding]:
    # DDP asks for no more memory from its third iteration on.
    warm(opened, _WINDOW)
    torch.cuda.set_sync_debug_mode("error")
    try:
        events = profiled(opened, _WINDOW)
    except RuntimeError as error:
        yield judged(what, f"waits: {str(error).splitlines()[0]}", "no wait", False)
        return
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, (names, most) in _BOUNDS.items():
        count = sum(event.count for event in events if event.key.startswith(names))
        yield judged(f"{what}: {name}", f"{count}", f"<= {most}", count <= most)


def matrix(device: str) -> Iterator[Finding]:
    """A line for each combination: losses finite, parameters moved, the graph whole."""
    models, precisions, optimizers = SMALL[:1], ["fp32"], ["lamb"]
    if device == "cuda":
        models, precisions, optimizers = SMALL, ["fp32", "tf32", *AUTOCAST], list(OPTIMIZERS)
    for model, name, mode in itertools.product(models, precisions, (EAGER, COMPILED)):
        yield _trained(case(model, device, name, mode=mode))
    for optimizer in optimizers:
        yield _trained(_with_optimizer(device, optimizer))
    yield _trained(case("bert-tiny", device, accumulation=3))
    if device == "cuda":  # last, since trying kernels takes its time
        for model in SMALL:
            yield _trained(case(model, device, "bf16", mode=TUNED))


def _with_optimizer(device: str, name: str, precision: str = "fp32") -> Case:
    config = case("bert-tiny", device, precision)
    return replace(config, optimizer=replace(config.optimizer, name=name))


def _trained(config: Case) -> Finding:
    what = f"{config.model} {config.precision} {config.mode} {config.optimizer.name}"
    what += f", accumulation {config.accumulation}"
    try:
        with session(config) as opened:
            warm(opened, 3)
            timed = measure_window(opened, opened.world, 6, _no_beat)
    except DeviceError as error:
        return skipped(what, str(error))
    except RuntimeError as error:  # PyTorch's, also where memory ends
        first = str(error).splitlines()[0]
        return judged(what, f"{type(error).__name__}: {first}", "trains", False)
    losses, steps, missed = timed.losses, timed.optimizer_steps, timed.skipped_steps
    value = f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {steps} steps, {missed} skipped"
    graphs = {name: timed.execution.get(name, 0) for name in _GRAPHS}
    value += "".join(f", {count} {name}" for name, count in graphs.items())
    holds = all(map(math.isfinite, losses)) and (timed.moved or missed == steps)
    holds = holds and not graphs["graph_breaks"] and not graphs["recompiles"]
    return judged(what, value, "finite, moved, no break, no recompile", holds)


def checkpoint(device: str) -> Iterator[Finding]:
    """10 iterations, a checkpoint, and 10 more are 20 iterations, for AdamW, LAMB, and a loss
    scale; dropout goes on where it was."""
    pairs = {"cuda": itertools.product(("adamw", "lamb"), ("fp32", "fp16"))}
    for optimizer, name in pairs.get(device, [("adamw", "fp32")]):
        whole, resumed = _losses(_with_optimizer(device, optimizer, name))
        apart = abs(whole - resumed) / abs(whole)
        value = f"loss {whole:.6f} and {resumed:.6f}, {apart:.1e} apart"
        yield judged(f"{optimizer} {name}", value, f"{_LOSSES_APART:g}", apart <= _LOSSES_APART)


def _losses(config: Case) -> tuple[float, float]:
    """The last loss of 20 iterations in one session, and of 10 and 10 in two."""
    with tempfile.TemporaryDirectory() as directory:
        saved = Path(directory) / "checkpoint"
        with session(config) as opened:
            warm(opened, _WINDOW)
            opened.save(saved)
            window(opened, _WINDOW)
            whole = opened.losses()[-1]
        with session(config) as opened:
            opened.load(saved)
            window(opened, _WINDOW)
            return whole, opened.losses()[-1]
