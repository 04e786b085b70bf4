"""What the tests of formats share: lines as the scanner shows them, and a sample's one result."""

from __future__ import annotations

from collections.abc import Iterable

from places import ROOT

from dlperf_hpc.logs.format import Format, Line, ReadingBuilder
from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import RunResult


def reads(kind: Format, lines: Iterable[str]) -> ReadingBuilder:
    """The builder of the lines that hold a literal of the format."""
    builder = ReadingBuilder(kind)
    for number, text in enumerate(lines, 1):
        if any(literal in text for literal in (*kind.literals, *kind.facts_literals)):
            kind.read(Line(number, text), builder)
    return builder


def facts(builder: ReadingBuilder) -> dict[str, object]:
    """The settings; each is stated once."""
    assert len({fact.name for fact in builder.facts}) == len(builder.facts), builder.facts
    return {fact.name: fact.value for fact in builder.facts}


def sampled(name: str, by: str = "default") -> RunResult:
    """The one run of a format's sample, as a report has it."""
    path = ROOT / "tests" / "unit" / "logs" / "formats" / f"{name}.log"
    (result,) = gather([path], rule(by), {}, ScanCache(None)).results
    return result
