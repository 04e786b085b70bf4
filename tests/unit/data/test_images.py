"""A folder of JPEGs: what is decoded, by Pillow's own array, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dlperf_hpc.data import images, opening
from dlperf_hpc.data.images import ImageFolder
from dlperf_hpc.errors import DataError, SpecError
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.sweepfile.declarations import SampleLayout
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

SIZE = 32
SHAPES = {"cat/a.jpg": (32, 32), "cat/b.JPEG": (80, 40), "dog/c.jpeg": (32, 96)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes; a smooth picture of each shape, and what is no image beside them."""
    root = tmp_path / "train"
    for number, (name, (width, height)) in enumerate(SHAPES.items()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
        pixels = np.stack([across, down, np.full_like(down, 60 * number)], axis=2)
        Image.fromarray(pixels.astype(np.uint8)).save(root / name, format="JPEG", quality=95)
    (root / "cat" / "notes.txt").write_text("no image")
    (root / ".cache").mkdir()
    return root


def opened(folder: Path, **more: Any) -> ImageFolder:
    layout = SampleLayout("images", 1000, 0, folder=True)
    given: dict[str, Any] = {"size": SIZE, "channels_last": True, "threads": 2, "kept": False}
    return ImageFolder(folder, layout, **{**given, **more})


def normalised(pixels: Any) -> Any:
    return (pixels / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])


@pytest.mark.parametrize("kept", [False, True])
def test_images_and_labels(folder: Path, kept: bool) -> None:
    shard = opened(folder, kept=kept)
    shard.check()
    assert shard.samples == 3
    if kept:
        for path in folder.glob("*/*"):
            path.unlink()  # nothing is read any more
    else:
        whole = np.asarray(Image.open(folder / "cat" / "a.jpg"))
    batch = shard.read(np.array([2, 0, 1]))
    assert batch["labels"].tolist() == [1, 0, 0] and batch["labels"].dtype == np.int64
    pixels = batch["images"]
    assert pixels.shape == (3, SIZE, SIZE, 3) and pixels.dtype == np.float32
    if not kept:
        np.testing.assert_allclose(pixels[1], normalised(whole), rtol=1e-5, atol=1e-6)
    # The middle third of 32 x 96: from 1/3 to 2/3 of the way down, and all the way across.
    red, green = (pixels[0, :, :, k] * d + m for k, m, d in ((0, 0.485, 0.229), (1, 0.456, 0.224)))
    assert green.mean(axis=1)[[0, -1]] == pytest.approx([1 / 3, 2 / 3], abs=0.03)
    assert red.mean(axis=0)[[0, -1]] == pytest.approx([0, 1], abs=0.03)
    # The middle of 80 x 40: from a quarter to three quarters across.
    across = (pixels[2, :, :, 0] * 0.229 + 0.485).mean(axis=0)
    assert across[[0, -1]] == pytest.approx([1 / 4, 3 / 4], abs=0.03)


def test_colours_first(folder: Path) -> None:
    rows = np.arange(3)
    last, first = (opened(folder, channels_last=each).read(rows) for each in (True, False))
    assert first["images"].shape == (3, 3, SIZE, SIZE)
    np.testing.assert_array_equal(first["images"].transpose(0, 2, 3, 1), last["images"])


def _small(folder: Path) -> None:
    Image.new("RGB", (40, 31)).save(folder / "cat" / "a.jpg")


def _text(folder: Path) -> None:
    (folder / "cat" / "a.jpg").write_text("no image")


def _png(folder: Path) -> None:
    Image.new("RGB", (40, 40)).save(folder / "cat" / "a.jpg", format="PNG")


def _pipe(folder: Path) -> None:
    (folder / "cat" / "a.jpg").unlink()
    os.mkfifo(folder / "cat" / "a.jpg")


def _empty(folder: Path) -> None:
    (folder / "eel").mkdir()


