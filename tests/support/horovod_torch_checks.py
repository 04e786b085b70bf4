"""Checks of Horovod under PyTorch under real MPI.

Arguments: RESULTS FRAMEWORK WEIGHTS. See ``session_checks`` for these and for what they find.
"""

from __future__ import annotations

import hashlib
from typing import Any

import horovod.torch as hvd
import torch
from session_checks import a_window, accumulated, curve, losses, main, opened

from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.case import Optimizer
from dlperf_hpc.train.backends.horovod import check_world
from dlperf_hpc.train.ranks import World


def digest(session: Any) -> str:
    together = torch.cat([p.detach().flatten() for p in session.module.parameters()])
    return hashlib.sha256(together.numpy().tobytes()).hexdigest()


def window(world: World, framework: str) -> dict[str, Any]:
    return a_window(world, framework, digest)


def post_accumulation(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework)


def every_micro_batch(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework, options={"allreduce": "every_micro_batch"})


def compressed(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework, options={"fp16_compression": True})


def in_bf16(world: World, framework: str) -> dict[str, Any]:
    return accumulated(world, framework, precision="bf16")


def optimizers(world: World, framework: str) -> dict[str, list[float]]:
    """Horovod makes an optimizer of its own class of each of ours."""
    found = {}
    for name in ("adam", "sgd", "lamb", "lamb-deepspeed"):
        settings = Optimizer(name=name, lr=1e-3, bias_correction=name != "adam")
        with opened(world, framework, optimizer=settings) as session:
            found[name] = losses(session, 3)
    return found


def overflow(world: World, framework: str) -> list[list[Any]]:
    """(steps, skipped, whether anything moved) of a step that overflows, then of two."""
    rows = []
    with opened(world, framework, precision="fp16") as session:
        session.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, backoff_factor=2.0**-110)
        for steps in (1, 2):
            before = session.fingerprint()
            losses(session, steps)
            rows.append([*session.counts(), session.fingerprint() != before])
    return rows


def another_world(world: World, framework: str) -> str:
    """What Horovod's world, checked against one of a single process, is told to be."""
    try:
        check_world(hvd, World(0, ("alone",)))
    except WorldError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(
        [
            curve,
            window,
            post_accumulation,
            every_micro_batch,
            compressed,
            in_bf16,
            optimizers,
            overflow,
            another_world,
        ]
    )
