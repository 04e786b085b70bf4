"""One device's share of training under TensorFlow: gradients, their sum, and the optimizers.

Imports tensorflow: never loaded on the login node.

Formulas, LAMB's variants and weight decay are those of :mod:`~dlperf_hpc.train.torch.optimizers`.
Keras's optimizers are not used: inside a strategy they all-reduce gradients by themselves. These
update variables from gradients that are already averaged over ranks, in operations that a
``tf.function`` traces and XLA compiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from dlperf_hpc.model.case import Case, Optimizer

Tensors = list[Any]
Moments = list[Any]

# The loss scale of fp16: torch's rule, begun lower so that a short warm-up reaches its level.
INITIAL_SCALE = 2.0**15
GROWTH_INTERVAL = 2000


def clip_by_global_norm(gradients: Iterable[Any], clip: float) -> list[Any]:
    """Gradients (or None) scaled down to a global norm of ``clip``, in their own type; 0 is off."""
    if not clip:
        return list(gradients)
    clipped, _ = tf.clip_by_global_norm(list(gradients), clip)
    return list(clipped)


@dataclass(frozen=True)
class UpdateStep:
    """Scalars of one update: ``keep`` is 0 where it is skipped, else 1; 1 - beta^t, or 1."""

    settings: Optimizer
    lr: Any
    keep: Any
    first_left: Any
    second_left: Any


class TensorFlowOptimizer:
    """The optimizer of a case over ``variables`` (``tf.Variable``), with a state for each, found by
    the variable itself. Make it outside of any tf.function, and within the strategy's scope where
    there is one. Its own ``variables`` are all of the state, for a checkpoint."""

    def __init__(self, settings: Optimizer, variables: Sequence[Any]) -> None:
        self.settings = settings
        # Double: 1 - beta2^t of the first steps would lose half its digits. It counts applied
        # steps only, so it cannot be a Python number.
        self.steps = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="steps")
        self._update = _UPDATES.get(settings.name, _lamb)
        self._moments = {v.ref(): _moments(settings, v) for v in variables}
        self.variables: list[Any] = [self.steps, *itertools.chain(*self._moments.values())]

    def apply(self, grads_and_vars: Iterable[tuple[Any, Any]], lr: Any, keep: Any = None) -> None:
        """One update of each variable whose gradient is not None. ``lr`` is this step's rate, a
        number or (so that a tf.function is traced once) a scalar tensor. ``keep`` is a scalar bool
        tensor: where it is false nothing changes, state included, whatever the gradients hold."""
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

    def _step(self, lr: Any, keep: Any) -> UpdateStep:
        first_left = second_left = tf.constant(1.0, tf.float64)
        if self.settings.bias_correction:
            # 1 before the first step that is kept: 0 would make 0 / 0 of a skipped one.
            done = tf.maximum(self.steps, 1.0)
            first_left = 1.0 - tf.constant(self.settings.beta1, tf.float64) ** done
            second_left = 1.0 - tf.constant(self.settings.beta2, tf.float64) ** done
        scalars = (tf.cast(x, tf.float32) for x in (lr * keep, keep, first_left, second_left))
        return UpdateStep(self.settings, *scalars)


def _moments(settings: Optimizer, variable: Any) -> Moments:
    """What an optimizer keeps of one variable: of sgd the momentum only."""
    names = ("first", "second")[: 1 if settings.name == "sgd" else 2]
    zeros = tf.zeros(variable.shape, variable.dtype)
    return [tf.Variable(zeros, trainable=False, name=name) for name in names]


def _averages(step: UpdateStep, gradient: Any, moments: Moments) -> tuple[Any, Any]:
    """Each moment = beta moment + (1 - beta) value, or as it was where the step is skipped."""
    (first, second), settings = moments, step.settings
    first = first.assign_add((1.0 - settings.beta1) * step.keep * (gradient - first))
    second = second.assign_add((1.0 - settings.beta2) * step.keep * (tf.square(gradient) - second))
    return first, second


def _sgd(step: UpdateStep, variable: Any, gradient: Any, moments: Moments, decay: float) -> None:
    """PyTorch's: momentum without dampening, weight decay in the gradient."""
    if decay:
        gradient = gradient + decay * variable
    beta = 1.0 - (1.0 - step.settings.beta1) * step.keep
    momentum = moments[0].assign(beta * moments[0] + step.keep * gradient)
    variable.assign_sub(step.lr * momentum)


