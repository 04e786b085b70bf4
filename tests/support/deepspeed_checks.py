"""Checks of the DeepSpeed back end under real MPI.

``mpiexec -n 2 python -m mpi4py deepspeed_checks.py RESULTS [CHECK ...]``: each check (all, unless
some are named) is a function of this rank's world; rank 0 writes what every rank found as one JSON
object, ``{check: [rank 0's, rank 1's]}``, and ``test_deepspeed.py`` judges it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from session_checks import communication

from dlperf_hpc.errors import DlperfError
from dlperf_hpc.model.case import Case, Optimizer, Schedule, Topology
from dlperf_hpc.train.measurement import measure_window, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.workloads import bert, gpt2

STAGES = (0, 1, 2, 3)


def make_case(framework: str, ranks: int, model: str = "bert-tiny", **changes: Any) -> Case:
    known = registry()
    options = {option.name: option.default for option in known.options(framework, model)}
    options.update({"dropout": 0.0, **changes.pop("options", {})})
    values: dict[str, Any] = {"precision": "fp32", "batch_size": 2, "seq_len": 16, **changes}
    values.setdefault("optimizer", Optimizer(lr=1e-3))
    pairs = tuple(sorted(options.items()))
    return Case(framework, model, Topology(1, ranks), options=pairs, **{"device": "cpu", **values})


@contextmanager
def opened(world: World, framework: str = "deepspeed", **changes: Any) -> Iterator[Any]:
    known, case = registry(), make_case(framework, world.size, **changes)
    session = known.backends[framework].open_session(case, world, known.workloads[case.model])
    yield session
    world.barrier()
    session.close()


def curve(session: Any, iterations: int) -> list[float]:
    session.open_window(iterations)
    session.mark()
    for _ in range(iterations):
        session.iterate()
        session.mark()
    losses: list[float] = session.losses()
    return losses


def curves_of(world: World, iterations: int, stages: tuple[int, ...], **changes: Any) -> Any:
    """Losses under DDP and under ZeRO's stages, with counts and whether parameters moved."""
    with opened(world, "ddp", **changes) as session:
        found: dict[str, Any] = {"ddp": curve(session, iterations)}
    options = changes.pop("options", {})
    for stage in stages:
        with opened(world, options={**options, "zero_stage": stage}, **changes) as session:
            before = session.fingerprint()
            losses = curve(session, iterations)
            moved = session.fingerprint() != before
            parameters = session.facts()["parameters"]
            found[f"zero {stage}"] = [losses, session.counts(), moved, parameters]
    return found


def plain(world: World) -> Any:
    return curves_of(world, 11, STAGES)


def accumulation(world: World) -> Any:
    """Two micro-batches for each step, and a learning rate that rises and falls."""
    rising = Schedule("polynomial", warmup=2, total=10, power=1.0)
    return curves_of(world, 9, STAGES, schedule=rising, accumulation=2)


def optimizers(world: World) -> Any:
    found = {}
    for name, stages in (("sgd", (2,)), ("adam", (1,)), ("lamb-deepspeed", (0,))):
        settings = Optimizer(name=name, lr=1e-3, bias_correction=False)
        found[name] = curves_of(world, 6, stages, optimizer=settings)
    return found


def half(world: World) -> Any:
    """bf16, in which DeepSpeed keeps parameters too."""
    found = {}
    for stage in STAGES:
        options = {"zero_stage": stage}
        with opened(world, precision="bf16", options=options, accumulation=2) as session:
            kinds = sorted({str(p.dtype) for p in session.module.parameters()})
            found[f"zero {stage}"] = [curve(session, 9), session.counts(), kinds]
    return found


def lamb_in_half(world: World) -> Any:
    """LAMB with bias correction in bf16: its curve beside DDP's, and the steps that it counted."""
    settings = Optimizer(name="lamb-deepspeed", lr=1e-3, bias_correction=True)
    changes: dict[str, Any] = {"precision": "bf16", "optimizer": settings}
    with opened(world, "ddp", **changes) as session:
        found: dict[str, Any] = {"ddp": curve(session, 5)}
    with opened(world, options={"zero_stage": 0}, **changes) as session:
        before = [group.get("steps") for group in session.optimizer.param_groups]
        found["zero 0"] = curve(session, 5)
        counted = [int(group["steps"]) for group in session.optimizer.param_groups]
    return {**found, "before": before, "counted": counted}


