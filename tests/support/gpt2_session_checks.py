"""GPT-2 tiny through the DDP back end on one rank: ``python gpt2_session_checks.py``.

Prints what each check found as one JSON object, which ``test_gpt2.py`` judges: MPI, as it is
started here, stays out of the tests' own process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from dlperf_hpc.model.case import Case, Optimizer, Topology
from dlperf_hpc.train.measurement import measure_window, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.workloads import bert, gpt2


@contextmanager
def opened(
    world: World,
    precision: str = "fp32",
    mode: str = "eager",
    model: str = "gpt2-tiny",
    **options: Any,
) -> Iterator[DdpSession]:
    known = registry()
    values = {option.name: option.default_in(mode) for option in known.options("ddp", model)}
    case = Case(
        framework="ddp",
        model=model,
        topology=Topology(1, 1),
        precision=precision,
        batch_size=2,
        seq_len=8,
        accumulation=2,
        optimizer=Optimizer(lr=1e-3),
        device="cpu",
        mode=mode,
        options=tuple(sorted({**values, **options}.items())),
    )
    session = DdpSession(case, world, known.workloads[case.model])
    yield session
    session.close()


def asked_of(session: DdpSession) -> dict[str, Any]:
    return {"parameters": session.parameters, "model": type(session.model).__name__}


def window(world: World, precision: str, **options: Any) -> dict[str, Any]:
    with opened(world, precision, **options) as session:
        warm_up(session, 1, lambda: None)
        timed = measure_window(session, world, 5, lambda: None)
        return {**vars(timed), **asked_of(session)}


@contextmanager
def quick_compiler() -> Iterator[None]:
    """Dynamo and autograd's own compiler; no C++ compiler."""
    from torch._dynamo.backends.registry import lookup_backend

    torch.compiler.reset()
    real, backend = torch.compile, lookup_backend("aot_eager")
    with mock.patch("torch.compile", lambda model: real(model, backend=backend)):
        yield


def compiled_losses(world: World) -> list[float]:
    """Layer by layer."""
    with quick_compiler():
        found = window(world, "fp32", mode="compile", checkpoint_activations=True, dropout=0.0)
    losses: list[float] = found["losses"]
    return losses


def tuned(world: World) -> dict[str, Any]:
    """Losses in modes eager and tuned, by model and precision."""
    found = {}
    for model in ("bert-tiny", "gpt2-tiny"):
        for precision in ("fp32", "bf16"):
            asked: dict[str, Any] = {"model": model, "dropout": 0.0}
            eager = window(world, precision, **asked)
            with quick_compiler():
                other = window(world, precision, mode="tuned", **asked)
            found[f"{model} {precision}"] = [eager["losses"], other["losses"]]
    return found


def executions(world: World) -> dict[str, Any]:
    """What a window tells of how the model was run: with dropout and without; compiled, then with
    samples of another shape; and with a layer that cannot be one graph."""

    def told(session: DdpSession) -> dict[str, Any]:
        return dict(measure_window(session, world, 2, lambda: None).execution)

    def breaking(x: torch.Tensor, **_: Any) -> torch.Tensor:
        torch._dynamo.graph_break()
        return torch.tanh(x)

    found = {}
    for dropout in (0.1, 0.0):
        with opened(world, dropout=dropout) as session:
            warm_up(session, 4, lambda: None)
            found[f"dropout {dropout}"] = told(session)
    asked: dict[str, Any] = {"mode": "compile", "checkpoint_activations": True, "dropout": 0.0}
    with quick_compiler(), opened(world, **asked) as session:
        warm_up(session, 4, lambda: None)
        found["compiled"] = told(session)
        session.batch = {name: tensor[:, :5] for name, tensor in session.batch.items()}
        found["another shape"] = told(session)
    asked["checkpoint_activations"] = False
    with (
        quick_compiler(),
        mock.patch("torch.nn.functional.gelu", breaking),
        opened(world, **asked) as session,
    ):
        warm_up(session, 4, lambda: None)
        found["broken"] = told(session)
    return found


if __name__ == "__main__":
    here = discover()
    results: dict[str, Any] = {
        precision: window(here, precision) for precision in ("fp32", "bf16", "fp16")
    }
    results["checkpointed"] = window(here, "fp32", checkpoint_activations=True)
    # What follows is compared with itself: a large vocabulary would only take the time.
    bert.SIZES["bert-tiny"] = replace(bert.SIZES["bert-tiny"], vocab=1024)
    gpt2.SIZES["gpt2-tiny"] = replace(gpt2.SIZES["gpt2-tiny"], vocab=1024)
    results["with DDP"] = window(here, "fp32", dropout=0.0)
    results["without DDP"] = window(here, "fp32", dropout=0.0, one_rank="plain")
    results["compiled, checkpointed"] = compiled_losses(here)
    results["tuned"] = tuned(here)
    results["executions"] = executions(here)
    print(json.dumps(results))
