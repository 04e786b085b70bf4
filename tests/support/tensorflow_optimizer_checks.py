"""TensorFlow's optimizers on the samples of ``optimizer_references``.

Run in an environment that has TensorFlow; writes one JSON object to the file named by its
argument, which ``test_optimizers.py`` judges.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optimizer_references as reference
import tensorflow as tf

from dlperf_hpc.model.case import Optimizer
from dlperf_hpc.train.tensorflow.replica import TensorFlowOptimizer, clip_by_global_norm

Trajectory = list[list[list[float]]]


def variables(kind: str) -> list[Any]:
    return [tf.Variable(w, dtype=kind) for w in reference.weights()]


def values(tensors: list[Any]) -> list[list[float]]:
    return [t.numpy().astype(np.float64).ravel().tolist() for t in tensors]


def trajectory(name: str, bias_correction: bool, jit: bool) -> Trajectory:
    """In one traced function, the learning rate its argument; variables in reversed order."""
    weights = variables("float32")
    settings = Optimizer(**reference.settings(name, bias_correction))
    optimizer = TensorFlowOptimizer(settings, list(reversed(weights)))

    def update(gradients: list[Any], lr: Any) -> None:
        ready = clip_by_global_norm(gradients, settings.grad_clip)
        optimizer.apply(zip(ready, weights), lr)

    traced: Any = tf.function(update, jit_compile=jit)
    seen = []
    for raw, rate in zip(reference.gradients(), reference.RATES):
        traced([tf.constant(g, tf.float32) for g in raw], tf.constant(rate))
        seen.append(values(weights))
    assert traced.experimental_get_tracing_count() == 1
    return seen


def mirrored(name: str) -> list[Trajectory]:
    """Of each of two replicas, which have the same gradients already; nothing averages them."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weights = variables("float32")
        settings = Optimizer(**reference.settings(name))
        optimizer = TensorFlowOptimizer(settings, weights)

    def update(gradients: list[Any], lr: Any) -> None:
        ready = clip_by_global_norm(gradients, settings.grad_clip)
        optimizer.apply(zip(ready, weights), lr)

    traced: Any = tf.function(lambda *given: strategy.run(update, given))
    seen: list[Trajectory] = [[], []]
    for raw, rate in zip(reference.gradients(), reference.RATES):
        traced([tf.constant(g, tf.float32) for g in raw], tf.constant(rate))
        for replica, steps in enumerate(seen):
            steps.append(values([strategy.experimental_local_results(w)[replica] for w in weights]))
    return seen


def skipping(name: str) -> dict[str, Any]:
    """Steps among which one overflows, the first of all too, beside the good ones alone."""
    cases = {
        "with": [True, False, True],
        "without": [True, True],
        "first": [False, True, True],
    }
    return {label: kept_steps(name, keeps) for label, keeps in cases.items()}


def kept_steps(name: str, keeps: list[bool]) -> list[list[list[float]]]:
    """Parameters and state after them; those that are not kept have gradients of NaN."""
    weights = variables("float32")
    optimizer = TensorFlowOptimizer(Optimizer(**reference.settings(name)), weights)

    def update(gradients: list[Any], keep: Any) -> None:
        optimizer.apply(zip(gradients, weights), reference.LR, keep)

    traced: Any = tf.function(update)
    good = iter(reference.gradients())
    for keep in keeps:
        raw = next(good) if keep else reference.gradients()[0]
        spoilt = [g if keep else g * np.nan for g in raw]
        traced([tf.constant(g, tf.float32) for g in spoilt], tf.constant(keep))
    return [values(weights), values(optimizer.variables)]


def sparse() -> list[list[float]]:
    """A gradient as an embedding's look-up gives it, beside one that is None."""
    table, other = tf.Variable(tf.ones((4, 2))), tf.Variable(tf.ones(3))
    optimizer = TensorFlowOptimizer(
        Optimizer(name="sgd", lr=1.0, beta1=0.0, weight_decay=0.0), [table]
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]))
    gradients = clip_by_global_norm(tape.gradient(loss, [table, other]), 0.0)
    optimizer.apply(zip(gradients, [table, other]), 1.0)
    return values([table, other])


def main() -> None:
    tf.config.set_visible_devices([], "GPU")
    halves = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
    found: dict[str, Any] = {"trajectory": {}, "skipping": {}, "sparse": sparse()}
    found["mirrored"] = {name: mirrored(name) for name in ("adamw", "lamb-deepspeed")}
    for name in reference.NAMES:
        for correction in (True, False):
            key = f"{name} {correction}"
            found["trajectory"][key] = trajectory(name, correction, jit=False)
        found["skipping"][name] = skipping(name)
    found["trajectory"]["lamb jit"] = trajectory("lamb", True, jit=True)
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
