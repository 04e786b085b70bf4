"""Progress bars as tqdm draws them (tqdm/tqdm tqdm/std.py, ``format_meter``).

``Epoch 0:  12%|#2        | 12/100 [00:10<01:13,  1.20it/s, loss=2.3]``: the name, how many are done
of how many, the time since the bar began in whole seconds (rounded down) and that which is left,
the rate (below one per second its inverse, ``4.47s/it``), and what the program adds. Where it is
not known of how many: ``45it [00:10,  4.30it/s]``, or ``| 45/? [..`` if the program says so. Bars
are redrawn in place, each behind a carriage return, so that each state is a line.

The rate is no speed of a window: unless a program asks for ``smoothing=0``, it is an exponential
mean of what was drawn last. Only as a bar closes it is drawn with its mean since it began
(``close``), which the time beside it then bears out. A program may name what the bar counts
(``4.30 batch/s``): batches and steps are iterations, images and files are none.

epoch_bars
----------
Progress bars of an epoch's batches: PyTorch Lightning's, and tqdm's under any program.

| line | program |
|---|---|
| ``Epoch 0:  22%|..| 4/18 [00:17<01:02,  4.47s/it, loss=9.92, v_num=3]`` | Lightning 1 |
| ``Epoch 0:   3%|..| 4/150 [00:00<00:08, 18.02it/s, v_num=3, train_loss=0.3]`` | Lightning 2 |
| ``Epoch 0: |..| 45/? [00:02<00:00, 18.80it/s, v_num=5]`` | of an iterable data set |
| ``Epoch 3/10:  45%|..| 45/100 [00:10<00:12,  4.30it/s, loss=0.43]`` | ``tqdm(loader, desc=..)`` |

A bar counts batches, whatever is accumulated, and begins anew with each epoch, as its time does;
what lies between two epochs stands in no bar. Examples of diffusers and Accelerate state how many
optimizer steps are to come in so many epochs: their bars, of as many, count these. They also state
their batch (``Total train batch size ..``), and Lightning its processes. Epochs are read while each
follows a whole one: Lightning's by their means, other programs' by the time of the full bar.
Time goes on during validation, whose bar begins behind the first batch and so may have less of it:
Lightning 2 draws the training's again when validation ends, which shows how much. Until 2.0 the bar
counted validation's batches too: it is read up to the first validation. Process 0 draws the bar.

Lightning draws with ``smoothing=0``: its rate is the mean since the epoch began, to 2 decimals
(``tqdm_progress.py``; from 2.1 on always in it/s). A rate in s/it is not read, since its line says
as much by the time. Lightning is known by ``v_num=``, the version of its logger, or by ``TPU
available: False, using: 0 TPU cores`` as it begins. Of other programs the time alone is read, and
only of bars that name an epoch's number: what another bar counts (files, epochs, downloads) is not
known, and noted where no format is recognised. The bars of rich (``RichProgressBar``, Lightning's
own from 2.6 on where rich is installed) leave one line in a file, at the end of the last epoch: no
speed.

A step is drawn twice: Lightning draws its own loss behind it, programs that call ``set_postfix`` in
the loop the next step's, so that of these the first drawing counts. A bar whose only losses are of
an evaluation (``val_loss=``) is that of the evaluation, whatever its name.

Real lines were read in Lightning-AI/pytorch-lightning issues 4225 and 11471 and ecmwf/anemoi-core
issue 614, and whole logs of Lightning 2.6 that were made by runs on a CPU.

program_bars
------------
Bars of programs that are known by their name or by what they add: the table ``PROGRAMS``.

| program | line |
|---|---|
| Ultralytics, YOLOv5 | ``31/50  6.73G  1.235  11  640: 100%|..| 16/16 [00:05<00:00,  2.83it/s]`` |
| since 2025-08 | ``1/100  2.04G  0.848  3.46  37  640: 100% ━━ 221/221 4.4it/s 49.8s`` |
| kohya's sd-scripts | ``steps:   5%|..| 100/2000 [00:57<18:14,  1.74it/s, avr_loss=0.0725]`` |
| Levanter | ``Progress on:train 19.0it/70.0it rate:76.8s/it remaining:.. elapsed:31:40 ..`` |

Ultralytics' bar is that of an epoch; the validation behind it has its own. The first epoch's time
is the clock; of each epoch the closed bar's mean counts. Since 2025-08 that is by the time beside
it, to 0.1 s below a minute, and up to there a bar is drawn before its step is counted. An iteration
is ``batch=16`` images over all devices, ``round(nbs / batch)`` of them are an optimizer step.
Process 0 draws.

sd-scripts draw with ``smoothing=0``; a batch of several data sets (``2, 4``) is not read. Levanter
prints tqdm-loggable's lines, whose numbers are rounded from 1000 on (``1.23kit``) and then not
read; no line has its batch. Both count optimizer steps. Lines of ultralytics/ultralytics issues
7653 and 18634 were read, of repositories that quote logs, and a whole log of Ultralytics 8.4.190
that was made by a run on a CPU: the speed is that by stamps of its batches to 0.1 %.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER, first_of, seconds_of
from dlperf_hpc.logs.scanned import Counter, Epoch, LogStep, Stamps

_WHOLE = r"[0-9]{1,15}"
_UNKNOWN = "a progress bar that does not say what it counts, nor an epoch"
_RATE = (
    r" +(?P<rate>[0-9]{1,9}(?:\.[0-9]{1,9})?|\?) ?(?P<unit>[A-Za-z]{1,16}/s|s/ ?[A-Za-z]{1,16})"
    r"(?P<rest>\]|, [^\]]{0,2000}\])"
)
_BAR = re.compile(
    rf"(?:[0-9]{{1,3}}%|(?<=: ))(?:\|[^|]{{0,400}}\|)? *(?P<done>{_WHOLE})/(?P<total>{_WHOLE}|\?) "
    rf"\[(?P<elapsed>[0-9:]{{4,12}})<[0-9:?]{{1,12}},{_RATE}"
)
_ENDLESS = re.compile(
    rf"(?<=: )(?P<done>{_WHOLE})it \[(?P<elapsed>[0-9:]{{4,12}}),{_RATE}(?P<total>)"
)
_COUNTED = re.compile(r"(?:s/ ?)?(?:it|iter|iteration|batch|step)(?:s|es)?(?:/s)?")


class Bar(NamedTuple):
    """A state of a bar. ``total`` is None if it is not known, ``elapsed`` in seconds; ``rate`` is
    in iterations/s, as it stands, or None where the line has its inverse or, below 1, two digits
    of it; ``rest`` is what the program adds. ``mean`` is the iterations/s since the bar began, of
    a bar that is full and whose time bears its rate out; else None."""

    name: str
    done: int
    total: int | None
    elapsed: float
    rate: str | None
    rest: str
    mean: float | None = None

    @property
    def seconds(self) -> float:
        """The time since the bar began: by its mean, else by its whole seconds, rounded."""
        if self.mean:
            return self.done / self.mean
        return self.elapsed + 0.5


def bar_of(text: str) -> Bar | None:
    """The state of a bar in a line; None if there is none, one that is not whole, or one that
    counts no iterations."""
    match = _BAR.search(text) or _ENDLESS.search(text)
    if match is None or not _COUNTED.fullmatch(match["unit"]):
        return None
    time, done, total = seconds_of(match["elapsed"]), int(match["done"]), None
    if match["total"].isdigit():
        total = int(match["total"])
    if time is None or (total is not None and done > total):
        return None
    rate, mean = _rates(match, time, done == total)
    name = text[: match.start()].strip().removesuffix(":")
    return Bar(name, done, total, time, rate, match["rest"], mean)


def _rates(match: re.Match[str], time: float, full: bool) -> tuple[str | None, float | None]:
    rate, inverse, mean = match["rate"], match["unit"].startswith("s/"), None
    if rate[0] in "?0":
        return None, None
    if full:
        mean = _mean(int(match["done"]), time, float(rate), inverse)
    return (None if inverse else rate), mean


def _mean(done: int, time: float, figure: float, inverse: bool) -> float | None:
    """The rate of a full bar, in iterations/s, if its whole seconds agree; two decimals stand."""
    per_s = 1 / figure if inverse else figure
    seconds, error = done / per_s, 0.005 / figure
    fits = time <= seconds * (1 + error) and seconds * (1 - error) < time + 1
    return per_s if fits else None


def add_bar(line: Line, builder: ReadingBuilder, bar: Bar, **figures: str | None) -> None:
    """Add the step that a bar shows. Drawn again with the same step, a bar adds the figures alone:
    its time then has in it what came after the step, an evaluation for one."""
    latest = builder.last_step()
    again = latest is not None and latest.iteration == bar.done
    if again and not any(figures.values()):
        return
    known = len(builder.steps)
    builder.step(line, bar.done, stamp=bar.elapsed, stamps=Stamps.ELAPSED, **figures)
    if latest is not None and again and len(builder.steps) > known:
        speed = builder.steps[-1].printed or latest.printed
        builder.steps[-2:] = [
            builder.steps[-1]._replace(line=latest.line, stamp=latest.stamp, printed=speed)
        ]


# --- epoch_bars

_VERSION = "v_num="
_LIGHTNING = "TPU available: "
_VALIDATES = "Validati"
_NO_BAR = LinePattern(
    rf"^(?!.*(?:{_LIGHTNING}|{_VALIDATES}|━))[^\[\n]*$",  # tqdm's times stand in brackets
    passed_over=True,
)
_STATED = (
    r"All distributed processes registered\. Starting with (?P<devices>[0-9]{1,9}) processes",
    r"Total train batch size \(w\. parallel, distributed & accumulation\)"
    r" = (?P<global_batch>[0-9]{1,15})\s*$",
    r"Gradient Accumulation steps = (?P<accumulation>[0-9]{1,9})\s*$",
)
_NAME = re.compile(r"(?:^|\W)[Ee]poch\W{0,3}(?P<epoch>[0-9]{1,9})(?!\w)")
_NO_TRAINING = re.compile(r"(?i)val|eval|test|sanity|predict|infer")
_LONG_S = 25.0  # of an epoch, of which half a second is 2 %
_ROUNDED_S = 2.0  # by which the difference of two bars' times may be off, at most
_STEPS = re.compile(r"\W[Ss]teps$")  # of the whole run, whatever the epoch before it
_LOSSES = re.compile(r"[, ]([\w/]{0,80}loss\w{0,80})=")
_LOSS = re.compile(rf"[, ](?:train[_/])?loss(?:_step)?=(?P<loss>{NUMBER})[,\]]")


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A state of the bar of an epoch's batches, or what shows that Lightning draws it."""
    bar, validates = None, _VALIDATES in line.text
    if validates or "poch" in line.text:
        bar = bar_of(line.text)
    if _LIGHTNING in line.text or (bar and _VERSION in bar.rest):
        builder.state["lightning"] = True
    if bar and is_training(bar):
        _read_bar(line, builder, bar)
    elif validates:
        _keep_validation(builder, bar)


