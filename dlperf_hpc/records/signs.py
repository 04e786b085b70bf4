"""Lines by which a user's program has failed, and lines that it must print.

``fail`` and ``must`` of its table are patterns. The built-in signs are what drivers, libraries and
the shell print when something broke; a program may get over that, so that they only say why there
is no whole window.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlperf_hpc.records.status import Status
from dlperf_hpc.sweepfile.patterns import compiled

_LONGEST = 300  # characters that are kept of a line
BROKEN: tuple[tuple[str, Status], ...] = (
    ("CUDA out of memory", Status.OUT_OF_MEMORY),
    ("CUDA_ERROR_OUT_OF_MEMORY", Status.OUT_OF_MEMORY),
    ("HIP out of memory", Status.OUT_OF_MEMORY),
    ("OOM when allocating", Status.OUT_OF_MEMORY),
    ("RESOURCE_EXHAUSTED: Out of memory", Status.OUT_OF_MEMORY),
    ("Segmentation fault", Status.FAILED),
    ("unhandled system error", Status.FAILED),
    ("unhandled cuda error", Status.FAILED),
    ("Watchdog caught collective operation timeout", Status.FAILED),
)
"""Built-in signs, and the status of a run that has no whole window because of them."""


class Signs:
    """What a program's lines say of its end. PatternError for a pattern that is none.

    ``failed`` is the first line that a pattern of ``fail`` fits, ``broken`` the first with a
    built-in sign, each behind the moment at which it came (:attr:`failed_at`, :attr:`broken_at`);
    '' while there is none. ``met`` are the numbers of the patterns of ``must`` that some line fits.
    """

    def __init__(self, fail: Sequence[str] = (), must: Sequence[str] = ()) -> None:
        self._fail = [compiled(text) for text in fail]
        self._must = {number: compiled(text) for number, text in enumerate(must)}
        self.failed = self.failed_at = self.broken = self.broken_at = ""
        self.met: set[int] = set()

    def take(self, line: str, moment: str) -> None:
        """Look at a line, which came at a ``moment``."""
        if not self.failed and any(pattern.fits(line) for pattern in self._fail):
            self.failed, self.failed_at = _short(line), moment
        if not self.broken and broken_by(line) is not None:
            self.broken, self.broken_at = _short(line), moment
        for number in [n for n, pattern in self._must.items() if pattern.fits(line)]:
            self.met.add(number)
            del self._must[number]


def broken_by(line: str) -> Status | None:
    """The status that a built-in sign in a line stands for; None without one."""
    return next((status for sign, status in BROKEN if sign in line), None)


def _short(line: str) -> str:
    return " ".join(line.split())[:_LONGEST] or "(an empty line)"
