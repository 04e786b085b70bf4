r"""Programs that no format knows, by the words of their lines.

``Epoch 1 Step [20/756] Loss: 3.65``, ``{"iter": 100, "loss": 2.1, "tokens/s": 5123}``: a line
counts if it names an iteration's number and a loss (perplexity, learning rate), and no evaluation.
The speed is the number before a unit (``51.2 images/sec``), behind its name (``step_time: 120 ms``)
or a mean (``Time 0.83 (0.81)``), the clock the stamp in the line, or the time of a bar that shows a
loss. Another time (``Time: 12.3s``) is the clock if it grows with the lines, else an iteration's if
lines are one apart. Of bars without a loss, full before that of an epoch, the longest is read.
Samples/s and tokens/s are taken for those of one process, tokens not for those of whole sequences.
Numbers that begin anew with each epoch are counted on where lines state its length, else the first
is read. The batch is a line's before (``batch_size=32``), unless gradients are accumulated or it
counts tokens (``batch_type: token``, ``max_tokens=4096``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dlperf_hpc.logs.format import Format, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats.bars import Bar, add_bar, bar_of, is_training, over_epochs
from dlperf_hpc.logs.lineparts import CLOCKS, DECIMAL, first_of, seconds_of, without_commas
from dlperf_hpc.logs.scanned import Averaging, Evidence, Printed, Scope, Stamps, Unit

FIRST_BYTES, READ_BYTES = 1 << 19, 1 << 23
"""As much of a file's beginning is looked at, and read where that shows a training."""

_MOST_OFF = 0.05  # by which a figure may be rounded
_LONGEST = 2000  # characters of a line that are looked at
_EQUALS = r"['\")\]]{0,3} {0,3}[:=] {0,8}['\"\[({]? {0,8}"  # between a name and its number
_IS = _EQUALS.replace("[:=]", "[:=#]?")
_VALUE = rf"(?P<value>{DECIMAL}|[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]+)?)(?P<power>[KkM]?)"
_BEFORE, _BEHIND = r"(?<![0-9.,/\w-])", r"(?![0-9.,:/%]*[0-9])"  # a number, that it is whole
_NO_NAME = r"(?!['\")\]]{0,3} {0,3}[:=]| {1,3}[0-9])"  # of a number behind it
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
        rf"{_BEFORE}{_VALUE} ?{name}{_NO_NAME}",
        rf"(?:^|[^0-9. ] {{0,3}})(?<![a-z]){named} {{1,8}}{_VALUE}{_BEHIND}",
    )


def _time(unit: str) -> tuple[re.Pattern[str], ...]:
    per_step = rf"(?:/|_?per_?| per ){_STEP}"
    return _patterns(
        rf"{_TIME}(?:{_IS}{_VALUE} ?{unit}(?![a-z/]))",
        rf"{_BEFORE}{_VALUE} ?{unit} ?(?:/|per) ?{_STEP}(?![a-z]){_NO_NAME}",
        rf"(?<![a-z])(?:{unit}{per_step}|{_TIME}[_ ]\(?{unit}\)?){_IS}{_VALUE}{_BEHIND}",
    )


_MEAN = _patterns(
    rf"(?<![a-z_])(?<!data )(?<!load )(?:{_STEP}[_ ]?)?time:? {{0,3}}(?P<last>{DECIMAL})s?"
    rf" {{0,3}}\( {{0,3}}{_VALUE}s?\)"
)
_INTERVAL = _patterns(rf"step ?= ?[0-9]{{1,12}} \({_VALUE} sec\)")
_SAMPLES = "sample|image|img|example|instance|sequence|seq|sentence|utterance"
_SPEEDS: tuple[Any, ...] = (
    (Unit.SAMPLES_PER_S, 1.0, _rate(_SAMPLES)),
    (Unit.UNPADDED_TOKENS_PER_S, 1.0, _rate("token|tok")),
    (Unit.ITERATIONS_PER_S, 1.0, _rate("it|iter|iteration|step|batch|update")),
    (Unit.S_PER_ITERATION, 1.0, _MEAN),
    (Unit.S_PER_ITERATION, 1.0, _INTERVAL),
    (Unit.S_PER_ITERATION, 1e-3, _time("m(?:illi)?s(?:ec(?:ond)?s?)?")),
    (Unit.S_PER_ITERATION, 1.0, _time("s(?:ec(?:ond)?s?)?")),
)
"""The units of speed, what a figure is in them, and where it stands: the first that a line has."""

