"""Progress bars as tqdm draws them (tqdm/tqdm tqdm/std.py, ``format_meter``).

``Epoch 0:  12%|#2        | 12/100 [00:10<01:13,  1.20it/s, loss=2.3]``: the name, how many are done
of how many, the time since the bar began in whole seconds (rounded down) and that which is left,
the rate (below one per second its inverse, ``4.47s/it``), and what the program adds. Where it is
not known of how many: ``45it [00:10,  4.30it/s]``, or ``| 45/? [..`` if the program says so. Bars
are redrawn in place, each behind a carriage return, so that each state is a line.

The rate is no speed of a window: unless a program asks for ``smoothing=0``, it is an exponential
mean of what was drawn last.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dlperf_hpc.logs.format import Line, ReadingBuilder
from dlperf_hpc.logs.scanned import Stamps

LITERAL = "%|"
"""In each bar. It has no letter, so that it is looked for only once the format was recognised: bars
are in most logs, and very many of them in some."""

_WHOLE = r"[0-9]{1,15}"
_RATE = r" +(?P<rate>[0-9.]{1,16}|\?)(?P<unit>it/s|s/it)(?P<rest>\]|, [^\]]{0,2000}\])"
_BAR = re.compile(
    rf"(?:[0-9]{{1,3}}%|(?<=: ))\|[^|]{{0,400}}\| *(?P<done>{_WHOLE})/(?P<total>{_WHOLE}|\?) "
    rf"\[(?P<elapsed>[0-9:]{{4,12}})<[0-9:?]{{1,12}},{_RATE}"
)
_ENDLESS = re.compile(
    rf"(?<=: )(?P<done>{_WHOLE})it \[(?P<elapsed>[0-9:]{{4,12}}),{_RATE}(?P<total>)"
)
_TIME = re.compile(r"(?:([0-9]{1,6}):)?([0-5]?[0-9]):([0-5][0-9])")


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
    time, done = seconds(match["elapsed"]), int(match["done"])
    total = int(match["total"]) if match["total"].isdigit() else None
    if time is None or (total is not None and done > total):
        return None
    rate = match["rate"] if match["unit"] == "it/s" and match["rate"][0] not in "?0" else None
    name = text[: match.start()].strip().removesuffix(":")
    return Bar(name, done, total, time, rate, match["rest"])


def is_bare(text: str) -> bool:
    """Whether a line begins as a bar without a name does: the share done takes three places."""
    return text[3:5] == "%|"


def add(line: Line, builder: ReadingBuilder, bar: Bar, **figures: str | None) -> None:
    """Add the step that a bar shows. Drawn again with the same step, a bar adds the figures alone:
    its time then has in it what came after the step, an evaluation for one."""
    latest = builder.steps[-1] if builder.steps else None
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


def seconds(text: str) -> float | None:
    """``1:02:03`` or ``02:03`` in seconds; None for anything else."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hours, minutes, rest = match.groups()
    return float((int(hours or 0) * 60 + int(minutes)) * 60 + int(rest))
