"""Lines as a whole log, and what the scanner and a rule make of it."""

from __future__ import annotations

from typing import Any

from damage import scan

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scanned import Reading, ScannedFile
from dlperf_hpc.model.result import RunResult


def read(*lines: str) -> ScannedFile:
    """What is found in these lines."""
    return scan("".join(line + "\n" for line in lines).encode())


def reading(*lines: str) -> Reading:
    """The one format's reading of these lines."""
    (only,) = read(*lines).readings
    return only


def facts(*lines: str) -> dict[str, object]:
    """The settings that these lines state."""
    return {fact.name: fact.value for fact in read(*lines).facts}


def run(lines: list[str], basis: str = "default", **stated: Any) -> RunResult:
    """The one run of these lines."""
    (result,) = interpret(read(*lines), (), (), stated, rule(basis)).results
    return result
