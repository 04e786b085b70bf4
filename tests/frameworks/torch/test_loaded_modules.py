"""A sweep, its report and that of another program's log load no more modules than their bounds."""

from __future__ import annotations

import metrics
from loaded_modules import measure_loaded


def test_verbs_load_no_more_modules_than_their_bounds() -> None:
    assert metrics.beyond(measure_loaded(), metrics.read_bounds()) == []
