"""Time stamps of a day and a month without a year, as detectron2 and MMEngine print them."""

from __future__ import annotations

import re

from dlperf_hpc.logs.lineparts import absl_stamp

_STAMP = re.compile(r"(?<![0-9/])([0-9]{2})/([0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})(?![0-9])")


def month_day_stamp(text: str) -> float | None:
    """``04/05 01:30:24``: seconds since 1 January of a year of 365 days, or None."""
    match = _STAMP.search(text)
    return absl_stamp(f"I{match[1]}{match[2]} {match[3]}.000000") if match else None
