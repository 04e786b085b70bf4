"""ResNet-50 v1.5 for image classification: shapes, sizes, arithmetic and synthetic data.

The network is He et al. 2015 (arXiv:1512.03385), table 1; v1.5 has the stride of a block in its
3 x 3 convolution, v1 in the 1 x 1 before. The model itself lies in ``train/torch/resnet.py``; it
has no form for TensorFlow.

Letters used for shapes: B images, H x W numbers of each of 3 colours. A sample is one image: it has
no sequence, and a case no ``seq_len``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dlperf_hpc.model.case import Case, Option
from dlperf_hpc.sweepfile.declarations import SampleLayout, WorkloadDeclaration
from dlperf_hpc.train import workloads
from dlperf_hpc.train.workloads import frozen_random

EXPANSION = 4
"""Channels that leave a block for each that its 3 x 3 convolution has."""
REDUCED = 32
"""Rows of an image for each row of the last block's output."""
_BACKENDS = ("ddp", "horovod-torch")
_LARGEST = 1024


@dataclass(frozen=True)
class BlockSize:
    """One bottleneck block: ``inputs`` channels to ``inner`` to ``EXPANSION * inner``."""

    inputs: int
    inner: int
    stride: int

    @property
    def outputs(self) -> int:
        """Channels that leave it."""
        return EXPANSION * self.inner

    @property
    def projects(self) -> bool:
        """Whether its shortcut is a convolution: nothing else has the shape of what leaves it."""
        return self.stride > 1 or self.inputs != self.outputs


@dataclass(frozen=True)
class ResNetConfig:
    """``depths`` are the numbers of blocks with equally many channels, ``width`` the channels of
    the first convolution. ``label_smoothing`` is spread over all classes. ``channels_last``: images
    lie in memory colour by colour of each point."""

    depths: tuple[int, ...]
    width: int = 64
    classes: int = 1000
    label_smoothing: float = 0.1
    channels_last: bool = True

    def blocks(self) -> Iterator[BlockSize]:
        """All blocks in their order."""
        inputs = self.width
        for stage, depth in enumerate(self.depths):
            for place in range(depth):
                first_of_smaller = stage > 0 and place == 0
                block = BlockSize(inputs, self.width * 2**stage, 1 + first_of_smaller)
                inputs = block.outputs
                yield block


SIZES: dict[str, ResNetConfig] = {
    "resnet50": ResNetConfig(depths=(3, 4, 6, 3)),
    "resnet-tiny": ResNetConfig(depths=(1, 1, 1, 1), width=16),  # for CPUs
}


def multiply_adds(config: ResNetConfig, image_size: int) -> int:
    """Multiply-adds of one image, forward: k^2 x channels in x channels out x points out of every
    convolution, and the last layer; ``image_size`` is a multiple of 32."""
    side = image_size // 2
    total = 49 * 3 * config.width * side**2
    side //= 2
    channels = config.width
    for block in config.blocks():
        total += block.inputs * block.inner * side**2
        side //= block.stride
        later = 9 * block.inner * block.inner + block.inner * block.outputs
        later += block.projects * block.inputs * block.outputs
        total += later * side**2
        channels = block.outputs
    return total + channels * config.classes


def flops_per_sample(config: ResNetConfig, image_size: int) -> float:
    """Model FLOPs of one image, forward and backward: two for each multiply-add, and a backward
    pass that costs twice the forward (PaLM, arXiv:2204.02311, appendix B). Nobody computes the
    gradient of the image, which the first convolution's backward pass is counted with: 2 % of
    ResNet-50's. Normalisation, pooling and activations add nothing."""
    return 6.0 * multiply_adds(config, image_size)


def config_of(case: Case) -> ResNetConfig:
    """The model of a case."""
    options = {name: case.option(name) for name in ("label_smoothing", "channels_last")}
    return replace(SIZES[case.model], **options)