def _adam(step: UpdateStep, variable: Any, gradient: Any, moments: Moments, decay: float) -> None:
    if decay:
        gradient = gradient + decay * variable
    variable.assign_sub(step.lr * _adam_direction(step, gradient, moments))


def _adamw(step: UpdateStep, variable: Any, gradient: Any, moments: Moments, decay: float) -> None:
    direction = _adam_direction(step, gradient, moments)
    if decay:
        direction = direction + decay * variable
    variable.assign_sub(step.lr * direction)


def _adam_direction(step: UpdateStep, gradient: Any, moments: Moments) -> Any:
    first, second = _averages(step, gradient, moments)
    return first / step.first_left / (tf.sqrt(second / step.second_left) + step.settings.eps)


def _lamb(step: UpdateStep, variable: Any, gradient: Any, moments: Moments, decay: float) -> None:
    settings = step.settings
    first, second = _averages(step, gradient, moments)
    weights = tf.convert_to_tensor(variable)
    if settings.name == "lamb-deepspeed":
        update = first / (tf.sqrt(second) + settings.eps)
    else:
        update = first / step.first_left / (tf.sqrt(second / step.second_left) + settings.eps)
    if decay:
        update = update + decay * weights
    if settings.name != "lamb-nvidia" or decay:
        update = _trust_ratio(step, tf.norm(weights), tf.norm(update)) * update
    variable.assign_sub(step.lr * update)


def _trust_ratio(step: UpdateStep, weights: Any, update: Any) -> Any:
    """The ratio of the two norms, 1 where one of them is 0, with DeepSpeed's bias correction."""
    settings = step.settings
    ratio = tf.math.divide_no_nan(weights, update)
    if settings.name == "lamb-deepspeed":
        ratio = tf.clip_by_value(ratio, settings.min_coeff, settings.max_coeff)
    ratio = tf.where((weights > 0) & (update > 0), ratio, tf.ones_like(ratio))
    if settings.name == "lamb-deepspeed":
        ratio = ratio * tf.sqrt(step.second_left) / step.first_left
    return ratio


_UPDATES: dict[str, Callable[[UpdateStep, Any, Any, Moments, float], None]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
}


