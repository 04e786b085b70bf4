"""ResNet v1.5 in PyTorch: the stride of a block stands in its 3 x 3 convolution.

Images come as the case's memory format has them, so that no forward pass rearranges them. Shapes:
B images, C channels, H x W points.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dlperf_hpc.model.case import Case
from dlperf_hpc.train.workloads.resnet50 import BlockSize, ResNetConfig


def build(config: ResNetConfig, case: Case) -> nn.Module:
    """A new model; its random numbers follow torch's seed. Its weights lie in the order of its
    images, but where a library takes weights or gradients in PyTorch's own order alone: Horovod,
    and what splits an optimizer's state. There each convolution rearranges its weight."""
    # cuDNN tries its algorithms in the first iterations, as programs that train ResNet let it.
    torch.backends.cudnn.benchmark = True
    model = ResNet(config)
    plain = case.framework == "horovod-torch" or dict(case.options).get("optimizer_placement")
    if config.channels_last and not plain:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and batch normalisation: [B, C, H, W] to [B, C', H', W']."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut: [B, C, H, W] to [B, C', H', W']."""

    def __init__(self, block: BlockSize) -> None:
        super().__init__()
        inner, outputs = block.inner, block.outputs
        self.reduce = _convolution(block.inputs, inner, 1)
        self.spatial = _convolution(inner, inner, 3, block.stride)
        self.expand = _convolution(inner, outputs, 1)
        self.shortcut: nn.Module = nn.Identity()
        if block.projects:
            self.shortcut = _convolution(block.inputs, outputs, 1, block.stride)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways, and what is above 0 of it."""
        hidden = F.relu(self.reduce(x), inplace=True)
        hidden = F.relu(self.spatial(hidden), inplace=True)
        return F.relu(self.expand(hidden) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """ResNet with its classifier; ``forward`` gives the loss to be minimised. A new model holds
    N(0, 2 / (k^2 x channels out)) in convolutions, 1 and 0 in batch normalisation, and torch's own
    initial values in the last layer, as transformers' does."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        blocks = list(config.blocks())
        self.stem = _convolution(3, config.width, 7, stride=2)
        self.layers = nn.ModuleList(map(Bottleneck, blocks))
        self.classifier = nn.Linear(blocks[-1].outputs, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of the classes, with label smoothing: a scalar, float32 always.
        ``images`` [B, H, W, 3], or [B, 3, H, W] without ``channels_last``; ``labels`` [B]."""
        return self.loss_of(self.features(images), labels)

    def features(self, images: Tensor) -> Tensor:
        """The last block's output [B, C, H / 32, W / 32]."""
        if self.config.channels_last:
            images = images.permute(0, 3, 1, 2)  # a view, which lies in memory as it came
        hidden = F.relu(self.stem(images), inplace=True)
        hidden = F.max_pool2d(hidden, kernel_size=3, stride=2, padding=1)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores [B, classes], of the mean over points of the last block's output."""
        found: Tensor = self.classifier(hidden.mean(dim=(2, 3)))
        return found

    def loss_of(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The loss of the last block's output; a part that is compiled by itself."""
        smoothing = self.config.label_smoothing
        return F.cross_entropy(self.scores(hidden).float(), labels, label_smoothing=smoothing)
