r"""Programs that no format knows, by the words of their lines.

``Epoch 1 Step [20/756] Loss: 3.65``, ``{"iter": 100, "loss": 2.1, "tokens/s": 5123}``: a line
counts if it names an iteration's number and a loss, and no evaluation. The speed is the number
before a unit (``51.2 images/sec``) or behind its name (``step_time: 120 ms``), the clock the stamp
in the line, or the time of a bar that shows a loss. Samples/s and tokens/s are taken for those of
one process, tokens not for those of whole sequences. Of a number that begins anew with each epoch
the first epoch is read. The batch is that of a line before (``batch_size=32``), unless gradients
are accumulated: which steps the number counts is not known.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Format, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats.bars import Bar, add_bar, bar_of
from dlperf_hpc.logs.lineparts import CLOCKS, DECIMAL, without_commas
from dlperf_hpc.logs.scanned import Evidence, Printed, Scope, Unit

FIRST_BYTES, READ_BYTES = 1 << 19, 1 << 23
"""As much of a file's beginning is looked at, and read where that shows a training."""

_MOST_OFF = 0.05  # by which a figure may be rounded
_LONGEST = 2000  # characters of a line that are looked at
_EQUALS = r"['\")\]]{0,3} {0,3}[:=] {0,8}['\"\[(]? {0,8}"  # between a name and its number
_IS = _EQUALS.replace("[:=]", "[:=#]?")
_VALUE = rf"(?P<value>{DECIMAL}|[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]+)?)(?P<power>[KkM]?)"
_BEFORE, _BEHIND = r"(?<![0-9.,\w-])", r"(?![0-9.,:/%]*[0-9])"  # a number, that it is whole
_ONE = r"(?:gpu|device)"
_PER_S = rf"(?: ?/ ?|_?per_?| per )(?P<one>{_ONE}(?:/|_per_| per ))?s(?:ec(?:ond)?s?)?(?![a-z])"
_STEP = r"(?:step|iter(?:ation)?|batch|it)"
_TIME = rf"(?<![a-z])(?:{_STEP}[_ ]time|time[_ /](?:per[_ ])?{_STEP}|dt)"


def _patterns(*texts: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text, re.IGNORECASE) for text in texts)


def _rate(words: str) -> tuple[re.Pattern[str], ...]:
    name = rf"(?:{words})(?:e?s)?{_PER_S}"
    named = rf"{name}(?P<each>[/_ ](?:per[/_ ])?{_ONE})?"
    return _patterns(
        rf"(?<![a-z]){named}{_EQUALS}{_VALUE}{_BEHIND}",
        rf"{_BEFORE}{_VALUE} ?{name}(?!['\")\]]{{0,3}} {{0,3}}[:=]| {{1,3}}[0-9])",
        rf"(?:^|[^0-9. ] {{0,3}})(?<![a-z]){named} {{1,8}}{_VALUE}{_BEHIND}",
    )


def _time(unit: str) -> tuple[re.Pattern[str], ...]:
    named = rf"{_TIME}(?:{_IS}{_VALUE} ?{unit}(?![a-z/]))"
    return _patterns(named, rf"{_BEFORE}{_VALUE} ?{unit} ?(?:/|per) ?{_STEP}(?![a-z])")


_SPEEDS = (
    (
        Unit.SAMPLES_PER_S,
        1.0,
        _rate("sample|image|img|example|instance|sequence|seq|sentence|utterance"),
    ),
    (Unit.UNPADDED_TOKENS_PER_S, 1.0, _rate("token|tok")),
    (Unit.ITERATIONS_PER_S, 1.0, _rate("it|iter|iteration|step|batch|update")),
    (Unit.S_PER_ITERATION, 1e-3, _time("m(?:illi)?s(?:ec(?:ond)?s?)?")),
    (Unit.S_PER_ITERATION, 1.0, _time("s(?:ec(?:ond)?s?)?")),
)
"""The units of speed, what a figure is in them, and where it stands: the first that a line has."""

_COUNTERS = _patterns(
    rf"(?<![a-z])(?:global_?step|num_updates|current_steps?){_IS}(?P<done>[0-9]{{1,12}}){_BEHIND}",
    rf"(?<![a-z_]){_STEP}s?{_IS}(?P<done>[0-9]{{1,12}})(?: ?(?:/|of) ?[0-9]{{1,12}})?"
    r"(?![0-9.,:%]*[0-9])",
)
_EPOCH, _LOSS, _EVALUATION, _BATCH, _ACCUMULATION = _patterns(
    rf"(?<![a-z_])epoch{_IS}(?P<epoch>[0-9]{{1,9}})(?![0-9.]*[0-9])",
    rf"loss(?:es)?(?:[_/][a-z]{{1,20}})?{_IS}(?P<loss>{DECIMAL})",
    r"(?<![a-z])(?:val(?:id(?:ation|ating)?)?|eval(?:uation|uating)?|test(?:ing)?)(?![a-z])",
    r"(?<![a-z_])(?:(?:per_device_)?train_|micro_)?batch[_ ]?size(?:_per_gpu)?[:= '\"]{1,5}"
    rf"(?P<batch>[0-9]{{1,9}}){_BEHIND}",
    r"accum(?:ulation|ulate)?(?:_(?:steps|iter|grad_batches))?[:= '\"]{1,5}0*(?:[2-9]|1[0-9])",
)


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    return next(filter(None, (each.search(text) for each in patterns)), None)


