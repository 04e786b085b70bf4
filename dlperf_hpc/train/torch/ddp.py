"""The DDP back end's session. Imports torch: never loaded on the login node."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from dlperf_hpc.model.case import MODES, Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.torch.optimizers import build_optimizer
from dlperf_hpc.train.torch.session import TorchSession, join

_PLACED = "with optimizer_placement the ranks exchange their shares of the parameters in each step"
_NEVER = 2**31 - 1  # iterations
TUNED = MODES[2]
_HOPPER = (9, 0)


class DdpSession(TorchSession):
    """Model, data and optimizer of one rank; see :class:`dlperf_hpc.train.session.Session`."""

    def __init__(self, case: Case, world: World, workload: WorkloadDeclaration) -> None:
        super().__init__(case, world, workload)
        join(world, self.device)
        self.model = self.wrapped(
            self.module if case.mode == MODES[0] else compiled(self.module, case, world.size)
        )
        # A sweep of an earlier version has no such option.
        placed = dict(case.options).get("optimizer_placement", False)
        build: Callable[..., torch.optim.Optimizer] = build_optimizer
        self.meets_without_all_reduce = ""
        if placed:
            from dlperf_hpc.train.torch.placement import place_optimizer as build

            self.meets_without_all_reduce = _PLACED
        self.optimizer = build(case.optimizer, self.module)
        self.open_window(0)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """As for every back end; in mode ``tuned`` with attention kernels in their order."""
        tuned = self.case.mode == TUNED
        with super().autocast(), attention_kernels(self.device) if tuned else nullcontext():
            yield

    def wrapped(self, module: Any) -> Any:
        """The model in DDP; a single rank's without it where the case asks for that."""
        # A sweep of an earlier version has no such option.
        alone = dict(self.case.options).get("one_rank") == "plain"
        if alone and self.world.size == 1:
            return module
        model = DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.case.option("bucket_mb"),
            gradient_as_bucket_view=True,
        )
        keep_from_waiting(model)
        return model

    def reduction(self, last: bool) -> AbstractContextManager[None]:
        """DDP averages in the backward pass; a model without it has nothing to leave out."""
        found: AbstractContextManager[None] = nullcontext()
        if not (last and self._reducing):
            found = getattr(self.model, "no_sync", nullcontext)()
        return found

    def set_all_reduce(self, on: bool) -> bool:
        """DDP's ``no_sync``, also around the micro-batch that ends an accumulation."""
        self._reducing = on
        return True

    def gradient_buckets(self) -> list[int]:
        """DDP's own, rebuilt after the first iteration; the whole where torch does not say them."""
        data: dict[str, Any] = getattr(
            self.model, "_get_ddp_logging_data", dict
        )()  # torch's own: it may go
        text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes")
        return list(map(int, text.split(","))) if text else [4 * self.parameters]


def compiled(module: torch.nn.Module, case: Case, ranks: int) -> Any:
    """What DDP is to wrap in modes ``compile`` and ``tuned``: on one rank one graph of the whole
    model; on several a graph of each layer, and one of the loss with its head. A layer's gradients
    are then reduced as soon as its graph has ended: the cuts that DDPOptimizer makes at DDP's
    buckets, in the middle of layers, are not needed and switched off. Where activations are
    computed twice, it is layers on one rank, too: of a whole model TorchDynamo keeps ``checkpoint``
    as an operator with a graph inside, which older versions refuse."""
    torch._dynamo.config.optimize_ddp = False
    options: dict[str, Any] = {}
    if case.mode == TUNED:
        options = compiler_options(next(module.parameters()).device)
        if case.precision == "bf16":
            narrow_stream(module)
    layers = getattr(module, "layers", None)
    again = dict(case.options).get("checkpoint_activations")
    if layers is None or (ranks == 1 and not again):
        return torch.compile(module, **options)
    for layer in layers:
        layer.compile(**options)
    head = getattr(module, "loss_of", None)
    if head is not None:
        module.loss_of = torch.compile(head, **options)  # type: ignore[assignment]
    return module


def attention_kernels(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, ``scaled_dot_product_attention`` takes the first kernel of an order that can do what
    is asked: cuDNN's before flash on Hopper and later, flash before cuDNN's elsewhere, then
    efficient, and math, which can do everything. PyTorch before 2.6 keeps its own order."""
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER:
        order.reverse()
    order += [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    ordered = "set_priority" in inspect.signature(sdpa_kernel).parameters
    found: AbstractContextManager[Any] = sdpa_kernel(
        order, **({"set_priority": True} if ordered else {})
    )
    return found


def narrow_stream(module: nn.Module) -> None:
    """Round to bf16 what flows between layers: what LayerNorms and dropouts give, and what the
    first layer gets of a model without them. Weights stay fp32."""
    for part in module.modules():
        if isinstance(part, (nn.LayerNorm, nn.Dropout)):
            part.register_forward_hook(_in_bf16)
    for layer in list(getattr(module, "layers", ()))[:1]:
        layer.register_forward_pre_hook(_from_bf16)


def _in_bf16(_: nn.Module, given: Any, out: torch.Tensor) -> torch.Tensor:
    return out.to(torch.bfloat16)


def _from_bf16(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return (given[0].to(torch.bfloat16), *given[1:])


def compiler_options(device: torch.device) -> dict[str, Any]:
    """What torch.compile is given besides the model: a GPU's kernels are chosen by trying them."""
    return {"mode": "max-autotune-no-cudagraphs"} if device.type == "cuda" else {}


def keep_from_waiting(model: DistributedDataParallel) -> None:
    """Keep DDP's own logger out of the window: at every 100th iteration with an all-reduce it asks
    the device for times, and waits for them. The first ten it always looks at."""
    lower = getattr(model, "_set_ddp_runtime_logging_sample_rate", None)
    if lower is not None:  # it is torch's own and may go
        lower(_NEVER)
