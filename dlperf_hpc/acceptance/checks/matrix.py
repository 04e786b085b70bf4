"""Precisions eager and compiled, bf16 tuned, every optimizer, accumulation: it trains, and the
graph is whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch._dynamo.utils import counters

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import Finding, judged, skipped
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.sweepfile.case import MODES, OPTIMIZERS, Case
from dlperf_hpc.train.window import timed_loop

_WARMUP, _ITERATIONS = 6, 6


def run(device: str) -> Iterator[Finding]:
    """A line for each combination: losses finite, parameters moved, graphs."""
    for what, case in _cases(device):
        yield _trained(what, case)


def _cases(device: str) -> Iterator[tuple[str, Case]]:
    card = device == "cuda"
    for model in tiny.SMALL if card else ("bert-tiny",):
        for precision in ("fp32", "tf32", "bf16", "fp16") if card else ("fp32",):
            for mode in MODES[:2]:
                case = tiny.case(model, device, precision, mode=mode)
                yield f"{model} {precision} {mode}", case
    for name in OPTIMIZERS if card else ("lamb",):
        base = tiny.case("bert-tiny", device)
        yield f"bert-tiny {name}", replace(base, optimizer=replace(base.optimizer, name=name))
    yield "bert-tiny accumulation 3", tiny.case("bert-tiny", device, accumulation=3)
    for model in tiny.SMALL if card else ():  # last, since trying kernels takes its time
        yield f"{model} bf16 tuned", tiny.case(model, device, "bf16", mode=MODES[2])


def _trained(what: str, case: Case) -> Finding:
    counters.clear()
    try:
        with tiny.session(case) as session:
            for _ in range(_WARMUP // 2):
                session.iterate()
            graphs = counters["stats"]["unique_graphs"]
            for _ in range(_WARMUP // 2):
                session.iterate()
            before = session.fingerprint()
            session.open_window(_ITERATIONS)
            timed_loop(session, _ITERATIONS, lambda: None)
            losses, (steps, missed) = session.losses(), session.counts()
            moved = session.fingerprint() != before
    except DeviceError as error:
        return skipped(what, str(error))
    except (torch.OutOfMemoryError, RuntimeError) as error:
        return judged(
            what, f"{type(error).__name__}: {str(error).splitlines()[0]}", "trains", False
        )
    breaks, late = (
        sum(counters["graph_break"].values()),
        counters["stats"]["unique_graphs"] - graphs,
    )
    value = f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {steps} steps, {missed} skipped"
    if case.mode != MODES[0]:
        value += f", {graphs} graphs, {breaks} breaks, {late} compiled late"
    finite = all(map(math.isfinite, losses))
    holds = finite and (moved or missed == steps) and breaks == 0 and late == 0
    return judged(what, value, "finite, moved, no break, none late", holds)
