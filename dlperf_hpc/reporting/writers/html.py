"""``report.html``: the report as one page to look at (:mod:`~dlperf_hpc.reporting.page`)."""

from __future__ import annotations

from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.writers import Writer

PAGE = "report.html"


def page(report: Report) -> bytes:
    """The file's content; what it takes is imported only now."""
    from dlperf_hpc.reporting.page import render
    from dlperf_hpc.reporting.page.sweep import page as page_of

    return render(page_of(report))


WRITER = Writer("html", "a page to look at, offline", {PAGE: page}, frozenset({PAGE}))
