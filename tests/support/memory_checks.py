"""Bytes that sessions really hold: ``mpiexec -n N python -m mpi4py memory_checks.py RESULTS NAME``.

Rank 0 writes ``{name: [certain, about, live, own]}`` for each way to train: what is
predicted of a rank, and the most that all its tensors took, and what its optimizer had in hand,
as any optimizer step ended and as any micro-batch did; of the rank that held most.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dlperf_hpc.model.case import Case, Optimizer, Topology
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.workloads import bert

SGD, PLAIN = Optimizer("sgd", lr=0.1), Optimizer("sgd", lr=0.1, beta1=0.0)
Ways = dict[str, dict[str, Any]]
WAYS: dict[str, Ways] = {
    "torch": {
        "ddp fp32": {},
        "ddp bf16": {"precision": "bf16"},
        "ddp momentum": {"optimizer": SGD},
        "ddp no momentum": {"optimizer": PLAIN},
        "ddp placed": {"options": {"optimizer_placement": True}},
        "fsdp bf16": {"precision": "bf16"},
        "fsdp accumulated": {"precision": "bf16", "accumulation": 2},
    },
    "deepspeed": {
        f"deepspeed {precision} {stage}": {"precision": precision, "options": {"zero_stage": stage}}
        for precision, stages in (("fp32", (0, 1, 3)), ("bf16", (0, 2, 3)))
        for stage in stages
    },
}


def storages(tensors: Iterator[Any]) -> int:
    """Bytes of the memory that these tensors and their gradients lie in, each part once."""
    found: dict[int, int] = {}
    for tensor in tensors:
        for each in (tensor, tensor.grad if tensor.is_leaf else None):
            part = getattr(each, "_local_tensor", each)
            if part is not None and not part.is_meta:
                found[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
    return sum(found.values())


def live() -> int:
    """Bytes of every tensor of this process."""
    return storages(each for each in gc.get_objects() if issubclass(type(each), torch.Tensor))


def in_hand(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of a model's parameters, of those that an optimizer updates, of the gradients of both,
    and of its state."""
    updated = [each for group in optimizer.param_groups for each in group["params"]]
    states = [each for state in optimizer.state.values() for each in state.values()]
    tensors = [each for each in states if torch.is_tensor(each)]
    return storages(iter([*module.parameters(), *updated, *tensors]))


def held(world: World, framework: str, **changes: Any) -> list[int]:
    options = {each.name: each.default for each in registry().options(framework, "bert-tiny")}
    options.update(changes.pop("options", {}))
    values = {"precision": "fp32", "batch_size": 1, "seq_len": 8, **changes}
    case = Case(
        framework, "bert-tiny", Topology(1, world.size), options=tuple(options.items()),
        device="cpu", **values,
    )  # fmt: skip
    gc.collect()
    before, seen, own = live(), [0], [0]
    workload = registry().workloads[case.model]
    session = registry().backends[framework].open_session(case, world, workload)

    def look(optimizer: Any, *_: Any) -> None:
        seen.append(live())
        own.append(in_hand(session.module, optimizer))

    hook = register_optimizer_step_post_hook(look)
    for _ in range(2 * case.accumulation):
        session.iterate()
        seen.append(live())
    hook.remove()
    need = registry().memory(case)
    assert need is not None
    most = (world.gather(each) for each in (max(seen) - before, max(own)))
    world.barrier()
    return [need.certain, need.about, *map(max, most)]


if __name__ == "__main__":
    # Of the model: gathering a large embedding on CPUs is what would take the time here.
    bert.SIZES["bert-tiny"] = replace(bert.SIZES["bert-tiny"], vocab=1024)
    here = discover()
    ways = WAYS[sys.argv[2]]
    results = {name: held(here, name.split()[0], **way) for name, way in ways.items()}
    if here.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
