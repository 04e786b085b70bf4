"""What is looked at: the page, and the picture of a report as pixels and as vectors."""

from __future__ import annotations

from dlperf_hpc.reporting.picture import PICTURE, picture
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.writers import Writer

PAGE = "report.html"
VECTORS = "speedup.svg"


def page(report: Report) -> bytes:
    """The report as one page; what it takes is imported only now."""
    from dlperf_hpc.reporting.page import render
    from dlperf_hpc.reporting.page.sweep import page as page_of

    return render(page_of(report))


def vectors(report: Report) -> bytes | None:
    """The picture in lines and letters, for papers and slides; None if no run counts."""
    return picture(report, "svg")


WRITERS = (
    Writer("html", "a page to look at, offline", {PAGE: page}, frozenset({PAGE})),
    Writer(
        "png", "one picture of speedup and efficiency", {PICTURE: picture}, frozenset({PICTURE})
    ),
    Writer("svg", "the same picture in vectors", {VECTORS: vectors}, frozenset({VECTORS})),
)
