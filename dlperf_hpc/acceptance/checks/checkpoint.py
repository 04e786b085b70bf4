"""10 iterations, a checkpoint, and 10 more are 20 iterations."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.finding import Finding, judged
from dlperf_hpc.sweepfile.case import Case
from dlperf_hpc.train.torch.ddp import DdpSession

_HALF = 10
_BOUND = 1e-3
"""Of the loss: kernels on a GPU add in another order from run to run."""


def run(device: str) -> Iterator[Finding]:
    """AdamW, LAMB, and a loss scale; dropout goes on where it was."""
    card = [("adamw", "fp16"), ("lamb", "fp32"), ("lamb", "fp16")]
    asked = [("adamw", "fp32"), *(card if device == "cuda" else [])]
    for optimizer, precision in asked:
        case = tiny.case("bert-tiny", device, precision)
        case = replace(case, optimizer=replace(case.optimizer, name=optimizer))
        whole, halves = _whole(case), _halves(case)
        apart = abs(whole - halves) / abs(whole)
        value = f"loss {whole:.6f} and {halves:.6f}" + (", to the last bit" if not apart else "")
        yield judged(f"{optimizer} {precision}", value, f"{_BOUND:g}", apart <= _BOUND)


def _whole(case: Case) -> float:
    with tiny.session(case) as session:
        for _ in range(_HALF):
            session.iterate()
        session.open_window(_HALF)
        return _run(session)


def _halves(case: Case) -> float:
    with tempfile.TemporaryDirectory() as directory:
        saved = Path(directory) / "checkpoint"
        with tiny.session(case) as session:
            for _ in range(_HALF):
                session.iterate()
            session.save(saved)
        with tiny.session(case) as session:
            session.load(saved)
            session.open_window(_HALF)
            return _run(session)


def _run(session: DdpSession) -> float:
    session.mark()
    for _ in range(_HALF):
        session.iterate()
        session.mark()
    return session.losses()[-1]
