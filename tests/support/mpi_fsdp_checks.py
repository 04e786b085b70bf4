"""Checks of the FSDP back end beside DDP's: ``mpiexec -n N python -m mpi4py mpi_fsdp_checks.py``.

Each check is a function of this rank's world; rank 0 writes what every rank found as one JSON
object, ``{check: [rank 0's, rank 1's, ...]}``, and ``test_fsdp.py`` judges it.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from session_checks import losses

from dlperf_hpc.model.case import Case, Optimizer, Topology
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.workloads import bert, gpt2, llama3

# Of the models: gathering a large embedding on CPUs is what would take the time here.
VOCABULARY = 1024
STEPS = 20
SMALL = {"model": "gpt2-tiny", "batch_size": 1, "seq_len": 8}
# Every step is clipped: norms of a fresh model's gradients are above 1.
CLIPPED = Optimizer(lr=1e-3, grad_clip=0.5)


def two_nodes(world: World) -> World:
    """The ranks as if on two hosts, the even and the odd."""
    return replace(world, hosts=tuple(f"n{rank % 2}" for rank in range(world.size)))


def opened(world: World, framework: str, **changes: Any) -> Any:
    """A session on CPUs that trains on another batch in each micro-step of an accumulation."""
    model, own = changes.pop("model", "bert-tiny"), changes.pop("options", {})
    options = {o.name: o.default for o in registry().options(framework, model)}
    pairs = tuple(sorted({**options, "dropout": 0.0, **own}.items()))
    values = {"precision": "fp32", "batch_size": 2, "seq_len": 8, "optimizer": CLIPPED, **changes}
    topology = Topology(len(world.nodes), world.local_size)
    case = Case(framework, model, topology, options=pairs, device="cpu", **values)
    workload = registry().workloads[model]
    session = registry().backends[framework].open_session(case, world, workload)
    micro = [workload.batch(replace(case, seed=100 + i), world.rank) for i in range(4)]
    tensors = [{name: torch.as_tensor(array) for name, array in each.items()} for each in micro]
    batches = itertools.cycle(tensors[: case.accumulation])
    session.next_batch = lambda: next(batches)
    return session


def norms_of(session: Any) -> list[float]:
    """Filled at every optimizer step with the norm of all gradients before they are clipped: of
    whole gradients in double precision, not by what clips them."""
    seen: list[float] = []
    step = session.step

    def noting() -> None:
        gradients = (p.grad for p in session.module.parameters() if p.grad is not None)
        whole = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients]
        seen.append(float(sum((g.double() ** 2).sum() for g in whole)) ** 0.5)
        step()

    session.step = noting
    return seen


def trained(world: World, framework: str, steps: int = STEPS, **changes: Any) -> dict[str, Any]:
    """Losses of each micro-batch, norms of each step, and what the rank holds."""
    session = opened(world, framework, **changes)
    norms = norms_of(session)
    found = losses(session, steps * session.case.accumulation)
    moved = {"counts": session.counts(), "bytes": session.state_bytes()}
    return {"losses": found, "norms": norms, **moved, "facts": session.facts()}


def like_ddp(world: World) -> dict[str, Any]:
    """fp32, clipped, accumulation 1 and 4; HSDP on four ranks."""
    found: dict[str, Any] = {}
    for accumulation in (1, 4):
        found[f"ddp {accumulation}"] = trained(world, "ddp", accumulation=accumulation)
        found[f"all {accumulation}"] = trained(world, "fsdp", accumulation=accumulation)
        if world.size == 4:
            changes: dict[str, Any] = {"accumulation": accumulation}
            changes["options"] = {"shard": "node"}
            found[f"node {accumulation}"] = trained(two_nodes(world), "fsdp", **changes)
    return found


def goes_on(world: World) -> dict[str, Any]:
    """Losses behind a checkpoint, with dropout: of the session that saved it and of a new one."""
    place = two_nodes(world) if world.size == 4 else world
    options = {"dropout": 0.1, **({"shard": "node"} if world.size == 4 else {})}
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(world.broadcast(scratch)) / "checkpoint"
        first = opened(place, "fsdp", options=options)
        before = losses(first, 4)
        first.save(checkpoint)
        files = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
        unbroken = losses(first, 4)
        second = opened(place, "fsdp", options=options)
        second.load(checkpoint)
        found = {"before": before, "unbroken": unbroken, "loaded": losses(second, 4)}
        world.barrier()
        return {**found, "files": files, "steps": second._micro_steps}


def half(world: World) -> dict[str, Any]:
    """bf16 beside DDP's fp32, and the types that are computed, kept and reduced."""
    session = opened(world, "fsdp", precision="bf16", accumulation=4)
    kinds: set[str] = set()
    for module in session.module.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _module, _input, out: kinds.add(str(out.dtype)))
    found = losses(session, 4 * STEPS)
    weights = {str(parameter.dtype) for parameter in session.module.parameters()}
    return {"losses": found, "kinds": sorted(kinds), "weights": sorted(weights)}