_DONE = r"(?P<done>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,12})"
_OF = rf"{_DONE} {{0,3}}(?:/|of|:(?=[0-9]+\])) {{0,3}}(?P<total>[0-9]{{1,12}})(?![0-9.,:%/]*[0-9])"
_IN = rf"(?<![a-z_])ep(?:och)?{_IS}(?P<epoch>[0-9]{{1,9}})(?![0-9])(?: ?/ ?[0-9]{{1,9}})?[\])]?"
_NUMBER = rf"(?<![a-z_])(?:train(?:ing)?_|mini-?)?{_STEP}s?{_IS}"
_COUNTERS = _patterns(
    rf"(?<![a-z])(?:global[_ ]?step|updates?|current_steps?){_IS}{_DONE}{_BEHIND}",
    rf"{_NUMBER}{_OF}",
    rf"{_IN}[ |,;-]{{0,4}}[\[(]? {{0,4}}{_OF}(?! {{0,2}}\()",  # not of samples: (21%)
    rf"^(?:\[(?P<epoch>[0-9]{{1,9}}) |\( ?){_OF}[\])]",
    rf"{_NUMBER}{_DONE}(?![0-9.,:%]*[0-9])",
)
_S = r"s|secs?|seconds|m|mins?|minutes|h|hours"  # units of time
_METRIC, _DATE_TIME = _patterns(
    r"(?<![a-z])(?:accuracy|f1)(?![a-z])",
    r"(?<=[0-9]{2}[-/][0-9]{2}), (?=[0-9]{2}:)",
)
_EPOCH, _LOSS, _TRAINS, _EVALUATION, _BATCH, _NO_BATCH, _UNIX, _TIMES = _patterns(
    rf"(?<![a-z_])ep(?:och)?{_IS}(?P<epoch>[0-9]{{1,9}})(?![0-9.]*[0-9])",
    rf"(?:loss(?:es)?|(?<![a-z])(?:mse|nll|elbo))(?:[_/][a-z]{{1,20}})?{_IS}(?P<loss>{DECIMAL})",
    r"loss|perplexity|(?<![a-z])(?:ppl|xent|nll|elbo|mse|lr|grad_?norm)(?![a-z])|learning.rate",
    r"(?<![a-z])(?:val(?:id(?:ation|ating)?)?|eval(?:uation|uating)?|test(?:ing)?)(?![a-z])",
    r"(?<![a-z_])(?:(?:per_device_)?train_|micro_)?batch[_ ]?size(?:_per_gpu)?[:= '\"]{1,5}"
    rf"(?P<batch>[0-9]{{1,9}}){_BEHIND}",
    r"accum(?:ulation|ulate)?(?:_(?:steps|iter|grad_batches))?[:= '\"]{1,5}0*(?:[2-9]|1[0-9])"
    r"|batch_type[:= '\"]{1,5}(?:tok|word|numel|length|bin)|(?<![a-z_])max_tokens[:= '\"]{1,5}[1-9]"
    r"|batch[_ ]?size[:= '\"]{1,5}[0-9,]{1,12} tok",
    rf"time(?:stamp)?{_EQUALS}(1[4-9][0-9]{{8}}(?:\.[0-9]{{1,9}})?)(?![0-9])",
    r"(?:(?<![a-z])(?<![a-z][ _])(?:(?:total|wall|cost|elapsed|train(?:ing)?|step|batch)[ _]?)?"
    rf"(?:time|elapsed|took|total(?=: [0-9]+:))(?:[_ ](?:elapsed|cost|taken|used|spent))?{_IS}"
    rf"|(?<=[0-9|)\],] )(?=[0-9]{{1,9}}\.[0-9]{{1,9}} ?(?:{_S})[\])]?\s*$))"
    r"(?:(?P<clock>(?:[0-9]{1,4}:)?[0-5]?[0-9]:[0-5][0-9])(?![0-9:])"
    rf"|(?P<value>[0-9]{{1,12}}(?:\.[0-9]{{1,18}})?) ?(?P<unit>{_S}|)(?![a-z0-9./:]))",
)
_UNIT_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}  # by a unit's first letter
_GRAINS, _WARM_UP_S = 25, 120.0  # of a last digit in a time; what the first iterations may add
_FEWEST, _SURELY_S = 5, 3.0  # lines that show what a time is; a time of one iteration, not in ms
_CLOCK, _EACH = "the time since the program began", "the time of one iteration"


