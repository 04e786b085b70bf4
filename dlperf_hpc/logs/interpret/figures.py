"""A rule applied to one run of a log: one figure, in the units of the log.

Nothing here knows a batch size: :mod:`.throughput` makes samples/s of a figure.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from dlperf_hpc.logs.interpret.intervals import less_pauses
from dlperf_hpc.logs.interpret.linefigures import by_clock, by_printed, rate, rate_unit
from dlperf_hpc.logs.interpret.rules import WARMUP, Basis, Mean, WindowRule
from dlperf_hpc.logs.interpret.segments import FEWEST, NoFigure, Segment, WindowFigure
from dlperf_hpc.logs.scanned import (
    Averaging,
    LogStep,
    LogSteps,
    Printed,
    Reading,
    Scope,
    Total,
    Unit,
    differences,
    is_rising,
)

_FEWEST_WINDOWS, _MOST_WINDOWS = 5, 21  # behind one that is not the usual
_LONG_S = 60.0  # of a window between stamps of whole seconds: of less, one second is too much
_UNSTEADY = 0.05  # difference of the halves of a short window, or of a window and the rest
_SPREAD = 0.15  # of the times in one that begins before the warm-up is over


def figure(rule: WindowRule, reading: Reading, segment: Segment) -> WindowFigure:
    """The figure of one run by ``rule``, whose alternatives are not tried; NoFigure if none."""
    if rule.basis is Basis.TOTAL:
        return _total(rule, reading, segment)
    if reading.printed.unit is Unit.OWN and rule.basis is not Basis.PRINTED:
        raise NoFigure(f"the program's figure is in {reading.printed.label}", expected=True)
    if not segment.steps:
        raise NoFigure("no line with the number of an iteration was read", expected=True)
    by = by_clock if rule.basis in (Basis.CLOCK, Basis.ARRIVAL) else by_printed
    found = by(rule, reading, segment)
    if rule.nearest and by is by_printed:
        found = _behind_ramp(found, reading, segment) or found
    if not (math.isfinite(found.value) and found.value > 0):
        raise NoFigure(f"{found.value!r} {found.printed.label} is no speed")
    if rule.short:
        found = _steady_or_behind(found, reading, segment)
    if found.unit is Unit.ITERATIONS_PER_S:
        found = _with_batch(found, segment)
    return _usual(found, reading, segment) if rule.usual else found


def _usual(found: WindowFigure, reading: Reading, segment: Segment) -> WindowFigure:
    """The figure; or, of a run that goes on at another speed, that of a window behind it: the one
    of the median speed, among ones as long or longer of which there is least to warn."""
    first, last = found.first or 0, found.last or 0
    running = reading.printed.averaging is Averaging.RUNNING  # whose rounding grows with the run
    if found.lacking or (running and found.rule.basis is Basis.PRINTED):
        return found
    ends = [(last, end) for end in ends_behind(segment, last)]
    rest = next(_figures_between(ends, found.rule, reading, segment), found)
    rough = _is_whole(found) and (found.elapsed_s or 0) < _LONG_S
    if not _differs(rest, found) and not rough:
        return found
    windows = _windows_behind(found, rest, segment)
    behind = _plainest(_figures_between(windows, found.rule, reading, segment))
    usual = behind[len(behind) // 2] if 2 * len(behind) > _FEWEST_WINDOWS else found
    if usual is found or not (rough or _differs(usual, found)):
        return found
    change = f"{100 * (_samples(found) / _samples(usual) - 1):+.1f} %"
    differ = f"iterations {first} to {last} differ from the run's usual speed, {change}"
    taken = f"{usual.first} to {usual.last} are used, the median of {len(behind)} later windows"
    return replace(usual, warnings=(f"{differ}: {taken}", *usual.warnings))


def _plainest(figures: Iterator[WindowFigure]) -> list[WindowFigure]:
    """Those of which there is least to warn, the slowest first."""
    found = sorted(figures, key=_samples)
    least = min((len(each.warnings) for each in found), default=0)
    return [each for each in found if len(each.warnings) == least]


def _is_whole(found: WindowFigure) -> bool:
    """Whether a window lies between stamps of whole seconds: it is off by one, perhaps."""
    return bool(found.elapsed_s) and found.elapsed_s == int(found.elapsed_s or 0)


def _samples(found: WindowFigure) -> float:
    return found.value * (found.batch or 1.0)


def _differs(one: WindowFigure, other: WindowFigure) -> bool:
    return abs(_samples(one) / _samples(other) - 1) > _UNSTEADY


def _windows_behind(
    found: WindowFigure, rest: WindowFigure, segment: Segment
) -> list[tuple[int, int]]:
    """The ends of windows as long as ``found``, or longer, one after the other; of many, some all
    over the ``rest`` of the run; none of a few."""
    numbers, windows, last = segment.steps.numbers("iteration"), [], found.last or 0
    length = max(1, last - (found.first or 0))
    if _is_whole(rest):
        length = max(length, math.ceil(rest.value * _LONG_S))
    while (end := bisect_left(numbers, last + length)) < len(numbers):
        windows.append((last, last := int(numbers[end])))
    spread = math.ceil(len(windows) / _MOST_WINDOWS)
    return windows[::spread] if len(windows) >= _FEWEST_WINDOWS else []


def _figures_between(
    windows: Iterable[tuple[int, int]], rule: WindowRule, reading: Reading, segment: Segment
) -> Iterator[WindowFigure]:
    """The figures between two iterations each, of those that have one."""
    for first, last in windows:
        name = f"{rule.basis.value}[{first}:{last}]"
        ends = replace(rule, name=name, first=first, last=last, nearest=False, usual=False)
        with contextlib.suppress(NoFigure):
            yield figure(ends, reading, segment)


def _steady_or_behind(found: WindowFigure, reading: Reading, segment: Segment) -> WindowFigure:
    """The figure of a steady log; or, of stamps of whole seconds, which do not measure single
    iterations, that behind the first minute, if its halves agree. NoFigure without either."""
    try:
        return _steady(found)
    except NoFigure:
        lines = found.steps.numbers("iteration"), found.steps.numbers("stamp")
        behind = [n for n, stamp in zip(*lines) if stamp - lines[1][0] >= _LONG_S]
        if not (_is_whole(found) and len(behind) > FEWEST):
            raise
        first, last = behind[0], behind[-1]
        middle = behind[bisect_left(behind, (first + last) // 2)]
        ends = (first, middle), (middle, last), (first, last)
        parts = [*_figures_between(ends, replace(found.rule, short=False), reading, segment)]
        long = all((each.elapsed_s or 0.0) >= _LONG_S for each in parts)
        if len(parts) < len(ends) or not long or _differs(*parts[:2]):
            raise
        return parts[2]


def _steady(found: WindowFigure) -> WindowFigure:
    """The figure of a log without a whole window; NoFigure if its speed still changes."""
    first, last, times = found.first or 0, found.last or 0, found.times()
    early, late = times[: len(times) // 2], times[len(times) // 2 :]
    if len(times) < FEWEST:
        raise NoFigure("the lines say nothing of single iterations", expected=True)
    ramps = first < WARMUP and max(times) - min(times) > _SPREAD * fmean(times)
    if ramps or abs(fmean(early) / fmean(late) - 1) > _UNSTEADY:
        raise NoFigure(f"between iterations {first} and {last} the speed is not steady")
    name = f"{found.rule.basis.value}[{first}:{last}]"
    return replace(found, rule=replace(found.rule, name=name))


def _behind_ramp(found: WindowFigure, reading: Reading, segment: Segment) -> WindowFigure | None:
    """The figure of the lines behind the last change of the batch, if one lies in the window among
    lines that are further apart than an iteration: where somebody left lines out, the time of a
    line is that of its own iteration, and those before it had another batch. None if there is no
    such change, or if the lines behind it hold no window."""
    before = _step_at(segment.steps, found.first or 0)
    sizes = _batches(found.steps) | _batches(LogSteps([before] if before else ()))
    apart = set(differences(found.steps.numbers("iteration")))
    if len(sizes) < 2 or apart == {1}:
        return None
    batches = segment.steps.values("global_batch")
    last = len(batches) - 1
    while batches[last - 1] == batches[-1]:
        last -= 1
    steps, after = segment.steps[last + 1 :], segment.steps[last].iteration
    if not steps:
        return None
    with contextlib.suppress(NoFigure):
        behind = by_printed(found.rule, reading, replace(segment, steps=steps, after=after))
        warning = f"the global batch changes up to iteration {after}: the lines behind it count"
        return None if behind.lacking else replace(behind, warnings=(warning, *behind.warnings))
    return None


def _with_batch(found: WindowFigure, segment: Segment) -> WindowFigure:
    """The figure with the samples of an iteration, where its lines state them. NoFigure if they
    change, and how many samples the window has does not follow from its lines."""
    if found.first is None or not _batches(found.steps):
        return found
    steps = _each_once(found.steps)
    numbers = steps.numbers("iteration")
    if numbers[-1] <= found.first:
        raise NoFigure(f"line {steps[-1].line}: no iteration lies behind iteration {found.first}")
    before = _step_at(segment.steps, found.first)
    batch = _mean_batch(before, found.first, steps)
    stated = _batches(steps)
    sizes = set(stated)
    if before is not None and numbers[0] > found.first + 1:
        sizes |= _batches(LogSteps([before]))
    if len(sizes) == 1:
        return replace(found, batch=batch)
    spaces = set(differences(array("q", [found.first]) + numbers[:]))
    if found.rule.mean is Mean.RATES or (found.rule.mean is Mean.FIGURES and len(spaces) > 1):
        raise NoFigure(
            "the global batch changes within the lines, whose mean then has no one batch"
        )
    warning = (
        f"the global batch changes within the window (up to {max(stated):g}, from {min(sizes):g}): "
        "the samples that its lines state are counted"
    )
    return replace(found, batch=batch, warnings=(*found.warnings, warning))


def _step_at(steps: LogSteps, iteration: int) -> LogStep | None:
    every = steps.numbers("iteration")
    at = bisect_left(every, iteration)
    return steps[at] if at < len(every) and every[at] == iteration else None


def _each_once(steps: LogSteps) -> LogSteps:
    if is_rising(steps.numbers("iteration")):
        return steps
    last = {step.iteration: step for step in steps}
    return LogSteps(last[number] for number in sorted(last))


def _mean_batch(before: LogStep | None, first: int, steps: LogSteps) -> float:
    """Samples of an iteration: by the samples consumed until the window's two ends, else by each
    line's batch, which is that of the iterations since the line before if it did not change."""
    sizes = _batches(steps)
    if before is not None and before.global_batch is not None:
        sizes.add(before.global_batch)
    mean = _mean_consumed(before, first, steps[-1])
    if mean is None:
        return _mean_stated(before, first, steps, sizes)
    if not 0.99 * min(sizes) <= mean <= 1.01 * max(sizes):
        raise NoFigure(
            f"line {steps[-1].line}: the samples consumed are {mean:g} an iteration, "
            f"the global batch is {_span(sizes)}"
        )
    return sizes.pop() if len(sizes) == 1 else mean


