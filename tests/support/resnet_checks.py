"""ResNet tiny through the back ends that train it, under real MPI.

``mpiexec -n RANKS python -m mpi4py resnet_checks.py RESULTS CHECK ...``: each check is a function
of this rank's world; rank 0 writes what every rank found as one JSON object, ``{check: [rank 0's,
...]}``, which ``test_resnet.py`` and ``test_resnet_horovod.py`` judge.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed_checks import curve

from dlperf_hpc.model.case import Case, Optimizer, Topology
from dlperf_hpc.train.measurement import measure_window, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry

MODEL, STEPS = "resnet-tiny", 3
SGD = Optimizer("sgd", lr=0.01, beta1=0.9, weight_decay=0.1, grad_clip=0.0)


def make_case(framework: str, ranks: int, **changes: Any) -> Case:
    known = registry()
    options = {option.name: option.default for option in known.options(framework, MODEL)}
    options.update(changes.pop("options", {}))
    values: dict[str, Any] = {"precision": "fp32", "batch_size": 4, "optimizer": SGD, **changes}
    pairs = tuple(sorted(options.items()))
    return Case(
        framework, MODEL, Topology(1, ranks), seq_len=0, device="cpu", options=pairs, **values
    )


@contextmanager
def opened(world: World, framework: str, **changes: Any) -> Iterator[Any]:
    known, case = registry(), make_case(framework, world.size, **changes)
    session = known.backends[framework].open_session(case, world, known.workloads[MODEL])
    yield session
    world.barrier()
    session.close()


def losses(world: World, framework: str, **changes: Any) -> list[float]:
    with opened(world, framework, **changes) as session:
        return curve(session, STEPS)


def variants(world: World) -> Any:
    """Losses under DDP in each precision and order of memory."""
    rows: dict[str, dict[str, Any]] = {
        "fp32": {},
        "bf16": {"precision": "bf16"},
        "colours first": {"options": {"channels_last": False}},
        "placed": {"options": {"optimizer_placement": True}},
        "accumulation": {"accumulation": 2},
    }
    return {name: losses(world, "ddp", **changes) for name, changes in rows.items()}


def window(world: World) -> Any:
    """What a window tells of the model, and whether ranks have equal weights and statistics."""
    with opened(world, "ddp") as session:
        warm_up(session, 2, lambda: None)
        timed = measure_window(session, world, 2, lambda: None)
        weights = float(sum(p.detach().abs().sum() for p in session.module.parameters()))
        convolutions = [m for m in session.module.modules() if isinstance(m, torch.nn.Conv2d)]
        last = {m.weight.is_contiguous(memory_format=torch.channels_last) for m in convolutions}
        facts = {
            "parameters": session.parameters,
            "weights": weights,
            "channels_last": last == {True},
        }
        return {**facts, "execution": dict(timed.execution)}


def folder(world: World) -> Any:
    """Losses on the images of the folder that the last argument names, decoded within the window
    and before it, and what the log is given."""
    found = {}
    for decode in ("inside", "outside"):
        real = {"data": "real", "data_path": sys.argv[-1], "options": {"decode": decode}}
        with opened(world, "ddp", **real) as session:
            facts = {k: v for k, v in session.facts().items() if k.startswith("data_")}
            found[decode] = {"losses": curve(session, STEPS), **facts}
    return found


def horovod(world: World) -> Any:
    """DDP's losses, then Horovod's: its ranks stay in one MPI world."""
    return {"ddp": losses(world, "ddp"), "horovod": losses(world, "horovod-torch")}


CHECKS = (variants, window, folder, horovod)

if __name__ == "__main__":
    here = discover()
    results = {}
    for each in CHECKS:
        if each.__name__ in sys.argv[2:]:
            results[each.__name__] = here.gather(each(here))
    if here.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
