"""Checks of speed and of what a card reaches: models beside transformers', goals of MFU, the
wrapper's own cost, products and copies, energy, memory.

``benchmarks/models.py`` and ``benchmarks/wrapper_cost.py`` measure longer, and with more choices.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.nn.utils import clip_grad_norm_

from dlperf_hpc.acceptance import numerics, training
from dlperf_hpc.acceptance.pack import FAIL, OK, SKIPPED, Finding, judged, skipped
from dlperf_hpc.acceptance.training import COMPILED, EAGER, TUNED
from dlperf_hpc.analysis import machines
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.measurement import no_garbage_collection
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.telemetry import Device, GpuWatch, find_device
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.torch.device import AUTOCAST

GOALS = {("bert-large", 512): 0.50, ("gpt2-small", 1024): 0.45, ("gpt2-medium", 1024): 0.50}
"""MFU in bf16 and mode ``tuned`` on H100 and H200 by model and tokens of a sample: reported, never
a FAIL."""

_OURS = "dlperf_hpc"
_SIZES = {"bert-base": (128, 256), "bert-large": (512, 32)}
_SIZES |= {"gpt2-small": (1024, 32), "gpt2-medium": (1024, 16)}
"""Tokens and batch size: the largest that are sure to fit 80 GB."""
_SHARE = 0.6
"""Part of the data sheet's dense peak, which no product of matrices reaches: below it something
else than the card's own limits is slow. Chosen before any card was measured."""
_LOAD_S = 6.0
_BATCHES = (16, 32, 48, 96)
_PROFILED = 3  # iterations
_MOST_KERNELS = 8
_NAMED = "is_user_annotation"  # where PyTorch has it
_LONGEST = 60  # characters of a kernel's name: templates have hundreds


def models(device: str) -> Iterator[Finding]:
    """bf16 on a card, eager and compiled; ours is at least 0.98 of transformers'."""
    for case in _cases(device, EAGER, COMPILED):
        if numerics.HAS_TRANSFORMERS:
            yield from _compared(case, numerics.huggingface(case.model))
        else:
            yield skipped(f"{case.model} {case.mode}: others", "transformers is not installed")
            yield from _compared(case)


def tuned(device: str) -> Iterator[Finding]:
    """Our models in mode ``tuned``, bf16 on a card, beside the goals of MFU, each with a table of
    kernels that says where its time goes."""
    for case in _cases(device, TUNED):
        if device == "cpu" or (case.model, case.seq_len) in GOALS:
            yield from _compared(case)


def _cases(device: str, *modes: str) -> Iterator[Case]:
    if device == "cpu":
        yield training.case("bert-tiny", device, mode=modes[0])
        return
    for model, (seq_len, batch_size) in _SIZES.items():
        for mode in modes:
            shape = {"seq_len": seq_len, "batch_size": batch_size, "mode": mode}
            yield training.case(model, device, "bf16", **shape)


def _compared(case: Case, huggingface: WorkloadDeclaration | None = None) -> Iterator[Finding]:
    """Our model; ours without DDP, whose copies a lone rank pays for nothing; and transformers':
    windows in turn."""
    what = f"{case.model} {case.seq_len} {case.precision} {case.mode}"
    ours, lone = registry().workloads[case.model], {**dict(case.options), "one_rank": "plain"}
    compared = {_OURS: (case, ours)}
    compared[f"{_OURS}-no-ddp"] = replace(case, options=tuple(lone.items())), ours
    if huggingface:
        compared["huggingface"] = case, huggingface
    warmup, rounds, seconds = {"cuda": (10, 12, 14.0), "cpu": (2, 2, 5.0)}[case.device]
    sessions, seconds_each = dict[str, DdpSession](), 1e-9
    for code, (config, workload) in compared.items():
        try:
            sessions[code], each_s = _warm_session(config, workload, warmup)
            seconds_each += each_s
        except (DeviceError, torch.OutOfMemoryError) as error:
            verdict = (FAIL, SKIPPED)[code == "huggingface"]
            yield Finding(f"{what}, {code}", str(error).split("\n")[0], verdict=verdict)
    iterations = max(1, min(50, int(seconds / rounds / seconds_each)))
    sides = [functools.partial(_rate, each, iterations) for each in sessions.values()]
    rates = dict(zip(sessions, training.in_turn(sides, rounds)))
    for code, found in rates.items():
        yield _row(f"{what}, {code}", case, found, compared[code][1], rates.get(_OURS, []))
    if case.mode == TUNED and _OURS in sessions:
        events = training.profiled(sessions[_OURS], _PROFILED)
        yield Finding(f"{what}: where its time goes", kernel_text(events, case.device == "cuda"))
    del sides
    sessions.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    torch.cuda.empty_cache()


