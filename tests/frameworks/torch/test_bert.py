"""The BERT workload: its arithmetic, its data, and its model against the field's reference."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from other_models import our_weights
from parameter_counts import bert_parameters
from places import BUSY, ROOT

from dlperf_hpc.train.workloads.bert import (
    CLS,
    MASK,
    SEP,
    SIZES,
    BertConfig,
    flops_per_sample,
    predictions_per_sequence,
    synthetic_batch,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dlperf_hpc.train.torch.models import BertForPreTraining

    Tensors = dict[str, Tensor]


SMALL = BertConfig(layers=3, hidden=96, heads=4, ffn=384, vocab=1000, max_positions=64, dropout=0.0)
BATCH, SEQ_LEN = 4, 64
PREDICTIONS = predictions_per_sequence(SEQ_LEN)
IGNORED = -100  # what torch's cross-entropy leaves out of its mean

# Encoder with pooler, tied MLM head and NSP head.
PUBLISHED_PARAMETERS = [
    ("bert-base", 30522, 110_106_428),
    ("bert-base", 30528, 110_111_042),
    ("bert-large", 30522, 336_226_108),
    ("bert-large", 30528, 336_232_258),
]


# --- arithmetic ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "vocab", "expected"), PUBLISHED_PARAMETERS)
def test_parameter_count_is_the_published_one(name: str, vocab: int, expected: int) -> None:
    assert bert_parameters(replace(SIZES[name], vocab=vocab)) == expected


@pytest.mark.parametrize("layer_norm", ["post", "pre"])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("vocab", [30522, 30528])
def test_parameter_count_is_that_of_the_model(name: str, vocab: int, layer_norm: str) -> None:
    import torch

    config = replace(SIZES[name], vocab=vocab, layer_norm=layer_norm)
    with torch.device("meta"):  # shapes only: no memory, no time
        model = build(config)
    assert sum(p.numel() for p in model.parameters()) == bert_parameters(config)


@pytest.mark.parametrize(
    ("seq_len", "expected"), [(32, 5), (33, 6), (64, 10), (128, 20), (512, 80)]
)
def test_predictions_per_sequence(seq_len: int, expected: int) -> None:
    assert predictions_per_sequence(seq_len) == expected


@pytest.mark.parametrize(
    ("name", "seq_len", "gigaflop"),
    [
        ("bert-base", 128, 69.93),
        ("bert-base", 512, 301.45),
        ("bert-large", 128, 240.64),
        ("bert-large", 512, 1020.53),
    ],
)
def test_flops_of_the_known_sizes(name: str, seq_len: int, gigaflop: float) -> None:
    flops = flops_per_sample(SIZES[name], seq_len, predictions_per_sequence(seq_len))
    assert flops / 1e9 == pytest.approx(gigaflop, abs=0.005)


@pytest.mark.parametrize("layer_norm", ["post", "pre"])
def test_flops_are_those_the_model_executes(layer_norm: str) -> None:
    """Torch's own counter sees our formula, plus the two small heads that convention leaves out."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    config = replace(SMALL, layer_norm=layer_norm)
    model, batch = build(config), tensors(config)
    # The flash kernels recompute the scores in the backward pass; the plain one does not.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(**batch).backward()
    pooler_and_nsp = 6 * (config.hidden**2 + 2 * config.hidden)
    per_sample = flops_per_sample(config, SEQ_LEN, PREDICTIONS) + pooler_and_nsp
    assert counter.get_total_flops() == BATCH * per_sample


# --- synthetic data -----------------------------------------------------------------------------


def test_synthetic_batch_has_the_shapes_every_framework_expects() -> None:
    batch = synthetic_batch(SMALL, BATCH, SEQ_LEN, PREDICTIONS, seed=0)
    assert {key: array.shape for key, array in batch.items()} == {
        "input_ids": (BATCH, SEQ_LEN),
        "segment_ids": (BATCH, SEQ_LEN),
        "masked_lm_positions": (BATCH, PREDICTIONS),
        "masked_lm_ids": (BATCH, PREDICTIONS),
        "next_sentence_labels": (BATCH,),
    }
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}


def test_synthetic_batch_is_that_of_its_seed() -> None:
    first, again, other = (synthetic_batch(SMALL, 8, 64, 10, seed) for seed in (7, 7, 8))
    for key, array in first.items():
        np.testing.assert_array_equal(array, again[key])
        assert not np.array_equal(array, other[key]), key


