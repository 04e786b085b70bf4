"""``speedup.png``: the picture of a report, as Markdown shows it."""

from __future__ import annotations

from dlperf_hpc.reporting.picture import PICTURE, picture
from dlperf_hpc.reporting.writers import Writer

__all__ = ["PICTURE", "WRITER", "picture"]

WRITER = Writer(
    "png", "one picture of speedup and efficiency", {PICTURE: picture}, frozenset({PICTURE})
)