def _warm_session(
    case: Case, workload: WorkloadDeclaration, warmup: int
) -> tuple[DdpSession, float]:
    """A session, and seconds of one of its iterations."""
    session = DdpSession(case, discover(), workload)
    return session, training.warm(session, warmup)


def _rate(session: DdpSession, iterations: int) -> float:
    """Samples/s of one window."""
    with no_garbage_collection():
        return iterations * session.case.batch_size / training.window(session, iterations)


def _row(
    what: str, case: Case, rates: list[float], workload: WorkloadDeclaration, ours: list[float]
) -> Finding:
    """A row of ours has the goal of MFU, one of transformers' the bound of the ratio."""
    rate, peak = statistics.median(rates), peak_tflops(case.device, case.precision)
    value = f"{rate:g} samples/s"
    if peak is not None:
        value += f", {rate * workload.flops_per_sample(case) / 1e12 / peak:.1%} of the peak"
    if _OURS in what:
        goal = GOALS.get((case.model, case.seq_len), 0.0) * (case.mode == TUNED)
        return Finding(what, value, f"goal {goal:.0%}" * (goal > 0), OK)
    if not ours:
        return skipped(what, f"{value}; ours was refused")
    _, highest, text = training.median_ratio(ours, rates)
    holds = highest >= 0.98 or case.device == "cpu"
    return judged(what, f"{value}; ours {text} of it", ">= 0.98", holds)


def peak_tflops(device: str, precision: str) -> float | None:
    """The data sheet's dense peak of the card; None where it is not known."""
    return machines.peak(torch.cuda.get_device_name(), precision) if device == "cuda" else None


def kernel_text(events: Any, card: bool) -> str:
    """``12.3 ms an iteration: 41.0% aten::addmm, ...; 8 of 30``, of events as ``key_averages``
    gives them; on a CPU by operator. Ranges that somebody named (``Optimizer.step``) lie over
    kernels on a card and would count them twice."""
    times = {}
    for event in events:
        if not card:
            times[event.key] = event.self_cpu_time_total
        elif event.device_type == DeviceType.CUDA and not getattr(event, _NAMED, False):
            times[event.key] = event.self_device_time_total
    total = sum(times.values()) or 1.0
    top = sorted(times, key=times.__getitem__, reverse=True)[:_MOST_KERNELS]
    shares = ", ".join(f"{times[name] / total:.1%} {name[:_LONGEST]}" for name in top)
    each_ms = total / 1e3 / _PROFILED
    return f"{each_ms:.3g} ms an iteration: {shares}; {len(top)} of {len(times)}"


def wrapper(device: str) -> Iterator[Finding]:
    """The wrapper's timed loop beside one written by hand: within 0.5 % of 1."""
    what, rounds = "wrapper / bare", {"cuda": 60, "cpu": 2}[device]
    with training.session(training.case("bert-tiny", device)) as session:
        sides = (lambda: training.window(session, 5), lambda: _bare_loop(session, 5))
        yield _near_one(what, session, sides, rounds, 0.005)


