"""What is made of a log whose training speed is known: right, none, said to be doubtful, or wrong
without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from damage import scan
from log_truth import Course, Written, written

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.model.result import RunResult

NEARLY, NEARLY_BY_BAR = 0.02, 0.04
"""The relative error up to which a speed is right. The seconds of a bar are whole: an error of less
than 2 % from that is not told of, nor are pauses that no line names, together less than 2 %."""

CAUSES = (
    *("evaluation", "checkpoint", "batch changes", "goes backward", "whole seconds", "rounded"),
    *("epochs are in the window", "samples that were planned"),
)
"""Words of a warning that names why a speed may be wrong."""


_BARS = ("hf_trainer", "epoch_bars", "torchtune")


def verdict(made: Course, log: Written) -> tuple[str, str]:
    """The worst of what is made of the log's runs, and the run it is of."""
    found = interpret(scan(log.text.encode()), (), (), log.stated, rule("default"))
    verdicts = [("none", str(found.problems)), *(_of_run(made, run) for run in found.results)]
    return max(verdicts, key=lambda each: ("none", "right", "said", "silent").index(each[0]))


def _of_run(made: Course, run: RunResult) -> tuple[str, str]:
    if run.samples_per_s is None or run.external is None:
        return "none", run.reason
    ends = run.external.first, run.external.last
    true = made.speed(*ends) if run.external.basis != "total" else made.speed(None, None)
    error = run.samples_per_s / true - 1
    told = f"{run.samples_per_s:.5g} for {true:.5g} in {ends}, {run.external.basis}: {run.warnings}"
    whole_seconds = run.external.basis == "clock" and run.external.format in _BARS
    if abs(error) <= (NEARLY_BY_BAR if whole_seconds else NEARLY):
        return "right", told
    causes = (*CAUSES, "over those by clock") if made.jump else CAUSES
    said = any(cause in warning for warning in run.warnings for cause in causes)
    return "said" if said else "silent", told


def verdicts(family: str, seeds: Iterable[int], clean: bool = False) -> Counter[str]:
    """How often each verdict is given on logs of a family."""
    return Counter(verdict(*written(family, seed, clean))[0] for seed in seeds)