def _keep_validation(builder: ReadingBuilder, bar: Bar | None) -> None:
    """Keep the last state of each bar of a validation, until the training's goes on."""
    if builder.steps and "over" not in builder.state:
        states = builder.state.setdefault("validation", {})
        if bar and bar.done:
            states[bar.name] = bar


def is_training(bar: Bar) -> bool:
    """Whether a bar has done iterations of an epoch: by its name, and by the losses it shows."""
    if not bar.done or _NO_TRAINING.search(bar.name) or _STEPS.search(bar.name):
        return False
    losses = _LOSSES.findall(bar.rest)
    return not losses or any(not _NO_TRAINING.search(each) for each in losses)


def _is_of_steps(builder: ReadingBuilder, bar: Bar) -> bool:
    """Whether the bars of all epochs together are of as many as there are optimizer steps."""
    epochs, planned = builder.state.get("epochs", 0), builder.state.get("planned", -1)
    return (bar.total or 0) * int(epochs) == int(planned)


def _read_bar(line: Line, builder: ReadingBuilder, bar: Bar) -> None:
    epoch, lightning = first_of(_NAME, bar.name), "lightning" in builder.state
    if epoch is None or bar.total != builder.state.setdefault("total", bar.total):
        return
    placed = over_epochs(line, builder, bar, epoch)
    if placed is None or not _goes_on(line, builder, placed):
        return
    bar = placed
    if _is_of_steps(builder, bar):
        builder.counter = Counter.OPTIMIZER_STEPS
    latest = builder.last_step()
    again = latest is not None and latest.iteration == bar.done
    figures: dict[str, str | None] = {}
    if again == lightning:
        figures["loss"] = first_of(_LOSS, bar.rest)
    if lightning and not again:
        figures["printed"] = bar.rate
    builder.release_held()
    add_bar(line, builder, bar, **figures)


