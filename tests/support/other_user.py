"""Another user, whom root can be for a command."""

from __future__ import annotations

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
"""Put before a command line; only root can."""
