"""The file of initial weights: what goes through it, and what is said of a bad one.

What TensorFlow's models make of it is in ``test_models_tensorflow.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlperf_hpc.errors import WeightsError
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.train import make_weights
from dlperf_hpc.train import workloads as weights
from dlperf_hpc.train.workloads import bert, gpt2

SHAPES = {"one": (2, 3), "two.bias": (4,)}
WORKLOADS = {workload.name: workload for workload in (*bert.WORKLOADS, *gpt2.WORKLOADS)}


def arrays() -> dict[str, Any]:
    return {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}


def case_of(model: str, **options: Any) -> Case:
    declared = {option.name: option.default for option in WORKLOADS[model].options}
    pairs = tuple(sorted({**declared, **options}.items()))
    return Case("ddp", model, Topology(1, 1), "fp32", 2, 16, options=pairs)


@pytest.mark.parametrize("model", ["bert-tiny", "gpt2-tiny"])
def test_a_model_begins_with_the_files_weights(tmp_path: Path, model: str) -> None:
    import torch

    torch.manual_seed(1)
    first = WORKLOADS[model].build("torch", case_of(model))
    path = tmp_path / "weights.npz"
    weights.save(first, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.npz"]
    torch.manual_seed(2)
    second = WORKLOADS[model].build("torch", case_of(model, initial_weights=str(path)))
    wanted, got = first.state_dict(), second.state_dict()
    assert wanted.keys() == got.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())


def test_a_file_of_another_variant_is_refused_by_name(tmp_path: Path) -> None:
    build = WORKLOADS["bert-tiny"].build
    path = tmp_path / "pre.npz"
    weights.save(build("torch", case_of("bert-tiny", layer_norm="pre")), path)
    with pytest.raises(WeightsError, match=r"holds 'final_norm.bias' and 1 more, which the model"):
        build("torch", case_of("bert-tiny", initial_weights=str(path)))


def damaged(kind: str) -> tuple[dict[str, Any], str]:
    """Arrays with one thing wrong, and what is said of them."""
    found = arrays()
    if kind == "missing":
        del found["one"]
        return found, r"lacks 'one': it was written for another model"
    if kind == "foreign":
        return {**found, "three": found["one"]}, r"holds 'three', which the model does not"
    if kind == "shape":
        found["two.bias"] = np.ones((4, 1), np.float32)
        return found, r"'two.bias' is float32 \[4, 1\], but the model has float32 \[4\]"
    if kind == "dtype":
        found["one"] = np.ones((2, 3))
        return found, r"'one' is float64 \[2, 3\], but the model has float32 \[2, 3\]"
    if kind == "nan":
        found["one"][1, 1] = np.nan
        return found, r"'one' holds numbers that are not finite"
    found["one"] = np.array([[{}] * 3] * 2)
    return found, r"'one' cannot be read \(Object arrays"


@pytest.mark.parametrize("kind", ["missing", "foreign", "shape", "dtype", "nan", "pickle"])
def test_a_file_that_is_not_the_models(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "weights.npz"
    found, message = damaged(kind)
    np.savez(path, **found)
    with pytest.raises(WeightsError, match=message) as error:
        weights.read(path, SHAPES)
    assert str(path) in str(error.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    with pytest.raises(WeightsError, match="no such file"):
        weights.read(path, SHAPES)
    with pytest.raises(WeightsError, match="not a readable"):
        weights.read(tmp_path, SHAPES)
    path.write_text("weights", encoding="utf-8")
    with pytest.raises(WeightsError, match="not a readable"):
        weights.read(path, SHAPES)
    path.write_bytes(b"")
    with pytest.raises(WeightsError, match="not a readable"):
        weights.read(path, SHAPES)
    with path.open("wb") as file:
        np.save(file, arrays()["one"])
    with pytest.raises(WeightsError, match="one array without a name"):
        weights.read(path, SHAPES)


def test_every_cut_and_every_flipped_byte_is_an_error_or_harmless(tmp_path: Path) -> None:
    """Harmless: a byte of the archive's bookkeeping, such as a time."""
    path = tmp_path / "weights.npz"
    np.savez(path, **arrays())
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsError):
            weights.read(path, SHAPES)
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            found = weights.read(path, SHAPES)
        except WeightsError:
            refused += 1
        else:
            assert all((found[name] == array).all() for name, array in arrays().items())
    assert refused > len(whole) // 3 / 2


def test_saving_replaces_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    path.write_text("old", encoding="utf-8")

    class Broken:
        def state_dict(self) -> dict[str, Any]:
            return {"one": np.ones(2, np.float32), "file": np.ones(2, np.float32)}

    with pytest.raises(TypeError):  # NumPy keeps this name for itself
        weights.save(Broken(), path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


# --- the command that writes one ----------------------------------------------------------------


def test_the_command_writes_what_the_sweep_reads(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "weights.npz"
    arguments = ["bert-tiny", str(path), "--seed", "9", "--option", "layer_norm=pre"]
    assert make_weights.main(arguments) == 0
    case = case_of("bert-tiny", layer_norm="pre", initial_weights=str(path))
    model = WORKLOADS["bert-tiny"].build("torch", case)
    torch.manual_seed(9)
    fresh = WORKLOADS["bert-tiny"].build("torch", case_of("bert-tiny", layer_norm="pre"))
    pairs = zip(model.parameters(), fresh.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bert-tiny", "w.npz", "--option", "layer_norm=both"], "layer_norm is one of post, pre"),
        (["gpt2-tiny", "w.npz", "--option", "layer_norm=pre"], "has no option 'layer_norm'"),
        (["gpt2-tiny", "w.npz", "--option", "dropout=much"], "'much'"),
        (["gpt2-tiny", "nowhere/w.npz"], "nowhere is not a directory"),
    ],
)
def test_the_command_refuses(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_weights.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