def over_epochs(line: Line, builder: ReadingBuilder, bar: Bar, epoch: str) -> Bar | None:
    """The state with its iterations since the file's first epoch began; None if its epoch does not
    follow a whole one. In later epochs Lightning's means count, and of other programs the full bar
    has a time: the whole seconds since the first epoch began, less what lies between epochs."""
    state, number = builder.state, int(epoch)
    if epoch == state.setdefault("epoch", epoch):
        if number != state.get("at"):
            _begin_epoch(line, builder, number, 0, 0.0)
    elif number == state["at"] + 1 and "epoch_s" in state and "over" not in state:
        seconds = state["before_s"] + state["epoch_s"]
        _begin_epoch(line, builder, number, state["before"] + bar.total, seconds)
    elif number != state["at"]:
        if "later_epochs" not in state:
            state["later_epochs"] = True
            why = f"epoch {epoch} follows no whole epoch {number - 1}: no bar from here on was read"
            builder.note(line, why, partly=True)
        state.pop("epoch_s", None)
        builder.later_epoch(line, epoch)
        return None
    _keep_length(state, bar)
    elapsed = bar.elapsed
    if epoch != state["epoch"]:
        elapsed = math.nan
        if "lightning" not in state and "epoch_s" in state:
            elapsed = math.floor(state["before_s"] + state["epoch_s"])
    return bar._replace(done=state["before"] + bar.done, elapsed=elapsed)


