"""dlperf_hpc: how fast does deep learning train on this machine, and how does it scale?"""

import os
import sys

TYPE_CHECKING = False  # to type checkers it is true; importing typing would take time
if TYPE_CHECKING:
    from dlperf_hpc.timer.lightning import LightningTimer
    from dlperf_hpc.timer.timer import Timer
    from dlperf_hpc.timer.trainer import TrainerTimer

__version__ = "0.1.0"

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


def commit() -> "str | None":
    """The commit of this package's source, with ``+changes`` where a checkout was edited since;
    None if neither git nor what was written down when the package was built says it."""
    from pathlib import Path

    here = Path(__file__).parent
    if (here.parent / ".git").exists():
        return _checked_out(str(here.parent))
    try:
        return (here / "bundled" / "commit").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _checked_out(root: str) -> "str | None":
    import subprocess

    argv = ["git", "-C", root, "describe", "--always", "--dirty=+changes", "--abbrev=12"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def version_line() -> str:
    """What ``--version`` prints: name and version, and the commit if it is known."""
    known = commit()
    return f"dlperf_hpc {__version__}" + (f" (commit {known})" if known else "")
