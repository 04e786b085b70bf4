"""``speedup.svg``: the same picture in lines and letters, for papers and slides."""

from __future__ import annotations

from dlperf_hpc.reporting.picture import picture
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.writers import Writer

VECTORS = "speedup.svg"


def vectors(report: Report) -> bytes | None:
    """The picture, of any size; None if no run counts."""
    return picture(report, "svg")


WRITER = Writer("svg", "the same picture in vectors", {VECTORS: vectors}, frozenset({VECTORS}))
