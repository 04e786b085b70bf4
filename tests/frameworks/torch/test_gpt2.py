"""The GPT-2 workload: its arithmetic, its data, and its model against the field's reference."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from other_models import our_weights
from parameter_counts import gpt2_parameters
from places import BUSY, ROOT, SUPPORT

from dlperf_hpc.engines.base import clean_environment
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.workloads import token_batch
from dlperf_hpc.train.workloads.gpt2 import (
    SIZES,
    TOKENS,
    Gpt2Config,
    batch,
    flops_per_sample,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dlperf_hpc.train.torch.models import Gpt2

    Tensors = dict[str, Tensor]

REPOSITORY = ROOT
SMALL = Gpt2Config(layers=3, hidden=96, heads=4, ffn=384, vocab=1000, max_positions=80, dropout=0.0)
BATCH, SEQ_LEN = 4, 64
IGNORED = -100

# The output projection tied to the word embedding; 50257 as OpenAI published it, 50304 as trained.
PUBLISHED_PARAMETERS = [
    ("gpt2-small", 50257, 124_439_808),
    ("gpt2-small", 50304, 124_475_904),
    ("gpt2-medium", 50257, 354_823_168),
    ("gpt2-medium", 50304, 354_871_296),
    ("gpt2-large", 50257, 774_030_080),
    ("gpt2-large", 50304, 774_090_240),
    ("gpt2-xl", 50257, 1_557_611_200),
    ("gpt2-xl", 50304, 1_557_686_400),
]


# --- arithmetic ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "vocab", "expected"), PUBLISHED_PARAMETERS)
def test_parameter_count_is_the_published_one(name: str, vocab: int, expected: int) -> None:
    assert gpt2_parameters(replace(SIZES[name], vocab=vocab)) == expected


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("vocab", [50257, 50304])
def test_parameter_count_is_that_of_the_model(name: str, vocab: int) -> None:
    import torch

    config = replace(SIZES[name], vocab=vocab)
    with torch.device("meta"):  # shapes only: no memory, no time
        model = new_model(config)
    assert sum(p.numel() for p in model.parameters()) == gpt2_parameters(config)


def test_sizes_have_the_padded_vocabulary() -> None:
    assert {config.vocab for config in SIZES.values()} == {50304}


@pytest.mark.parametrize(
    ("name", "gigaflop"),
    [
        ("gpt2-small", 874.94),
        ("gpt2-medium", 2480.85),
        ("gpt2-large", 5323.71),
        ("gpt2-xl", 10520.11),
    ],
)
def test_flops_of_the_known_sizes(name: str, gigaflop: float) -> None:
    assert flops_per_sample(SIZES[name], 1024) / 1e9 == pytest.approx(gigaflop, abs=0.005)


@pytest.mark.parametrize("vocab", [1000, TOKENS + 15])
def test_flops_are_those_the_model_executes(vocab: int) -> None:
    """Torch's own counter sees our formula, plus the padding of the vocabulary, if any."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    config = replace(SMALL, vocab=vocab)
    model, batch = new_model(config), tensors(config)
    # The flash kernels recompute the scores in the backward pass; the plain one does not.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(**batch).backward()
    padding = 6 * max(0, vocab - TOKENS) * config.hidden * SEQ_LEN
    assert counter.get_total_flops() == BATCH * (flops_per_sample(config, SEQ_LEN) + padding)


