"""The optimizers of a sweep in TensorFlow. Imports tensorflow: never loaded on the login node.

Formulas, LAMB's variants and weight decay are those of :mod:`~dlperf_hpc.train.torch.optimizers`.
Keras's optimizers are not used: inside a strategy they all-reduce gradients by themselves. These
update variables from gradients that are already averaged over ranks, in operations that a
``tf.function`` traces and XLA compiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable

import tensorflow as tf

from dlperf_hpc.model.case import Optimizer


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


def build_optimizer(settings: Optimizer, variables: Sequence[Any]) -> TensorFlowOptimizer:
    """The optimizer of a case over ``variables`` (``tf.Variable``), with its state.

    Call it outside of any tf.function, and within the strategy's scope where there is one.
    """
    return TensorFlowOptimizer(settings, variables)


def clip_by_global_norm(gradients: Iterable[Any], clip: float) -> list[Any]:
    """Gradients (None among them stays None) scaled down to a global norm of ``clip``; as they are
    where ``clip`` is 0. Norm and product are in the gradients' own type."""
    if not clip:
        return list(gradients)
    clipped, _ = tf.clip_by_global_norm(list(gradients), clip)
    return list(clipped)


@dataclass(frozen=True)
class Moments:
    """What an optimizer keeps of one variable: of sgd the momentum only, in ``first``."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Step:
    """Scalars of one update. ``keep`` is 1, or 0 where the step is skipped; ``first_left`` and
    ``second_left`` are 1 - beta^t, or 1 without bias correction."""

    settings: Optimizer
    lr: Any
    keep: Any
    first_left: Any
    second_left: Any


class TensorFlowOptimizer:
    """State for each variable, found by the variable itself: order and names do not matter.

    ``variables`` are all of the state, for a checkpoint.
    """

    def __init__(self, settings: Optimizer, variables: Sequence[Any]) -> None:
        self.settings = settings
        # Double: 1 - beta2^t of the first steps would lose half its digits. It counts applied
        # steps only, so it cannot be a Python number.
        self.steps = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="steps")
        self._update = _UPDATES[settings.name]
        self._moments = {v.ref(): _moments(settings, v) for v in variables}
        kept = [m for pair in self._moments.values() for m in (pair.first, pair.second)]
        self.variables: list[Any] = [self.steps, *(m for m in kept if m is not None)]

    def apply(self, grads_and_vars: Iterable[tuple[Any, Any]], lr: Any, keep: Any = None) -> None:
        """One update of each variable whose gradient is not None.

        ``lr`` is this step's rate, a number or (so that a tf.function is traced once) a scalar
        tensor; see :func:`dlperf_hpc.train.schedules.learning_rate`. ``keep`` is a scalar bool
        tensor: where it is false nothing changes, state included, whatever the gradients hold.
        """
        kept = tf.constant(1.0, tf.float64) if keep is None else tf.cast(keep, tf.float64)
        self.steps.assign_add(kept)
        step = self._step(tf.cast(lr, tf.float64), kept)
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            dense = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
            if keep is not None:
                dense = tf.where(keep, dense, tf.zeros_like(dense))
            decay = self.settings.weight_decay if variable.shape.rank > 1 else 0.0
            self._update(step, variable, dense, self._moments[variable.ref()], decay)

    def _step(self, lr: Any, keep: Any) -> Step:
        first_left = second_left = tf.constant(1.0, tf.float64)
        if self.settings.bias_correction:
            # 1 before the first step that is kept: 0 would make 0 / 0 of a skipped one.
            done = tf.maximum(self.steps, 1.0)
            first_left = 1.0 - tf.constant(self.settings.beta1, tf.float64) ** done
            second_left = 1.0 - tf.constant(self.settings.beta2, tf.float64) ** done
        scalars = (tf.cast(x, tf.float32) for x in (lr * keep, keep, first_left, second_left))
        return Step(self.settings, *scalars)


def _moments(settings: Optimizer, variable: Any) -> Moments:
    def zeros(name: str) -> Any:
        empty = tf.zeros(variable.shape, variable.dtype)
        return tf.Variable(empty, trainable=False, name=name)

    return Moments(zeros("first"), None if settings.name == "sgd" else zeros("second"))


def _average(moment: Any, value: Any, beta: float, keep: Any) -> Any:
    """moment = beta moment + (1 - beta) value, or the moment as it was."""
    return moment.assign_add((1.0 - beta) * keep * (value - moment))


def _sgd(step: Step, variable: Any, gradient: Any, moments: Moments, decay: float) -> None:
    """PyTorch's: momentum without dampening, weight decay in the gradient."""
    if decay:
        gradient = gradient + decay * variable
    beta = 1.0 - (1.0 - step.settings.beta1) * step.keep
    momentum = moments.first.assign(beta * moments.first + step.keep * gradient)
    variable.assign_sub(step.lr * momentum)


def _adam(step: Step, variable: Any, gradient: Any, moments: Moments, decay: float) -> None:
    """Weight decay in the gradient."""
    if decay:
        gradient = gradient + decay * variable
    variable.assign_sub(step.lr * _adam_direction(step, gradient, moments))


def _adamw(step: Step, variable: Any, gradient: Any, moments: Moments, decay: float) -> None:
    """Weight decay apart from the gradient."""
    direction = _adam_direction(step, gradient, moments)
    if decay:
        direction = direction + decay * variable
    variable.assign_sub(step.lr * direction)


def _adam_direction(step: Step, gradient: Any, moments: Moments) -> Any:
    settings = step.settings
    first = _average(moments.first, gradient, settings.beta1, step.keep)
    second = _average(moments.second, tf.square(gradient), settings.beta2, step.keep)
    return first / step.first_left / (tf.sqrt(second / step.second_left) + settings.eps)


def _lamb(step: Step, variable: Any, gradient: Any, moments: Moments, decay: float) -> None:
    settings = step.settings
    first = _average(moments.first, gradient, settings.beta1, step.keep)
    second = _average(moments.second, tf.square(gradient), settings.beta2, step.keep)
    left = (step.first_left, step.second_left)
    variable.assign_sub(step.lr * lamb_update(settings, variable, first, second, left, decay))


_UPDATES: dict[str, Callable[[Step, Any, Any, Moments, float], None]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "lamb": _lamb,
    "lamb-nvidia": _lamb,
    "lamb-deepspeed": _lamb,
}