def _mean_consumed(before: LogStep | None, first: int, last: LogStep) -> float | None:
    """Samples of an iteration by those consumed until the window's two ends; None if a line does
    not state them. Before the first iteration none are."""
    done = None if first else 0.0
    if before is not None:
        done = before.consumed
    if done is None or last.consumed is None:
        return None
    return (last.consumed - done) / (last.iteration - first)


def _mean_stated(
    before: LogStep | None, first: int, steps: LogSteps, sizes: Collection[float]
) -> float:
    """Samples of an iteration by each line's batch. NoFigure if a line has a batch that may be that
    of some of its iterations only."""
    samples, done = 0.0, first
    size = before.global_batch if before else None
    known = before is None  # or else the first line's batch may be that of some iterations only
    for number, batch, line in zip(*map(steps.values, ("iteration", "global_batch", "line"))):
        if batch is None or not (known or batch == size or number == done + 1):
            raise NoFigure(
                f"line {line}: the global batch changes ({_span(sizes)}), and how many "
                f"samples the iterations from {done} to {number} had is not known"
            )
        samples += batch * (number - done)
        done, size, known = number, batch, False
    return samples / (steps[-1].iteration - first)


def _batches(steps: LogSteps) -> set[float]:
    return {size for size in set(steps.column("global_batch") or ()) if size == size}


