"""Learning-rate schedules, each as the recipe it stands for computes it. Standard library only.

Steps are optimizer steps, counted from 0: :func:`learning_rate` of ``step`` is what the
``step + 1``-th update uses, so a warm-up begins with a rate of zero, as it does in each source.
Skipped steps (fp16 overflow) count: knowing of them would wait for the device.
"""

from __future__ import annotations

import math
from typing import Callable

from dlperf_hpc.model.case import Schedule


def _constant(schedule: Schedule, step: int) -> float:
    """1."""
    return 1.0


def _polynomial(schedule: Schedule, step: int) -> float:
    """step / warmup below ``warmup``; then (1 - step / total) ^ power, 0 from ``total`` on.

    TensorFlow's PolynomialDecay to 0 inside a linear warm-up (tf-models-official 2.3
    ``nlp/optimization.py`` with power 1; NVIDIA's TensorFlow BERT ``optimization.py`` with power
    0.5 for LAMB). The decay counts from step 0, not from the end of the warm-up.
    """
    return float(_left(schedule, step) ** schedule.power)


def _cosine(schedule: Schedule, step: int) -> float:
    """step / warmup below ``warmup``; then half a cosine from 1 to 0 at ``total``, and 0.

    Megatron-LM's (``learning_rates.py`` since v1.1, ``optimizer_param_scheduler.py`` now) with a
    lowest rate of 0. The copy of 2020 in DeepSpeedExamples stretches it by ``warmup`` steps: there
    it is not yet 0 at ``total``.
    """
    if step >= schedule.total:
        return 0.0
    share = (step - schedule.warmup) / (schedule.total - schedule.warmup)
    return (1 + math.cos(math.pi * share)) / 2


def _square(schedule: Schedule, step: int) -> float:
    """(step / warmup) ^ 1.5 below ``warmup``; then (1 - step / total) ^ 2, 0 from ``total`` on.

    ``EP`` of DeepSpeed's bing_bert, degrees included: its configurations cannot change them. Past
    ``total`` the source's parabola rises again; no recipe goes there, and here it stays at 0.
    """
    return _left(schedule, step) ** 2


def _exponential(schedule: Schedule, step: int) -> float:
    """(step / warmup) ^ degree below ``warmup``; then decay_rate ^ ((step - warmup) / decay_steps).

    DeepSpeed's bing_bert: ``LE``, its default, of degree 1, and ``EE`` of degree 2.
    """
    return float(schedule.decay_rate ** ((step - schedule.warmup) / schedule.decay_steps))


def _left(schedule: Schedule, step: int) -> float:
    return max(0.0, 1.0 - step / schedule.total)


# The degree of the warm-up, and what follows it.
SHAPES: dict[str, tuple[float, Callable[[Schedule, int], float]]] = {
    "constant": (0, _constant),
    "polynomial": (1, _polynomial),
    "cosine": (1, _cosine),
    "warmup_exp_decay_poly": (1.5, _square),
    "warmup_linear_decay_exp": (1, _exponential),
    "warmup_exp_decay_exp": (2, _exponential),
}


def learning_rate(peak: float, schedule: Schedule, step: int) -> float:
    """Learning rate of the update after ``step`` others: peak x shape(step) + offset. ``peak`` is
    :attr:`dlperf_hpc.model.case.Optimizer.lr`. The offset belongs to the recipes of bing_bert,
    which add it whatever the schedule says (``--lr_offset``)."""
    degree, decay = SHAPES[schedule.name]
    if step < schedule.warmup:
        return float(peak * (step / schedule.warmup) ** degree + schedule.offset)
    return peak * decay(schedule, step) + schedule.offset
