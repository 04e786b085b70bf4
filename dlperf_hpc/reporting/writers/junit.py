"""``junit.xml``: a test for each run, for CI servers."""

from __future__ import annotations

from dlperf_hpc.analysis.speedup import series_name
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.junit import Entry, junit
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.text import number
from dlperf_hpc.reporting.writers import Writer


def tests(report: Report) -> bytes:
    """The file's content: a run that is ok passes, one that has not ended is skipped."""
    return junit(report.name, [_entry(result) for result in report.runs])


def _entry(result: RunResult) -> Entry:
    told = f"{result.status.value}: {result.reason}" if result.reason else result.status.value
    speed = result.samples_per_s
    ended = result.status.finished
    return Entry(
        group=series_name(result.run.case, result.sweep).replace("/", "."),
        name=f"{result.run.case.topology} repeat {result.run.repeat} attempt {result.attempt}",
        failure=told if ended and result.status is not Status.OK else "",
        skipped="" if ended else told,
        output="" if speed is None else f"{number(speed)} samples/s",
    )


WRITER = Writer("junit", "a test for each run, for CI servers", {"junit.xml": tests})