def _begin_epoch(line: Line, builder: ReadingBuilder, number: int, before: int, s: float) -> None:
    builder.state |= {"at": number, "before": before, "before_s": s}
    for name in ("epoch_s", "full_at", "partly", "validation", "again"):
        builder.state.pop(name, None)
    if builder.steps and builder.has_room(1):
        builder.epochs.append(Epoch(line.number, before))


def _keep_length(state: dict[str, Any], bar: Bar) -> None:
    """Keep the seconds of an epoch while its last state is full, by the last mean of the second in
    which it became so. Where that state is the epoch's only one, it may have a validation in it."""
    if bar.done != bar.total:
        state["partly"] = True
        state.pop("epoch_s", None)
        state.pop("full_at", None)
        return
    if "partly" not in state and ("lightning" in state or _NO_TRAINING.search(bar.rest)):
        return
    known = bar.mean or "lightning" in state or bar.elapsed >= _LONG_S
    if known and bar.elapsed == state.setdefault("full_at", bar.elapsed):
        state["epoch_s"] = bar.seconds


def _goes_on(line: Line, builder: ReadingBuilder, bar: Bar) -> bool:
    """Whether the training's bar counts its own batches alone behind a validation, which is added
    then. A bar that counts the validation's too goes on before those of the validation are full,
    or by as many batches as they have.

    Lightning 2 draws the training's bar again behind a validation, where it stood.
    """
    state, latest = builder.state, builder.last_step()
    if latest is None or "validation" not in state:
        return "over" not in state
    bars, more = list(state["validation"].values()), bar.done - latest.iteration
    full = bool(bars) and all(each.done == each.total for each in bars)
    if not more:
        if full:
            state.setdefault("again", bar.elapsed)
        return True
    del state["validation"]
    again = state.pop("again", None)
    if more < 0:  # of another run
        return True
    if not full or (again is None and more >= sum(each.done for each in bars)):
        state["over"] = True
        return False
    builder.pause(line, "evaluation", _length(builder, bars, latest, again))
    return True