def test_synthetic_batch_never_changes() -> None:
    """Numbers compared across environments rest on every numpy giving these."""
    batch = synthetic_batch(SMALL, 2, 16, 3, seed=2024)
    assert batch["input_ids"][0].tolist() == [
        *(101, 762, 613, 169, 726, 524, 500, 742, 868, 103, 103, 916, 102, 103, 215, 102)
    ]
    assert batch["segment_ids"].sum(axis=1).tolist() == [3, 5]
    assert batch["masked_lm_positions"].tolist() == [[9, 10, 13], [1, 9, 14]]
    assert batch["masked_lm_ids"].tolist() == [[659, 301, 375], [462, 981, 428]]
    assert batch["next_sentence_labels"].tolist() == [0, 0]


@pytest.mark.parametrize(("seq_len", "predictions"), [(128, 20), (64, 61), (4, 1)])
def test_synthetic_masks_are_distinct_ordinary_tokens(seq_len: int, predictions: int) -> None:
    config = replace(SIZES["bert-tiny"], vocab=1000)
    batch = synthetic_batch(config, 64, seq_len, predictions, seed=1)
    ids, positions = batch["input_ids"], batch["masked_lm_positions"]
    assert (np.diff(positions, axis=1) > 0).all(), "sorted and distinct"
    assert positions.min() > 0
    assert (np.take_along_axis(ids, positions, axis=1) == MASK).all()
    assert ((ids == MASK).sum(axis=1) == predictions).all()
    assert (ids[:, 0] == CLS).all()
    assert (ids[:, -1] == SEP).all()
    assert ((ids == SEP).sum(axis=1) == 2).all()
    labels = batch["masked_lm_ids"]
    assert labels.min() > MASK
    assert max(labels.max(), ids.max()) < config.vocab


def test_synthetic_segments_follow_each_other() -> None:
    batch = synthetic_batch(SMALL, 64, SEQ_LEN, PREDICTIONS, seed=1)
    segments = batch["segment_ids"]
    assert set(np.diff(segments, axis=1).ravel()) == {0, 1}
    assert (segments.sum(axis=1) > 0).all()
    end_of_first = (segments == 0).sum(axis=1) - 1
    assert (batch["input_ids"][np.arange(64), end_of_first] == SEP).all()


# --- the model against transformers -------------------------------------------------------------


def build(config: BertConfig) -> BertForPreTraining:
    from dlperf_hpc.train.torch.models import BertForPreTraining

    return BertForPreTraining(config)


def tensors(config: BertConfig, seed: int = 0) -> Tensors:
    import torch

    batch = synthetic_batch(config, BATCH, SEQ_LEN, PREDICTIONS, seed)
    return {key: torch.from_numpy(array) for key, array in batch.items()}


def padded_tensors(config: BertConfig) -> Tensors:
    """Sequences of several lengths; the masked positions lost to padding carry id -100."""
    import torch

    batch = tensors(config)
    lengths = torch.tensor([SEQ_LEN, 50, 33, 20])[:, None]
    mask = (torch.arange(SEQ_LEN) < lengths).long()
    lost = batch["masked_lm_positions"] >= lengths
    assert lost.any() and not lost.all(dim=1).any(), "some but not all, or this tests nothing"
    return {
        **batch,
        "input_ids": batch["input_ids"] * mask,
        "masked_lm_positions": batch["masked_lm_positions"].masked_fill(lost, 0),
        "masked_lm_ids": batch["masked_lm_ids"].masked_fill(lost, IGNORED),
        "input_mask": mask,
    }


def reference_model(config: BertConfig) -> Any:
    """This network from transformers, every number of it random (biases and norms too).

    Pre-LayerNorm BERT is not in transformers: RoBERTa-PreLayerNorm's encoder is, and goes into
    BertForPreTraining in place of BERT's, with BERT's pooler and heads kept.
    """
    import torch
    import transformers
    from transformers.models.roberta_prelayernorm import RobertaPreLayerNormModel

    shape: dict[str, Any] = {
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "max_position_embeddings": config.max_positions,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        # None: with a padding token RoBERTa would give rows of its embeddings no gradient, of the
        # position table too, which Google's BERT, NVIDIA's and ours do not.
        "pad_token_id": None,
        "attn_implementation": "eager",  # softmax written out: not the kernel that ours calls
    }
    torch.manual_seed(1)
    model: Any = transformers.BertForPreTraining(transformers.BertConfig(**shape))
    if config.layer_norm == "pre":
        pooler = model.bert.pooler
        pre_norm = transformers.RobertaPreLayerNormConfig(**shape)
        model.bert = RobertaPreLayerNormModel(pre_norm, add_pooling_layer=False)
        model.bert.pooler = pooler
        model.cls.predictions.decoder.weight = model.bert.embeddings.word_embeddings.weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.08)
    return model.train()


