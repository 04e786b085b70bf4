"""The TensorFlow models beside the PyTorch ones, in a Python that holds both frameworks:
``python -m mpi4py tensorflow_model_checks.py RESULTS.json``.

Prints nothing: what each check found goes into the results, which ``test_models_tensorflow.py``
judges.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
import torch

from dlperf_hpc.model.case import Case, Optimizer, Topology
from dlperf_hpc.train import workloads as weights
from dlperf_hpc.train.tensorflow import models as models_tensorflow
from dlperf_hpc.train.tensorflow import replica as optimizers_tensorflow
from dlperf_hpc.train.torch import models as models_torch
from dlperf_hpc.train.torch import optimizers as optimizers_torch
from dlperf_hpc.train.workloads import bert, gpt2

BATCH, SEQ_LEN = 3, 32
SIZE: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 500}
SIZE.update(max_positions=48, dropout=0.0)
BERT, GPT2 = bert.BertConfig(**SIZE), gpt2.Gpt2Config(**SIZE)
CONFIGS: dict[str, Any] = {
    "bert post": BERT,
    "bert pre": replace(BERT, layer_norm="pre"),
    "gpt2": GPT2,
}
WORKLOADS = {workload.name: workload for workload in (*bert.WORKLOADS, *gpt2.WORKLOADS)}
IGNORED = -100

Batch = dict[str, Any]


def build_torch(config: Any) -> torch.nn.Module:
    kind = (
        models_torch.BertForPreTraining
        if isinstance(config, bert.BertConfig)
        else models_torch.Gpt2
    )
    return kind(config)


def build_tensorflow(config: Any, compute: str = "float32", seed: int = 1) -> Any:
    if isinstance(config, bert.BertConfig):
        return models_tensorflow.BertForPreTraining(config, compute, seed)
    return models_tensorflow.Gpt2(config, compute, seed)


def batch_of(config: Any) -> Batch:
    if isinstance(config, bert.BertConfig):
        return bert.synthetic_batch(config, BATCH, SEQ_LEN, 5, seed=1)
    case = Case("tensorflow", "gpt2-tiny", Topology(1, 1), "fp32", BATCH, SEQ_LEN, seed=0)
    return weights.token_batch(min(config.vocab, gpt2.TOKENS), case, rank=1)


def padded(batch: Batch) -> Batch:
    """This check with sequences of several lengths, or with labels that count for nothing."""
    if "labels" in batch:
        labels = batch["labels"].copy()
        labels[:, ::3] = IGNORED
        return {**batch, "labels": labels}
    mask = (np.arange(SEQ_LEN) < np.array([SEQ_LEN, 24, 15])[:, None]).astype(np.int64)
    lost = batch["masked_lm_positions"] >= mask.sum(1, keepdims=True)
    assert lost.any() and not lost.all(axis=1).any(), "some but not all, or this tests nothing"
    return {
        **batch,
        "input_ids": batch["input_ids"] * mask,
        "masked_lm_positions": np.where(lost, 0, batch["masked_lm_positions"]),
        "masked_lm_ids": np.where(lost, IGNORED, batch["masked_lm_ids"]),
        "input_mask": mask,
    }


def as_torch(batch: Batch) -> Batch:
    return {name: torch.as_tensor(array) for name, array in batch.items()}


def as_tensorflow(batch: Batch) -> Batch:
    return {name: tf.constant(array) for name, array in batch.items()}


def twins(config: Any, noise: float) -> tuple[torch.nn.Module, Any]:
    """A model of each framework with the same weights, none of them 0 or 1 where there is noise."""
    torch.manual_seed(0)
    theirs = build_torch(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=noise)
    ours = build_tensorflow(config)
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    return theirs, ours


def loss_and_gradients(model: Any) -> Callable[..., Any]:
    """For ``tf.function``: the loss, and a gradient per variable in the order of their names."""

    def compute(**batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model(**batch)
        variables = [variable for _, variable in model.named_variables()]
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

    return compute


def under_torchs_names(model: Any, gradients: list[Any]) -> dict[str, Any]:
    named = zip((name for name, _ in model.named_variables()), gradients)
    return {
        re.sub("kernel$", "weight", name): g.numpy().T if name.endswith("kernel") else g.numpy()
        for name, g in named
    }


def against_torch(config: Any, batch: Batch, xla: bool) -> dict[str, Any]:
    """Relative errors of loss and of each gradient, by norm."""
    theirs, ours = twins(config, noise=0.08)
    expected = theirs(**as_torch(batch))
    expected.backward()
    traced = tf.function(loss_and_gradients(ours), jit_compile=xla, autograph=False)
    loss, gradients = traced(**as_tensorflow(batch))
    named = under_torchs_names(ours, gradients)
    wanted = {name: np.asarray(p.grad) for name, p in theirs.named_parameters()}
    assert named.keys() == wanted.keys()
    errors = {
        name: float(np.linalg.norm(named[name] - array) / np.linalg.norm(array))
        for name, array in wanted.items()
    }
    worst = max(errors, key=lambda name: errors[name])
    assert min(float(np.linalg.norm(array)) for array in wanted.values()) > 0
    return {
        "loss": abs(float(loss) / expected.item() - 1),
        "gradient": errors[worst],
        "worst": worst,
        "compared": len(errors),
    }


def ten_steps(config: Any, optimizer: str) -> dict[str, Any]:
    """Losses before each of ten updates and after the last, in both frameworks."""
    settings = Optimizer(name=optimizer, lr=1e-2 if "lamb" in optimizer else 1e-3)
    theirs, ours = twins(config, noise=0.0)
    batch = batch_of(config)
    torch_batch, tensorflow_batch = as_torch(batch), as_tensorflow(batch)
    torch_losses = []
    torch_optimizer = optimizers_torch.build_optimizer(settings, theirs)
    for _ in range(11):
        loss = theirs(**torch_batch)
        torch_losses.append(loss.item())
        torch_optimizer.zero_grad()
        loss.backward()
        torch_optimizer.step()

    variables = [variable for _, variable in ours.named_variables()]
    tensorflow_optimizer = optimizers_tensorflow.TensorFlowOptimizer(settings, variables)
    compute = loss_and_gradients(ours)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(**batch: Any) -> Any:
        loss, gradients = compute(**batch)
        tensorflow_optimizer.apply(list(zip(gradients, variables)), settings.lr)
        return loss

    losses = [float(step(**tensorflow_batch)) for _ in range(11)]
    return {"torch": torch_losses, "tensorflow": losses}


def low_precision(config: Any, compute: str) -> dict[str, Any]:
    """Loss and gradients under mixed precision beside those of float32, same weights."""
    wide, narrow = build_tensorflow(config), build_tensorflow(config, compute)
    batch = as_tensorflow(batch_of(config))
    loss, gradients = tf.function(loss_and_gradients(narrow), autograph=False)(**batch)
    expected, wanted = loss_and_gradients(wide)(**batch)
    apart = [float(tf.norm(g - w) / tf.norm(w)) for g, w in zip(gradients, wanted)]
    return {
        "dtype": loss.dtype.name,
        "gradients": sorted({g.dtype.name for g in gradients}),
        "variables": sorted({v.dtype.name for v in narrow.trainable_variables}),
        "loss": abs(float(loss) / float(expected) - 1),
        "gradient": float(np.median(apart)),
    }


def products(config: Any, compute: str) -> list[str]:
    """Dtypes of the matrix products of a traced step."""
    traced = tf.function(loss_and_gradients(build_tensorflow(config, compute)), autograph=False)
    graph = traced.get_concrete_function(**as_tensorflow(batch_of(config))).graph
    kinds = ("MatMul", "BatchMatMulV2")
    return sorted({op.outputs[0].dtype.name for op in graph.get_operations() if op.type in kinds})


def counted() -> dict[str, int]:
    """Trainable numbers of every size; a graph that never runs holds shapes and no values."""
    found = {}
    for name, config in [*bert.SIZES.items(), *gpt2.SIZES.items()]:
        variants = {name: config}
        if isinstance(config, bert.BertConfig):
            variants[f"{name} pre"] = replace(config, layer_norm="pre")
        for label, variant in variants.items():
            with tf.Graph().as_default():
                model = build_tensorflow(variant)
                shapes = [variable.shape for _, variable in model.named_variables()]
                assert len(shapes) == len(model.trainable_variables)
            found[label] = sum(int(np.prod(shape)) for shape in shapes)
    return found


def initial_values(config: Any) -> dict[str, Any]:
    """Mean and deviation of each weight of a new model; whether seeds say what they should."""
    model = build_tensorflow(config, seed=7)
    tf.random.uniform([3])  # somebody else draws
    again, other = build_tensorflow(config, seed=7), build_tensorflow(config, seed=8)
    state = {name: t.numpy() for name, t in model.state_dict().items()}
    random = [name for name, array in state.items() if array.std() > 0]

    def equal(model: Any) -> list[bool]:
        found = model.state_dict()
        return [bool((found[name].numpy() == state[name]).all()) for name in random]

    return {
        "values": {name: [float(a.mean()), float(a.std())] for name, a in state.items()},
        "same seed": all(equal(again)),
        "other seed": any(equal(other)),
    }


def case_of(model: str, **changes: Any) -> Case:
    defaults = {option.name: option.default for option in WORKLOADS[model].options}
    options = {**defaults, "dropout": 0.0, **changes.pop("options", {})}
    return Case(
        framework="x",
        model=model,
        topology=Topology(1, 1),
        precision=changes.pop("precision", "fp32"),
        batch_size=2,
        seq_len=16,
        options=tuple(sorted(options.items())),
        **changes,
    )


def file_of_weights(directory: Path) -> dict[str, Any]:
    """Through files both ways, and through ``build`` as a sweep's option."""
    found: dict[str, Any] = {}
    for label, config in CONFIGS.items():
        first, second = directory / "torch.npz", directory / "tensorflow.npz"
        theirs, ours, last = build_torch(config), build_tensorflow(config), build_torch(config)
        weights.save(theirs, first)
        weights.load("tensorflow", ours, first)
        weights.save(ours, second)
        weights.load("torch", last, second)
        pairs = zip(theirs.state_dict().items(), last.state_dict().items())
        found[label] = all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)
    for model in ("bert-tiny", "gpt2-tiny"):
        build = WORKLOADS[model].build
        path = directory / f"{model}.npz"
        weights.save(build("tensorflow", case_of(model, seed=5)), path)
        case = case_of(model, seed=6, options={"initial_weights": str(path)})
        theirs, ours = build("torch", case), build("tensorflow", case)
        batch = WORKLOADS[model].batch(case, 1)
        loss = float(ours(**as_tensorflow(batch)))
        found[model] = abs(loss / theirs(**as_torch(batch)).item() - 1)
    return found


