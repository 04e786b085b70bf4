"""The Llama 3 workload: its arithmetic, its data, and its model against transformers'."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from frameworks import run_checks
from other_models import equal, our_weights
from places import ROOT, SUPPORT

from dlperf_hpc.errors import SpecError
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train import make_weights
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.workloads import llama3
from dlperf_hpc.train.workloads.llama3 import SIZES, LlamaConfig, flops_per_sample

if TYPE_CHECKING:
    from torch import Tensor

    from dlperf_hpc.train.torch.llama import Llama

    Tensors = dict[str, Tensor]

BATCH = 3
VOCABULARY = 1024  # of llama3_checks
# 16 positions before the scaling, 96 after it; three heads of queries for each of keys.
SMALL = LlamaConfig(
    *(3, 96, 6, 160), key_heads=2, tied=True, original_positions=16, max_positions=96, vocab=500
)
UNTIED = replace(SMALL, tied=False)

# config.json of meta-llama/Llama-3.2-1B and meta-llama/Llama-3.1-8B, and the sum of their tensors.
_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "original_max_position_embeddings": 8192}
_ROPE |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_BOTH: dict[str, Any] = {"vocab_size": 128256, "num_key_value_heads": 8, "num_attention_heads": 32}
_BOTH |= {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "attention_bias": False}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "llama3-1b": (
        {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
        | {"tie_word_embeddings": True, "rope_parameters": {**_ROPE, "factor": 32.0}, **_BOTH},
        1_235_814_400,
    ),
    "llama3-8b": (
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"tie_word_embeddings": False, "rope_parameters": {**_ROPE, "factor": 8.0}, **_BOTH},
        8_030_261_248,
    ),
}


def new_model(config: LlamaConfig) -> Llama:
    import torch

    from dlperf_hpc.train.torch.llama import Llama

    torch.manual_seed(0)
    return Llama(config)


def arrays(config: LlamaConfig, seq_len: int = 96) -> dict[str, Any]:
    from dlperf_hpc.train.workloads import token_batch

    case = Case("ddp", "llama3-tiny", Topology(1, 1), "fp32", BATCH, seq_len, seed=0)
    return token_batch(config.vocab, case, rank=5)


def tensors(given: dict[str, Any]) -> Tensors:
    import torch

    return {name: torch.as_tensor(array) for name, array in given.items()}


def scores(model: Llama, ids: Tensor) -> Tensor:
    import torch.nn.functional as F

    return F.linear(model.decode(ids), model.head_weight())


# --- sizes and arithmetic -----------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name: str) -> None:
    """On the meta device: every tensor of transformers' model of this size has its twin here."""
    import torch
    import transformers

    settings, number = PUBLISHED[name]
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
        ours = new_model(SIZES[name])
    assert sum(p.numel() for p in theirs.parameters()) == number
    assert sum(p.numel() for p in ours.parameters()) == number
    named = {name: p.detach() for name, p in theirs.named_parameters()}
    shapes = {name: tensor.shape for name, tensor in our_weights(named).items()}
    assert {name: p.shape for name, p in ours.named_parameters()} == shapes
    assert not list(ours.buffers())


@pytest.mark.parametrize("name", PUBLISHED)
def test_angles_are_those_of_transformers_up_to_the_last_position(name: str) -> None:
    import torch
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from dlperf_hpc.train.torch.llama import rotation

    config = transformers.LlamaConfig(**PUBLISHED[name][0])
    cos, sin = rotation(SIZES[name], 131_072, torch.device("cpu"))
    half = cos.shape[-1]
    positions = torch.arange(131_072)[None]
    for ours, theirs in zip((cos, sin), LlamaRotaryEmbedding(config)(torch.ones(1), positions)):
        # An angle of 131 071 has steps of 0.008 in float32, and is computed in another order.
        assert (ours[:8192, 0] - theirs[0, :8192, :half]).abs().max() < 1e-3
        assert (ours[:, 0] - theirs[0, :, :half]).abs().max() < 0.02
        assert ours.dtype == torch.float32


