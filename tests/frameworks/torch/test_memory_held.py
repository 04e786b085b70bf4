"""What a case needs in memory, as predicted on a login node, beside what PyTorch really holds: on
two ranks under mpiexec (``memory_checks``), and between a forward pass and its backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from frameworks import run_checks
from places import SUPPORT

from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.sweepfile.declarations import ModelSize
from dlperf_hpc.train.backends import activations
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.workloads import bert, gpt2, llama3

MODELS: dict[str, Any] = {"bert-tiny": bert, "gpt2-tiny": gpt2, "llama3-tiny": llama3}
BERT = 628_226  # parameters of bert-tiny with the vocabulary of memory_checks
BYTES = {
    **{"ddp fp32": 16, "ddp bf16": 16, "ddp momentum": 12, "ddp no momentum": 8, "ddp placed": 12},
    **{"fsdp bf16": 8, "fsdp accumulated": 10},
}


def test_ranks_hold_what_is_certain(tmp_path: Path) -> None:
    """Bytes for each parameter on two ranks, by hand, by the formula, and as every tensor of the
    process was counted: they differ by Adam's counters and the batch."""
    found = run_checks("torch", SUPPORT / "memory_checks.py", tmp_path, arguments=["torch"])
    assert found.keys() == BYTES.keys()
    for name, (certain, about, live, _) in found.items():
        assert certain == BYTES[name] * BERT and about >= certain, name
        # FSDP's buffers of a reduction may still be there as a micro-batch ends.
        most = 1.15 if name.startswith("fsdp") else 1.001
        assert certain <= live <= certain * most, name


class _Fused(torch.autograd.Function):
    """RMSNorm as a GPU's kernel has it: input, weight and one number a row are kept. A CPU's is
    made of parts, and keeps more."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        root = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, root)
        return (x * root).type_as(x) * weight


def kept(name: str, precision: str, **changes: Any) -> tuple[int, ModelSize, Case]:
    """Bytes that autograd keeps of a forward pass beside the parameters; and what predicts them.
    ``precision`` "cast" is bf16 with parameters in bf16, as FSDP and DeepSpeed have them."""
    options = {each.name: each.default for each in registry().options("ddp", name)}
    options.update({"dropout": 0.0, **changes})
    given = "fp32" if precision == "fp32" else "bf16"
    case = Case("ddp", name, Topology(1, 1), given, 2, 64, options=tuple(options.items()))
    workload = registry().workloads[name]
    model = workload.build("torch", case)
    if precision == "cast":
        model = model.bfloat16()
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    seen: list[torch.Tensor] = []  # they stay, so that no two lie at one place

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    batch = {key: torch.as_tensor(array) for key, array in workload.batch(case, 0).items()}
    saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with saved, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        model(**batch)
    sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in seen}
    assert workload.size is not None
    whole = sum(size for place, size in sizes.items() if place not in own)
    return whole, workload.size(case), case


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Gives a model so many layers, and few tokens."""
    monkeypatch.setattr(llama3, "_ORDINARY", 1024)  # tokens of synthetic data

    def fused(x: torch.Tensor, _: object, weight: torch.Tensor, eps: float) -> Any:
        return _Fused.apply(x, weight, eps)  # type: ignore[no-untyped-call]

    monkeypatch.setattr("torch.nn.functional.rms_norm", fused)

    def change(name: str, number: int) -> None:
        sizes = MODELS[name].SIZES
        monkeypatch.setitem(sizes, name, replace(sizes[name], layers=number, vocab=1024))

    yield change


@pytest.mark.parametrize("precision", ["fp32", "bf16", "cast"])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_keeps_what_the_formula_says(layers: Any, name: str, precision: str) -> None:
    """Exactly, but for a number or two in each row; under autocast with copies of its weights."""
    layers(name, 2)
    fewer, size, case = kept(name, precision)
    layers(name, 3)
    more, _, _ = kept(name, precision)
    stream = 2 if precision == "cast" else 4
    predicted = activations(case, replace(size, layers=3), stream) - activations(case, size, stream)
    copies = 2 * size.layer if precision == "bf16" else 0
    assert more - fewer == pytest.approx(predicted + copies, rel=0.006)


@pytest.mark.parametrize("precision", ["fp32", "cast"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama3-tiny"])
def test_of_layers_computed_twice_the_input_is_kept(layers: Any, name: str, precision: str) -> None:
    layers(name, 2)
    fewer, size, _ = kept(name, precision, checkpoint_activations=True)
    layers(name, 3)
    more, _, _ = kept(name, precision, checkpoint_activations=True)
    assert more - fewer == size.entry * (2 if precision == "cast" else 4)


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_model_keeps_what_the_formula_says(layers: Any, name: str) -> None:
    """Scores and all; what is float32 for a moment is not kept."""
    layers(name, 2)
    whole, size, case = kept(name, "fp32")
    predicted = activations(case, size, 4) - 4 * size.widened
    assert whole == pytest.approx(predicted, rel=0.03)


@pytest.mark.parametrize("model", sorted(registry().workloads))
def test_parameters_are_the_models_own(model: str) -> None:
    """Of every workload with a formula, as built without memory; and of one of its layers."""
    workload = registry().workloads[model]
    if workload.size is None:
        return
    for own in ({"layer_norm": "pre"}, {}):
        options = {each.name: each.default for each in workload.options}
        options.update({key: value for key, value in own.items() if key in options})
        tokens = workload.default_seq_len
        pairs = tuple(options.items())
        case = Case("ddp", model, Topology(1, 1), "fp32", 1, tokens, options=pairs)
        with torch.device("meta"):
            built = workload.build("torch", case)
        size = workload.size(case)
        assert sum(each.numel() for each in built.parameters()) == size.parameters
        assert len(built.layers) == size.layers
        assert sum(each.numel() for each in built.layers[0].parameters()) == size.layer
