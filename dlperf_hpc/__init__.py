"""dlperf_hpc: how fast does deep learning train on this machine, and how does it scale?"""

import os
import sys

from dlperf_hpc.source import __version__, commit

TYPE_CHECKING = False  # to type checkers it is true; importing typing would take time
if TYPE_CHECKING:
    from dlperf_hpc.timer.lightning import LightningTimer
    from dlperf_hpc.timer.timer import Timer
    from dlperf_hpc.timer.trainer import TrainerTimer

__all__ = ["LightningTimer", "Timer", "TrainerTimer", "__version__"]

# Loaded when they are asked for: whoever starts a verb waits for none of them.
_PUBLIC = {
    "LightningTimer": "dlperf_hpc.timer.lightning",
    "Timer": "dlperf_hpc.timer.timer",
    "TrainerTimer": "dlperf_hpc.timer.trainer",
}

# Pythons that are too old import this file too, before they are told so: no syntax of newer ones.


def __getattr__(name):  # type: ignore[no-untyped-def]
    """The public classes, from where they are."""
    if name not in _PUBLIC:
        raise AttributeError("module 'dlperf_hpc' has no attribute %r" % name)  # noqa: UP031
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def in_checkout() -> bool:
    """Whether the current directory is the one that this package lies in. Who can put a file there
    can change the package itself. In any other directory lies what others may have put there,
    ``pandas.py`` say, and ``python -m`` would import that first."""
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


def version_line() -> str:
    """What ``--version`` prints: name and version, and the commit if it is known."""
    known = commit()
    return f"dlperf_hpc {__version__}" + (f" (commit {known})" if known else "")
