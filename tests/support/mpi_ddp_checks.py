"""Checks of the DDP back end under real MPI: ``mpiexec -n 2 python -m mpi4py mpi_ddp_checks.py``.

Each check is a function of this rank's world; rank 0 writes what every rank found as one JSON
object, ``{check: [rank 0's, rank 1's]}``, and ``test_ddp.py`` judges it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from session_checks import communication

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import Case, Measure, Optimizer, Topology
from dlperf_hpc.train.measurement import measure_communication, measure_window, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.torch.device import observed_fp32

BATCH = 2
SGD = Optimizer(name="sgd", lr=0.1, beta1=0.0, weight_decay=0.0, grad_clip=0.0)
Tensors = dict[str, torch.Tensor]


def make_case(ranks: int, **changes: Any) -> Case:
    options = {"layer_norm": "post", "dropout": 0.0, "bucket_mb": 25}
    options.update(changes.pop("options", {}))
    values: dict[str, Any] = {"precision": "fp32", "batch_size": BATCH, "seq_len": 16, **changes}
    pairs = tuple(sorted(options.items()))
    return Case("ddp", "bert-tiny", Topology(1, ranks), options=pairs, device="cpu", **values)


@contextmanager
def opened(world: World, **changes: Any) -> Iterator[DdpSession]:
    case = make_case(world.size, **changes)
    session = DdpSession(case, world, registry().workloads[case.model])
    yield session
    world.barrier()
    session.close()


def digest(tensors: Any) -> str:
    together = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return hashlib.sha256(together.numpy().tobytes()).hexdigest()


def gradients_at_steps(session: DdpSession) -> list[list[torch.Tensor]]:
    """Filled with a copy of all gradients whenever the optimizer is about to step."""
    seen: list[list[torch.Tensor]] = []

    def note(*_: Any) -> None:
        seen.append([p.grad.clone() for p in session.module.parameters() if p.grad is not None])

    session.optimizer.register_step_pre_hook(note)
    return seen


def largest(a: Any, b: Any) -> float:
    with torch.no_grad():
        return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def equal_parameters(world: World) -> dict[str, Any]:
    with opened(world, options={"dropout": 0.1}) as session:
        before, first = digest(session.module.parameters()), session.fingerprint()
        session.open_window(3)
        session.mark()
        for _ in range(3):
            session.iterate()
            session.mark()
        after = digest(session.module.parameters())
        moved = session.fingerprint() != first
        return {"before": before, "after": after, "moved": moved, "losses": session.losses()}


def accumulation_is_a_larger_batch(world: World) -> dict[str, Any]:
    def samples(first: int, last: int) -> Tensors:
        return {name: tensor[first:last] for name, tensor in large.items()}

    with opened(world, optimizer=SGD, batch_size=2 * BATCH) as whole:
        large, whole_gradients = whole.batch, gradients_at_steps(whole)
        whole.iterate()
        whole_parameters = [p.detach().clone() for p in whole.module.parameters()]
    with opened(world, optimizer=SGD, accumulation=2) as parts:
        part_gradients = gradients_at_steps(parts)
        for micro in range(2):
            parts.batch = samples(micro * BATCH, (micro + 1) * BATCH)
            parts.iterate()
        return {
            "steps": [len(whole_gradients), len(part_gradients)],
            "gradients": largest(whole_gradients[0], part_gradients[0]),
            "parameters": largest(whole_parameters, parts.module.parameters()),
            "size": max(float(g.abs().max()) for g in whole_gradients[0]),
        }


def gradients_meet_at_the_boundary(world: World) -> dict[str, Any]:
    with opened(world, accumulation=3) as session:
        at_step, micro = gradients_at_steps(session), []
        for _ in range(2):
            session.iterate()
            micro.append(digest(p.grad for p in session.module.parameters() if p.grad is not None))
        session.iterate()
        dropped = all(p.grad is None for p in session.module.parameters())
        return {"micro": micro, "step": [digest(g) for g in at_step], "dropped": dropped}


def _plain_step(model: torch.nn.Module, optimizer: Any, batch: Tensors, clip: float) -> None:
    optimizer.zero_grad()
    model(**batch).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.sqrt(sum(((g.double() ** 2).sum() for g in gradients), torch.tensor(0.0)))
    if clip and norm > clip:
        for gradient in gradients:
            gradient.mul_(float(clip / norm))
    optimizer.step()


def _plain_optimizer(settings: Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
    groups = [
        {"params": [p], "weight_decay": settings.weight_decay if p.ndim == 2 else 0.0}
        for p in model.parameters()
    ]
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.beta1, foreach=False)
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    betas = (settings.beta1, settings.beta2)
    return kind(groups, lr=settings.lr, betas=betas, eps=settings.eps, foreach=False)


def optimizers_are_plain_torch(world: World) -> dict[str, Any]:
    """Each rank alone, against the loop one would write by hand."""
    from mpi4py import MPI

    alone, found = World(0, ("here",), MPI.COMM_SELF), {}
    for name in ("adam", "adamw", "sgd"):
        # A large eps and decay: rounding is not blown up by Adam, a wrong decay group would show.
        settings = Optimizer(name=name, lr=1e-2, weight_decay=0.1, eps=1e-3, grad_clip=0.5)
        with opened(alone, optimizer=settings) as session:
            torch.manual_seed(session.case.seed)
            declared = registry().workloads["bert-tiny"]
            model, batch = declared.build("torch", session.case), declared.batch(session.case, 0)
            start = [p.detach().clone() for p in model.parameters()]
            optimizer = _plain_optimizer(settings, model)
            tensors = {key: torch.as_tensor(array) for key, array in batch.items()}
            for _ in range(3):
                session.iterate()
                _plain_step(model, optimizer, tensors, settings.grad_clip)
            trained = list(session.module.parameters())
            found[name] = [largest(trained, model.parameters()), largest(trained, start)]
    return found


def note_kinds_of_products(model: torch.nn.Module) -> set[str]:
    """Fills with the types that linear layers give."""
    kinds: set[str] = set()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _module, _input, out: kinds.add(str(out.dtype)))
    return kinds


def autocast_computes_in_half(world: World) -> dict[str, Any]:
    found = {}
    for precision in ("fp32", "bf16", "fp16"):
        with opened(world, precision=precision) as session:
            kinds = note_kinds_of_products(session.module)
            session.open_window(3)
            session.mark()
            for _ in range(3):
                session.iterate()
                session.mark()
            weights = {str(p.dtype) for p in session.module.parameters()}
            found[precision] = [sorted(kinds), sorted(weights), session.losses(), session.counts()]
    return found


def overflowing_steps_are_counted(world: World) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for clip in (0.0, 1.0):
        with opened(world, precision="fp16", optimizer=Optimizer(grad_clip=clip)) as session:
            before, rows = session.fingerprint(), []
            for steps in (1, 4):
                # So large that gradients overflow; after one overflow small enough for all.
                session.scaler = torch.amp.GradScaler(
                    "cpu", init_scale=2.0**120, backoff_factor=2.0**-110
                )
                session.open_window(steps)
                for _ in range(steps):
                    session.iterate()
                rows.append([*session.counts(), session.fingerprint() != before])
            found[f"clip {clip:g}"] = rows
    return found


def tf32_is_refused(world: World) -> dict[str, Any]:
    try:
        with opened(world, precision="tf32"):
            return {"error": ""}
    except DeviceError as error:
        return {"error": str(error)}


def compiled_trains_alike(world: World) -> dict[str, Any]:
    """Dynamo and autograd's own compiler, layer by layer; no C++ compiler, to be quick."""
    from torch._dynamo.backends.registry import lookup_backend
    from torch.nn.functional import scaled_dot_product_attention

    graphs: list[Any] = []

    def backend(module: Any, inputs: Any, **options: Any) -> Any:
        graphs.append(module)
        return lookup_backend("aot_eager")(module, inputs, **options)

    def compile_(model: Any) -> Any:
        return real(model, backend=backend)

    real = torch.compile
    changes: dict[str, Any] = {"accumulation": 2, "options": {"bucket_mb": 1}}
    parameters, layers = [], []
    for mode in ("compile", "eager"):
        with mock.patch("torch.compile", compile_), opened(world, mode=mode, **changes) as it:
            for _ in range(4):
                it.iterate()
            parameters.append([p.detach().clone() for p in it.module.parameters()])
            blocks: Any = it.module.layers
            layers.append([each._compiled_call_impl is not None for each in blocks])
    apart = largest(*parameters)
    attentions = [
        sum(node.target is scaled_dot_product_attention for node in made.graph.nodes)
        for made in graphs
    ]
    found = {"attentions": attentions, "layers": layers, "apart": apart}
    return {**found, "after": digest(parameters[0])}