def _read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    text, by = line.text[:_LONGEST], builder.state.get("by", "")
    if not builder.steps:
        _hold_settings(line, builder, text)
    if "%|" in text:
        _read_bar(line, builder, text, bar_of(text))
    elif _is_evaluation(line, builder, text):
        _read_epoch(line, builder, 1 if text.lower().count("loss") > 1 or "rain" in text else 2)
        if by == "number" or (by == "bar" and "epoch_s" not in builder.state):
            builder.pause(line, "evaluation")  # behind a bar that is full it is in no bar's time
    elif _TRAINS.search(text):
        counter = _counter(text)
        if counter is None:
            _read_epoch(line, builder, 1)
        else:
            _read_numbered(line, builder, text, counter)
    elif _METRIC.search(text) and _EPOCH.search(text):  # an evaluation's, perhaps
        _read_epoch(line, builder, 2)


def _counter(text: str) -> re.Match[str] | None:
    return next(filter(None, (each.search(text) for each in _COUNTERS)), None)


def _is_evaluation(line: Line, builder: ReadingBuilder, text: str) -> bool:
    """Whether a line is of an evaluation. One that has an iteration's number, a loss and a time in
    front of the evaluation's first word is of the training too."""
    word = _EVALUATION.search(text)
    before = text[: word.start()] if word else ""
    if _LOSS.search(before) and _TIMES.search(before) and _counter(before):
        why = "an unknown program: its lines end with an evaluation, whose time may be in the speed"
        builder.note_once(line, why, partly=True)
        return False
    return word is not None


def _hold_settings(line: Line, builder: ReadingBuilder, text: str) -> None:
    if _NO_BATCH.search(text):
        builder.state["no_batch"] = True
    if batch := _BATCH.search(text):
        builder.hold(line, "batch_size", batch["batch"])


def _read_numbered(line: Line, builder: ReadingBuilder, text: str, counter: re.Match[str]) -> None:
    groups, known, state = counter.groupdict(), len(builder.steps), builder.state
    numbers = (groups.get("total"), groups.get("epoch") or first_of(_EPOCH, text))
    done = _place(line, builder, int(groups["done"].replace(",", "")), *numbers)
    if done is not None and state.get("by", "number") == "number":
        _read_step(line, builder, text, done)
    if builder.steps and not known:
        why = f"an unknown program: {counter[0][:40]!r} is taken for the number of an iteration"
        builder.note(line, why, partly=True)
        state["by"] = "number"
        if not state.get("no_batch"):
            builder.release_held()


def _place(line: Line, builder: ReadingBuilder, done: int, *of: str | None) -> int | None:
    """The iterations since the file's first epoch began; None in a later epoch of unknown length.
    Whether numbers go on over epochs shows as the second one begins."""
    (total, epoch), state = of, builder.state
    before, last, earlier = state.get("raw", (epoch, done, done))
    state["raw"] = epoch, done, last
    if done < last or epoch != before:
        state.setdefault("goes_on", done > last)
    if state.get("goes_on"):
        return done
    if total is None:
        return None if epoch and builder.later_epoch(line, epoch) else done
    if epoch is None:
        if done < last:
            anew = 2.5 * last - 1.5 * earlier >= int(total)  # the next line would be behind it
            state["turn"] = state.get("turn", 0) + 1 if anew else 0
        epoch = state.get("turn", "0")
    return builder.in_epoch(line, int(epoch), done, int(total))


