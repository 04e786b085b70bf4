"""Window rules: which lines of a log give the one figure of a run.

There are general forms, and a named rule for each extraction script of DLPerf's, so that what it
published can be had again. :mod:`.figures` applies a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from dlperf_hpc.errors import Issue, SpecError, nearest


class Basis(str, Enum):
    """Where a figure comes from."""

    CLOCK = "clock"  # time stamps of two lines
    ARRIVAL = "arrival"  # when two lines came, as a supervisor of ours noted it
    PRINTED = "printed"  # figures that the lines print
    TOTAL = "total"  # the program's one figure for its whole run


class By(str, Enum):
    """What ``Rule.first`` and ``Rule.last`` count."""

    ITERATIONS = "iterations"
    LINES = "lines"  # from 0, as a list of the lines does


class Mean(str, Enum):
    """How printed figures become one."""

    TIME = "samples over time"  # running averages taken apart, rates weighted by time
    FIGURES = "mean of figures"  # as they stand
    RATES = "mean of rates"  # of times, the mean of their inverses


@dataclass(frozen=True)
class WindowRule:
    """A window, and how the figures in it become one.

    The window lies after ``first`` iterations up to ``last`` (None: open), or holds the lines with
    a figure [``first``:``last``], counted without those up to iteration ``skip``. ``need`` lines
    must be there if not ``last``. ``every_rank``: of each iteration the median over ranks.
    ``formats``: lines of these alone (none named: of any).
    ``per_node``: one process per node prints. ``fine``: stamps of whole seconds will not do, unless
    the window is long enough for these. ``nearest``: if nothing is printed inside the window,
    the next that is printed will do. ``short``: the log ends before the window does, and what it
    holds of a steady speed will do. ``usual``: where the run goes on at another speed, a window of
    its usual one counts. ``tries`` are what a rule with alternatives consists of.
    """

    name: str
    basis: Basis
    first: int | None = None
    last: int | None = None
    by: By = By.ITERATIONS
    mean: Mean = Mean.TIME
    skip: int = 0
    need: int | None = None
    total: str = ""
    every_rank: bool = False
    per_node: bool = False
    nearest: bool = False
    fine: bool = False
    short: bool = False
    usual: bool = False
    formats: tuple[str, ...] = ()
    alternatives: tuple[WindowRule, ...] = ()

    @property
    def tries(self) -> tuple[WindowRule, ...]:
        """The rule itself, then what stands in for it, in this order."""
        return (self, *self.alternatives)

    @property
    def of_whole_windows(self) -> WindowRule:
        """The rule of that one window, without what stands in for it in a log that has none."""
        kept = (replace(each, usual=False) for each in self.alternatives if not each.short)
        return replace(self, usual=False, alternatives=tuple(kept))


WARMUP = 20
ITERATIONS = 100
DEFAULT = "default"


Build = Callable[[int, int], WindowRule]
"""Makes the rule for w warm-up iterations and n counted ones."""


def _between(basis: Basis, mean: Mean = Mean.TIME) -> Build:
    return lambda w, n: WindowRule("", basis, w, w + n, mean=mean)


_clock, _arrival = _between(Basis.CLOCK), _between(Basis.ARRIVAL)
_printed, _mean = _between(Basis.PRINTED), _between(Basis.PRINTED, Mean.FIGURES)


def _clock_lines(first: int, last: int, skip: int = 0) -> WindowRule:
    return WindowRule("", Basis.CLOCK, first, last, By.LINES, skip=skip)


def _lines(first: int | None, last: int | None, skip: int = 0) -> WindowRule:
    return WindowRule("", Basis.PRINTED, first, last, By.LINES, Mean.FIGURES, skip=skip)


def _nearest(name: str, made: WindowRule) -> WindowRule:
    return replace(made, name=f"{name}[{made.first}:{made.last}]", nearest=True)


def _default(w: int, n: int) -> WindowRule:
    printed = _nearest("printed", _printed(w, n))
    total = WindowRule("total", Basis.TOTAL)
    return replace(_nearest("clock", _clock(w, n)), alternatives=(printed, total))


def _of_any_log(w: int, n: int) -> WindowRule:
    """The default for a log of which nobody can make a longer one."""
    made = _default(w, n)
    short = [replace(each, short=True) for each in (_clock(w, n), _printed(w, n))]
    goes_on = (w, n) == (WARMUP, ITERATIONS)  # a window that a user states stays
    usual = [replace(each, usual=goes_on) for each in made.alternatives]
    return replace(made, usual=goes_on, alternatives=(*usual, *short))


def of_program(w: int, n: int) -> WindowRule:
    """The default for a program that ran under a supervisor of ours: its own stamps, unless they
    are coarse, go before the arrival of its lines, and that before coarse stamps and its figures.
    """
    clock, arrival = _default(w, n), _nearest("arrival", _arrival(w, n))
    coarse = replace(clock, alternatives=())
    return replace(clock, fine=True, alternatives=(arrival, coarse, *clock.alternatives))


@dataclass(frozen=True)
class _Named:
    build: Build
    text: str
    warmup: int = WARMUP
    iterations: int = ITERATIONS
    formats: tuple[str, ...] = ()


_NAMED: Mapping[str, _Named] = {
    DEFAULT: _Named(
        _of_any_log,
        "the clock between iterations 20 and 120; if lines are too far apart, between the next two "
        "that hold 100 iterations; if the run goes on more than 5 % faster or slower, the window of"
        " the median speed behind them; without usable stamps printed[20:120]; where the program "
        "ended before, its own total, else, with a warning, what the log holds, if its speed is "
        "steady",
    ),
    "deepspeed-logs": _Named(
        lambda w, n: replace(_lines(max(0, w - 2), w + n), need=max(1, w + n - 2)),
        "mean of SamplesPerSec of lines [18:120]; the first is of step 3, and each is a running "
        "average from there, so that it is no window. Mended: a log that ends before counted as if "
        "it were whole; lines of later DeepSpeeds broke the script",
        formats=("deepspeed",),
    ),
    "deepspeed-gpt2": _Named(
        lambda w, n: replace(_lines(max(0, w - 2), w + n), need=max(1, w + n - 2)),
        "deepspeed-logs with 100 iterations after 100: lines [98:200]",
        warmup=100,
        formats=("deepspeed",),
    ),
    "deepspeed-time": _Named(
        _clock,
        "the clock between micro-steps 20 and 120. Mended: the script looked for one source line "
        "number of DeepSpeed's, and gave 0 for any other or for a log that ends before",
        formats=("deepspeed",),
    ),
    "tf2-bert-time": _Named(
        _clock,
        "the clock between steps 20 and 120. Mended: it counted lines, not steps, and speeds were "
        "negative over midnight",
        formats=("tf2_bert",),
    ),
    "tf2-resnet-logs": _Named(
        lambda w, n: _lines(max(1, w // 100), (w + n) // 100),
        "mean of the examples/second of lines [1:6], one per 100 steps. Mended: NaN for a log "
        "that is too short",
        warmup=100,
        iterations=500,
        formats=("tf2_resnet",),
    ),
    "tf2-resnet-time": _Named(
        _clock,
        "the clock between steps 100 and 600. Mended: speeds were negative over midnight",
        warmup=100,
        iterations=500,
        formats=("tf2_resnet",),
    ),
    "ngc-tf-bert-logs": _Named(
        _mean,
        "mean of throughput_train of the lines after iteration 20 up to 120. Mended: it took lines "
        "[2:12] of those whose iteration ends in 0, and newer units gave NaN",
        formats=("ngc_tf1_bert", "dllogger_json"),
    ),
    "ngc-tf-bert-time": _Named(
        _clock,
        "the clock between iterations 20 and 120. Mended: 'Iteration: 20' also fitted 200 to 209",
        formats=("ngc_tf1_bert", "dllogger_json"),
    ),
    "ngc-tf-resnet-logs": _Named(
        lambda w, n: _lines(max(0, w - 20), max(0, w - 20) + n),
        "mean of the images/s of lines [0:100]; the program prints none of its first 20 steps. "
        "Mended: a log that ends before counted",
        formats=("ngc_tf1_resnet", "dllogger_json"),
    ),
    "ngc-tf-resnet-time": _Named(
        lambda w, n: _clock_lines(max(0, w - 20), max(0, w - 20) + n - 1),
        "the clock between the 1st and the 100th line: 99 iterations",
        formats=("ngc_tf1_resnet", "dllogger_json"),
    ),
    "ngc-pytorch-bert-time": _Named(
        lambda w, n: _clock_lines(max(0, w - 1), w + n - 1, skip=5),
        "the clock between the 20th and the 110th line after iteration 5. Mended: iterations are "
        "counted by their numbers, not by lines; the last line broke the script",
        iterations=90,
        formats=("dllogger_pytorch_bert", "dllogger_json"),
    ),
    "ngc-pytorch-resnet-time": _Named(
        lambda w, n: _clock_lines(max(0, w - 1), w + n - 1, skip=5),
        "the clock between the 20th and the 120th line after iteration 5. Mended: iterations are "
        "counted by their numbers, not by lines",
        formats=("dllogger_pytorch_resnet", "dllogger_json"),
    ),
    "pytorch-resnet-time": _Named(
        lambda w, n: _printed(w + 5, n),
        "samples over the Time of the iterations after 25 up to 125, which are lines 21 to 120 "
        "after iteration 5; taken from the running averages. Mended: times from 10 s on lost their "
        "first digits",
        formats=("pytorch_imagenet",),
    ),
    "mxnet-ngc-logs": _Named(
        lambda w, n: replace(_lines(w, w + n), every_rank=True),
        "of each iteration the median over ranks, then the mean of rows [20:120]. Mended: it broke "
        "unless every rank had printed every iteration",
        formats=("mxnet_ngc", "dllogger_mxnet_resnet", "dllogger_json"),
    ),
    "mxnet-bert": _Named(
        lambda w, n: replace(_lines(w, w + n), every_rank=True, mean=Mean.RATES),
        "of each iteration the median over ranks, then the mean of the speeds of rows [100:200]. "
        "Mended: it broke unless every rank had printed every iteration",
        warmup=100,
        formats=("mxnet_gluon_bert",),
    ),
    "insightface": _Named(
        lambda w, n: replace(_lines(w // 20, (w + n) // 20), per_node=True),
        "mean of the Speed of lines [1:6], one per 20 batches, times the nodes. Mended: NaN for a "
        "log that is too short",
        formats=("insightface",),
    ),
    "partialfc": _Named(
        lambda w, n: _lines(max(0, w - 1), None),
        "mean of Total: from line 20 on",
        formats=("insightface_partial_fc",),
    ),
    "paddle-resnet-logs": _Named(
        lambda w, n: replace(_lines(w, w + n), mean=Mean.RATES),
        "mean of the speeds (batch / elapse) of lines [20:120]: a mean of rates, which is above "
        "samples over time. Mended: a log that ends before counted",
        formats=("paddle18_resnet",),
    ),
    "paddle-resnet-time": _Named(
        _clock,
        "the clock between the batches of index 19 and 119: iterations 20 to 120",
        formats=("paddle18_resnet",),
    ),
    "paddle-bert": _Named(
        lambda w, n: _lines(w, w + n),
        "mean of the steps/s of lines [20:120]. Mended: it counted the devices of one node only",
        formats=("paddle18_bert",),
    ),
    "mindspore": _Named(
        _printed,
        "samples over the time of the steps after 20 up to 120. Mended: it took for granted that "
        "the lines of all ranks are in one log",
        formats=("mindspore",),
    ),
    "oneflow": _Named(
        _clock,
        "the clock between the steps of index 19 and 119: iterations 20 to 120. Mended: it broke "
        "if one of them was missing",
        formats=("oneflow_bert",),
    ),
    "oneflow-cnn": _Named(
        _clock,
        "the clock between iterations 20 and 120. Mended: it broke if one of them was missing",
        formats=("oneflow_cnn",),
    ),
    "oneflow-gpt": _Named(
        _mean,
        "mean of the throughput of batches after 300 up to 400. Mended: 101 figures, or 11, were "
        "divided by 100",
        warmup=300,
        formats=("oneflow_gpt",),
    ),
    "oneflow-insightface": _Named(
        lambda w, n: _lines(max(0, w - 1), w + n, skip=5),
        "mean of the throughput of the 20th to the 120th line after iteration 5: 101 figures",
        formats=("oneflow_insightface",),
    ),
    "hugectr": _Named(
        lambda w, n: replace(_mean(w, n), last=None),
        "samples over the mean time of the lines after iteration 100. Mended: it left out "
        "iteration 100 alone, whatever came before",
        warmup=100,
        formats=("hugectr",),
    ),
}

_FORMS: Mapping[str, str] = {
    "clock[a:b]": "the clock between iterations a and b",
    "arrival[a:b]": "when the lines of iterations a and b came, as the supervisor of a program "
    "noted it",
    "printed[a:b]": "samples over time by the figures that the lines print, between iterations a "
    "and b; running averages are taken apart, rates weighted by the iterations they stand for",
    "mean[a:b]": "mean of the printed figures of the iterations after a up to b",
    "lines[a:b]": "mean of the printed figures of lines a up to b of the run, counted from 0, b "
    "not among them; `lines` takes all",
    "total": "the program's own figure of its whole run; total:NAME if it prints several",
}

RULES: Mapping[str, str] = {**_FORMS, **{name: named.text for name, named in _NAMED.items()}}
"""Every form and every named rule with what it does, for ``--help`` and the docs."""

_TEXT = re.compile(
    r"(?P<name>[a-z][a-z0-9-]*)(?:\[(?P<first>[0-9]{0,9}):(?P<last>[0-9]{0,9})\]|:(?P<total>.+))?"
)
_GENERAL: Mapping[str, Build] = {
    **{"clock": _clock, "arrival": _arrival},
    **{"printed": _printed, "mean": _mean},
}
_KNOWN = (*_NAMED, *_GENERAL, "lines", "total")


def rule(
    text: str = DEFAULT, warmup: int | None = None, iterations: int | None = None
) -> WindowRule:
    """The rule of a name or form in ``RULES``; SpecError if there is none, or its window is none.

    ``warmup`` and ``iterations`` set the window of a rule that does not state it; None is the
    rule's own default. A named rule may state it too: ``deepspeed-logs[20:120]``.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise _refused(text, f"{text!r} is no rule", _offer(text))
    name, stated = match["name"], match["first"] is not None
    if name not in _KNOWN:
        raise _refused(text, f"no rule {name!r}", _offer(name))
    if name == "total":
        if stated:
            raise _refused(text, "a total has no window", "write total, or total:NAME")
        return WindowRule(text, Basis.TOTAL, total=match["total"] or "")
    if match["total"] is not None:
        raise _refused(text, f"{name} takes no name", "write [a:b], as clock[20:120]")
    first, last = (int(end or -1) for end in match.group("first", "last"))
    if 0 <= last <= max(first, 0):
        raise _refused(text, "the window is empty", "write [a:b] with a < b, as clock[20:120]")
    if name == "lines" or (name == "mean" and stated):
        by = By.LINES if name == "lines" else By.ITERATIONS
        begin, end = (None if each < 0 else each for each in (first, last))
        return WindowRule(text, Basis.PRINTED, begin, end, by, Mean.FIGURES)
    return _windowed(text, name, (first, last) if stated else None, warmup, iterations)