def test_the_scaling_of_rope_by_hand() -> None:
    """In double precision: short waves stay, long ones are 32 times as long, some lie between."""
    import torch

    from dlperf_hpc.train.torch.llama import rotation

    config = SIZES["llama3-1b"]
    cos, sin = rotation(config, 2, torch.device("cpu"))
    kinds = set()
    for i, angle in enumerate(torch.atan2(sin, cos)[1, 0].tolist()):
        plain = 500_000.0 ** (-2 * i / 64)
        wave = 2 * math.pi / plain
        if wave < 8192 / 4:
            kind, expected = "short", plain
        elif wave > 8192:
            kind, expected = "long", plain / 32
        else:
            smooth = (8192 / wave - 1) / 3
            kind, expected = "between", (1 - smooth) * plain / 32 + smooth * plain
        kinds.add(kind)
        assert angle == pytest.approx(expected, rel=1e-5), (i, kind)
    assert kinds == {"short", "between", "long"}


def test_flops_of_the_known_sizes() -> None:
    """8192 tokens; 6 x the weights of the products x tokens, and attention's own."""
    for name, without, whole in (("llama3-1b", 60.739, 87.128), ("llama3-8b", 368.869, 474.422)):
        config, (_, number) = SIZES[name], PUBLISHED[name]
        norms = (2 * config.layers + 1) * config.hidden
        embedding = 0 if config.tied else config.vocab * config.hidden
        products = 6 * (number - norms - embedding) * 8192
        attention = 12 * config.layers * config.hidden * 8192**2
        assert flops_per_sample(config, 8192) == products + attention
        assert products / 1e12 == pytest.approx(without, abs=5e-4)
        assert (products + attention) / 1e12 == pytest.approx(whole, abs=5e-4)