def _read_step(line: Line, builder: ReadingBuilder, text: str, done: int) -> None:
    state, loss = builder.state, first_of(_LOSS, text)
    printed, stamp = _figure(line, builder, text), _stamp(state, _DATE_TIME.sub(" ", text))
    if printed is not None or stamp is not None:
        stamps = CLOCKS[state.get("clock", "full")].stamps
        builder.step(line, done, stamp=stamp, stamps=stamps, printed=printed, loss=loss)
    elif "clock" not in state and "speed" not in state and (match := _TIMES.search(text)):
        _read_time(line._replace(text=""), builder, match, done)  # some are kept: without the text
    elif state.get("speed", _SPEEDS[0])[2] is _INTERVAL:
        builder.step(line, done, loss=loss)


def _stamp(state: dict[str, Any], text: str) -> float | None:
    """The stamp of a line, on the clock of the first line that has one."""
    for name in [state["clock"]] if "clock" in state else ["full", "month_day", "day_time", "unix"]:
        found = first_of(_UNIX, text) if name == "unix" else CLOCKS[name].first(text)
        if found is not None:
            state.setdefault("clock", name)
            return float(found)
    return None


def _figure(line: Line, builder: ReadingBuilder, text: str) -> float | None:
    """The line's speed, in the unit of the first line that has one."""
    state = builder.state
    for speed in [state["speed"]] if "speed" in state else _SPEEDS:
        match = next(filter(None, (each.search(text) for each in speed[2])), None)
        if match is None:
            continue
        if "speed" not in state:
            state["speed"], groups = speed, match.groupdict()
            scope = Scope.DEVICE if groups.get("one") or groups.get("each") else Scope.PROCESS
            mean = Averaging.RUNNING if speed[2] is _MEAN else Averaging.SINCE_LAST
            builder.printed = Printed(speed[0], scope, mean)
            why = f"an unknown program: {match[0][:40]!r} is taken for its speed"
            builder.note(line, why, partly=True)
        return _value(builder, match, *speed[1:])
    return None


def _value(builder: ReadingBuilder, match: re.Match[str], *of: Any) -> float | None:
    """A figure; of an interval that of one iteration. A mean is one of the first epoch."""
    (scale, patterns), (_, done, last) = of, builder.state["raw"]
    number = without_commas(match["value"])
    if 0.5 * 10.0 ** -len(number.partition(".")[2]) > _MOST_OFF * float(number):
        return None  # it is rounded
    value = float(number) * {"k": 1e3, "m": 1e6}.get(match["power"].lower(), 1.0) * float(scale)
    if patterns is _INTERVAL:
        return value / (done - last) if done > last else None
    more_s = (value - float(match["last"])) * done if patterns is _MEAN else 0.0
    return None if more_s > _WARM_UP_S or (patterns is _MEAN and builder.epochs[1:]) else value


def _read_time(line: Line, builder: ReadingBuilder, match: re.Match[str], done: int) -> None:
    """A line with a time, whose meaning shows in the first lines."""
    state, unit = builder.state, match["unit"] or ""
    number = match["value"] or f"{seconds_of(match['clock']):.0f}"
    scale, times = _UNIT_S[unit[:1].lower()], state.setdefault("times", [])
    grain = scale / 10.0 ** len(number.partition(".")[2])
    times.append((line, done, scale * float(number), grain, unit or match["clock"]))
    if "since" not in state:
        if len(times) < _FEWEST or (match["clock"] and times[0][2] == times[-1][2]):
            return
        state["since"] = _meaning(times)
        if state["since"]:
            why = f"an unknown program: {match[0][:40]!r} is taken for {state['since']}, in seconds"
            builder.note(line, why, partly=True)
        builder.printed = Printed(Unit.S_PER_ITERATION, Scope.PROCESS)
    for each, at, seconds, error, _ in times:
        if state["since"] == _EACH:
            builder.step(each, at, printed=seconds)
        elif state["since"] and not _is_near(builder, at, seconds, error):
            builder.step(each, at, stamp=seconds, stamps=Stamps.ELAPSED)
    times.clear()


