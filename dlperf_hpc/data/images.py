"""A folder of JPEG images as samples: a folder for each class in it, as ImageNet's is unpacked.

An image is decoded by Pillow, made smaller until its shorter side is the case's ``image_size``
(bilinear), cut to its middle square, and normalised by ImageNet's mean and deviation of each
colour. It is neither enlarged, mirrored nor cut at random. The login node may import this.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import DataError, raising
from dlperf_hpc.files import open_regular
from dlperf_hpc.sweepfile.declarations import SampleLayout

if TYPE_CHECKING:
    from dlperf_hpc.data.bert_files import Array, Arrays

_ENDINGS = (".jpeg", ".jpg")
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, from 0 to 1
_MOST_POINTS = 10**8  # of one image: a small file may claim to be a huge one
_MOST_KEPT = 2**33
"""Bytes of decoded images that one process keeps."""


def class_folders(folder: Path) -> list[Path]:
    """The folders of the classes by name, whose numbers are the labels. DataError if none."""
    with raising(DataError, f"{folder}: cannot be read"):
        named = [entry.path for entry in os.scandir(folder) if entry.is_dir()]
    found = sorted(Path(each) for each in named if not Path(each).name.startswith("."))
    if not found:
        raise DataError(f"{folder}: has no folders of classes: put each class's JPEGs into its own")
    return found


def files_of(folder: Path) -> list[Path]:
    """The JPEG files of one class by name."""
    with raising(DataError, f"{folder}: cannot be read"):
        names = sorted(entry.name for entry in os.scandir(folder))
    return [folder / name for name in names if name.lower().endswith(_ENDINGS)]


def _all_classes(folder: Path, classes: int) -> list[list[Path]]:
    """The files of each class. DataError for more classes than the model has, or an empty one."""
    folders = class_folders(folder)
    if len(folders) > classes:
        raise DataError(
            f"{folder}: has {len(folders)} classes, and the model {classes}: keep fewer folders"
        )
    found = list(map(files_of, folders))
    for place, files in zip(folders, found):
        if not files:
            raise DataError(f"{place}: has no file *.jpg or *.jpeg: remove the folder, or fill it")
    return found


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"JPEGs need Pillow: pip install pillow ({error})") from error
    return Image


def _opened(path: Path, file: Any, size: int) -> Any:
    """An image whose header was read. DataError if it is no JPEG, too small or too large."""
    image_of = _pillow()
    try:
        image = image_of.open(file, formats=["JPEG"])
    except (OSError, ValueError, SyntaxError, image_of.DecompressionBombError) as error:
        raise DataError(f"{path}: is no JPEG that Pillow can open: {error}") from error
    width, height = image.size
    if min(width, height) < size:
        raise DataError(
            f"{path}: found an image of {width} x {height}, expected {size} x {size} or more (its"
            " image_size): no image is enlarged"
        )
    if width * height > _MOST_POINTS:
        raise DataError(f"{path}: found an image of {width} x {height}: most are {_MOST_POINTS}")
    return image


def decoded(path: Path, size: int) -> Array:
    """The middle square of an image, uint8 [size, size, 3]. DataError if it cannot be had."""
    import numpy as np

    with raising(DataError, f"{path}: cannot be read"), open_regular(path) as file:
        image = _opened(path, file, size)
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        square = (left, top, left + side, top + side)
        bilinear = _pillow().Resampling.BILINEAR
        smaller = image.convert("RGB").resize((size, size), bilinear, box=square)
        return np.asarray(smaller)


@lru_cache(maxsize=16)
def problem_of(folder: str, classes: int, size: int) -> str:
    """What is wrong with a folder by its names and the first image of each class; '' if nothing
    is, or if this machine has no Pillow to look with."""
    try:
        found = _all_classes(Path(folder), classes)
    except DataError as error:
        return str(error)
    try:
        _pillow()
    except DataError:
        return ""
    return next(filter(None, (_problem(files[0], size) for files in found)), "")


def _problem(path: Path, size: int) -> str:
    try:
        with raising(DataError, f"{path}: cannot be read"), open_regular(path) as file:
            _opened(path, file, size)
    except DataError as error:
        return str(error)
    return ""


class ImageFolder:
    """All images of a folder as one file of samples (:class:`.opening.Shard`), decoded by
    ``threads`` threads: as they are read, or all at once before (``kept``)."""

    def __init__(
        self,
        path: Path,
        layout: SampleLayout,
        *,
        size: int,
        channels_last: bool,
        threads: int,
        kept: bool,
    ) -> None:
        self.path, self.layout = path, layout
        self._size, self._channels_last = size, channels_last
        named = enumerate(_all_classes(path, layout.vocab))
        self._files = [(file, label) for label, files in named for file in files]
        self.samples = len(self._files)
        self._threads = ThreadPoolExecutor(threads)
        self._kept: Sequence[Array] = ()
        need = self.samples * size * size * 3
        if kept and need > _MOST_KEPT:
            raise DataError(
                f"{path}: {self.samples} decoded images take {need / 2**30:.1f} GiB of a process,"
                f" above {_MOST_KEPT >> 30}: keep fewer, or write decode = 'inside'"
            )
        if kept:
            self._kept = list(self._threads.map(self._pixels, range(self.samples)))

    def check(self) -> None:
        """Look at the first image of each class: the others are looked at as they are read."""
        problem = problem_of(str(self.path), self.layout.vocab, self._size)
        if problem:
            raise DataError(problem)

    def read(self, rows: Array) -> Arrays:
        """Samples by number: ``images`` float32 [n, H, W, 3] or [n, 3, H, W], ``labels`` [n]."""
        import numpy as np

        size = self._size
        images = np.empty((len(rows), size, size, 3), np.float32)
        if not self._channels_last:
            images = np.empty((len(rows), 3, size, size), np.float32)
        for _ in self._threads.map(self._fill, images, rows):
            pass  # an error of a thread is raised here
        labels = [self._files[row][1] for row in rows]
        return {"images": images, "labels": np.array(labels, np.int64)}

    def release(self) -> None:
        """No file stays open."""

    def _pixels(self, row: int) -> Array:
        return decoded(self._files[row][0], self._size)

    def _fill(self, place: Array, row: int) -> None:
        import numpy as np

        pixels = self._kept[row] if self._kept else self._pixels(row)
        deviation, mean = 255 * np.array(_DEVIATION, np.float32), np.array(_MEAN, np.float32)
        normalised = pixels / deviation - mean / np.array(_DEVIATION, np.float32)
        place[:] = normalised if self._channels_last else normalised.transpose(2, 0, 1)