def _bare_loop(session: DdpSession, iterations: int) -> float:
    """The loop of PyTorch's own tutorial of DistributedDataParallel, with clipping, for the model
    of a session in fp32 or bf16; seconds."""
    model, optimizer, batch = session.model, session.optimizer, session.batch
    parameters, clip = session.module.parameters, session.case.optimizer.grad_clip
    start = time.perf_counter()
    for _ in range(iterations):
        with session.autocast():
            loss = model(**batch)
        loss.backward()
        clip_grad_norm_(parameters(), clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    del loss  # and its graph: the wrapper's last one is gone by now too
    session.synchronize()
    return time.perf_counter() - start


def exchange(device: str) -> Iterator[Finding]:
    """On one rank an iteration without all-reduce takes as long as one with it."""

    def block(reduce: bool) -> float:
        session.set_all_reduce(reduce)
        session.iterate()  # the first after a change is another kind of iteration
        return training.window(session, 10)

    what, rounds = "with / without all-reduce, one rank", {"cuda": 10, "cpu": 2}[device]
    with training.session(training.case("bert-tiny", device)) as session:
        sides = (lambda: block(True), lambda: block(False))
        yield _near_one(what, session, sides, rounds, 0.02)


def _near_one(
    what: str,
    session: DdpSession,
    sides: tuple[Callable[[], float], ...],
    rounds: int,
    bound: float,
) -> Finding:
    """The median ratio of two sides, in turn. A CPU's noise is reported, not judged."""
    training.warm(session, 20)
    with no_garbage_collection():
        ratio, _, text = training.median_ratio(*training.in_turn(sides, rounds))
    value = f"{text} over {rounds} rounds"
    if session.device.type == "cpu":
        return Finding(what, value)
    return judged(what, value, f"{1 - bound:g} to {1 + bound:g}", abs(ratio - 1) <= bound)


def ceilings(device: str) -> Iterator[Finding]:
    """TFLOPS of a square product for each precision, and bytes per second of a copy."""
    precisions, edge, size = ["fp32"], 256, 2**24
    if device == "cuda":
        precisions, edge, size = ["bf16", "fp16", "tf32", "fp32"], 8192, 2**31
    for precision in precisions:
        yield _product(device, precision, edge)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rate = 2 * size / training.seconds(lambda: target.copy_(source))
    yield Finding("copy on the device, read and written", f"{rate / 1e12:.3g} TB/s")


def _product(device: str, precision: str, edge: int) -> Finding:
    kind = AUTOCAST.get(precision, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a = torch.randn(edge, edge, device=device, dtype=kind)
    out = torch.empty_like(a)
    tflops = 2 * edge**3 / training.seconds(lambda: torch.matmul(a, a, out=out)) / 1e12
    what, peak = f"{edge}^3 product, {precision}", peak_tflops(device, precision)
    if peak is None:
        return Finding(what, f"{tflops:.3g} TFLOPS")
    value = f"{tflops:.3g} TFLOPS, {tflops / peak:.0%} of {peak:g}"
    return judged(what, value, f">= {_SHARE:.0%}", tflops >= _SHARE * peak)


def telemetry(device: str) -> Iterator[Finding]:
    """Energy against mean power x seconds; windows with and without a watcher, in turn."""
    card = find_device(str(torch.cuda.get_device_properties(0).uuid))
    if card is None:
        yield Finding("NVML", "not there: pip install nvidia-ml-py", verdict=FAIL)
        return
    yield _energy(device, card)

    def watched() -> float:
        watch = GpuWatch(card)
        elapsed = training.window(session, 20)
        watch.summary()
        return elapsed

    with training.session(training.case("bert-tiny", device)) as session:
        training.warm(session, 20)
        sides = (watched, lambda: training.window(session, 20))
        ratio, _, _ = training.median_ratio(*training.in_turn(sides, 20))
    yield judged("cost of watching", f"{ratio - 1:+.2%} of a window", "< 0.3 %", ratio < 1.003)


def _energy(device: str, card: Device) -> Finding:
    a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    watch, started = GpuWatch(card), time.monotonic()
    while time.monotonic() - started < _LOAD_S:
        for _ in range(50):
            torch.matmul(a, a)
        torch.cuda.synchronize()
    spent, seen = time.monotonic() - started, watch.summary()
    if "joules" not in seen or "watts" not in seen:
        return Finding("energy", f"this card does not count: {sorted(seen)}")
    ratio = seen["joules"] / (seen["watts"] * spent)
    value = f"{seen['joules']:.0f} J counted, {ratio:.2f} of mean power x seconds"
    return judged("energy", value, "0.85 to 1.15", 0.85 <= ratio <= 1.15)


def memory(device: str) -> Iterator[Finding]:
    """Peak memory lies on a line over the batch size: three batches predict a fourth."""
    peaks = []
    for size in _BATCHES:
        torch.cuda.reset_peak_memory_stats()
        with training.session(training.case("bert-tiny", device, batch_size=size)) as session:
            training.warm(session, 4)
            peaks.append(session.memory_mb())
    line = statistics.linear_regression(_BATCHES[:3], peaks[:3])
    predicted = line.intercept + line.slope * _BATCHES[3]
    value = f"predicted {predicted:.0f} MiB, found {peaks[3]:.0f} MiB"
    yield judged("a fourth batch", value, "3 %", abs(predicted / peaks[3] - 1) <= 0.03)
    left = torch.cuda.memory_allocated() / 2**20
    yield judged("left behind", f"{left:.1f} MiB", "< 16 MiB", left < 16)