def precisions() -> dict[str, str]:
    """What ``build`` makes of a case's precision: dtype of products."""
    build = WORKLOADS["bert-tiny"].build
    return {
        name: build("tensorflow", case_of("bert-tiny", precision=name)).pooler.compute.name
        for name in ("fp32", "tf32", "bf16", "fp16")
    }


def dropped() -> dict[str, Any]:
    """Dropout by itself, and in a model."""
    ones, seed = tf.ones([1000, 1000], tf.bfloat16), tf.constant([3, 4])
    drop = models_tensorflow.dropout
    first, again = drop(ones, 0.1, seed, 0), drop(ones, 0.1, seed, 0)
    kept = first.numpy()
    found: dict[str, Any] = {
        "zeros": float((kept == 0).mean()),
        "values": sorted({float(value) for value in np.unique(kept)}),
        "again": bool(tf.reduce_all(first == again)),
        "other site": bool(tf.reduce_all(first == drop(ones, 0.1, seed, 1))),
        "other seed": bool(tf.reduce_all(first == drop(ones, 0.1, seed + 1, 0))),
    }
    model = build_tensorflow(replace(BERT, dropout=0.3))
    batch = as_tensorflow(batch_of(BERT))
    for label, xla in (("plain", False), ("xla", True)):
        traced = tf.function(lambda **batch: model(**batch), jit_compile=xla, autograph=False)
        found[label] = [float(traced(**batch, seed=tf.constant([n % 3, 4]))) for n in range(4)]
    undropped = build_tensorflow(replace(BERT, dropout=0.0))
    found["without"] = [float(model(**batch)), float(undropped(**batch))]
    return found