def _span(sizes: Collection[float]) -> str:
    return " to ".join(dict.fromkeys([f"{min(sizes):g}", f"{max(sizes):g}"]))


# --- totals: some divide what was planned


def _total(rule: WindowRule, reading: Reading, segment: Segment) -> WindowFigure:
    """The last of the totals; one in samples and over all devices before any other. If one divides
    what was planned, the part that was done."""
    if not segment.totals:
        raise NoFigure("the program prints no total", expected=not rule.total)
    named = [total for total in segment.totals if rule.total in ("", total.name)]
    if not named:
        names = ", ".join(dict.fromkeys(total.name for total in segment.totals))
        raise NoFigure(f"there is no total {rule.total!r}, but {names}")
    best = min(reversed(named), key=_preference)
    part, warnings = _part_done(reading, best)
    factor, pauses = _without_pauses(reading, best)
    part *= factor
    own = best.name if best.unit is Unit.OWN else ""
    printed = Printed(best.unit, best.scope, scale=part, name=own)
    value = rate(best.value, printed)
    if value is None:
        raise NoFigure(f"line {best.line}: {best.name} {best.value!r} is no speed")
    found = WindowFigure(
        rule=rule,
        value=value,
        unit=rate_unit(printed),
        printed=printed,
        end_line=best.line,
        steps=segment.steps,
        warnings=(*warnings, *filter(None, [pauses]), *_of_several(rule, named, best)),
    )
    if not segment.steps:
        return found
    return replace(found, first=segment.after, last=segment.steps[-1].iteration)


