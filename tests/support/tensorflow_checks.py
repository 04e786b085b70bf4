"""Checks of both TensorFlow back ends under real MPI.

Arguments: RESULTS FRAMEWORK WEIGHTS. See ``session_checks`` for these and for what they find.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any

import numpy as np
from session_checks import a_window, accumulated, curve, losses, main, opened

from dlperf_hpc.model.case import Optimizer
from dlperf_hpc.train.ranks import World


def meet_once() -> None:
    """A process can be the worker of one cluster only: its sessions here share the strategy."""
    from dlperf_hpc.train.tensorflow.strategy import StrategySession

    meet = StrategySession._multi_worker
    shared: list[Any] = []

    @functools.wraps(meet)
    def once(session: StrategySession) -> Any:
        if not shared:
            shared.append(meet(session))
        return shared[0]

    StrategySession._multi_worker = once  # type: ignore[assignment]


def digest(session: Any) -> str:
    together = np.concatenate([v.numpy().ravel() for v in session.variables])
    return hashlib.sha256(together.tobytes()).hexdigest()


def window(world: World, framework: str) -> dict[str, Any]:
    """With how often each step function was traced by its beginning, and by its end."""
    traces = []

    def looked(session: Any) -> str:
        functions = session._steps[True]
        traces.append([each.experimental_get_tracing_count() for each in functions])
        return digest(session)

    found = a_window(world, framework, looked)
    return {**found, "traces": traces[:2]}


def post_accumulation(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework)


def xla(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework, options={"xla": True})


def xla_every_micro_batch(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework, options={"xla": True, "allreduce": "every_micro_batch"})


def compressed(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework, options={"fp16_compression": True})


def in_bf16(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework, precision="bf16")


def overflow(world: World, framework: str) -> list[list[Any]]:
    """(steps, skipped, whether anything moved) of a step that overflows, then of two."""
    rows = []
    settings = Optimizer(lr=1e-3)
    with opened(world, framework, precision="fp16", optimizer=settings) as session:
        (replica,) = session.replicas
        for steps, scale in ((1, 2.0**120), (2, 2.0**15)):
            replica.scale.assign(scale)
            before = session.fingerprint()
            losses(session, steps)
            moved = session.fingerprint() != before
            rows.append([*session.counts(), moved, float(replica.scale.numpy()) / scale])
    return rows


if __name__ == "__main__":
    checks = [curve, window, post_accumulation, overflow]
    if sys.argv[2] == "tensorflow":
        meet_once()
        checks += [in_bf16, xla]
    else:
        checks += [compressed, xla_every_micro_batch]
    main(checks)
