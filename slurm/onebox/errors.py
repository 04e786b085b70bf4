"""What can go wrong, and the exit code it ends with.

    Trouble      1   something failed: a daemon died, a node did not come up
    └── Usage    2   the request cannot be met: wrong argument, missing package

The text of each says what happened, where, and what to do.
"""

from __future__ import annotations


class Trouble(Exception):
    """A failure the user can read and act upon; never shown as a traceback."""

    code = 1


class Usage(Trouble):
    """The request itself is at fault; nothing was started and nothing was removed."""

    code = 2