def _meaning(times: Sequence[tuple[Any, ...]]) -> str:
    """What the times of lines are; '' if that does not show, or their unit is not sure."""
    _, done, seconds, _, units = zip(*times)
    if seconds[0] < seconds[-1] and list(seconds) == sorted(seconds):
        return _CLOCK if all(units) and seconds[-1] > 1.2 * seconds[0] else ""
    sure = ":" not in str(units) and (all(units) or max(seconds) < _SURELY_S)
    return _EACH if sure and done[-1] - done[0] == _FEWEST - 1 else ""


def _is_near(builder: ReadingBuilder, done: int, seconds: float, grain: float) -> bool:
    """Whether the time since the line before is too short for its digits, and of 100 iterations."""
    latest, enough = builder.last_step(), _GRAINS * grain
    if latest is None or not 0 <= seconds - (latest.stamp or 0.0) < enough:
        return False
    return (done - latest.iteration) * enough > 100 * (seconds - (latest.stamp or 0.0))


def _read_bar(line: Line, builder: ReadingBuilder, text: str, bar: Bar | None) -> None:
    """A bar that shows a loss, or has one of its loop printed behind it: its time is the clock. Of
    others those that are full are kept."""
    if bar is None or not is_training(bar):
        return
    state, key = builder.state, (re.sub(r"[-+.0-9e]{1,30}", "#", bar.name), bar.total)
    behind, drawn = text.partition(bar.rest)[2], state.get("drawn", 0)
    loss = first_of(_LOSS, f"{bar.rest} {bar.name}")
    if loss is None and bar.done != bar.total and not _EVALUATION.search(behind):
        loss = first_of(_LOSS, behind)
    if loss is None and (state.get("bar") != key or bar.done <= drawn):
        full = state.setdefault("full", {})
        # The same bar full twice in an epoch: over the same data, the second time to evaluate.
        again = [*full][-1:] == [(*key, False)] and full[(*key, False)] != bar.mean
        full |= {(*key, again): bar.mean} if bar.mean else {}
    elif state.setdefault("by", "bar") == "bar" and state.setdefault("bar", key) == key:
        builder.note_once(line, f"an unknown program: the bar {key[0]!r} is taken for training")
        state["anew"] = state.get("anew", 0) + (bar.done < drawn)
        state["drawn"] = bar.done
        at = over_epochs(line, builder, bar, str(state["anew"]))
        builder.epochs.clear()  # what lies between two is in no bar's time
        if at and at.elapsed >= 0 and not _is_near(builder, at.done, at.elapsed, 1.0):
            add_bar(line, builder, at, loss=loss)


def _read_epoch(line: Line, builder: ReadingBuilder, fewest: int) -> None:
    """An epoch's loss behind ``fewest`` or more full bars, which are those of the epoch before."""
    latest, state, full = builder.last_step(), builder.state, builder.state.get("full", {})
    if len(full) < fewest:
        return
    before, state["bars"], state["full"] = state.get("bars"), {*full}, {}
    seconds = {each[1] / mean: each for each, mean in full.items()}
    key = seconds[max(seconds)]
    longest = {*full} == before and key[1] == max(each[1] for each in full)
    if longest and state.setdefault("by", "epoch") == "epoch":
        builder.note_once(line, f"an unknown program: its bar of {key[1]} is taken for training")
        builder.printed = Printed(Unit.ITERATIONS_PER_S, Scope.PROCESS)
        builder.step(line, key[1] + (latest.iteration if latest else 0), printed=full[key])


NAMED = Format(
    name="named",
    title="other programs, by the names of their figures",
    evidence=Evidence.QUOTED,
    source="",
    literals=(
        *("tep", "ter", "atch", "pdate", "it=", "it/s", "s/it", "ccum", "poch", "loss", "Loss"),
        *("val", "Val", "VAL", "est", "EST", "max_tok"),
    ),
    own=(LinePattern(take=_read),),
)
