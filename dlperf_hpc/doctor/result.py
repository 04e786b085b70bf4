"""One line of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["ok", "FAIL", "warn", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """What was looked at, what was seen, and, where it is not well, what to do about it.

    ``environment`` is that of the site profile, for what was seen in its job.
    """

    grade: Grade
    check: str
    seen: str
    to_do: str = ""
    environment: str = ""

    def line(self) -> str:
        """One line whatever is in it: hostnames, reasons and outputs are other people's words."""
        named = self.environment not in ("", "default")
        name = f"{self.check} [{self.environment}]" if named else self.check
        to_do = f" -> {self.to_do}" if self.to_do else ""
        return plain(f"{self.grade:7}  {name}: {self.seen}{to_do}")


def plain(text: str) -> str:
    """Text without line ends and control characters: what is not printable is escaped."""
    words = " / ".join(line.strip() for line in text.splitlines() if line.strip())
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words
    )
