"""The TensorFlow models are the PyTorch ones: same loss, same gradients, same way down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from frameworks import run_checks
from parameter_counts import bert_parameters, gpt2_parameters
from places import SUPPORT

from dlperf_hpc.train.workloads import bert, gpt2

MODELS = ("bert post", "bert pre", "gpt2")

# Encoder with pooler, tied MLM head and NSP head; GPT-2 with its tied head. Padded vocabularies.
PUBLISHED_PARAMETERS = {
    "bert-base": 110_111_042,
    "bert-large": 336_232_258,
    "gpt2-small": 124_475_904,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``tensorflow_model_checks`` found, in the environment that has PyTorch too."""
    script = SUPPORT / "tensorflow_model_checks.py"
    results = run_checks("horovod", script, tmp_path_factory.mktemp("models"), 1, 880)
    print({name: round(seconds, 1) for name, seconds in results["seconds"].items()})
    return results


@pytest.mark.parametrize("variant", ["", " xla", " padded"])
@pytest.mark.parametrize("model", MODELS)
def test_loss_and_every_gradient_equal_torchs(
    found: dict[str, Any], model: str, variant: str
) -> None:
    errors = found[model + variant]
    print(errors)
    assert errors["loss"] <= 1e-5
    assert errors["gradient"] <= 1e-4, errors["worst"]
    assert errors["compared"] > 20


@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
@pytest.mark.parametrize("model", MODELS)
def test_ten_steps_go_where_torch_goes(found: dict[str, Any], model: str, optimizer: str) -> None:
    curves = found[f"{model} {optimizer}"]
    ours, theirs = curves["tensorflow"], curves["torch"]
    assert theirs[10] < theirs[0] - 0.1, "it learns, or this tests nothing"
    print(f"after 10 steps {abs(ours[10] / theirs[10] - 1):.1e}")
    assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize(("kind", "close"), [("bfloat16", 1e-2), ("float16", 1e-3)])
@pytest.mark.parametrize("model", MODELS)
def test_mixed_precision_keeps_variables_gradients_and_loss_in_float32(
    found: dict[str, Any], model: str, kind: str, close: float
) -> None:
    narrow = found[f"{model} {kind}"]
    assert narrow["dtype"] == "float32"
    assert narrow["gradients"] == narrow["variables"] == ["float32"]
    assert narrow["loss"] <= close
    assert 1e-6 < narrow["gradient"] <= 10 * close, "rounded, or nothing was computed in it"


def test_mixed_precision_is_where_the_work_is(found: dict[str, Any]) -> None:
    assert found["gpt2 products"] == ["bfloat16"]
    for model in ("bert post", "bert pre"):  # float32: the lookup of segments, a product too
        assert found[f"{model} products"] == ["bfloat16", "float32"]


def test_precision_of_a_case_is_the_models(found: dict[str, Any]) -> None:
    assert found["precisions"] == {
        "fp32": "float32",
        "tf32": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
    }


@pytest.mark.parametrize("name", [*bert.SIZES, *gpt2.SIZES])
def test_parameter_count_is_that_of_the_model(found: dict[str, Any], name: str) -> None:
    counted = found["counted"]
    if name in gpt2.SIZES:
        assert counted[name] == gpt2_parameters(gpt2.SIZES[name])
    else:
        config = bert.SIZES[name]
        assert counted[name] == bert_parameters(config)
        pre = replace(config, layer_norm="pre")
        assert counted[f"{name} pre"] == bert_parameters(pre) == counted[name] + 2 * pre.hidden
    assert counted[name] == PUBLISHED_PARAMETERS.get(name, counted[name])


@pytest.mark.parametrize("model", MODELS)
def test_new_model_holds_the_initial_values_of_its_seed(found: dict[str, Any], model: str) -> None:
    initial = found[f"{model} initial"]
    assert initial["same seed"] and not initial["other seed"]
    for name, (mean, std) in initial["values"].items():
        if name.endswith("bias"):
            assert (mean, std) == (0, 0), name
        elif "norm" in name:
            assert (mean, std) == (1, 0), name
        else:
            ends = model == "gpt2" and name.endswith(("attention.out.weight", "down.weight"))
            assert std == pytest.approx(0.02 / 2 if ends else 0.02, rel=0.2), name
            assert abs(mean) < 0.01, name


def test_weights_go_through_a_file_both_ways(found: dict[str, Any]) -> None:
    assert all(found["weights"][model] is True for model in MODELS)


@pytest.mark.parametrize("model", ["bert-tiny", "gpt2-tiny"])
def test_one_file_gives_both_frameworks_the_same_loss(found: dict[str, Any], model: str) -> None:
    assert found["weights"][model] <= 1e-5


def test_dropout_drops_what_it_should(found: dict[str, Any]) -> None:
    dropped = found["dropped"]
    assert dropped["zeros"] == pytest.approx(
        0.1, abs=0.004
    )  # six deviations; not bfloat16's 0.1016
    assert dropped["values"] == [0, pytest.approx(1 / 0.9)]
    assert dropped["again"] and not dropped["other site"] and not dropped["other seed"]


def test_dropout_is_its_seeds(found: dict[str, Any]) -> None:
    dropped = found["dropped"]
    for label in ("plain", "xla"):
        assert len(set(dropped[label])) == 3 and dropped[label][0] == dropped[label][3]
    assert dropped["without"][0] == dropped["without"][1] not in dropped["plain"]


def test_checkpointing_changes_no_number_and_computes_twice(found: dict[str, Any]) -> None:
    """Dropout included: what is computed again drops the same."""
    again = found["checkpointed"]
    assert again["apart"] <= 1e-6
    assert again["tanh"][1] == 2 * again["tanh"][0] > 0


def test_gelus_are_torchs(found: dict[str, Any]) -> None:
    # Against float64. TensorFlow's tanh is off by up to 3e-7, and the slope of the approximation is
    # 1 - tanh(x)^2 times up to 15: TensorFlow's own gelu is as far from it.
    assert max(found["gelus"].values()) <= 5e-6