@pytest.mark.parametrize("name", SIZES)
def test_flops_of_every_size_are_those_its_model_would_execute(name: str) -> None:
    """On the meta device: shapes alone, however large the model is."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    config = replace(SIZES[name], vocab=TOKENS)
    with torch.device("meta"):
        model = new_model(config)
        ids = torch.zeros(1, 1024, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).backward()
    assert counter.get_total_flops() == flops_per_sample(config, 1024)


# --- synthetic data -----------------------------------------------------------------------------


def batch_of(vocab: int, batch_size: int, seq_len: int, seed: int) -> dict[str, Any]:
    """A batch whose seed is 0, of the rank with that number."""
    case = Case("ddp", "gpt2-tiny", Topology(1, 1), "fp32", batch_size, seq_len, seed=0)
    return token_batch(vocab, case, seed)


def test_labels_are_the_tokens_that_follow() -> None:
    batch = batch_of(TOKENS, 64, SEQ_LEN, seed=0)
    ids, labels = batch["input_ids"], batch["labels"]
    assert set(batch) == {"input_ids", "labels"}
    for array in (ids, labels):
        assert array.shape == (64, SEQ_LEN) and array.dtype == np.int64
        assert array.flags.c_contiguous
        assert 0 <= array.min() < 100 and TOKENS - 100 < array.max() < TOKENS
    np.testing.assert_array_equal(labels[:, :-1], ids[:, 1:])


def test_synthetic_batch_is_that_of_its_seed() -> None:
    first, again, other = (batch_of(1000, 8, 64, seed) for seed in (7, 7, 8))
    for key, array in first.items():
        np.testing.assert_array_equal(array, again[key])
        assert (array == other[key]).mean() < 0.05, key


def test_synthetic_batch_never_changes() -> None:
    """Numbers compared across environments rest on every numpy giving these."""
    batch = batch_of(TOKENS, 2, 4, seed=2024)
    assert batch["input_ids"].tolist() == [[4959, 7826, 37373, 30785], [21386, 23541, 13732, 42380]]
    assert batch["labels"].tolist() == [[7826, 37373, 30785, 38510], [23541, 13732, 42380, 11253]]


def test_seed_and_rank_make_the_batch() -> None:
    def ids(seed: int, rank: int) -> Any:
        options = (("checkpoint_activations", False), ("dropout", 0.0))
        one = Case("ddp", "gpt2-tiny", Topology(1, 2), "fp32", 2, 8, seed=seed, options=options)
        return batch(one, rank)["input_ids"].tolist()

    assert ids(1, 0) == ids(1, 0)
    assert len({str(ids(seed, rank)) for seed in (1, 2) for rank in (0, 1)}) == 4


# --- the model against transformers -------------------------------------------------------------


def new_model(config: Gpt2Config) -> Gpt2:
    from dlperf_hpc.train.torch.models import Gpt2

    return Gpt2(config)


def tensors(config: Gpt2Config, seed: int = 0) -> Tensors:
    import torch

    batch = batch_of(min(config.vocab, TOKENS), BATCH, SEQ_LEN, seed)
    return {key: torch.from_numpy(array) for key, array in batch.items()}


def reference_model(config: Gpt2Config, noise: float = 0.08) -> Any:
    """This network from transformers, every number of it random (biases and norms too)."""
    import torch
    import transformers

    torch.manual_seed(1)
    model: Any = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab,
            n_positions=config.max_positions,
            n_embd=config.hidden,
            n_layer=config.layers,
            n_head=config.heads,
            n_inner=config.ffn,
            activation_function="gelu_new",
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            attn_implementation="eager",  # mask and softmax written out: not the kernel of ours
            bos_token_id=None,  # else a token of its own beyond a small vocabulary
            eos_token_id=None,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model.train()


def twins(config: Gpt2Config, noise: float = 0.08) -> tuple[Any, Gpt2]:
    """transformers' model and ours with its weights."""
    reference, model = reference_model(config, noise), new_model(config)
    # named_parameters gives a tied tensor once, under its first name.
    weights = {name: p.detach() for name, p in reference.named_parameters()}
    model.load_state_dict(our_weights(weights))
    return reference, model


def every_position(batch: Tensors) -> tuple[Tensors, Tensors]:
    """All T positions scored, as a benchmark does; transformers' arguments and ours."""
    labels = batch["labels"]
    return {**batch, "shift_labels": labels}, batch


def all_but_the_last(batch: Tensors) -> tuple[Tensors, Tensors]:
    """transformers as users call it: it shifts the ids itself, and nothing follows the last."""
    ids, labels = batch["input_ids"], batch["labels"].clone()
    labels[:, -1] = IGNORED
    return {"input_ids": ids, "labels": ids}, {"input_ids": ids, "labels": labels}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("arguments", [every_position, all_but_the_last])
def test_loss_and_every_gradient_equal_transformers(arguments: Any, checkpointed: bool) -> None:
    config = replace(SMALL, checkpoint_activations=checkpointed)
    reference, model = twins(config)
    theirs, ours = arguments(tensors(config))
    expected, loss = reference(**theirs).loss, model(**ours)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

    expected.backward()
    loss.backward()
    named = {name: p.grad for name, p in reference.named_parameters()}
    gradients = our_weights(named)
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


