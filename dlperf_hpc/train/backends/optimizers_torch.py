"""The optimizers of a sweep in PyTorch. Imports torch: never loaded on the login node."""

from __future__ import annotations

import torch

from dlperf_hpc.spec.case import Optimizer


def build_optimizer(settings: Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Fused, with no weight decay on biases and LayerNorm, as BERT's own recipe has it."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.beta1, fused=True)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.name]
    betas = (settings.beta1, settings.beta2)
    optimizer: torch.optim.Optimizer = kind(
        groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True
    )
    return optimizer