def _preference(total: Total) -> tuple[bool, bool]:
    """The lesser counts first: in samples, and over all devices."""
    return total.unit is not Unit.SAMPLES_PER_S, total.scope is not Scope.ALL


def _of_several(rule: WindowRule, named: Sequence[Total], best: Total) -> Iterator[str]:
    own = best.unit is Unit.OWN
    if own and len({total.value for total in named if total.name == best.name}) > 1:
        yield f"there are several figures in {best.name}: that of line {best.line} is the last"
    names = sorted({total.name for total in named} - {best.name})
    if names and not rule.total:
        yield f"the total is {best.name}; there is also {', '.join(names[:5])}"


def _part_done(reading: Reading, total: Total) -> tuple[float, list[str]]:
    """The factor to a total from the part of what it divides that was done, and what to say of it.
    NoFigure if the total is known to be wrong, and by which factor is not.

    Hugging Face's Trainer and PaddleNLP's divide the samples (and the steps) that a run was to do
    by the time of ``train()``: after early stopping, or where the run went on from a checkpoint,
    their total is wrong by any factor (huggingface/optimum-graphcore issue 89). What the same log
    counts, steps or epochs, shows which part was really done.
    """
    counts = _counts_of(reading, total)
    if not counts:
        return 1.0, []
    divides = f"{total.name} (line {total.line}) divides the samples that were planned"
    before = _before(counts, total)
    ways = list(filter(None, (_by_steps(counts, reading), _by_epochs(counts, total))))
    if not ways and before == 0:
        doubt = "no line says how many were trained: after early stopping or resuming it is wrong"
        return 1.0, [f"{divides}; {doubt}"]
    try:
        part, why = _share(ways, before)
    except NoFigure as error:
        raise NoFigure(f"{divides}; {error}") from None
    if part == 1:
        return 1.0, []
    return part, [f"{divides}; {why}: {part:.4g} of the printed figure counts"]


def _without_pauses(reading: Reading, total: Total) -> tuple[float, str]:
    """The factor to a total without the pauses in its time whose length is known, and what to say
    of all."""
    seconds = _counts_of(reading, total).get("seconds")
    since = max((each.line for each in reading.totals if each.line < total.line), default=0)
    pauses = [each for each in reading.pauses if since < each.line <= total.line and each.printed]
    known = [each._replace(after=0) for each in pauses if seconds and each.seconds is not None]
    warning = ""
    if len(known) < len(pauses):
        warning = "evaluations or checkpoints of unknown length are in the time of the total"
    net = less_pauses(known, array("q", [0, 1]), [seconds or 1.0])
    if not net.spent[0] > 0:
        raise NoFigure(f"line {total.line}: nothing is left of its time, {net.warning}")
    return (seconds or 1.0) / net.spent[0], warning or net.warning


def _share(ways: Sequence[tuple[float, str]], before: float | None) -> tuple[float, str]:
    """The part that was done in a total's time, and by which counts; NoFigure if it is not known.
    ``before`` is the part that was done before a checkpoint, None if it is not known how much."""
    if not ways:
        raise NoFigure("the run went on from a checkpoint")
    (part, why), (other, counted_otherwise) = ways[0], ways[-1]
    if abs(part - other) > NEARLY * max(part, other):
        raise NoFigure(f"{why}, but {counted_otherwise}: these contradict each other")
    if before is None:
        raise NoFigure("the run went on from a checkpoint, of an unknown step")
    if before:
        part, why = part - before, f"{why}, {100 * before:.4g} % of them before a checkpoint"
    if part > 1 + NEARLY:
        raise NoFigure(f"{why}: more than was planned")
    if not part > 0:
        raise NoFigure(f"{why}: nothing is left for the time of the total")
    return part, why


EXACT = 0.005
"""Steps are counted: a part that differs from the whole by more is no whole."""

NEARLY = 0.05
"""Epochs are rounded, and the last batch of one may be smaller."""

_WHOLE_BATCHES = 20  # steps of an epoch from which on its last batch hardly matters


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


def ends_behind(segment: Segment, after: int) -> Iterator[int]:
    """Iterations up to which a run may be read behind another one: its last, and the last before
    the clock goes backward, as where a run is resumed and its clock begins anew."""
    steps = segment.steps[bisect_left(segment.steps.numbers("iteration"), after) :]
    if numbers := steps.numbers("iteration"):
        yield int(numbers[-1])
        stamps = steps.numbers("stamp")
        falls = (i for i in range(1, len(stamps)) if stamps[i] < stamps[i - 1])
        yield from (int(numbers[i - 1]) for i in itertools.islice(falls, 1))