@pytest.mark.parametrize("checkpointed", [False, True])
def test_ten_steps_of_adam_go_where_transformers_goes(checkpointed: bool) -> None:
    import torch

    config = replace(SMALL, checkpoint_activations=checkpointed)
    reference, model = twins(config, noise=0.0)
    theirs, ours = every_position(tensors(config))
    curves: list[list[float]] = [[], []]
    for curve, network, arguments in ((curves[0], reference, theirs), (curves[1], model, ours)):
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(11):
            loss = network(**arguments)
            loss = getattr(loss, "loss", loss)
            curve.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert curves[0][10] < curves[0][0] - 0.5, "it learns, or this tests nothing"
    print(f"after 10 steps {abs(curves[1][10] / curves[0][10] - 1):.1e}")
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)


def test_no_token_sees_what_follows_it() -> None:
    import torch

    torch.manual_seed(0)
    model, ids = new_model(SMALL), tensors(SMALL)["input_ids"]
    changed = ids.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % SMALL.vocab
    before, after = model.decode(ids), model.decode(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert (before[:, 40:] != after[:, 40:]).any(dim=2).all()


# --- the loss -----------------------------------------------------------------------------------


@pytest.fixture(params=[1, 7, 1000])
def rows_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows that are widened together: one by one, not dividing 50, all."""
    from dlperf_hpc.train.torch import models as gpt2

    monkeypatch.setattr(gpt2, "_WIDENED", request.param * 300)
    rows: int = request.param
    return rows


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("float32", 3e-6), ("bfloat16", 2**-8), ("float16", 2**-11)]
)
def test_cross_entropy_is_torchs(rows_at_once: int, kind: str, tolerance: float) -> None:
    """In any precision: loss in float32, gradient rounded once, to the precision of the scores."""
    import torch
    import torch.nn.functional as F

    from dlperf_hpc.train.torch.models import cross_entropy

    torch.manual_seed(0)
    scores = (torch.randn(50, 300) * 6).to(getattr(torch, kind)).requires_grad_()
    labels = torch.randint(0, 300, (50,))
    labels[[0, 13, 49]] = IGNORED
    scale = 1024.0  # as under dynamic loss scaling
    expected = F.cross_entropy(scores.float(), labels)
    (wanted,) = torch.autograd.grad(expected * scale, scores)
    loss = cross_entropy(scores.clone(), labels)
    (gradient,) = torch.autograd.grad(loss * scale, scores)
    assert loss.dtype == torch.float32 and gradient.dtype == scores.dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert gradient[[0, 13, 49]].abs().max() == 0
    apart = (gradient - wanted).float().abs().max() / wanted.float().abs().max()
    assert apart <= tolerance
    assert rows_at_once


def test_a_second_backward_pass_is_an_error_not_a_number() -> None:
    """The first one wrote over the scores."""
    import torch

    from dlperf_hpc.train.torch.models import cross_entropy

    scores = torch.randn(8, 30, requires_grad=True)
    loss = cross_entropy(scores.clone(), torch.arange(8))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_score_is_kept_in_float32() -> None:
    """What the backward pass needs of the head under autocast: scores in bf16, once."""
    import torch

    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    model, batch = new_model(SMALL), tensors(SMALL)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        model(**batch)
    large = [tensor for tensor in kept if tensor.numel() == BATCH * SEQ_LEN * SMALL.vocab]
    assert [tensor.dtype for tensor in large] == [torch.bfloat16]


# --- the model as a benchmark runs it -----------------------------------------------------------


def test_new_model_guesses_at_chance() -> None:
    """Small initial weights know nothing: the loss is ln V."""
    import torch

    torch.manual_seed(0)
    loss = new_model(SMALL)(**tensors(SMALL))
    assert loss.item() == pytest.approx(np.log(SMALL.vocab), abs=0.1)


def test_new_model_holds_gpt2s_initial_values() -> None:
    """Those of transformers, too: 0.02, less where a sublayer ends in the residual sum."""
    import torch

    torch.manual_seed(0)
    theirs = dict(reference_model(SMALL, noise=0.0).named_parameters())
    reference = our_weights(theirs)
    for name, parameter in new_model(SMALL).named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            ends = name.endswith(("attention.out.weight", "down.weight"))
            std = 0.02 / np.sqrt(2 * SMALL.layers) if ends else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name
            assert reference[name].std().item() == pytest.approx(std, rel=0.05), name


@pytest.mark.parametrize("checkpointed", [False, True])
def test_dropout_acts_in_training_only(checkpointed: bool) -> None:
    import torch

    torch.manual_seed(0)
    config = replace(SMALL, dropout=0.1, checkpoint_activations=checkpointed)
    model, batch = new_model(config), tensors(config)
    assert model(**batch) != model(**batch)
    model.eval()
    assert model(**batch) == model(**batch)


@pytest.mark.parametrize("kind", [None, "bfloat16"])
def test_checkpointing_changes_no_number(kind: str | None) -> None:
    """Dropout included: what is computed again drops the same."""
    import torch

    found = []
    for checkpointed in (False, True):
        config = replace(SMALL, dropout=0.2, checkpoint_activations=checkpointed)
        torch.manual_seed(3)
        model, batch = new_model(config), tensors(config)
        with torch.autocast("cpu", dtype=getattr(torch, kind or "bfloat16"), enabled=bool(kind)):
            loss = model(**batch)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_checkpointing_keeps_the_layers_inputs_only() -> None:
    import torch

    kept = []
    for checkpointed in (False, True):
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        config = replace(SMALL, layers=8, vocab=100, checkpoint_activations=checkpointed)
        model, batch = new_model(config), tensors(config)
        weights = {p.data_ptr() for p in model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(**batch)
        kept.append(sum(size for address, size in sizes.items() if address not in weights))
    one = BATCH * SEQ_LEN * SMALL.hidden
    print(f"{kept[0] / one:.1f} and {kept[1] / one:.1f} times the hidden states of a layer")
    assert kept[0] > 8 * 10 * one and kept[1] < 8 * 1 * one + 5 * one


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_autocast_keeps_the_loss_in_float32(kind: str) -> None:
    import torch

    torch.manual_seed(0)
    model, batch = new_model(SMALL), tensors(SMALL)
    with torch.autocast("cpu", dtype=getattr(torch, kind)):
        loss = model(**batch)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(model(**batch).item(), rel=1e-2)
    (loss * 1024).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_bf16_model_has_its_loss_in_float32() -> None:
    """No autocast here to widen it (ZeRO and FSDP cast the whole model)."""
    import torch

    torch.manual_seed(0)
    loss = new_model(SMALL).bfloat16()(**tensors(SMALL))
    assert loss.dtype == torch.float32
    loss.backward()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_compiles_into_one_graph(checkpointed: bool) -> None:
    import torch

    config = replace(SMALL, layers=2, checkpoint_activations=checkpointed)
    model, batch = new_model(config), tensors(config)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(**batch)
    loss.backward()  # aot_eager traces the backward pass too
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    plain = model(**batch)
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


# --- through the back end -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def session() -> dict[str, Any]:
    """What ``gpt2_session_checks`` found on one rank."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "gpt2_session_checks.py")],
        env={**clean_environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300 * BUSY,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_window_of_the_ddp_back_end(session: dict[str, Any], precision: str) -> None:
    """Accumulation 2 after a warm-up of one: five iterations hold three optimizer steps."""
    found = session[precision]
    assert (found["iterations"], found["optimizer_steps"], found["skipped_steps"]) == (5, 3, 0)
    assert found["moved"] and found["parameters"] == gpt2_parameters(SIZES["gpt2-tiny"])
    assert found["losses"][0] == pytest.approx(np.log(50304), abs=0.2)
    assert found["losses"][-1] < found["losses"][0] - 1
    assert found["losses"] == pytest.approx(session["fp32"]["losses"], rel=1e-3)


def test_checkpointing_trains_alike_in_the_back_end(session: dict[str, Any]) -> None:
    assert session["checkpointed"]["losses"] == session["fp32"]["losses"]
    plain = session["with DDP"]["losses"]
    assert session["compiled, checkpointed"] == pytest.approx(plain, rel=1e-5)


def test_one_rank_without_ddp_trains_alike(session: dict[str, Any]) -> None:
    wrapped, plain = session["with DDP"], session["without DDP"]
    assert (wrapped["model"], plain["model"]) == ("DistributedDataParallel", "Gpt2")
    assert plain["losses"] == wrapped["losses"]


@pytest.mark.parametrize("model", ["bert-tiny", "gpt2-tiny"])
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_tuned_is_eager_within_rounding(
    session: dict[str, Any], model: str, precision: str, most: float
) -> None:
    eager, tuned = session["tuned"][f"{model} {precision}"]
    assert tuned == pytest.approx(eager, rel=most)
    assert precision == "fp32" or tuned != eager  # it does round elsewhere
    assert tuned[-1] < tuned[0]


@pytest.mark.parametrize("model", ["bert-tiny", "gpt2-tiny"])
def test_a_narrow_stream_is_bf16_from_layer_to_layer(model: str) -> None:
    import torch

    from dlperf_hpc.train.torch.ddp import narrow_stream

    workload = registry().workloads[model]
    options = tuple((option.name, option.default) for option in workload.options)
    case = Case("ddp", model, Topology(1, 1), "bf16", 2, 16, options=options)
    module = workload.build("torch", case)
    batch = {name: torch.as_tensor(array) for name, array in workload.batch(case, 0).items()}
    seen: list[torch.dtype] = []
    module.layers[1].register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    for narrowed in (False, True):
        if narrowed:
            narrow_stream(module)
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(**batch)
        loss.backward()
        assert loss.dtype is torch.float32
        assert {p.grad.dtype for p in module.parameters()} == {torch.float32}
    assert seen == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    ("capability", "order"),
    [
        ((8, 0), ["FLASH", "CUDNN", "EFFICIENT"]),
        ((9, 0), ["CUDNN", "FLASH", "EFFICIENT"]),
        ((12, 0), ["CUDNN", "FLASH", "EFFICIENT"]),
    ],
)
def test_tuned_tries_attentions_kernels_in_the_cards_order(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], order: list[str]
) -> None:
    import torch
    from torch.nn.attention import SDPBackend

    from dlperf_hpc.train.torch.ddp import attention_kernels

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    before = torch._C._get_sdp_priority_order()
    with attention_kernels(torch.device("cuda")):
        inside = torch._C._get_sdp_priority_order()
    named = [getattr(SDPBackend, f"{name}_ATTENTION").value for name in order]
    assert inside[:4] == [*named, SDPBackend.MATH.value]
    assert torch._C._get_sdp_priority_order() == before


