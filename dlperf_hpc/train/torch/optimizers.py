"""The optimizers of a sweep in PyTorch: torch's own where they compute what is needed, LAMB in
three variants. Imports torch: never loaded on the login node.

LAMB, with g the gradient of a parameter w, b1 and b2 the betas, t the number of this step from 1:

    m = b1 m + (1 - b1) g         v = b2 v + (1 - b2) g^2
    r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w
    w = w - lr (||w|| / ||r||) r

- ``lamb``: the formula above, the paper's with phi(z) = z (You et al. 2020, arXiv:1904.00962,
  algorithm 2), for every parameter. The trust ratio ||w|| / ||r|| is 1 where a norm is 0.
- ``lamb-nvidia``: the trust ratio is 1 for parameters without weight decay (biases, LayerNorm), as
  in apex's FusedLAMB and in NVIDIA's TensorFlow BERT. These also divide gradients by max(1, global
  norm / grad_clip); here the session clips, for every optimizer alike.
- ``lamb-deepspeed``: the trust ratio is held between ``min_coeff`` and ``max_coeff``; bias
  correction acts on the whole step, r = m / (sqrt(v) + eps) + decay w and
  lr sqrt(1 - b2^t) / (1 - b1^t) in place of lr (DeepSpeed's ``fused_lamb_cuda_kernel.cu``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

import torch
from torch import Tensor

from dlperf_hpc.errors import RunError
from dlperf_hpc.model.case import Case, Optimizer
from dlperf_hpc.train.schedules import learning_rate

Groups = Union[torch.nn.Module, Iterable[dict[str, Any]]]
# So late a step that both of Adam's bias corrections are 1 in double precision (beta < 0.999995),
# and below 2^24, where a float32 counter stops.
_LATE = 8_000_000
_LAMB: dict[str, Any] = {
    **{"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0},
    **{"bias_correction": True, "variant": "lamb", "min_coeff": 0.01, "max_coeff": 10.0},
}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Lamb(torch.optim.Optimizer):
    """LAMB over all parameters at a time (foreach kernels), without waiting for the device.
    Everything that steers it stands in ``param_groups``, so that libraries which make an optimizer
    of their own from those (Horovod, DeepSpeed) keep it."""

    # GradScaler then hands over ``grad_scale`` and ``found_inf`` as tensors and does not wait.
    _step_supports_amp_scaling = True

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, {**_LAMB, **settings})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient; nothing where ``found_inf`` is set.
        No session has a ``closure``, which would compute the loss anew."""
        scale: Tensor | None = getattr(self, "grad_scale", None)
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                gradients: list[Tensor] = [p.grad for p in parameters]
                if scale is not None:
                    torch._foreach_div_(gradients, scale)
                self._update(group, parameters, gradients, found_inf)

    def _update(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        gradients: list[Tensor],
        found_inf: Tensor | None,
    ) -> None:
        averages, squares = self._moments(parameters)
        keep: Tensor | float = 1.0
        if found_inf is not None:
            keep = (found_inf == 0).to(torch.float64).reshape(())
            _erase(gradients, keep)
        beta1, beta2 = group["betas"]
        _blend(averages, beta1, keep)
        torch._foreach_add_(averages, gradients, alpha=1.0 - beta1)
        _blend(squares, beta2, keep)
        torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
        steps = _counter(group, parameters[0])
        steps += keep
        updates, factor = _directions(group, steps, parameters, averages, squares)
        rate = -group["lr"] * keep * factor
        _apply(group, parameters, updates, rate.to(updates[0].dtype))

    def _moments(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states):
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        return [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]


def _counter(group: dict[str, Any], like: Tensor) -> Tensor:
    """A group's step counter: on the device, since a skipped step is not known elsewhere; double,
    since 1 - beta2^t of the first steps would lose half its digits."""
    steps: Tensor = group.get("steps", torch.zeros((), dtype=torch.float64))
    # What a checkpoint has brought back is in host memory: torch moves the states, not the groups.
    group["steps"] = steps = steps.to(like.device)
    return steps