def checkpointed() -> dict[str, Any]:
    """Loss and gradients with dropout, equal draws; how often XLA computes tanh (once a layer in
    the forward pass, once more where the layer is computed again)."""
    found: dict[str, Any] = {"tanh": []}
    results = []
    batch = {**as_tensorflow(batch_of(GPT2)), "seed": tf.constant([3, 4])}
    for again in (False, True):
        config = replace(GPT2, layers=1, dropout=0.2, checkpoint_activations=again)
        model = build_tensorflow(config)
        loss, gradients = loss_and_gradients(model)(**batch)
        results.append([loss, *gradients])
        compiled = tf.function(loss_and_gradients(model), jit_compile=True, autograph=False)
        program = compiled.experimental_get_compiler_ir(**batch)(stage="optimized_hlo")
        found["tanh"].append(program.count(" tanh("))
    apart = [float(tf.norm(a - b) / tf.norm(a)) for a, b in zip(*results)]
    return {**found, "apart": max(apart)}


def gelus() -> dict[str, float]:
    """Value and slope of both gelus beside PyTorch's in float64: largest difference."""
    x = np.linspace(-8, 8, 2001, dtype=np.float32)
    found = {}
    for label, ours in (("none", models_tensorflow.gelu), ("tanh", models_tensorflow.gelu_tanh)):
        theirs = torch.from_numpy(x).double().requires_grad_()
        value = torch.nn.functional.gelu(theirs, approximate=label)
        value.sum().backward()
        place = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(place)
            got = ours(place)
        slope = tape.gradient(got, place).numpy()
        assert theirs.grad is not None
        found[label] = float(np.abs(got.numpy() - value.detach().numpy()).max())
        found[f"{label} slope"] = float(np.abs(slope - theirs.grad.numpy()).max())
    return found


def checks(directory: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    for label, config in CONFIGS.items():
        batch = batch_of(config)
        yield f"{label}", partial(against_torch, config, batch, xla=False)
        yield f"{label} xla", partial(against_torch, config, batch, xla=True)
        yield f"{label} padded", partial(against_torch, config, padded(batch), xla=False)
        for name in ("adam", "lamb"):
            yield f"{label} {name}", partial(ten_steps, config, name)
        for kind in ("bfloat16", "float16"):
            yield f"{label} {kind}", partial(low_precision, config, kind)
        yield f"{label} products", partial(products, config, "bfloat16")
        yield f"{label} initial", partial(initial_values, config)
    yield "counted", counted
    yield "weights", partial(file_of_weights, directory)
    yield "precisions", precisions
    yield "dropped", dropped
    yield "checkpointed", checkpointed
    yield "gelus", gelus


def main(results: Path) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    torch.set_num_threads(1)
    found: dict[str, Any] = {"seconds": {}}
    with tempfile.TemporaryDirectory() as directory:
        for name, check in checks(Path(directory)):
            start = time.perf_counter()
            found[name] = check()
            found["seconds"][name] = time.perf_counter() - start
    results.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