def _length(
    builder: ReadingBuilder, bars: Sequence[Bar], latest: LogStep, again: float | None
) -> float | None:
    """The seconds of a validation by its bars; None if the training's bar, which was drawn again at
    ``again``, shows that it took longer, since a bar begins late, or does not show how long."""
    seconds = sum(each.seconds for each in bars)
    if again is None or not _is_whole(builder, again - (latest.stamp or 0.0) - seconds):
        return None
    return seconds


def _is_whole(builder: ReadingBuilder, more: float) -> bool:
    """Whether the bars of a validation had all of its time. The training's bar has ``more``
    seconds: of one validation that may be rounding, of several it then is less than their sum."""
    if more > _ROUNDED_S:
        return False
    hidden: list[float] = builder.state.setdefault("hidden", [])
    hidden.append(more)
    return sum(hidden) <= 1 + 0.5 * math.sqrt(len(hidden))


# --- program_bars


class ProgramBar(NamedTuple):
    """The bars of a program's training: the ``name`` that they have (with a group ``epoch`` if each
    epoch has a bar), what the program adds, what a bar counts, and whether its rate is the mean
    since it began."""

    framework: str
    name: re.Pattern[str]
    adds: str = ""
    counter: Counter = Counter.OPTIMIZER_STEPS
    smooth: bool = True


PROGRAMS = (
    ProgramBar(
        "ultralytics",
        re.compile(
            r"\s*(?P<epoch>[0-9]{1,9})/[0-9]{1,9} +[0-9.]{1,9}[GM] [-+.0-9aefin ]{1,400} [0-9]{1,6}"
        ),
        counter=Counter.MICRO_STEPS,
    ),
    ProgramBar("sd-scripts", re.compile("steps"), adds="avr_loss=", smooth=False),
    ProgramBar("levanter", re.compile(r"Progress on:train")),
)
"""The one table of bars of programs; what batch they count stands in :data:`LINES`."""

_FEW = 50  # iterations of an epoch from which on its last batch hardly matters
_THIN = re.compile(
    rf"^(?P<name>.{{0,400}}?): [0-9]{{1,3}}% [━╸─]{{12}} (?P<done>{_WHOLE})/(?P<total>{_WHOLE}) "
    r"(?:[0-9.]{1,12}(?:it/s|s/it))? ?(?P<elapsed>[0-9:]{4,12}|[0-9]{1,2}\.[0-9]s)"
    r"(?:<|(?:(?<=s)[0-9.]{3,4}s{1,2})?\s*$)"  # behind it what a longer bar left on the screen
)
_LOGGED = re.compile(
    r"(?P<name>Progress on:\w{1,80}) (?P<done>[0-9]{1,3})(?:\.0{1,2})?it/(?P<total>)\S{1,20} "
    r"rate:\S{1,40} remaining:[0-9:?]{1,20} elapsed:(?P<elapsed>[0-9:]{4,12}) postfix:"
)