def _huge(folder: Path) -> None:
    content = bytearray((folder / "cat" / "a.jpg").read_bytes())
    at = content.index(b"\xff\xc0") + 5  # height and width in the frame's header
    content[at : at + 4] = b"\xff\xff\xff\xff"
    (folder / "cat" / "a.jpg").write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_small, "a.jpg: found an image of 40 x 31, expected 32 x 32 or more (its image_size)"),
        (_text, "a.jpg: is no JPEG that Pillow can open"),
        (_png, "a.jpg: is no JPEG that Pillow can open"),
        (_pipe, "a.jpg: cannot be read"),
        (_empty, "eel: has no file *.jpg or *.jpeg: remove the folder, or fill it"),
        (_huge, "a.jpg: is no JPEG that Pillow can open: Image size (4294836225 pixels)"),
    ],
)
def test_what_is_wrong_is_said_before_a_job(
    folder: Path, tmp_path: Path, spoil: Any, says: str
) -> None:
    spoil(folder)
    images.problem_of.cache_clear()
    path = tmp_path / "some.toml"
    case = "[case]\nframework = 'ddp'\nmodel = 'resnet-tiny'\nbatch_size = 4\nimage_size = 32\n"
    real = f"data = 'real'\ndata_path = '{folder}'\n"
    path.write_text(f"topologies = ['1n1g']\n{case}{real}")
    with pytest.raises(SpecError) as refused:
        load_sweep(path, registry())
    (issue,) = refused.value.issues
    assert issue.where == "data_path" and says in issue.message


def test_an_image_that_is_cut_is_an_error_as_it_is_read(folder: Path) -> None:
    path = folder / "dog" / "c.jpeg"
    path.write_bytes(path.read_bytes()[:-200])
    shard = opened(folder)
    shard.check()
    with pytest.raises(DataError, match=r"c\.jpeg: cannot be read: image file is truncated"):
        shard.read(np.array([2]))


def test_folders_that_are_none(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cat: has no folders of classes"):
        opened(folder / "cat")
    with pytest.raises(DataError, match="nothing: cannot be read: No such file"):
        opened(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"has 2 classes, and the model 1: keep fewer folders"):
        ImageFolder(
            folder,
            SampleLayout("images", 1, 0),
            size=SIZE,
            channels_last=True,
            threads=1,
            kept=False,
        )
    with pytest.raises(DataError, match=r"decoded images take 36\.0 GiB of a process, above 8"):
        opened(folder, size=2**16, kept=True)


def test_the_layout_of_a_case(folder: Path) -> None:
    """The whole folder is one shard, in which nothing is padded; no manifest is looked for."""
    workload = registry().workloads["resnet-tiny"]
    options = {option.name: option.default for option in workload.options}
    options.update(image_size=32, decode="outside")
    case = Case(
        *("ddp", "resnet-tiny", Topology(1, 1), "fp32", 4, 0),
        data="real",
        data_path=str(folder),
        options=tuple(options.items()),
    )
    assert workload.layout is not None and workload.check is not None
    images.problem_of.cache_clear()
    assert list(workload.check(case)) == []
    layout = workload.layout(case)
    assert layout.facts == {"data_decoding": "outside the window"}
    (path,) = opening.find(case.data_path, layout.folder)
    shard = opening.open_shard(path, layout)
    assert shard.samples == 3 and opening.unpadded([shard], layout)
    opening.check([shard], layout)


def test_keys_that_synthetic_images_pass_over(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    case = "[case]\nframework = 'ddp'\nmodel = 'resnet-tiny'\nbatch_size = 4\n"
    path.write_text(f"topologies = ['1n1g']\n{case}decode = 'outside'\ndecode_threads = 8\n")
    with pytest.raises(SpecError) as refused:
        load_sweep(path, registry())
    assert {issue.where for issue in refused.value.issues} == {"decode", "decode_threads"}


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node may lack it, and looks at names alone; a rank that has to decode says so."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    images.problem_of.cache_clear()
    assert images.problem_of(str(folder), 1000, SIZE) == ""
    assert "the model 1: keep fewer folders" in images.problem_of(str(folder), 1, SIZE)
    with pytest.raises(DataError, match="JPEGs need Pillow: pip install pillow"):
        opened(folder).read(np.array([0]))
