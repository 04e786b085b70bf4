"""Progress bars as tqdm draws them (tqdm/tqdm tqdm/std.py, ``format_meter``).

``Epoch 0:  12%|#2        | 12/100 [00:10<01:13,  1.20it/s, loss=2.3]``: the name, how many are done
of how many, the time since the bar began in whole seconds (rounded down) and that which is left,
the rate (below one per second its inverse, ``4.47s/it``), and what the program adds. Where it is
not known of how many: ``45it [00:10,  4.30it/s]``, or ``| 45/? [..`` if the program says so. Bars
are redrawn in place, each behind a carriage return, so that each state is a line.

The rate is no speed of a window: unless a program asks for ``smoothing=0``, it is an exponential
mean of what was drawn last.

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
what lies between two epochs stands in no bar. The first epoch is read, and of it what comes before
the first validation: until Lightning 2.0 the bar counted validation's batches too, and its time
goes on during validation. Process 0 draws Lightning's bar.

Lightning draws with ``smoothing=0``: its rate is the mean since the epoch began, to 2 decimals
(``tqdm_progress.py``; from 2.1 on always in it/s). A rate in s/it is not read, since its line says
as much by the time. Lightning is known by ``v_num=``, the version of its logger, or by ``TPU
available: False, using: 0 TPU cores`` as it begins. Of other programs the time alone is read, and
only of bars that name an epoch's number: what another bar counts (files, epochs, downloads) is not
known. The bars of rich (``RichProgressBar``, Lightning's own from 2.6 on where rich is installed)
leave one line in a file, at the end of the last epoch: no speed.

A step is drawn twice: Lightning draws its own loss behind it, programs that call ``set_postfix`` in
the loop the next step's, so that of these the first drawing counts.

Real lines were read in Lightning-AI/pytorch-lightning issues 4225 and 11471 and ecmwf/anemoi-core
issue 614, and whole logs of Lightning 2.6 that were made by runs on a CPU.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER, first_of, seconds_of
from dlperf_hpc.logs.scanned import Stamps

_WHOLE = r"[0-9]{1,15}"
_RATE = r" +(?P<rate>[0-9.]{1,16}|\?)(?P<unit>it/s|s/it)(?P<rest>\]|, [^\]]{0,2000}\])"
_BAR = re.compile(
    rf"(?:[0-9]{{1,3}}%|(?<=: ))\|[^|]{{0,400}}\| *(?P<done>{_WHOLE})/(?P<total>{_WHOLE}|\?) "
    rf"\[(?P<elapsed>[0-9:]{{4,12}})<[0-9:?]{{1,12}},{_RATE}"
)
_ENDLESS = re.compile(
    rf"(?<=: )(?P<done>{_WHOLE})it \[(?P<elapsed>[0-9:]{{4,12}}),{_RATE}(?P<total>)"
)


class Bar(NamedTuple):
    """A state of a bar. ``total`` is None if it is not known, ``elapsed`` in seconds; ``rate`` is
    in iterations/s, as it stands, or None where the line has its inverse or, below 1, two digits
    of it; ``rest`` is what the program adds."""

    name: str
    done: int
    total: int | None
    elapsed: float
    rate: str | None
    rest: str


def bar_of(text: str) -> Bar | None:
    """The state of a bar in a line; None if there is none, or one that is not whole."""
    match = _BAR.search(text) or _ENDLESS.search(text)
    if match is None:
        return None
    time, done = seconds_of(match["elapsed"]), int(match["done"])
    total = None
    if match["total"].isdigit():
        total = int(match["total"])
    if time is None or (total is not None and done > total):
        return None
    rate = match["rate"]
    if match["unit"] != "it/s" or rate[0] in "?0":
        rate = None
    name = text[: match.start()].strip().removesuffix(":")
    return Bar(name, done, total, time, rate, match["rest"])


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
    rf"^(?!.*(?:{_LIGHTNING}|{_VALIDATES}))[^\[\n]*$",  # each bar has its times in brackets
    passed_over=True,
)
_NAME = re.compile(r"(?:^|\W)[Ee]poch\W{0,3}(?P<epoch>[0-9]{1,9})(?!\w)")
_NO_TRAINING = re.compile(r"(?i)val|eval|test|sanity|predict|infer")
_LOSS = re.compile(rf"[, ](?:train[_/])?loss(?:_step)?=(?P<loss>{NUMBER})[,\]]")


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A state of the bar of an epoch's batches, or what shows that Lightning draws it."""
    bar = None
    if "poch" in line.text:
        bar = bar_of(line.text)
    if _LIGHTNING in line.text or (bar and _VERSION in bar.rest):
        builder.state["lightning"] = True
    if bar and bar.done and not _NO_TRAINING.search(bar.name):
        _read_bar(line, builder, bar)
    elif builder.steps and _VALIDATES in line.text:
        builder.state["over"] = True


def _read_bar(line: Line, builder: ReadingBuilder, bar: Bar) -> None:
    epoch = first_of(_NAME, bar.name)
    if epoch is None or builder.later_epoch(line, epoch) or builder.state.get("over"):
        return
    if bar.total != builder.state.setdefault("total", bar.total):
        return
    latest = builder.last_step()
    again = latest is not None and latest.iteration == bar.done
    lightning = "lightning" in builder.state
    figures: dict[str, str | None] = {}
    if again == lightning:
        figures["loss"] = first_of(_LOSS, bar.rest)
    if lightning and not again:
        figures["printed"] = bar.rate
    add_bar(line, builder, bar, **figures)


LINES = {
    "epoch_bars": (
        _NO_BAR,
        LinePattern(take=read),
    ),
}