def refused(world: World) -> Any:
    """What each of these says; ``auto`` finds the CPU only when it looks."""
    found = {}
    file = Path(sys.argv[1]).with_name("wrong.json")
    if world.rank == 0:
        file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 64}))
    world.barrier()
    wrong: dict[str, dict[str, Any]] = {
        "fp16": {"precision": "fp16", "device": "auto"},
        "tf32": {"precision": "tf32"},
        "lamb": {"optimizer": Optimizer(name="lamb"), "options": {"zero_stage": 1}},
        "compile": {"options": {"zero_stage": 3}, "mode": "compile"},
        "file": {"options": {"deepspeed_config": str(file)}},
    }
    for name, changes in wrong.items():
        try:
            with opened(world, **changes):
                found[name] = "opened"
        except DlperfError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def users_own_file(world: World) -> Any:
    """Followed where the sweep says nothing."""
    file = Path(sys.argv[1]).with_name("own.json")
    if world.rank == 0:
        given = {"train_batch_size": "auto", "gradient_accumulation_steps": 1}
        own = {"stage": 2, "reduce_bucket_size": 12345, "overlap_comm": False}
        file.write_text(json.dumps({**given, "zero_optimization": own}))
    world.barrier()
    options = {"zero_stage": 2, "deepspeed_config": str(file)}
    with opened(world, options=options) as session:
        losses = curve(session, 2)
        told = json.loads(session.facts()["deepspeed_json"])
        return {"bucket": session.engine.zero_reduce_bucket_size(), "told": told, "losses": losses}


def a_window(world: World) -> Any:
    found = {}
    for stage in (0, 3):
        options = {"dropout": 0.1, "zero_stage": stage}
        with opened(world, accumulation=2, options=options) as session:
            estimate = warm_up(session, 3, lambda: None)
            timed = measure_window(session, world, 5, lambda: None)
            again = measure_window(session, world, 4, lambda: None)
            rows = {"timed": vars(timed), "again": vars(again), "facts": session.facts()}
            rows["communication"] = communication(world, session, type(session).fingerprint)
            found[f"zero {stage}"] = {**rows, "estimate": estimate}
    return found


def checkpoints(world: World) -> Any:
    """Four iterations, save, four more; a new session goes on from there. Dropout is on."""
    found: dict[str, Any] = {}
    for stage in (0, 1):
        changes: dict[str, Any] = {"accumulation": 2, "optimizer": Optimizer(lr=1e-3)}
        changes["options"] = {"zero_stage": stage, "dropout": 0.1}
        directory = Path(sys.argv[1]).with_name(f"checkpoint-{stage}")
        with opened(world, **changes) as session:
            curve(session, 4)
            session.save(directory)
            on = curve(session, 4)
        with opened(world, **changes) as session:
            first = curve(session, 4)
            session.load(directory)
            found[f"zero {stage}"] = {"first": first, "on": on, "again": curve(session, 4)}
    return found


def activation_checkpointing(world: World) -> Any:
    found = {}
    for stage in (0, 3):
        for again in (False, True):
            options = {"zero_stage": stage, "checkpoint_activations": again, "dropout": 0.1}
            with opened(world, model="gpt2-tiny", options=options) as session:
                found[f"zero {stage}, {again}"] = curve(session, 4)
    return found


def compiled(world: World) -> Any:
    """Dynamo and autograd's own compiler; no C++ compiler, to be quick."""
    import torch

    graphs: list[Any] = []

    def backend(module: Any, inputs: Any, **options: Any) -> Any:
        from torch._dynamo.backends.registry import lookup_backend

        graphs.append(module)
        return lookup_backend("aot_eager")(module, inputs, **options)

    def compile_(module: Any, **_: Any) -> None:
        real(module, backend=backend)

    real = torch.nn.Module.compile
    found: dict[str, Any] = {}
    for stage in (0, 2):
        torch.compiler.reset()
        options = {"zero_stage": stage}
        patched = mock.patch.object(torch.nn.Module, "compile", compile_)
        with patched, opened(world, options=options, mode="compile") as session:
            found[f"zero {stage}"] = curve(session, 4)
        found[f"graphs {stage}"] = len(graphs)
        graphs.clear()
    return found


CHECKS: tuple[Callable[[World], Any], ...] = (
    plain,
    accumulation,
    optimizers,
    half,
    lamb_in_half,
    refused,
    users_own_file,
    a_window,
    checkpoints,
    activation_checkpointing,
    compiled,
)

if __name__ == "__main__":
    # A large embedding is most of a tiny model's time on CPUs.
    bert.SIZES["bert-tiny"] = replace(bert.SIZES["bert-tiny"], vocab=1024)
    gpt2.SIZES["gpt2-tiny"] = replace(gpt2.SIZES["gpt2-tiny"], vocab=1024)
    here = discover()
    asked = [check for check in CHECKS if check.__name__ in sys.argv[2:]] or CHECKS
    results = {check.__name__: here.gather(check(here)) for check in asked}
    if here.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
