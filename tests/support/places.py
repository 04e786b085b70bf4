"""Where things are in a checkout, for tests that run or read them."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
"""Helpers of the tests, among them the scripts that they run on ranks (``*_checks.py``)."""
ROOT = SUPPORT.parent.parent
CAMPAIGNS = ROOT / "tests" / "campaigns"
BUSY = 3
"""How many times as long as on a quiet machine a thing may take before a test gives it up."""
