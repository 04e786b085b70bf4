"""How a number looks in a line: what the formats' patterns share."""

from __future__ import annotations

NUMBER = r"[-+.0-9einfaEN]+"
"""As Python or C prints it, ``nan`` and ``inf`` too: damage is to be told, not missed."""

THREE_DECIMALS = r"(?:[0-9]+\.[0-9]{3}(?![0-9])|[-+]?(?:nan|inf))"
"""``{:.3f}`` at the end of a line, where fewer decimals show that the line was cut."""
