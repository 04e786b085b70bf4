"""A run of a user's program that has a ``Timer`` of ours: its number, held against its lines.

The Timer's decides: it has synchronised the device and met the other processes. What the program's
own lines give is the check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlperf_hpc.errors import number_of
from dlperf_hpc.logs.interpret.speed import disagreement
from dlperf_hpc.logs.scanned import Evidence
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import (
    SAMPLES_PER_S,
    ExternalWindow,
    RunResult,
    Status,
    Window,
    own_unit,
    rates_of,
)
from dlperf_hpc.records.failures import LOSS, SETTINGS
from dlperf_hpc.records.lines import TimerReport

TIMER = "timer"
"""Basis and format of a figure that a program's Timer has told."""
NO_FIGURE = "no figure: "
"""How the warning of a run begins that is ok, and of whose lines none was read."""


def by_timer(result: RunResult, by_lines: RunResult, timed: Sequence[TimerReport]) -> RunResult:
    """The run with the number of its Timer; ``by_lines`` is the same run by its lines, ``timed``
    what its Timers have told, one at least."""
    if by_lines.decided_by == SETTINGS:
        return by_lines
    whole = [each for each in timed if each.window is not None]
    if not whole:
        return _without_number(by_lines, timed[0])
    if len(whole) > 1:
        told = f"{number_of(len(whole), 'Timer')} have told a number: which one is the training's"
        return _with_warning(by_lines, f"{told} is not known, and none of them counts")
    window, notes = whole[0].window, whole[0].notes
    assert window is not None
    if unit := own_unit(by_lines.rates):
        told = f"its Timer tells {window.samples_per_s:.6g} samples/s"
        return _with_warning(by_lines, f"{told}; the program's own figure, in {unit}, is the run's")
    if differing := _not_as_asked(result, window):
        return not_as_asked(by_lines, differing)
    return _timed(result, by_lines, window, notes)


def not_as_asked(result: RunResult, differing: str) -> RunResult:
    """A run that was another measurement than the sweep asked for, which ``differing`` says."""
    reason = f"not as asked: {differing}"
    return replace(result, status=Status.PARTIAL, reason=reason, decided_by=SETTINGS)


def _with_warning(result: RunResult, text: str) -> RunResult:
    return replace(result, warnings=tuple(dict.fromkeys([*result.warnings, text])))


def _without_number(by_lines: RunResult, timed: TimerReport) -> RunResult:
    """A Timer that has measured and has no number (the loss was not finite) leaves none to the
    lines either; one that did not come to its end does."""
    told = f"its Timer has no number: {timed.reason}"
    if timed.status is Status.FAILED:
        return replace(by_lines, status=Status.FAILED, reason=told, decided_by=LOSS)
    return _with_warning(by_lines, told)


def _not_as_asked(result: RunResult, window: Window) -> str:
    """Whether the Timer counts other samples than the sweep asked for. An iteration of its is a
    micro-batch or, of the hook's, an optimizer step; batches that differ are not looked at."""
    case = result.run.case
    if not isinstance(case, Case) or window.global_batch is None:
        return ""
    each = window.samples / window.iterations
    if each in (case.global_batch, case.global_batch / case.accumulation):
        return ""
    return (
        f"its Timer counts {each:g} samples in an iteration over all processes, the sweep"
        f" {case.global_batch} in an optimizer step"
        + (f" of {case.accumulation} iterations" if case.accumulation > 1 else "")
    )


def _timed(
    result: RunResult, by_lines: RunResult, window: Window, notes: Sequence[str]
) -> RunResult:
    case, lines = result.run.case, by_lines.external
    ends = window.warmup, window.warmup + window.iterations
    check = by_lines.samples_per_s
    warnings = [*result.warnings, *notes]
    if check is not None and lines is not None:
        warnings += by_lines.warnings
        known = {"devices": case.topology.devices, "nodes": case.topology.nodes,
                 "gpus_per_node": case.topology.gpus_per_node, "seq_len": case.seq_len,
                 "accumulation": case.accumulation, "batch_size": case.batch_size}  # fmt: skip
        differs = disagreement(window.samples_per_s, check, known)
        if differs:
            warnings.append(f"samples/s by {lines.basis} over those by its Timer: {differs}")
    external = ExternalWindow(
        rates=rates_of(window.samples_per_s, case.seq_len),
        rule=f"{TIMER}[{ends[0]}:{ends[1]}]",
        basis=TIMER,
        unit=SAMPLES_PER_S,
        factor=1.0,
        format=TIMER,
        evidence=Evidence.REAL.value,
        first=ends[0],
        last=ends[1],
        elapsed_s=window.elapsed_s,
        check=check,
        check_basis="" if check is None or lines is None else lines.basis,
        rest=None if lines is None or check is None else lines.rest,
        optimizer_steps=window.optimizer_steps,
        loss_first=window.loss_first,
        loss_last=window.loss_last,
        memory_mb=window.memory_mb,
        drift=window.drift,
        steady=window.steady,
    )
    every = tuple(dict.fromkeys(warnings))
    facts = by_lines.facts  # with what the lines tell besides
    return replace(result, window=window, external=external, warnings=every, facts=facts)
