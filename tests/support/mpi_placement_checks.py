"""Optimizer placement and schedules in the DDP back end under real MPI.

``mpiexec -n 2 python -m mpi4py mpi_placement_checks.py``: rank 0 prints what every rank found as
one JSON object, ``{check: [rank 0's, rank 1's]}``, and ``test_placement.py`` judges it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mpi_ddp_checks import digest, opened

from dlperf_hpc.model.case import OPTIMIZERS, Optimizer, Schedule
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.torch.placement import PlacedOptimizer
from dlperf_hpc.train.workloads import bert

STEPS = 4
SCHEDULE = Schedule(name="polynomial", warmup=2, total=8, power=0.5)


def state_numbers(session: DdpSession) -> int:
    """Numbers of moments that this rank keeps."""
    own = session.optimizer
    states = (own.optim if isinstance(own, PlacedOptimizer) else own).state.values()
    kept = [t for state in states for name, t in state.items() if name != "step"]
    return sum(t.numel() for t in kept)


def train(session: DdpSession) -> dict[str, Any]:
    iterations = STEPS * session.case.accumulation
    session.open_window(iterations)
    session.mark()
    for _ in range(iterations):
        session.iterate()
        session.mark()
    return {
        "losses": session.losses(),
        "counts": session.counts(),
        "parameters": digest(session.module.parameters()),
        "state": state_numbers(session),
        "kind": type(session.optimizer).__name__,
    }


def both(world: World, **changes: Any) -> dict[str, Any]:
    """One training with and without placement."""
    found = {}
    for placed in (False, True):
        options = {"optimizer_placement": placed}
        with opened(world, options=options, schedule=SCHEDULE, **changes) as session:
            if session.scaler.is_enabled():
                # So large that the first step overflows; small enough after it.
                session.scaler = torch.amp.GradScaler(
                    "cpu", init_scale=2.0**120, backoff_factor=2.0**-110
                )
            found["placed" if placed else "whole"] = train(session)
    return found


def placement(world: World) -> dict[str, Any]:
    found = {name: both(world, optimizer=Optimizer(name=name, lr=1e-2)) for name in OPTIMIZERS}
    plain = Optimizer(lr=1e-2, bias_correction=False)
    found["adamw uncorrected, accumulation 2"] = both(world, optimizer=plain, accumulation=2)
    for name in ("adamw", "lamb"):
        half = Optimizer(name=name, lr=1e-2)
        found[f"{name} fp16"] = both(world, optimizer=half, precision="fp16")
    return found


def rates(world: World) -> dict[str, Any]:
    """Learning rates as the optimizer meets them, through a warm-up and two windows."""
    found = {}
    for placed in (False, True):
        seen: list[float] = []
        settings = {"schedule": SCHEDULE, "optimizer": Optimizer(lr=1.0), "accumulation": 2}
        with opened(world, options={"optimizer_placement": placed}, **settings) as session:
            own = session.optimizer
            inner = own.optim if isinstance(own, PlacedOptimizer) else own
            inner.register_step_pre_hook(
                lambda optimizer, *_, seen=seen: seen.append(optimizer.param_groups[0]["lr"])
            )
            for window in (1, 2):
                session.open_window(4 * window)
                for _ in range(4 * window):
                    session.iterate()
        found["placed" if placed else "whole"] = seen
    return found


def main() -> None:
    torch.set_num_threads(1)
    # A large embedding is most of a tiny model's time on CPUs.
    bert.SIZES["bert-tiny"] = replace(bert.SIZES["bert-tiny"], vocab=1024)
    world = discover()
    found = {check.__name__: world.gather(check(world)) for check in (placement, rates)}
    if world.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
