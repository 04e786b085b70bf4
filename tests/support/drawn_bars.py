"""States of progress bars as tqdm draws them."""

from __future__ import annotations


def bar(done: int, total: int, elapsed: str, rate: str = " 2.00it/s", more: str = "") -> str:
    """A state of a bar without a name."""
    drawn = "█" * (10 * done // total)
    return f"{100 * done // total:3d}%|{drawn:<10}| {done}/{total} [{elapsed}<00:30, {rate}{more}]"


def clock(of_s: float) -> str:
    """Seconds as a bar has them: ``01:05``."""
    minutes, rest = divmod(int(of_s), 60)
    return f"{minutes:02d}:{rest:02d}"
