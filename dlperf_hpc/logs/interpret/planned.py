"""Totals that divide what was *planned* by the time really taken.

Hugging Face's Trainer and PaddleNLP's divide the samples (and the steps) that a run was to do by
the time of ``train()``: after early stopping, or where the run went on from a checkpoint, their
total is wrong by any factor (huggingface/optimum-graphcore issue 89). What the same log counts
shows which part was really done. Two ways lead to it, steps and epochs; each of them may be absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlperf_hpc.logs.scanned import Reading, Total, Unit

EXACT = 0.005
"""Steps are counted: a part that differs from the whole by more is no whole."""

NEARLY = 0.05
"""Epochs are rounded, and the last batch of one may be smaller."""

_WHOLE_BATCHES = 20  # steps of an epoch from which on its last batch hardly matters


@dataclass(frozen=True)
class Completion:
    """Which part of what a total divides was done: ``value`` of the whole, 1 if all was.

    None if the log does not show it; ``doubt`` then says why, and ``wrong`` that the total is known
    to be wrong. ``why`` says by which counts a part was found.
    """

    value: float | None
    why: str = ""
    doubt: str = ""
    wrong: bool = False


def _is_wrong(doubt: str) -> Completion:
    return Completion(None, doubt=doubt, wrong=True)


def completion(reading: Reading, total: Total) -> Completion | None:
    """The part of the planned work that was done in a total's time; None for the total of a program
    that says nothing of a plan."""
    counts = _counts_of(reading, total)
    if not counts:
        return None
    before = _before(counts, total)
    ways = _by_steps(counts, reading), _by_epochs(counts, total)
    done = [each for each in ways if each is not None]
    if not done and before == 0:
        return Completion(None, doubt="no line says how many were trained")
    if not done:
        return _is_wrong("the run went on from a checkpoint")
    (part, why), (other, counted_otherwise) = done[0], done[-1]
    if abs(part - other) > NEARLY * max(part, other):
        return _is_wrong(f"{why}, but {counted_otherwise}: these contradict each other")
    if before is None:
        return _is_wrong("the run went on from a checkpoint, of an unknown step")
    if before:
        part, why = part - before, f"{why}, {100 * before:.4g} % of them before a checkpoint"
    if part > 1 + NEARLY:
        return _is_wrong(f"{why}: more than was planned")
    if not part > 0:
        return _is_wrong(f"{why}: nothing is left for the time of the total")
    return Completion(part, why)


def _counts_of(reading: Reading, total: Total) -> dict[str, float]:
    """The counts that belong to a total: those behind the total before it, up to the next."""
    lines = [each.line for each in reading.totals]
    first = max((line for line in lines if line < total.line), default=0)
    last = min((line for line in lines if line > total.line), default=None)
    return {
        count.name: count.value
        for count in reading.counts
        if first < count.line and (last is None or count.line <= last)
    }


def _planned_steps(counts: Mapping[str, float]) -> float | None:
    """The steps that were to be done: as stated, else those that the total's own rate gives."""
    if counts.get("steps_asked"):
        return counts["steps_asked"]
    rate = counts.get("steps_per_s", 0.0)
    # Rounded to 3 decimals: of 0.029 steps/s no count follows.
    return round(rate * counts["seconds"]) or None if rate >= 0.2 and "seconds" in counts else None


def _by_steps(counts: Mapping[str, float], reading: Reading) -> tuple[float, str] | None:
    planned = _planned_steps(counts)
    if not planned:
        return None
    if "steps" in counts:
        done = counts["steps"]
    elif len(reading.steps) > 1:
        # The last line may be of some steps before the end, but not of more than lie between two.
        done = reading.steps[-1].iteration
        between = done - reading.steps[-2].iteration
        done = planned if done <= planned < done + max(between, 1) else done
    else:
        return None
    part = done / planned
    return 1.0 if abs(part - 1) <= EXACT else part, f"{done:g} of {planned:g} steps were done"


def _by_epochs(counts: Mapping[str, float], total: Total) -> tuple[float, str] | None:
    done, error = counts.get("epochs"), counts.get("epochs_error", 0.0)
    if not done:
        return None
    stated, by_samples = counts.get("epochs_asked"), _epochs_by_samples(counts, total)
    for each in (stated, by_samples):
        if each and abs(done - each) <= NEARLY * each + error:
            return 1.0, f"{done:g} of {each:.4g} epochs were done"
    planned = _planned_epochs(counts, total)
    if not planned or error > NEARLY * done:
        return None  # 0.01 may be anything from 0.005 to 0.015
    return done / planned, f"{done:g} of {planned:.4g} epochs were done"


def _epochs_by_samples(counts: Mapping[str, float], total: Total) -> float | None:
    """Epochs of the data in the samples that the total divides."""
    if total.unit is not Unit.SAMPLES_PER_S or not counts.get("epoch_samples"):
        return None
    return total.value * counts.get("seconds", 0.0) / counts["epoch_samples"] or None


def _planned_epochs(counts: Mapping[str, float], total: Total) -> float | None:
    """Epochs that were to be done. The stated number is rounded up; by the samples it is exact,
    unless steps were asked for and an epoch has so few batches that its last one matters."""
    stated, by_samples = counts.get("epochs_asked"), _epochs_by_samples(counts, total)
    if not by_samples or (stated and abs(by_samples - stated) <= NEARLY * stated):
        return stated or None
    if abs(by_samples - round(by_samples)) <= EXACT * by_samples:
        return by_samples  # of whole epochs, as asked for
    steps = _planned_steps(counts)
    return by_samples if steps and steps / by_samples >= _WHOLE_BATCHES else None


def _before(counts: Mapping[str, float], total: Total) -> float | None:
    """The part that was done before a checkpoint from which the run went on; 0 if there was none,
    None if it is not known how much."""
    steps, epochs = counts.get("resumed"), counts.get("resumed_epochs")
    planned_steps, planned_epochs = _planned_steps(counts), _planned_epochs(counts, total)
    if steps and planned_steps:
        return steps / planned_steps
    if epochs and planned_epochs:
        return epochs / planned_epochs
    if steps or epochs:
        return None
    first, second = counts.get("first_epochs", 0.0), counts.get("second_epochs", 0.0)
    # From the start on, the first line stands as far behind it as the second behind the first.
    if not 0 < 2 * (second - first) < first:
        return 0.0
    return (2 * first - second) / planned_epochs if planned_epochs else None
