"""The training loop one would write by hand, in each framework: nothing of the wrapper's in it.

``BARE[framework](session, iterations)`` trains so many iterations with the model, optimizer and
batch of a session of that back end (fp32 or bf16, no accumulation), and gives nanoseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any


def _autocast(session: Any) -> contextlib.AbstractContextManager[Any]:
    import torch

    if session.case.precision == "bf16":
        return torch.autocast(session.device.type, torch.bfloat16)
    return contextlib.nullcontext()


def _synchronize(session: Any) -> None:
    import torch

    if session.device.type == "cuda":
        torch.cuda.synchronize(session.device)


def ddp(session: Any, iterations: int) -> int:
    """As PyTorch's own tutorial of DistributedDataParallel has it, with clipping."""
    from torch.nn.utils import clip_grad_norm_

    model, optimizer, batch = session.model, session.optimizer, session.batch
    parameters, clip = session.module.parameters, session.case.optimizer.grad_clip
    start = time.perf_counter_ns()
    for _ in range(iterations):
        with _autocast(session):
            loss = model(**batch)
        loss.backward()
        clip_grad_norm_(parameters(), clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    del loss  # and its graph: the wrapper's last one is gone by now too
    _synchronize(session)
    return time.perf_counter_ns() - start


def deepspeed(session: Any, iterations: int) -> int:
    """Forward, ``backward`` and ``step`` of the engine."""
    engine, batch = session.engine, session.batch
    start = time.perf_counter_ns()
    for _ in range(iterations):
        loss = engine(**batch)
        engine.backward(loss)
        engine.step()
    del loss
    _synchronize(session)
    return time.perf_counter_ns() - start


def horovod_torch(session: Any, iterations: int) -> int:
    """As Horovod's documentation has it for gradients that are clipped."""
    from torch.nn.utils import clip_grad_norm_

    model, optimizer, batch = session.model, session.optimizer, session.batch
    parameters, clip = session.module.parameters, session.case.optimizer.grad_clip
    start = time.perf_counter_ns()
    for _ in range(iterations):
        with _autocast(session):
            loss = model(**batch)
        loss.backward()
        optimizer.synchronize()
        clip_grad_norm_(parameters(), clip, foreach=True)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    del loss
    _synchronize(session)
    return time.perf_counter_ns() - start


def tensorflow(session: Any, iterations: int) -> int:
    """One call of the compiled step for each iteration, as a custom training loop has it."""
    step, inputs = session._last_step, session._inputs
    rate = session._learning_rate()
    start = time.perf_counter_ns()
    for _ in range(iterations):
        step(inputs, rate)
    session.synchronize()
    return time.perf_counter_ns() - start


BARE: dict[str, Callable[[Any, int], int]] = {
    "ddp": ddp,
    "deepspeed": deepspeed,
    "horovod-torch": horovod_torch,
    "tensorflow": tensorflow,
    "horovod-tensorflow": tensorflow,
}
