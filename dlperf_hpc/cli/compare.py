"""``dlperf compare A B``: which cases got faster, slower, or stayed the same."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc import published
from dlperf_hpc.cli import messages, options
from dlperf_hpc.cli.messages import usage_error

if TYPE_CHECKING:
    from dlperf_hpc.analysis.comparison import Comparison, Subject

SUMMARY = "tell which cases got faster or slower: two sweeps, or published results"

PUBLISHED = "published"

_DESCRIPTION = """\
Compare the cases of B with those of A: the ratio of their median samples/s (tokens/s where that is
all they have) with its interval, and an outcome. B/A above 1 means that B is faster. Exit code: 0
no case is slower, 1 a case is slower (or has another outcome of --fail-on), 2 invalid request, or
no case could be compared, as where A and B are one measurement.
"""
_EPILOG = """\
A and B are a sweep's directory (logs/<sweep>), any directory of job logs, or the published results
that come with this package. KEY=VALUE,... selects cases; a key that is given twice selects both
values.
  logs/new logs/old:precision=fp32,topology=1n8g
  logs/new published:framework=deepspeed,model=bert-base
The keys are: framework model precision batch_size topology tag
Published results also have: hardware repository path ref (the value is a part of the text)
A directory that is called published is written ./published.

Two cases are compared if framework, model, precision, batch size, topology and tags are equal;
--across names keys that need not be equal. docs/comparing.md explains the outcomes.
"""

_FEWEST_ALIKE = 3  # runs; fewer may be as fast by chance, where a program prints few digits

_FAIL_ON: Mapping[str, tuple[str, ...]] = {
    "slower": ("slower",),
    "undecided": ("undecided",),
    "too-few": ("too few runs",),
    "missing": ("missing in B", "other unit"),
    "nothing": (),
}


def _parser() -> argparse.ArgumentParser:
    made = options.parser("compare", _DESCRIPTION, _EPILOG)
    add = made.add_argument
    add("a", metavar="A", help="the results to compare with: a directory, or published[:...]")
    add("b", metavar="B", help="the results to compare: a directory, or published...")
    for side in ("a", "b"):
        also = f"add the runs of this directory to {side.upper()}"
        add(f"--also-{side}", metavar="DIR", action="append", default=[], help=also)
    options.add_outcome_options(made)
    add("--across", default="", metavar="KEY,...", help="keys that need not be equal")
    fail_on = (
        f"outcomes that make the exit code 1: {', '.join(_FAIL_ON)} (default: slower; missing: A"
        " has the case, B does not, or not in the same unit)"
    )
    add("--fail-on", default="slower", metavar="WHAT,...", help=fail_on)
    options.add_files(made)
    options.add_json(made, "the comparison")
    options.add_external_options(made, accelerator=False)
    return made


@dataclass(frozen=True)
class _Side:
    """One directory (None: the published results), and what of it is wanted."""

    text: str
    directory: Path | None
    wanted: Mapping[str, Sequence[str]]


def _side(text: str) -> _Side:
    from dlperf_hpc.analysis import comparison

    name, colon, narrowed = text.partition(":")
    if name == PUBLISHED:
        return _Side(text, None, _wanted(text, narrowed, tuple(published.FILTERS)))
    name, colon, narrowed = text.rpartition(":")
    if Path(text).exists() or not colon or "=" not in narrowed:
        return _Side(text, Path(text), {})
    return _Side(text, Path(name), _wanted(text, narrowed, comparison.FILTERS))


def _wanted(where: str, text: str, keys: Sequence[str]) -> dict[str, list[str]]:
    wanted: dict[str, list[str]] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value or key not in keys:
            hint = f"write KEY=VALUE with one of the keys {', '.join(keys)}"
            raise usage_error(where, f"{part!r} selects nothing", hint)
        wanted.setdefault(key, []).append(value)
    return wanted


def _subjects(arguments: argparse.Namespace, place: _Side) -> list[Subject]:
    """The selected cases of one place; SpecError if there are none."""
    from dlperf_hpc.analysis import comparison

    if place.directory is None:
        rows = published.published()
        found = comparison.published_subjects(published.select(rows, place.wanted))
        held = {key: published.values_of(rows, key) for key in place.wanted}
    else:
        everything = comparison.subjects(options.results_below(arguments, place.directory))
        texts = comparison.texts
        found = published.select(everything, place.wanted, texts)
        held = {key: published.values_of(everything, key, texts) for key in place.wanted}
    if not found:
        there = "; ".join(f"{key}: {', '.join(values)}" for key, values in held.items())
        raise usage_error(place.text, "no case is selected", there and f"there are {there}")
    return found


def _hints(comparison: Comparison, a: Sequence[Subject], b: Sequence[Subject]) -> list[str]:
    """What to do if nothing could be compared."""
    from dlperf_hpc.analysis.comparison import nearest

    both = [case for case in comparison.cases if case.a and case.b]
    runs = sum(case.a.counted for case in both if case.a)
    if all(case.one for case in both) and runs >= _FEWEST_ALIKE:
        return [
            "A and B are one: the runs of all cases that both have are as fast to the last digit (a"
            " sweep and its archive, or a copy); give two measurements to compare"
        ]
    if any(case.ratio is not None for case in comparison.cases):
        return []
    if both:
        return ["nothing was compared: no case has runs that count on both sides, in one unit"]
    lines = ["nothing was compared: no case of A matches a case of B"]
    near = nearest(a, b)
    for keys, count in near.items():
        lines.append(f"with --across {','.join(keys)} {count} of {len(a)} cases would match")
    if not near:
        lines.append(
            f"no --across makes them comparable: A has {_in_short(a)}, B has {_in_short(b)}; give"
            " results of one model on one kind of device"
        )
    return lines


def _in_short(side: Sequence[Subject]) -> str:
    from dlperf_hpc.analysis.machines import HARDWARE

    models = sorted({subject.case.text("model") for subject in side})
    devices = sorted({name for subject in side for name in subject.setup.get(HARDWARE, ())})
    model, device = (
        ", ".join(names[:3]) + ", ..." * (len(names) > 3) for names in (models, devices)
    )
    return f"{model} on {device}" if device else model


def _compare(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.analysis import comparison as analysis

    tolerance, risk = options.outcome_settings(arguments)
    across = options.words("--across", arguments.across, analysis.KEYS)
    fail_on = options.words("--fail-on", arguments.fail_on, tuple(_FAIL_ON))
    sides = {"A": [arguments.a, *arguments.also_a], "B": [arguments.b, *arguments.also_b]}
    places = [list(map(_side, texts)) for texts in sides.values()]
    a, b = (analysis.pooled(_subjects(arguments, place) for place in side) for side in places)
    comparison = analysis.compare(a, b, tolerance, risk, across)
    hints = _hints(comparison, a, b)
    bad = set(itertools.chain(*(_FAIL_ON[word] for word in fail_on)))
    _show(arguments, comparison, sides, hints, bad)
    if hints:
        return 2
    return int(any(case.outcome.value in bad for case in comparison.cases))


def _show(
    arguments: argparse.Namespace,
    comparison: Comparison,
    sides: Mapping[str, Sequence[str]],
    hints: Sequence[str],
    bad: Collection[str],
) -> None:
    from dlperf_hpc.reporting import comparison_tables as reporting

    def page() -> bytes:
        from dlperf_hpc.reporting.page import comparison_page, render

        return render(comparison_page.page(comparison, sides, hints))

    files = {
        "markdown": lambda: reporting.comparison_markdown(comparison, sides, hints).encode(),
        "html": page,
        "junit": lambda: reporting.comparison_junit(comparison, bad),
    }
    options.write_files(arguments, files)
    if arguments.json:
        messages.print_json(reporting.comparison_json(comparison, sides))
        for line in hints:
            messages.say(line)
    else:
        reporting.print_comparison(comparison, hints)


main = messages.entry(_compare, _parser, one_thread=True)