def _read_program(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    bar = bar_of(line.text) or _other_bar(line.text)
    if bar is None or not bar.done:
        return
    for program in PROGRAMS:
        match = program.name.fullmatch(bar.name)
        if match and program.adds in bar.rest:
            builder.framework, builder.counter = program.framework, program.counter
            builder.release_held()
            if program.name.groups:
                _read_epoch(line, builder, bar, int(match["epoch"]))
            elif bar.total == builder.state.setdefault("total", bar.total):
                printed = None if program.smooth else bar.rate
                add_bar(line, builder, bar, printed=printed)


def _read_epoch(line: Line, builder: ReadingBuilder, bar: Bar, epoch: int) -> None:
    """A state of an epoch's bar. The time of the first epoch is the clock, each epoch's mean is
    the printed speed."""
    first = builder.state.setdefault("first", epoch)
    if epoch < first:
        builder.note_once(line, "an epoch before the file's first one: of another run, not read")
        return
    _note_few(line, builder, bar.total or _FEW)
    done = builder.in_epoch(line, epoch - first, bar.done, bar.total)
    latest = builder.last_step()
    again = latest is not None and latest.iteration == done
    if done is None or ((again or epoch != first) and bar.mean is None):
        return
    if again:
        builder.steps.pop()
    stamp = bar.elapsed if epoch == first else None
    builder.step(line, done, stamp=stamp, stamps=Stamps.ELAPSED, printed=bar.mean)


def _note_few(line: Line, builder: ReadingBuilder, iterations: int) -> None:
    if iterations < _FEW and "few" not in builder.state:
        builder.state["few"] = True
        why = f"an epoch has {iterations} iterations, whose last may have fewer images"
        most = f"the speed may be up to {100 / iterations:.0f} % too high"
        builder.note(line, f"{why}: {most}", partly=True)


def _other_bar(text: str) -> Bar | None:
    """A bar that is not tqdm's. That of a first second is not known to 5 %."""
    match = _THIN.search(text) or _LOGGED.search(text)
    if match is None:
        return None
    time, done, total = match["elapsed"], int(match["done"]), int("0" + match["total"])
    seconds = float(time[:-1]) if time.endswith("s") else seconds_of(time)
    if seconds is None or 0 < total < done:
        return None
    mean = done / seconds if done == total and seconds >= 1 else None
    if done < total:
        done += 1
    return Bar(match["name"].strip(), done, total or None, seconds, None, "", mean)


_NOMINAL = 64  # samples of an optimizer step of YOLOv5; Ultralytics prints ``nbs=``
_BATCH = re.compile(r"[ :]batch(?:_size|-size)?[= ](?P<batch>[0-9]{1,9})(?:,| for )")
_NBS = re.compile(r" nbs=([0-9]{1,9}),")
_DEVICE = re.compile(r" device=(?P<list>\[?[0-9](?:, ?[0-9]){0,7}\]?|None|cpu|mps|cuda),")
_MODEL = re.compile(r" (?:model|weights)=(?:[^,]{0,400}/)?([\w.-]{1,80}?)(?:\.pt|\.yaml),")


def _read_arguments(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """The batch of Ultralytics' arguments, which is that of all devices."""
    builder.hold(line, "model", first_of(_MODEL, line.text))
    if devices := first_of(_DEVICE, line.text):
        builder.hold(line, "devices", devices.count(",") + 1)
    nominal = builder.state["nominal"] = first_of(_NBS, line.text) or builder.state.get("nominal")
    if batch := int(first_of(_BATCH, line.text) or 0):
        accumulation = max(round(int(nominal or _NOMINAL) / batch), 1)
        builder.hold(line, "accumulation", accumulation)
        builder.hold(line, "global_batch", accumulation * batch)


LINES = {
    "epoch_bars": (
        *(LinePattern(stated, held=True) for stated in _STATED),
        LinePattern(
            rf"Num Epochs = (?P<epochs>{_WHOLE})|Total optimization steps = (?P<planned>{_WHOLE})",
            kept=True,
        ),
        _NO_BAR,
        LinePattern(
            r"^(?!.*poch).*\| 0/[0-9]+ \[00:00<\?, \?it/s",
            take=lambda line, builder, _: builder.note_once(line, _UNKNOWN),
        ),
        LinePattern(
            "^Epoch [0-9].{0,40}━.{0,400}it/s",
            note="a bar of rich's, of which a file keeps the last state alone: no speed is read",
        ),
        LinePattern(take=read),
    ),
    "program_bars": (
        LinePattern(r"^ *[0-9]{1,3}%\|", passed_over=True),  # without a name: a Trainer's
        LinePattern(
            r"engine[/\\]trainer: |\btrain: weights=|AutoBatch: .{0,20}Using batch-size ",
            take=_read_arguments,
        ),
        LinePattern(
            r"^ *(?:batch size per device / .{1,80}: (?P<batch_size>[0-9]{1,9})"
            r"|gradient a?ccumulation steps / .{1,80} = (?P<accumulation>[0-9]{1,9}))\s*$",
            held=True,
        ),
        LinePattern(take=_read_program),
    ),
}
