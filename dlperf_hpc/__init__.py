"""dlperf_hpc: how fast does deep learning train on this machine, and how does it scale?"""

import os
import sys

__version__ = "0.1.0"


def in_checkout() -> bool:
    """Whether the current directory is the one that this package lies in.

    Who can put a file there can change the package itself. In any other directory lies what others
    may have put there, ``pandas.py`` say, and ``python -m`` would import that first.
    """
    try:
        return os.path.samefile(".", os.path.dirname(os.path.dirname(__file__)))
    except OSError:  # the current directory was removed
        return False


def leave_current_directory() -> None:
    """Import nothing more from the current directory, unless it is a checkout: for entry points."""
    first = sys.path[0] if sys.path else "/"
    try:
        here = not first or os.path.samefile(first, ".")
    except OSError:
        here = False
    if here and not in_checkout():
        del sys.path[0]
