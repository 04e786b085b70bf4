"""``dlperf compare A B``: which cases got faster, slower, or stayed the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import common
from dlperf_hpc.errors import Issue, SpecError

if TYPE_CHECKING:
    from dlperf_hpc.analysis.comparison import Comparison, Subject
    from dlperf_hpc.records.results import RunResult

PUBLISHED = "published"

_DESCRIPTION = """\
Hold the cases of B against those of A: ratio of median samples/s with its interval, and a verdict.
B/A above 1: B is faster. Exit code: 0 nothing slower, 1 something is, 2 nothing could be compared.
"""
_EPILOG = """\
A and B: a sweep's directory (logs/<sweep>), any directory of such logs, or published results that
come with this package. Each may be narrowed down by KEY=VALUE,...; one key twice: either value.
  logs/new logs/old:precision=fp32,topology=1n8g
  logs/new published:framework=deepspeed,model=bert-base
keys: framework model precision batch_size topology tag
of published results also: hardware repository path ref (part of the text)
(./published is a directory of that name)

Cases match if framework, model, precision, batch size, topology and tags are equal; --across names
those that need not be. The rule behind the verdicts: docs/comparing.md
"""

_FAIL_ON = {
    "slower": "slower",
    "undecided": "undecided",
    "too-few": "too few runs",
    "missing": "missing in B",
    "nothing": "",
}


def _parser() -> argparse.ArgumentParser:
    made = common.parser("compare", _DESCRIPTION, _EPILOG)
    made.add_argument(
        "a", metavar="A", help="what to compare with: a directory, or published[:...]"
    )
    made.add_argument("b", metavar="B", help="what is compared, the same way")
    for side in ("a", "b"):
        made.add_argument(
            f"--also-{side}",
            metavar="DIR",
            action="append",
            default=[],
            help=f"more of {side.upper()}: runs of one case are put together",
        )
    made.add_argument(
        "--tolerance", default="2%", metavar="T", help="what counts as the same (default: 2%%)"
    )
    made.add_argument(
        "--risk",
        default="5%",
        metavar="R",
        help="how often a verdict may be wrong; fewer runs than that takes get none (default: 5%%)",
    )
    made.add_argument("--across", default="", metavar="KEY,...", help="keys that need not be equal")
    made.add_argument(
        "--fail-on",
        default="slower",
        metavar="WHAT,...",
        help=f"verdicts that make the exit code 1: {', '.join(_FAIL_ON)} (default: slower; "
        "missing: A has it, B has not)",
    )
    made.add_argument("--json", action="store_true", help="print the comparison as JSON")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there, too")
    common.add_external_options(made, accelerator=False)
    return made


def _wrong(where: str, message: str, hint: str | None = None) -> SpecError:
    return SpecError("command line", [Issue(where, message, hint)])


def _fraction(where: str, text: str) -> float:
    """``2%`` or ``0.02``: from 0 to below 1."""
    number, percent, more = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if more or not 0 <= value < 1:
        raise _wrong(where, f"{text!r} is not a part of 1", "as 2% or 0.02")
    return value


def _words(where: str, text: str, known: Sequence[str]) -> list[str]:
    words = [word for word in text.replace(" ", "").split(",") if word]
    strange = [word for word in words if word not in known]
    if strange:
        raise _wrong(where, f"no such word: {', '.join(strange)}", f"there are {', '.join(known)}")
    return words


@dataclass(frozen=True)
class _Place:
    """One directory (None: the published results), and what of it is wanted."""

    text: str
    directory: Path | None
    wanted: Mapping[str, Sequence[str]]


def _place(text: str) -> _Place:
    from dlperf_hpc import published
    from dlperf_hpc.analysis import comparison

    name, colon, narrowed = text.partition(":")
    if name == PUBLISHED:
        return _Place(text, None, _wanted(text, narrowed, tuple(published.FILTERS)))
    name, colon, narrowed = text.rpartition(":")
    if Path(text).exists() or not colon or "=" not in narrowed:
        return _Place(text, Path(text), {})
    return _Place(text, Path(name), _wanted(text, narrowed, comparison.FILTERS))


def _wanted(where: str, text: str, keys: Sequence[str]) -> dict[str, list[str]]:
    wanted: dict[str, list[str]] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value or key not in keys:
            raise _wrong(where, f"{part!r} selects nothing", f"KEY=VALUE with {', '.join(keys)}")
        wanted.setdefault(key, []).append(value)
    return wanted


def _results(
    arguments: argparse.Namespace, directory: Path
) -> tuple[Sequence[RunResult], Sequence[str]]:
    """What a directory holds, and what in it could not be read."""
    from dlperf_hpc.logs.gather import gather
    from dlperf_hpc.records import layout

    found = gather(
        [directory], common.rule(arguments), common.said(arguments), common.cache(arguments),
        leave_out=[directory / layout.REPORT],
    )  # fmt: skip
    return found.results, found.unread


def _subjects(arguments: argparse.Namespace, place: _Place) -> list[Subject]:
    """The cases of one place; SpecError if nothing there is what was asked for."""
    from dlperf_hpc import published
    from dlperf_hpc.analysis import comparison
    from dlperf_hpc.reporting.text import printable

    if place.directory is None:
        rows = published.published()
        found = comparison.published_subjects(published.select(rows, place.wanted))
        held = {key: published.values_of(rows, key) for key in place.wanted}
    else:
        results, unread = _results(arguments, place.directory)
        for line in unread:
            print(f"not read: {printable(line)}", file=sys.stderr)
        everything = comparison.subjects(results)
        found = comparison.selected(everything, place.wanted)
        held = {
            key: sorted({text for subject in everything for text in comparison.texts(subject, key)})
            for key in place.wanted
        }
    if not found:
        there = "; ".join(f"{key}: {', '.join(values)}" for key, values in held.items())
        raise _wrong(place.text, "no case is like that", f"there are {there}" if there else None)
    return found


def _hints(comparison: Comparison, a: Sequence[Subject], b: Sequence[Subject]) -> list[str]:
    """What to do if nothing could be compared."""
    from dlperf_hpc.analysis.comparison import nearest

    if any(case.ratio is not None for case in comparison.cases):
        return []
    if any(case.a and case.b for case in comparison.cases):
        return ["nothing was compared: no case has runs that count on both sides"]
    lines = ["nothing was compared: no case of A has its like in B"]
    for keys, count in nearest(a, b).items():
        lines.append(f"with --across {','.join(keys)} {count} of {len(a)} cases would have")
    return lines


def _compare(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.analysis import comparison as analysis

    tolerance = _fraction("--tolerance", arguments.tolerance)
    risk = _fraction("--risk", arguments.risk)
    if not 0 < risk < 0.5:
        raise _wrong("--risk", f"{arguments.risk!r} is not above 0 and below a half", "as 5%")
    across = _words("--across", arguments.across, analysis.KEYS)
    fail_on = _words("--fail-on", arguments.fail_on, tuple(_FAIL_ON))
    places = {
        "A": [_place(text) for text in (arguments.a, *arguments.also_a)],
        "B": [_place(text) for text in (arguments.b, *arguments.also_b)],
    }
    a, b = (
        analysis.pooled(_subjects(arguments, place) for place in side) for side in places.values()
    )
    comparison = analysis.compare(a, b, tolerance, risk, across)
    hints = _hints(comparison, a, b)
    sides = {name: [place.text for place in side] for name, side in places.items()}
    _show(arguments, comparison, sides, hints)
    if hints:
        return 2
    bad = {_FAIL_ON[word] for word in fail_on}
    return 1 if any(case.outcome.value in bad for case in comparison.cases) else 0


def _show(
    arguments: argparse.Namespace,
    comparison: Comparison,
    sides: Mapping[str, Sequence[str]],
    hints: Sequence[str],
) -> None:
    from dlperf_hpc.reporting import comparison as reporting

    if arguments.markdown:
        from dlperf_hpc.reporting.writers import write_atomic

        text = reporting.comparison_markdown(comparison, sides, hints)
        write_atomic(arguments.markdown, text.encode())
    if arguments.json:
        import json

        told = reporting.comparison_json(comparison, sides)
        print(json.dumps(told, indent=1, allow_nan=False))
        for line in hints:
            print(line, file=sys.stderr)
    else:
        reporting.print_comparison(comparison, hints)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return common.run(_compare, _parser(), argv, one_thread=True)


if __name__ == "__main__":
    sys.exit(main())