def reference_loss(model: Any, batch: Tensors) -> Any:
    """transformers scores every position: all but the masked ones get the label that is ignored."""
    import torch

    labels = torch.full_like(batch["input_ids"], IGNORED)
    for row, (positions, ids) in enumerate(
        zip(batch["masked_lm_positions"], batch["masked_lm_ids"], strict=True)
    ):
        kept = ids != IGNORED
        labels[row, positions[kept]] = ids[kept]
    return model(
        input_ids=batch["input_ids"],
        token_type_ids=batch["segment_ids"],
        attention_mask=batch.get("input_mask"),
        labels=labels,
        next_sentence_label=batch["next_sentence_labels"],
        # RoBERTa counts positions from padding_idx + 1 unless told; BERT counts from 0.
        position_ids=torch.arange(SEQ_LEN).expand(BATCH, -1),
    ).loss


@pytest.mark.parametrize("layer_norm", ["post", "pre"])
@pytest.mark.parametrize("make_batch", [tensors, padded_tensors])
def test_loss_and_every_gradient_equal_transformers(layer_norm: str, make_batch: Any) -> None:
    config = replace(SMALL, layer_norm=layer_norm)
    reference, model, batch = reference_model(config), build(config), make_batch(config)
    # named_parameters gives a tied tensor once, under its first name.
    theirs = dict(reference.named_parameters())
    weights = {name: parameter.detach() for name, parameter in theirs.items()}
    model.load_state_dict(our_weights(weights))

    expected, loss = reference_loss(reference, batch), model(**batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

    expected.backward()
    loss.backward()
    gradients = our_weights({k: p.grad for k, p in theirs.items()})
    parameters = dict(model.named_parameters())
    assert gradients.keys() == parameters.keys()
    errors = {}
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        norm = gradients[name].norm().item()
        assert norm > 0, f"{name}: the comparison would say nothing"
        errors[name] = (parameter.grad - gradients[name]).norm().item() / norm
    worst = max(errors, key=lambda name: errors[name])
    print(f"loss {abs(loss.item() / expected.item() - 1):.1e}, {worst} {errors[worst]:.1e}")
    assert errors[worst] <= 1e-4, worst


# --- the model as a benchmark runs it -----------------------------------------------------------


@pytest.mark.parametrize("layer_norm", ["post", "pre"])
def test_new_model_guesses_at_chance(layer_norm: str) -> None:
    """Small initial weights know nothing: the loss is ln V + ln 2."""
    import torch

    torch.manual_seed(0)
    config = replace(SMALL, layer_norm=layer_norm)
    loss = build(config)(**tensors(config))
    assert loss.item() == pytest.approx(np.log(config.vocab) + np.log(2), abs=0.2)


def test_new_model_holds_berts_initial_values() -> None:
    import torch

    torch.manual_seed(0)
    for name, parameter in build(replace(SMALL, layer_norm="pre")).named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name


def test_dropout_acts_in_training_only() -> None:
    import torch

    torch.manual_seed(0)
    config = replace(SMALL, dropout=0.1)
    model, batch = build(config), tensors(config)
    assert model(**batch) != model(**batch)
    model.eval()
    assert model(**batch) == model(**batch)


@pytest.mark.parametrize("layer_norm", ["post", "pre"])
def test_bf16_autocast_keeps_the_loss_in_float32(layer_norm: str) -> None:
    import torch

    torch.manual_seed(0)
    config = replace(SMALL, layer_norm=layer_norm)
    model, batch = build(config), tensors(config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**batch)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(model(**batch).item(), rel=1e-2)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_bf16_model_scores_both_losses_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """No autocast here to widen them (ZeRO and FSDP cast the whole model)."""
    import torch
    import torch.nn.functional as F

    seen: list[torch.dtype] = []
    cross_entropy = F.cross_entropy

    def watched(scores: Tensor, labels: Tensor) -> Tensor:
        seen.append(scores.dtype)
        return cross_entropy(scores, labels)

    monkeypatch.setattr(F, "cross_entropy", watched)
    build(SMALL).bfloat16()(**tensors(SMALL))
    assert seen == [torch.float32, torch.float32]


@pytest.mark.parametrize("layer_norm", ["post", "pre"])
@pytest.mark.parametrize("make_batch", [tensors, padded_tensors])
def test_compiles_into_one_graph(layer_norm: str, make_batch: Any) -> None:
    import torch

    config = replace(SMALL, layers=2, layer_norm=layer_norm)
    model, batch = build(config), make_batch(config)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(**batch)
    loss.backward()  # aot_eager traces the backward pass too
    assert loss.item() == pytest.approx(model(**batch).item(), rel=1e-5)


# --- what the login node imports ----------------------------------------------------------------


def test_declaration_imports_neither_framework_nor_numpy() -> None:
    code = "import sys, dlperf_hpc.train.workloads.bert\nprint(*sys.modules)"
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60 * BUSY,
        check=True,
    )
    assert not {"torch", "numpy", "tensorflow"} & set(done.stdout.split())