@pytest.mark.parametrize("config", [SMALL, UNTIED, *SIZES.values()])
def test_flops_are_those_that_torch_counts(config: LlamaConfig) -> None:
    """On the meta device: shapes alone. The plain kernel recomputes no scores."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model, ids = new_model(config), torch.zeros(2, 96, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).backward()
    assert counter.get_total_flops() == 2 * flops_per_sample(config, 96)
    attention = sum(counter.flop_counts["Global"][op] for op in _batched())
    assert attention == 2 * 12 * config.layers * config.hidden * 96**2


def _batched() -> tuple[Any, ...]:
    import torch

    return (torch.ops.aten.bmm,)


# --- the model against transformers -------------------------------------------------------------


def twins(config: LlamaConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any, Any, Any]:
    """Ours with transformers' weights, its batch; theirs, its batch, its gradients in our order."""
    monkeypatch.setitem(SIZES, "llama3-tiny", replace(config, checkpoint_activations=False))
    ours, given = new_model(config), arrays(config)
    options = (("checkpoint_activations", False), ("dropout", 0.0))
    case = Case("ddp", "llama3-tiny", Topology(1, 1), "fp32", BATCH, 96, options=options)
    theirs, their_batch, ordered = equal(ours, case, given)
    return ours, tensors(given), theirs, tensors(their_batch), ordered


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("config", [SMALL, UNTIED], ids=["tied", "untied"])
def test_scores_loss_and_every_gradient_equal_transformers(
    config: LlamaConfig, checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six times as many tokens as the context before scaling has."""
    config = replace(config, checkpoint_activations=checkpointed)
    ours, batch, theirs, their_batch, ordered = twins(config, monkeypatch)
    expected, loss = theirs.model(**their_batch), ours(**batch)
    rope = theirs.model.config.rope_parameters
    assert (rope["rope_type"], rope["original_max_position_embeddings"]) == ("llama3", 16)
    assert (scores(ours, batch["input_ids"]) - expected.logits).abs().max() < 1e-5
    assert expected.logits.std() > 0.5, "the comparison would say nothing"
    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    loss.backward()
    expected.loss.backward()
    gradients = ordered([parameter.grad for parameter in theirs.parameters()])
    for (name, parameter), gradient in zip(ours.named_parameters(), gradients, strict=True):
        assert parameter.grad is not None and gradient.norm() > 0, name
        assert (parameter.grad - gradient).norm() <= 1e-4 * gradient.norm(), name


def test_without_the_scaling_it_would_be_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, batch, theirs, their_batch, _ = twins(SMALL, monkeypatch)
    logits = theirs.model(**their_batch).logits
    ours.config = replace(SMALL, rope_factor=1.0)
    assert (scores(ours, batch["input_ids"]) - logits)[:, 16:].abs().max() > 1e-2


def test_no_token_sees_what_follows_it() -> None:
    import torch

    model, ids = new_model(SMALL), tensors(arrays(SMALL))["input_ids"]
    changed = ids.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % SMALL.vocab
    before, after = model.decode(ids), model.decode(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert (before[:, 40:] != after[:, 40:]).any(dim=2).all()


# --- the model as a benchmark runs it -----------------------------------------------------------


def test_grouped_heads_in_half_precision_are_those_of_float32() -> None:
    """There another call of the kernel: keys and values stay as few as they are."""
    import torch

    model, ids = new_model(UNTIED), tensors(arrays(UNTIED))["input_ids"]
    expected = scores(model, ids)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = scores(model, ids)
    for found in (mixed, scores(model.bfloat16(), ids)):
        assert found.dtype == torch.bfloat16
        assert (found - expected).norm() < 2e-2 * expected.norm()


@pytest.mark.parametrize("kind", [None, "bfloat16"])
def test_checkpointing_changes_no_number(kind: str | None) -> None:
    import torch

    found, batch = [], tensors(arrays(SMALL))
    for again in (False, True):
        model = new_model(replace(SMALL, checkpoint_activations=again))
        with torch.autocast("cpu", dtype=getattr(torch, kind or "bfloat16"), enabled=bool(kind)):
            loss = model(**batch)
        assert loss.dtype == torch.float32
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_compiles_into_one_graph(checkpointed: bool) -> None:
    import torch

    model = new_model(replace(SMALL, checkpoint_activations=checkpointed))
    batch = tensors(arrays(SMALL))
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(**batch)
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    plain = model(**batch)
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_narrow_stream_is_bf16_from_layer_to_layer() -> None:
    import torch

    from dlperf_hpc.train.torch.ddp import narrow_stream

    model, batch = new_model(SMALL), tensors(arrays(SMALL))
    seen: list[torch.dtype] = []
    model.layers[1].register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    for narrowed in (False, True):
        if narrowed:
            narrow_stream(model)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch)
        loss.backward()
        assert loss.dtype is torch.float32
        assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert seen == [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    script, place = SUPPORT / "llama3_checks.py", tmp_path_factory.mktemp("two")
    return run_checks("torch", script, place, arguments=("variants",))["variants"]


def test_ddp_trains_it_alike_in_every_precision_and_mode(two_ranks: Any) -> None:
    losses = two_ranks["fp32"]
    assert losses[0] == pytest.approx(np.log(VOCABULARY), abs=0.2)
    assert losses[-1] < losses[0] - 0.05
    for name in ("checkpointed", "placed", "sharded", "sharded, checkpointed"):
        assert two_ranks[name] == pytest.approx(losses, rel=1e-6), name
    for name in ("compiled", "compiled, checkpointed", "tuned"):
        assert two_ranks[name] == pytest.approx(losses, rel=1e-5), name
    for name in ("bf16", "tuned, bf16"):
        assert two_ranks[name] == pytest.approx(losses, rel=2e-3), name
        assert two_ranks[name] != losses
    # The second of two micro-batches is the first again; then comes the step.
    accumulated = two_ranks["accumulation"]
    assert accumulated[1] == pytest.approx(accumulated[0]) and accumulated[2] < accumulated[1]


def test_one_rank_tells_how_it_was_run(tmp_path: Path) -> None:
    script = SUPPORT / "llama3_checks.py"
    found = run_checks("torch", script, tmp_path, ranks=1, arguments=("execution",))["execution"]
    config = SIZES["llama3-tiny"]
    layer = 128 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * config.ffn + 2 * 128
    assert found["parameters"] == 128_256 * 128 + 2 * layer + 128 and found["buffers"] == 0
    size = {"parameter_bytes": 4 * found["parameters"], "gradient_bytes": 4 * found["parameters"]}
    compiled = {"graphs": 1, "graph_breaks": 0, "recompiles": 0}
    for name, more in {"eager": {}, "compile": compiled}.items():
        changing = ("optimizer_bytes", "memory_growth_mb")
        seen = {key: value for key, value in found[name].items() if key not in changing}
        assert seen == {"attention": "flash", **size, **more}


# --- what is refused, and data ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "line", "says"),
    [
        ("ddp", "dropout = 0.1", "dropout: must be 0 (its default here): llama3-8b is trained"),
        ("ddp", "seq_len = 131073", "131073 is not within the 1 to 131072 tokens of llama3-8b"),
        ("tensorflow", "", "llama3-8b is not written for tensorflow, which tensorflow needs"),
        ("horovod-tensorflow", "", "llama3-8b is not written for tensorflow, which horovod-tensor"),
        ("ddp", "key_heads = 64", "key_heads"),
        ("deepspeed", "mode = 'tuned'", "deepspeed has no 'tuned' (it has eager, compile)"),
        ("deepspeed", "mode = 'compile'\nzero_stage = 3", "3 is invalid with compile"),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_job(
    tmp_path: Path, framework: str, line: str, says: str
) -> None:
    path, head = tmp_path / "some.toml", "topologies = ['1n8g']\n[case]\nbatch_size = 1\n"
    path.write_text(f"{head}model = 'llama3-8b'\nframework = '{framework}'\n{line}\n")
    with pytest.raises(SpecError) as refused:
        load_sweep(path, registry())
    assert says in str(refused.value)
    assert len(refused.value.issues) == 1


def test_dropout_0_can_be_written_beside_models_that_have_it(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    case = "topologies = ['1n1g']\n[case]\nframework = 'ddp'\nbatch_size = 1\ndropout = 0.0\n"
    path.write_text(f"{case}[matrix]\nmodel = ['gpt2-tiny', 'llama3-tiny']\n")
    gpt2, llama = load_sweep(path, registry()).cases
    assert (gpt2.id[-8:], llama.id[-4:]) == ("dropout0", "fp32")


def test_weights_for_tensorflow_are_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.npz"
    assert make_weights.main(["llama3-8b", str(path), "--library", "tensorflow"]) == 2
    assert "llama3-8b is not written for tensorflow" in capsys.readouterr().err


def test_ranks_have_ordinary_tokens_of_their_own() -> None:
    options = (("checkpoint_activations", False), ("dropout", 0.0))
    case = Case("ddp", "llama3-tiny", Topology(1, 2), "fp32", 64, 512, options=options)
    first, again, other = (llama3.batch(case, rank) for rank in (0, 0, 1))
    ids, labels = first["input_ids"], first["labels"]
    assert ids.shape == labels.shape == (64, 512) and ids.dtype == np.int64
    assert 0 <= ids.min() < 100 and 127_900 < ids.max() < 128_000
    np.testing.assert_array_equal(labels[:, :-1], ids[:, 1:])
    np.testing.assert_array_equal(ids, again["input_ids"])
    assert (ids == other["input_ids"]).mean() < 0.01


def test_declaration_imports_neither_framework_nor_numpy() -> None:
    code = "import sys, dlperf_hpc.train.workloads.llama3\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"torch", "numpy", "tensorflow"} & set(done.stdout.split())
