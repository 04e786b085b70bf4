"""What the tests of formats share: lines as the scanner shows them, and a sample's one result."""

from __future__ import annotations

from collections.abc import Iterable

from places import ROOT

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.records.results import RunResult


def reads(kind: Format, lines: Iterable[str]) -> Draft:
    """The draft of the lines that hold a needle of the format."""
    draft = Draft(kind)
    for number, text in enumerate(lines, 1):
        if any(needle in text for needle in (*kind.needles, *kind.facts_needles)):
            kind.read(Line(number, text), draft)
    return draft


def facts(draft: Draft) -> dict[str, object]:
    """The settings; each is stated once."""
    assert len({fact.name for fact in draft.facts}) == len(draft.facts), draft.facts
    return {fact.name: fact.value for fact in draft.facts}


def sampled(name: str, by: str = "default") -> RunResult:
    """The one run of a format's sample, as a report has it."""
    path = ROOT / "tests" / "unit" / "logs" / "formats" / f"{name}.log"
    (result,) = gather([path], rule(by), {}, ScanCache(None)).results
    return result
