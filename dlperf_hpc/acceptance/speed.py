"""Checks of speed and of what a card reaches. ``benchmarks/models.py`` and
``benchmarks/wrapper_cost.py`` measure longer, and with more choices."""

from __future__ import annotations

import functools
import gc
import importlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import DeviceType

from dlperf_hpc.acceptance import training
from dlperf_hpc.acceptance.numerics import LACKING, transformers_models
from dlperf_hpc.acceptance.pack import FAIL, OK, SKIPPED, Finding, judged, skipped
from dlperf_hpc.acceptance.training import COMPILED, EAGER, TUNED
from dlperf_hpc.analysis import machines
from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.measurement import no_garbage_collection
from dlperf_hpc.train.probe.node import Device
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.telemetry import GpuWatch, find_device
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.torch.device import AUTOCAST

GOALS = {("bert-large", 512): 0.50, ("gpt2-small", 1024): 0.45, ("gpt2-medium", 1024): 0.50}
"""MFU in bf16 and mode ``tuned`` on H100 and H200: reported, never a FAIL."""

_OURS = "dlperf_hpc"
_SIZES = {"bert-base": (128, 256), "bert-large": (512, 32)}  # tokens, samples: they fit 80 GB
_SIZES |= {"gpt2-small": (1024, 32), "gpt2-medium": (1024, 16)}
_FEWEST_WINDOWS, _FEWEST_ITERATIONS = 6, 5  # below these a ratio would be noise
_SHARE = 0.6  # of the data sheet's dense peak; chosen before any card was measured
_LOAD_S, _WATCHED_S = 6.0, 1.2  # the latter has eight looks of the watcher's
_WATCHING = 0.01  # a card's clock alone moves such a window by several tenths of a percent
_WRAPPER = 0.02  # benchmarks/wrapper_cost.py asks for 0.005; a second's windows jitter more
_LEFT_MB = 4.0  # beside what the first session leaves: cuBLAS keeps a workspace
_BATCHES = (16, 32, 48, 96)
_PROFILED, _MOST_KERNELS = 3, 8  # iterations, names
_NAMED = "is_user_annotation"  # where PyTorch has it
_LONGEST = 60  # characters of a kernel's name: templates have hundreds


def models(device: str, mode: str = EAGER) -> Iterator[Finding]:
    """bf16 on a card: ours is at least 0.98 of transformers'."""
    other = transformers_models()
    if other is None:
        yield skipped("transformers", LACKING)
    for case in _cases(device, mode):
        yield from _compared(case, other and other.huggingface(case.model))


def compiled(device: str) -> Iterator[Finding]:
    """As :func:`models`, under ``torch.compile``."""
    yield from models(device, COMPILED)


def tuned(device: str) -> Iterator[Finding]:
    """Our models in mode ``tuned``, bf16 on a card, beside the goals of MFU, each with a table of
    kernels that says where its time goes."""
    for case in _cases(device, TUNED):
        if device == "cpu" or (case.model, case.seq_len) in GOALS:
            yield from _compared(case)


def _cases(device: str, mode: str) -> Iterator[Case]:
    if device == "cpu":
        yield training.case("bert-tiny", device, mode=mode)
        return
    for model, (seq_len, batch_size) in _SIZES.items():
        shape = {"seq_len": seq_len, "batch_size": batch_size, "mode": mode}
        yield training.case(model, device, "bf16", **shape)


