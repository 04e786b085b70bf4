"""How numbers and words look in a line: what the formats' patterns share."""

from __future__ import annotations

NUMBER = r"[-+.0-9einfaEN]+"
"""As Python or C prints it, ``nan`` and ``inf`` too: damage is to be told, not missed."""

THREE_DECIMALS = r"(?:[0-9]+\.[0-9]{3}(?![0-9])|[-+]?(?:nan|inf))"
"""``{:.3f}`` at the end of a line, where fewer decimals show that the line was cut."""


def word(literal: str) -> str:
    r"""The pattern ``\b`` and ``literal``, which begins with a letter; found at the speed of the
    literal alone, where a pattern that begins with an assertion is tried at each character."""
    return rf"{literal}(?<!\w{literal})"
