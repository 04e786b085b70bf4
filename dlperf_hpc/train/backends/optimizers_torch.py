"""The optimizers of a sweep in PyTorch. Imports torch: never loaded on the login node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

import torch

from dlperf_hpc.errors import RunError
from dlperf_hpc.spec.case import Case, Optimizer
from dlperf_hpc.train.backends.lamb_torch import Lamb
from dlperf_hpc.train.schedules import learning_rate

# So late a step that both of Adam's bias corrections are 1 in double precision (beta < 0.999995),
# and below 2^24, where a float32 counter stops.
_LATE = 8_000_000


class _Begun(torch.optim.Optimizer):
    """Mixed into one of torch's optimizers: the state of a parameter is there before torch's own
    code asks for it, so that it starts as :meth:`begin` says."""

    def begin(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """The state of a parameter before its first step."""
        raise NotImplementedError

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """As torch's, with its fused kernel."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter].update(self.begin(group, parameter))
        return super().step(closure)


class BegunSGD(_Begun, torch.optim.SGD):
    """SGD whose momentum starts at 0.

    torch's fused one leaves it uninitialised where the first step overflows and is skipped.
    """

    def begin(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """Nothing without momentum."""
        return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] else {}


class _Uncorrected(_Begun):
    """No bias correction, which torch's Adam has no switch for: its counter starts very late."""

    def begin(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """Moments of 0 at a late step."""
        return {
            "step": torch.full((), float(_LATE), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


class UncorrectedAdam(_Uncorrected, torch.optim.Adam):
    """Adam without bias correction, as DeepSpeed's with ``bias_correction: false``."""


class UncorrectedAdamW(_Uncorrected, torch.optim.AdamW):
    """AdamW without bias correction, as DeepSpeed's with ``bias_correction: false``."""


_ADAMS: dict[tuple[str, bool], type[torch.optim.Optimizer]] = {
    ("adam", True): torch.optim.Adam,
    ("adamw", True): torch.optim.AdamW,
    ("adam", False): UncorrectedAdam,
    ("adamw", False): UncorrectedAdamW,
}

Groups = Union[torch.nn.Module, Iterable[dict[str, Any]]]


def parameter_groups(settings: Optimizer, model: torch.nn.Module) -> list[dict[str, Any]]:
    """Two groups: matrices with weight decay; biases and LayerNorm, the 1-D, without.

    So every recipe of BERT and GPT-2 has it. Parameters without gradient are in neither.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def optimizer_kind(settings: Optimizer) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class of an optimizer and its arguments, for a library that makes it itself."""
    arguments: dict[str, Any] = {"lr": settings.lr}
    if settings.name == "sgd":
        return BegunSGD, {**arguments, "momentum": settings.beta1, "fused": True}
    arguments.update(betas=(settings.beta1, settings.beta2), eps=settings.eps)
    if settings.name in ("adam", "adamw"):
        largest = max(settings.beta1, settings.beta2)
        if not settings.bias_correction and largest**_LATE > 1e-16:
            raise RunError(
                f"{settings.name} without bias correction takes betas below 0.999995 in PyTorch,"
                f" not {largest}: lower it, or set optimizer.bias_correction = true"
            )
        return _ADAMS[settings.name, settings.bias_correction], {**arguments, "fused": True}
    arguments.update(
        variant=settings.name,
        bias_correction=settings.bias_correction,
        min_coeff=settings.min_coeff,
        max_coeff=settings.max_coeff,
    )
    return Lamb, arguments


def build_optimizer(settings: Optimizer, model: Groups) -> torch.optim.Optimizer:
    """The optimizer of a case over a model (or over groups such as :func:`parameter_groups`).

    None of them waits for the device, nor clips: ``settings.grad_clip`` is the session's to do.
    """
    groups = parameter_groups(settings, model) if isinstance(model, torch.nn.Module) else model
    kind, arguments = optimizer_kind(settings)
    return kind(list(groups), **arguments)


def set_lr(optimizer: torch.optim.Optimizer, case: Case, step: int) -> None:
    """Give all groups the learning rate of the case's schedule before its update ``step``, from 0.

    A Python number, handed to the kernels as an argument: nothing waits for the device.
    """
    rate = learning_rate(case.optimizer.lr, case.schedule, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