def _windowed(
    text: str, name: str, ends: tuple[int, int] | None, warmup: int | None, iterations: int | None
) -> WindowRule:
    """The rule of a name whose window has both ``ends``, else the warm-up and counted iterations
    that are given, else its own."""
    named = _NAMED.get(name, _Named(_GENERAL.get(name, _default), ""))
    w, n = named.warmup, named.iterations
    if ends is not None:
        w, n = ends[0], ends[1] - ends[0]
        if min(ends) < 0:
            raise _refused(text, "the window is open", "give both ends, as clock[20:120]")
    else:
        w = w if warmup is None else warmup
        n = n if iterations is None else iterations
    if w < 0 or n < 1:
        raise _refused(text, f"{w} warm-up and {n} counted iterations are no window", None)
    made = named.build(w, n)
    if made.last is not None and made.last <= (made.first or 0):
        raise _refused(text, f"{name} has no line in iterations {w} to {w + n}", None)
    return replace(made, formats=named.formats, name=made.name or f"{name}[{w}:{w + n}]")


def _refused(text: str, message: str, hint: str | None) -> SpecError:
    return SpecError("--rule", [Issue(text, message, hint)])


def _offer(name: str) -> str:
    return nearest(name, _KNOWN) or "`dlperf extract --rules` lists the rules"
