"""What this package was made of: its version and its commit."""

__version__ = "0.1.0"

# Pythons that are too old import this file too, before they are told so: no syntax of newer ones.


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