class Replica:
    """What one device holds beside the model (gradient sums, optimizer state, loss scale and random
    state, which no strategy mirrors), and the operations of one micro-batch on them. ``number`` is
    the device's in the world; ``variables`` are the model's, on this device; ``reduce`` averages
    gradients over all devices, with ``every`` in each micro-batch. Make it outside of any
    strategy's scope, with its device in force."""

    def __init__(
        self,
        case: Case,
        number: int,
        model: Callable[..., Any],
        variables: Sequence[Any],
        reduce: Callable[[Tensors], Tensors],
        *,
        xla: bool,
        every: bool = False,
    ) -> None:
        self._case = case
        self._model = model
        self._variables = list(variables)
        self._average = reduce
        self.reducing = True
        self._every = every
        self._optimizer = TensorFlowOptimizer(case.optimizer, self._variables)
        self._sums: Tensors = []
        if case.accumulation > 1:
            self._sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in variables]
        self._scaled = case.precision == "fp16"
        self._first_scale = INITIAL_SCALE if self._scaled else 1.0
        self.scale = tf.Variable(self._first_scale, trainable=False)
        self._clean_steps = tf.Variable(0, trainable=False)
        self.skipped = tf.Variable(0, trainable=False)
        self._own_seed = case.seed * 1_000_003 + number
        with tf.device("CPU:0"):
            self._passes = tf.Variable(0, trainable=False, dtype=tf.int64)
        # XLA takes what is this device's own work; the all-reduce between devices stays outside.
        self._differentiate = _compiled(self._gradients) if xla else self._gradients
        self._apply = _compiled(self._update) if xla else self._update

    def _reduce(self, gradients: Tensors) -> Tensors:
        """As it is traced: another function must be for each state of ``reducing``."""
        return self._average(gradients) if self.reducing else gradients

    def micro_step(self, batch: dict[str, Any], place: int) -> Any:
        """Add a micro-batch's gradients to the sums; its loss. ``place`` 0 begins the sums."""
        loss, gradients = self._differentiate(batch, self._seed())
        if self._every:
            gradients = self._reduce(gradients)
        for total, gradient in zip(self._sums, gradients):
            if place:
                total.assign_add(gradient, read_value=False)
            else:
                total.assign(gradient, read_value=False)
        return loss

    def last_step(self, batch: dict[str, Any], rate: Any) -> Any:
        """The micro-batch that ends an accumulation, and the optimizer's step; its loss."""
        loss, gradients = self._differentiate(batch, self._seed())
        if self._every:
            gradients = self._reduce(gradients)
        if self._sums:
            gradients = [total + gradient for total, gradient in zip(self._sums, gradients)]
        if not self._every:
            gradients = self._reduce(gradients)
        self._apply(gradients, rate)
        return loss

    @property
    def variables(self) -> list[Any]:
        """All that an optimizer step leaves behind, the model's on this device first."""
        counts = (self._clean_steps, self.skipped, self._passes)
        return [*self._variables, self.scale, *counts, *self._optimizer.variables]

    def reset(self) -> None:
        """Forget every step so far, but for what it did to the parameters."""
        for variable in self.variables[len(self._variables) :]:
            variable.assign(tf.zeros_like(variable))
        self.scale.assign(self._first_scale)

    def _seed(self) -> Any:
        """Dropout's, int32 [2]: another in each forward pass, and on each device."""
        with tf.device("CPU:0"):  # where the kernels of stateless random numbers want it
            key = [self._own_seed, self._passes.assign_add(1)]
            return tf.random.stateless_uniform([2], key, maxval=tf.int32.max, dtype=tf.int32)

    def _gradients(self, batch: dict[str, Any], seed: Any) -> tuple[Any, Tensors]:
        """(loss, gradients): theirs is scaled, and divided by the accumulation."""
        with tf.GradientTape() as tape:
            loss = self._model(**batch, seed=seed)
            share = loss
            if self._scaled or self._case.accumulation > 1:
                share = loss * (self.scale / self._case.accumulation)
        # Embeddings give theirs by rows: all-reduce and the sums want them whole.
        gradients = tape.gradient(share, self._variables)
        return loss, list(map(tf.convert_to_tensor, gradients))

    def _update(self, gradients: Tensors, rate: Any) -> None:
        keep = None
        if self._scaled:
            keep = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
            gradients = [gradient / self.scale for gradient in gradients]
        gradients = clip_by_global_norm(gradients, self._case.optimizer.grad_clip)
        self._optimizer.apply(list(zip(gradients, self._variables)), rate, keep)
        if keep is not None:
            self._rescale(keep)

    def _rescale(self, clean: Any) -> None:
        """Halve the scale after an overflow, double it after 2000 clean steps."""
        steps = tf.where(clean, self._clean_steps + 1, 0)
        grown = tf.where(steps >= GROWTH_INTERVAL, 2.0 * self.scale, self.scale)
        self.scale.assign(tf.where(clean, grown, tf.maximum(self.scale / 2, 1.0)))
        self._clean_steps.assign(tf.where(steps >= GROWTH_INTERVAL, 0, steps))
        self.skipped.assign_add(tf.cast(tf.logical_not(clean), tf.int32))


def _compiled(function: Callable[..., Any]) -> Any:
    return tf.function(function, jit_compile=True)
