"""Another user, whom root can be for a command."""

from __future__ import annotations

NOBODY = 65534


def as_user(number: int) -> list[str]:
    """What is put before a command line, so that this user runs it; only root can."""
    return ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]


AS_NOBODY = as_user(NOBODY)