def batch(case: Case, rank: int) -> dict[str, Any]:
    """A rank's synthetic batch: ranks see different samples of the same seed. ``images`` float32
    [B, H, W, 3], or the same [B, 3, H, W] without ``channels_last``, drawn from N(0, 1) as
    normalised images have it; ``labels`` int64 [B], drawn uniformly."""
    import numpy as np

    config, size = config_of(case), case.option("image_size")
    random = frozen_random(case.seed * 1_000_003 + rank)
    images = random.standard_normal((case.batch_size, size, size, 3)).astype(np.float32)
    if not config.channels_last:
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return {
        "images": images,
        "labels": random.randint(0, config.classes, size=case.batch_size, dtype=np.int64),
    }


def check(case: Case) -> Iterator[tuple[str, str]]:
    """What ResNet cannot do of a case."""
    size = case.option("image_size")
    if size % REDUCED:
        rule = f"{case.model} makes {REDUCED} x {REDUCED} points of an image into one"
        yield "image_size", f"{size} is no multiple of {REDUCED}: {rule}"
    elif case.batch_size <= 1 and size == REDUCED:  # 0 is "max", whose search begins with 1
        rule = "batch normalisation would be over a single number in the last blocks"
        yield "batch_size", f"1 image of {size} x {size} is too few: {rule}"
    if case.framework not in _BACKENDS:
        tried = " and ".join(_BACKENDS)
        yield "model", f"{case.model} is trained by {tried} only, not by {case.framework}"
    yield from _data_problems(case, size)


def _data_problems(case: Case, size: int) -> Iterator[tuple[str, str]]:
    """Keys that synthetic images pass over, and what is wrong with a folder that is seen here."""
    if case.data != "real":
        for option in (_DECODE, _DECODE_THREADS):
            if case.option(option.name) != option.default:
                yield option.name, "is given, but data is not 'real': nothing is decoded"
    elif os.path.isabs(case.data_path) and "$" not in case.data_path:
        from dlperf_hpc.data import images

        if problem := images.problem_of(case.data_path, SIZES[case.model].classes, size):
            yield "data_path", problem


def _layout(case: Case) -> SampleLayout:
    from dlperf_hpc.data.images import ImageFolder

    config, decode = config_of(case), case.option("decode")
    reader = partial(
        ImageFolder,
        size=case.option("image_size"),
        channels_last=config.channels_last,
        threads=case.option("decode_threads"),
        kept=decode == "outside",
    )
    facts = {"data_decoding": f"{decode} the window"}
    return SampleLayout("images", config.classes, 0, reader=reader, folder=True, facts=facts)


def _flops(case: Case) -> float:
    return flops_per_sample(config_of(case), case.option("image_size"))


def _options(image_size: int) -> tuple[Option, ...]:
    return (
        Option(
            "image_size",
            image_size,
            f"rows and columns, a multiple of {REDUCED}",
            minimum=REDUCED,
            maximum=_LARGEST,
        ),
        _LABEL_SMOOTHING,
        _CHANNELS_LAST,
        _DECODE,
        _DECODE_THREADS,
    )


_LABEL_SMOOTHING = Option(
    "label_smoothing",
    0.1,
    "share of the target that all classes get; 0 is off",
    maximum=0.99,
)
_CHANNELS_LAST = Option(
    "channels_last",
    True,
    "order of images in memory: [B, H, W, 3]; false: [B, 3, H, W]",
)
_DECODE = Option(
    "decode",
    "inside",
    "JPEGs are decoded inside the window, read ahead, or outside: all before it, into memory",
    ("inside", "outside"),
)
_DECODE_THREADS = Option(
    "decode_threads", 4, "threads of a rank that decode JPEGs", minimum=1, maximum=256
)

WORKLOADS = tuple(
    WorkloadDeclaration(
        name=name,
        doc=f"ResNet v1.5 image classification, {3 * sum(config.depths) + 2} layers",
        libraries=("torch",),
        build=workloads.builder(config_of, "resnet"),
        batch=batch,
        flops_per_sample=_flops,
        layout=_layout,
        options=_options(64 if name == "resnet-tiny" else 224),
        check=check,
    )
    for name, config in SIZES.items()
)
