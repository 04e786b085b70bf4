"""LAMB in TensorFlow, in the three variants that :mod:`~dlperf_hpc.train.backends.lamb_torch`
describes. Imports tensorflow: never loaded on the login node."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dlperf_hpc.spec.case import Optimizer


def lamb_update(
    settings: Optimizer,
    variable: Any,
    first: Any,
    second: Any,
    left: tuple[Any, Any],
    decay: float,
) -> Any:
    """What lr times is taken from ``variable``, given its new moments.

    ``left`` are 1 - beta1^t and 1 - beta2^t (1 without bias correction), ``decay`` this variable's
    own weight decay.
    """
    first_left, second_left = left
    weights = tf.convert_to_tensor(variable)
    if settings.name == "lamb-deepspeed":
        update = first / (tf.sqrt(second) + settings.eps)
    else:
        update = first / first_left / (tf.sqrt(second / second_left) + settings.eps)
    if decay:
        update = update + decay * weights
    if settings.name == "lamb-nvidia" and not decay:
        return update
    ratio = _trust_ratio(settings, tf.norm(weights), tf.norm(update))
    if settings.name == "lamb-deepspeed":
        ratio = ratio * tf.sqrt(second_left) / first_left
    return ratio * update


def _trust_ratio(settings: Optimizer, weights: Any, update: Any) -> Any:
    """Of the two norms; 1 where one of them is 0."""
    ratio = tf.math.divide_no_nan(weights, update)
    if settings.name == "lamb-deepspeed":
        ratio = tf.clip_by_value(ratio, settings.min_coeff, settings.max_coeff)
    return tf.where((weights > 0) & (update > 0), ratio, tf.ones_like(ratio))
