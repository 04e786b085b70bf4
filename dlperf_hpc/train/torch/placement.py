"""Optimizer placement, in a module of its own: a rank without it need not import
``torch.distributed.optim``, which takes nearly as long as torch.

It is ZeRO's first stage (Rajbhandari et al. 2020, arXiv:1910.02054) as PyTorch has
it: each rank keeps the optimizer state of some whole parameters, updates these, and sends them to
all other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from dlperf_hpc.model.case import Optimizer
from dlperf_hpc.train.torch.optimizers import optimizer_kind, parameter_groups


class PlacedOptimizer(ZeroRedundancyOptimizer):
    """ZeroRedundancyOptimizer that passes a GradScaler's tensors on to the rank's own optimizer.
    torch's own lets the scaler ask, after every step, whether it overflowed; that waits."""

    _step_supports_amp_scaling = True

    def step(self, closure: Callable[[], float] | None = None, **kwargs: Any) -> Any:
        """Update this rank's share, then give and get the others'."""
        for name in ("grad_scale", "found_inf"):
            setattr(self.optim, name, getattr(self, name, None))
        return super().step(closure, **kwargs)


def place_optimizer(settings: Optimizer, model: torch.nn.Module) -> PlacedOptimizer:
    """The optimizer of a case, its state split over the default process group."""
    kind, arguments = optimizer_kind(settings)
    return PlacedOptimizer(
        parameter_groups(settings, model), kind, parameters_as_bucket_view=True, **arguments
    )
