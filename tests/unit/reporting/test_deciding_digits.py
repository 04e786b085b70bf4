"""A comparison's page shows as many digits of an interval as decide its outcome."""

from __future__ import annotations

import re

from report_samples import case, oks

from dlperf_hpc.analysis.comparison import compare, subjects
from dlperf_hpc.reporting.page.comparison_page import page


def test_the_page_has_the_digits_that_decide() -> None:
    """Ends just beyond 0.98 and just below 1 are not shown as 0.980 and 1.000."""
    a = oks(case(), *(100.0 + 1e-6 * n for n in range(6)))
    b = oks(case(), 97.996, *(98.7 + 0.01 * n for n in range(4)), 99.997)
    compared = compare(subjects(a), subjects(b), risk=0.002)
    (found,) = compared.cases
    assert found.interval is not None
    low, high = found.interval.low, found.interval.high
    assert 0.9795 < low < 0.98 and 0.9995 < high < 1
    (section,) = [each for each in page(compared, {"A": ["a"], "B": ["b"]}).sections
                  if each.name == "cases"]  # fmt: skip
    assert section.table is not None
    texts = [cell.text for cell in section.table.cells[0]]
    (interval,) = [text for text in texts if re.fullmatch(r"0\.\d+\N{EN DASH}[01]\.\d+", text)]
    ends = [float(end) for end in interval.split("\N{EN DASH}")]
    assert ends[0] < 0.98 and ends[1] < 1
