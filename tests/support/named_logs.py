"""Logs in no known format that tests write, and what they are read as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc.logs.interpret.interpretation import Interpretation, interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import scan_source
from dlperf_hpc.logs.scan.sources import Source
from dlperf_hpc.model.result import RunResult

ONE = {"nodes": 1, "gpus_per_node": 1}
ITERATIONS = "iterations/s on 1n1g"


def read(tmp_path: Path, text: str, stated: Mapping[str, Any]) -> Interpretation:
    """A file with this text by the default rule, with ``stated`` by options."""
    path = tmp_path / "a.log"
    path.write_text(text)
    file = scan_source(Source(str(path), len(text)))
    return interpret(file, (), (), stated, rule("default"))


def lines_of(line: str | Callable[[int], str], last: int = 130, before: str = "") -> str:
    """The lines of iterations 1 to ``last``: ``{n}`` of ``line`` is the iteration."""
    form = line if callable(line) else lambda n: line.format(n=n, decimal=n % 10)
    return before + "".join(f"{form(n)}\n" for n in range(1, last + 1))


def one(tmp_path: Path, text: str, stated: Mapping[str, Any] = ONE) -> RunResult:
    """The one run of a file with this text."""
    (result,) = read(tmp_path, text, stated).results
    return result