def _read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    text, state = line.text[:_LONGEST], builder.state
    small = text.lower()
    if not builder.steps:
        if "accum" in small:
            state["accumulates"] = state.get("accumulates") or _ACCUMULATION.search(text)
        if "batch" in small and (batch := _BATCH.search(text)):
            builder.hold(line, "batch_size", batch["batch"])
    if "loss" not in small and not builder.steps:
        return
    if _EVALUATION.search(text):
        if builder.steps:
            builder.pause(line, "evaluation")
    elif loss := _LOSS.search(text):
        if "%|" in text:
            _read_bar(line, builder, bar_of(text), loss["loss"])
        elif counter := _first(_COUNTERS, text):
            _read_numbered(line, builder, text, counter, loss["loss"])


def _read_numbered(
    line: Line, builder: ReadingBuilder, text: str, counter: re.Match[str], loss: str
) -> None:
    done, said, epoch = int(counter["done"]), counter[0][:40], _EPOCH.search(text)
    if epoch is None or _goes_on(line, builder, epoch["epoch"], done):
        if not builder.steps:
            why = f"an unknown program: {said!r} is taken for the number of an iteration"
            builder.note(line, why, partly=True)
        _read_step(line, builder, text, done, loss)


def _read_bar(line: Line, builder: ReadingBuilder, bar: Bar | None, loss: str) -> None:
    """A bar that shows a loss: its time is the clock. Another one's are not read."""
    if bar and bar.done and builder.state.setdefault("bar", bar[:3:2]) == bar[:3:2]:
        builder.note_once(line, f"an unknown program: the bar {bar.name!r} is taken for training")
        add_bar(line, builder, bar, loss=loss)


def _goes_on(line: Line, builder: ReadingBuilder, epoch: str, done: int) -> bool:
    """Whether a number goes on over epochs, or a line is of the first one."""
    last = builder.last_step()
    if last and done > last.iteration and epoch != builder.state.get("epoch"):
        builder.state["epoch"] = epoch
    return not builder.later_epoch(line, epoch)


def _read_step(line: Line, builder: ReadingBuilder, text: str, done: int, loss: str) -> None:
    printed, stamp, state = _figure(line, builder, text), None, builder.state
    for name in [state["clock"]] if "clock" in state else ["full", "month_day"]:
        stamp = CLOCKS[name].first(text) if stamp is None else stamp
        if stamp is not None:
            state.setdefault("clock", name)
    if printed is None and stamp is None:
        return
    if not state.get("accumulates"):
        builder.release_held()
    stamps = CLOCKS[state.get("clock", "full")].stamps
    builder.step(line, done, stamp=stamp, stamps=stamps, printed=printed, loss=loss)


def _figure(line: Line, builder: ReadingBuilder, text: str) -> float | None:
    """The line's speed, in the unit of the first line that has one."""
    known = builder.state.get("speed")
    for speed in [known] if known else _SPEEDS:
        match = _first(speed[2], text)
        if match is None:
            continue
        groups = match.groupdict()
        if not known:
            builder.state["speed"] = speed
            scope = Scope.DEVICE if groups.get("one") or groups.get("each") else Scope.PROCESS
            builder.printed = Printed(speed[0], scope)
            why = f"an unknown program: {match[0][:40]!r} is taken for its speed"
            builder.note(line, why, partly=True)
        decimals = len(groups["value"].partition(".")[2])
        if 0.5 * 10.0**-decimals > _MOST_OFF * float(without_commas(groups["value"])):
            return None  # it is rounded
        power = {"k": 1e3, "m": 1e6}.get(groups["power"].lower(), 1.0)
        return float(without_commas(groups["value"])) * power * speed[1]
    return None


NAMED = Format(
    name="named",
    title="other programs, by the names of their figures",
    evidence=Evidence.QUOTED,
    source="",
    literals=(
        *("tep", "ter", "atch", "pdate", "it=", "it/s", "s/it", "ccum"),
        *("val", "Val", "VAL", "est", "EST"),
    ),
    own=(LinePattern(take=_read),),
)