def _compared(case: Case, huggingface: WorkloadDeclaration | None = None) -> Iterator[Finding]:
    """Ours; eager, ours without DDP, whose copies are for nothing; transformers': in turn."""
    what = f"{case.model} {case.seq_len} {case.precision} {case.mode}"
    ours, lone = registry().workloads[case.model], {**dict(case.options), "one_rank": "plain"}
    compared = {_OURS: (case, ours)}
    if case.mode == EAGER:
        compared[f"{_OURS}-no-ddp"] = replace(case, options=tuple(lone.items())), ours
    if huggingface:
        compared["huggingface"] = case, huggingface
    warmup, rounds, seconds = {"cuda": (12, 6, 18.0), "cpu": (2, 2, 2.0)}[case.device]
    sessions, each_s = dict[str, DdpSession](), 1e-9
    for code, (config, workload) in compared.items():
        try:
            sessions[code] = DdpSession(config, discover(), workload)
            each_s += training.warm(sessions[code], warmup)
        except Exception as error:  # noqa: BLE001 - another's code raises what it likes
            sessions.pop(code, None)
            first = f"{type(error).__name__}: {error}".splitlines()[0]
            verdict = (FAIL, SKIPPED)[code == "huggingface"]
            yield Finding(f"{what}, {code}", first, verdict=verdict)
    iterations = max(1, min(50, int(seconds / rounds / each_s)))
    enough = min(rounds / _FEWEST_WINDOWS, iterations / _FEWEST_ITERATIONS) >= 1
    sides = [functools.partial(_rate, each, iterations) for each in sessions.values()]
    rates = dict(zip(sessions, training.in_turn(sides, rounds)))
    for code, found in rates.items():
        row = f"{what}, {code}, {rounds} x {iterations}"
        yield _row(row, case, found, compared[code][1], rates.get(_OURS, []) * enough)
    if case.mode == TUNED and sessions:
        events = training.profiled(sessions[_OURS], _PROFILED)
        yield Finding(f"{what}: where its time goes", kernel_text(events, case.device == "cuda"))
    del sides
    sessions.clear()
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def _rate(session: DdpSession, iterations: int) -> float:
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
        least = f"{_FEWEST_WINDOWS} x {_FEWEST_ITERATIONS}"
        return Finding(what, f"{value}; no ratio: fewer than {least} of ours")
    ratio, text = training.median_ratio(ours, rates)
    return judged(what, f"{value}; ours {text} of it", ">= 0.98", ratio >= 0.98)


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
    """The wrapper's timed loop beside one written by hand. A CPU's noise is not judged."""
    bare = importlib.import_module("bare_loops").ddp
    with training.session(training.case("bert-tiny", device)) as session:
        training.warm(session, 20)
        sides = (lambda: training.window(session, 5), lambda: bare(session, 5) / 1e9)
        with no_garbage_collection():
            found = training.in_turn(sides, {"cuda": 60, "cpu": 2}[device])
    ratio, text = training.median_ratio(*found)
    holds = device == "cpu" or abs(ratio - 1) <= _WRAPPER
    yield judged("wrapper / bare", text, f"1 +- {_WRAPPER:g}", holds)


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
        elapsed = training.window(session, iterations)
        watch.summary()
        return elapsed

    # Kernels of a model that fills the card: of a tiny one, launches alone move a window by 10 %.
    shape = {"seq_len": 128, "batch_size": 64}
    with training.session(training.case("bert-base", device, "bf16", **shape)) as session:
        iterations = 1 + int(_WATCHED_S / training.warm(session, 40))
        sides = (watched, lambda: training.window(session, iterations))
        ratio, text = training.median_ratio(*training.in_turn(sides, 8))
    yield judged("window watched / not", text, f"< {1 + _WATCHING:g}", ratio < 1 + _WATCHING)


def _energy(device: str, card: Device) -> Finding:
    a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    watch, started = GpuWatch(card), time.monotonic()
    while time.monotonic() - started < _LOAD_S:
        for _ in range(50):
            torch.matmul(a, a)
        torch.cuda.synchronize()
    spent, seen = time.monotonic() - started, watch.summary()
    if seen.get("joules_by") != "counter" or "watts" not in seen:
        return Finding("energy", f"this card does not count: {sorted(seen)}")
    if not seen["watts"] * seen.get("util", 1):
        return judged("energy", f"{seen} under load", "power and utilisation", False)
    ratio = seen["joules"] / (seen["watts"] * spent)
    value = f"{seen['joules']:.0f} J counted, {ratio:.2f} of mean power x seconds"
    return judged("energy", value, "0.85 to 1.15", 0.85 <= ratio <= 1.15)


def memory(device: str) -> Iterator[Finding]:
    """Peak memory lies on a line over the batch size: three batches predict a fourth. What each
    session leaves behind does not grow."""
    _memory_of(device, _BATCHES[0])  # cuBLAS' workspace, 65 MiB on an H200, comes with the first
    peaks, left = zip(*(_memory_of(device, size) for size in _BATCHES))
    line = statistics.linear_regression(_BATCHES[:3], peaks[:3])
    predicted = line.intercept + line.slope * _BATCHES[3]
    seen = ", ".join(f"{peak:.0f}" for peak in peaks)
    value = f"{seen} MiB: predicted {predicted:.0f}"
    yield judged("a fourth batch", value, "3 %", abs(predicted / peaks[3] - 1) <= 0.03)
    value, holds = f"{left[0]:.1f}, then {left[-1]:.1f} MiB", left[-1] - left[0] < _LEFT_MB
    yield judged("left behind by a session", value, f"+ {_LEFT_MB:g}", holds)


def _memory_of(device: str, size: int) -> tuple[float, float]:
    """MiB at the peak of a session, and those still there once it is gone."""
    torch.cuda.reset_peak_memory_stats()
    with training.session(training.case("bert-tiny", device, batch_size=size)) as session:
        training.warm(session, 4)
        peak = session.memory_mb()
    del session
    gc.collect()
    return peak, torch.cuda.memory_allocated() / 2**20
