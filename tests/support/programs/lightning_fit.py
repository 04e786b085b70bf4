"""A program of the tests: a LightningModule and LightningCLI, as Lightning's own pages have them.

``lightning_fit.py fit --trainer.max_steps 40 --data.batch_size 4 ...``
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Toy(L.LightningModule):  # type: ignore[misc]
    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*parts, nn.Linear(width, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Numbers(L.LightningDataModule):  # type: ignore[misc]
    def __init__(self, batch_size: int = 4, width: int = 256) -> None:
        super().__init__()
        self.batch_size, self.width = batch_size, width

    def train_dataloader(self) -> Any:
        data = TensorDataset(torch.randn(32768, self.width))
        return DataLoader(data, self.batch_size, shuffle=True, drop_last=True)


if __name__ == "__main__":
    LightningCLI(Toy, Numbers)