def forget_steps(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer begin anew: the states of its parameters, and LAMB's step counters."""
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group.pop("steps", None)


def _erase(gradients: list[Tensor], keep: Tensor) -> None:
    """Make gradients 0 where ``keep`` is 0, by their bits: 0 x inf is NaN."""
    bits = [g.view(_BITS[g.element_size()]) for g in gradients]
    torch._foreach_mul_(bits, keep.to(bits[0].dtype))


def _blend(moments: list[Tensor], beta: float, keep: Tensor | float) -> None:
    """Multiply by beta, or by 1 where the step is skipped."""
    factor: Any = beta
    if isinstance(keep, Tensor):
        factor = (1.0 - (1.0 - beta) * keep).to(moments[0].dtype)
    torch._foreach_mul_(moments, factor)


def _directions(
    group: dict[str, Any],
    steps: Tensor,
    parameters: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
) -> tuple[list[Tensor], Tensor]:
    """r of each parameter, and what bias correction makes of lr (of ``lamb-deepspeed`` alone)."""
    beta1, beta2 = group["betas"]
    deepspeed = group["variant"] == "lamb-deepspeed"
    root = correction = one = torch.ones_like(steps)
    if group["bias_correction"]:
        # 1 before the first step that is kept: 0 would make 0 / 0 of one that is skipped.
        done = steps.clamp(min=1.0)
        root = torch.sqrt(1.0 - beta2**done)
        correction = root / (1.0 - beta1**done)
    # m / c1 / (sqrt(v / c2) + eps) is (sqrt(c2) / c1) m / (sqrt(v) + eps sqrt(c2)).
    eps = group["eps"] * (one if deepspeed else root)
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_add_(denominators, eps.to(squares[0].dtype))
    updates = list(torch._foreach_div(averages, denominators))
    if not deepspeed:
        torch._foreach_mul_(updates, correction.to(updates[0].dtype))
    if group["weight_decay"]:
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
    return updates, correction if deepspeed else one


def _apply(
    group: dict[str, Any], parameters: list[Tensor], updates: list[Tensor], rate: Tensor
) -> None:
    """w = w + rate x trust ratio x update, in place."""
    variant = group["variant"]
    if variant == "lamb-nvidia" and not group["weight_decay"]:
        torch._foreach_mul_(updates, rate)
        torch._foreach_add_(parameters, updates)
        return
    weights = torch.stack(torch._foreach_norm(parameters))
    norms = torch.stack(torch._foreach_norm(updates))
    ratios = weights / norms
    if variant == "lamb-deepspeed":
        ratios = ratios.clamp(group["min_coeff"], group["max_coeff"])
    ratios = torch.where((weights > 0) & (norms > 0), ratios, 1.0) * rate
    torch._foreach_addcmul_(parameters, updates, list(ratios.unbind()))


class _Prepared(torch.optim.Optimizer):
    """Mixed into one of torch's optimizers: the state of a parameter is there before torch's own
    code asks for it, so that it starts as :meth:`begin` says."""

    def begin(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """The state of a parameter before its first step."""
        raise NotImplementedError

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Make the missing states, then take torch's own step with its fused kernel."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter].update(self.begin(group, parameter))
        return super().step(closure)


class PreparedSGD(_Prepared, torch.optim.SGD):
    """SGD whose momentum starts at 0; torch's fused one leaves it open where a step is skipped."""

    def begin(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """Nothing without momentum."""
        return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] else {}


class _Uncorrected(_Prepared):
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


def parameter_groups(settings: Optimizer, model: torch.nn.Module) -> list[dict[str, Any]]:
    """Two groups: matrices and convolutions with weight decay; biases and norms, the 1-D, without.
    So every recipe of BERT and GPT-2 has it, and NVIDIA's of ResNet. Parameters without gradient
    are in neither."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def optimizer_kind(settings: Optimizer) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class of an optimizer and its arguments, for a library that makes it itself."""
    arguments: dict[str, Any] = {"lr": settings.lr}
    if settings.name == "sgd":
        return PreparedSGD, {**arguments, "momentum": settings.beta1, "fused": True}
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
    """The optimizer of a case over a model (or over groups such as :func:`parameter_groups`). None
    of them waits for the device, nor clips: ``settings.grad_clip`` is the session's to do."""
    groups = parameter_groups(settings, model) if isinstance(model, torch.nn.Module) else model
    kind, arguments = optimizer_kind(settings)
    return kind(list(groups), **arguments)


def pass_scaling_on(own: torch.optim.Optimizer, remade: torch.optim.Optimizer) -> None:
    """Let ``remade``, an optimizer of a library's own over the groups, take a GradScaler's tensors
    where ``own`` does: it loses torch's mark, and the scaler would wait in every step."""
    if getattr(own, "_step_supports_amp_scaling", False):
        remade._step_supports_amp_scaling = True  # type: ignore[attr-defined]


def set_lr(optimizer: torch.optim.Optimizer, case: Case, step: int) -> None:
    """Give all groups the rate of the update ``step``, from 0: a number, no wait for the device."""
    rate = learning_rate(case.optimizer.lr, case.schedule, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