def llama(world: World) -> dict[str, Any]:
    """Three steps beside DDP's, in bf16 with activations computed twice: angles stay float32."""
    small: dict[str, Any] = {**SMALL, "model": "llama3-tiny"}
    found = {each: trained(world, each, 3, **small)["losses"] for each in ("ddp", "fsdp")}
    small.update(precision="bf16", options={"checkpoint_activations": True})
    return {**found, "half": trained(world, "fsdp", 3, **small)["losses"]}


def optimizers(world: World) -> dict[str, Any]:
    """Four steps of each, beside DDP's."""
    found = {}
    chosen = {"adam": Optimizer("adam", lr=1e-3), "sgd": Optimizer("sgd", lr=0.1)}
    chosen["adamw"] = Optimizer("adamw", lr=1e-3, bias_correction=False)
    for name, optimizer in chosen.items():
        pair = (trained(world, each, 4, optimizer=optimizer, **SMALL) for each in ("ddp", "fsdp"))
        found[name] = [each["losses"] for each in pair]
    return found


def ways(world: World) -> dict[str, Any]:
    """Five steps of GPT-2: activations computed twice, layers that stay gathered, compiled."""
    from torch._dynamo.backends.registry import lookup_backend

    real = torch.compile

    def quickly(model: Any, **_: Any) -> Any:
        return real(model, backend=lookup_backend("aot_eager"))

    again = {"checkpoint_activations": True}
    found = {"ddp": trained(world, "ddp", 5, **SMALL)["losses"]}
    found["again"] = trained(world, "fsdp", 5, options=again, **SMALL)["losses"]
    kept = {"reshard_after_forward": False}
    found["kept"] = trained(world, "fsdp", 5, options=kept, **SMALL)["losses"]
    with mock.patch("torch.compile", quickly):
        session = opened(world, "fsdp", mode="compile", options=again, **SMALL)
        found["compiled"] = losses(session, 5)
    layers: Any = session.module.layers
    compiled = [layer._compiled_call_impl is not None for layer in layers]
    return {**found, "layers": compiled, "execution": session.execution()}


ALWAYS: tuple[Callable[[World], Any], ...] = (like_ddp, goes_on)
ON_TWO = (half, llama, optimizers, ways)

if __name__ == "__main__":
    bert.SIZES["bert-tiny"] = replace(bert.SIZES["bert-tiny"], vocab=VOCABULARY)
    gpt2.SIZES["gpt2-tiny"] = replace(gpt2.SIZES["gpt2-tiny"], vocab=VOCABULARY)
    llama3._ORDINARY = VOCABULARY
    llama3.SIZES["llama3-tiny"] = replace(llama3.SIZES["llama3-tiny"], vocab=VOCABULARY)
    here = discover()
    checks = ALWAYS if here.size == 4 else (*ALWAYS, *ON_TWO)
    results = {check.__name__: here.gather(check(here)) for check in checks}
    if here.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