def without_all_reduce_one_fails(world: World) -> list[str]:
    """Why nothing is measured shortly before the time limit, and where a rank has no room for
    gradients of its own."""
    with opened(world) as session:
        # DDP's second iteration is the last in which ranks wait for each other in any case.
        timed = measure_window(session, world, 2, lambda: None)
        iterate = session.iterate

        def failing() -> None:
            if world.rank == 1 and not session._reducing:
                raise MemoryError("no room")
            iterate()

        session.iterate = failing  # type: ignore[method-assign]
        timed = replace(timed, optimizer_steps=100)
        given = (session, world, Measure(warmup=0), 1, timed, lambda: None)
        return [measure_communication(*given, left_s=s).reason for s in (5.0, 1e6)]


def a_window(world: World) -> dict[str, Any]:
    with opened(world, accumulation=2, options={"dropout": 0.1}) as session:
        estimate = warm_up(session, 3, lambda: None)
        timed = measure_window(session, world, 5, lambda: None)
        again = measure_window(session, world, 4, lambda: None)
        return {
            "estimate": estimate,
            "timed": vars(timed),
            "again": vars(again),
            "facts": session.facts(),
            "fp32": observed_fp32(session.device),
            "communication": communication(
                world, session, lambda it: digest(it.module.parameters())
            ),
        }


CHECKS: tuple[Callable[[World], Any], ...] = (
    equal_parameters,
    accumulation_is_a_larger_batch,
    gradients_meet_at_the_boundary,
    optimizers_are_plain_torch,
    autocast_computes_in_half,
    overflowing_steps_are_counted,
    tf32_is_refused,
    compiled_trains_alike,
    without_all_reduce_one_fails,
    a_window,
)

if __name__ == "__main__":
    here = discover()
    results = {check.__name__: here.gather(check(here)) for check in CHECKS}
    if here.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
