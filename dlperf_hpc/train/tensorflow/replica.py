"""One device's share of training under TensorFlow: gradients, their sum, and the update.

Imports tensorflow: never loaded on the login node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from dlperf_hpc.model.case import Case
from dlperf_hpc.train.tensorflow.optimizers import build_optimizer, clip_by_global_norm

Tensors = list[Any]

# The loss scale of fp16: torch's rule, begun lower so that a short warm-up reaches its level.
INITIAL_SCALE = 2.0**15
GROWTH_INTERVAL = 2000


class Replica:
    """What one device holds beside the model: gradient sums, optimizer state, loss scale and random
    state, all plain variables that no strategy mirrors; and the operations of one micro-batch on
    them.

    ``number`` is the device's in the world. ``variables`` are the model's, as they lie on this
    device. ``reduce`` averages a list of gradients over all devices of the world; ``every`` says
    that it does so in each micro-batch, else only at the end of an accumulation. Make it outside of
    any strategy's scope, with its device in force.
    """

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
        self._optimizer = build_optimizer(case.optimizer, self._variables)
        accumulates = case.accumulation > 1
        self._sums = [_zeros(v) for v in self._variables] if accumulates else []
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
            share = loss * (self.scale / self._case.accumulation) if self._changes_loss else loss
        # Embeddings give theirs by rows: all-reduce and the sums want them whole.
        gradients = tape.gradient(share, self._variables)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    @property
    def _changes_loss(self) -> bool:
        return self._scaled or self._case.accumulation > 1

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


def _zeros(variable: Any) -> Any:
    return tf.Variable(tf.zeros(variable.shape), trainable=False)


def _compiled(function: Callable[..., Any]) -> Any:
    return tf.function(function, jit_compile=True)