def test_a_window_tells_how_the_model_was_run(session: dict[str, Any]) -> None:
    found = session["executions"]
    # On CPUs the flash kernel has no dropout.
    assert found["dropout 0.1"]["attention"] == "math"
    assert found["dropout 0.0"]["attention"] == "flash"
    assert not {"graphs", "graph_breaks", "recompiles"} & set(found["dropout 0.1"])
    compiled = found["compiled"]
    assert compiled["attention"] == "flash" and compiled["graphs"] >= 2
    assert (compiled["graph_breaks"], compiled["recompiles"]) == (0, 0)
    assert found["another shape"]["recompiles"] > 0
    assert found["broken"]["graph_breaks"] > 0


def test_layers_that_are_computed_twice_are_compiled_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DDPOptimizer never meets a graph with a checkpoint in it, which older ones refuse."""
    import torch

    from dlperf_hpc.train.torch.ddp import compiled

    made: list[Any] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: made.append(module))
    for ranks, checkpointed in ((1, False), (1, True), (2, False)):
        options = (("checkpoint_activations", checkpointed),)
        asked: dict[str, Any] = {"options": options, "mode": "compile"}
        case = Case("ddp", "gpt2-tiny", Topology(1, ranks), "fp32", 2, 16, **asked)
        model = new_model(SMALL)
        made.clear()
        # Not by monkeypatch: its undoing deletes the entry, and no later test can compile.
        with torch._dynamo.config.patch(optimize_ddp=True):
            found = compiled(model, case, ranks)
            assert torch._dynamo.config.optimize_ddp is False
        by_layer = checkpointed or ranks > 1
        assert (found is model) is by_layer
        assert made == (list(model.layers) if by_layer else [])
        assert ("loss_of" in vars(model)) is by_layer


def test_checkpointing_is_a_tag() -> None:
    path = REPOSITORY / "sweeps" / "gpt2_optimizer_placement.toml"
    (case, *_) = load_sweep(path, registry(), {"checkpoint_activations": True}).cases
    assert case.id.endswith("_fp16-checkpointactivations-eps1e-08-lr2e-05")
    assert (case.seq_len, case.accumulation, case.option("dropout")) == (1024, 1, 0.1)


# --- what the login node imports ----------------------------------------------------------------


def test_declaration_imports_neither_framework_nor_numpy() -> None:
    code = "import sys, dlperf_hpc.train.workloads.gpt2\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60 * BUSY,
        check=True,
    )
    assert not {"torch", "numpy", "tensorflow"} & set(done.stdout.split())
