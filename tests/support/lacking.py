"""An environment that lacks PyTorch, and is mended later."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def without_torch(folder: Path) -> Path:
    """An environment like this one, but for PyTorch; where its packages are."""
    base = Path(sys.executable).resolve()
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    there = Path(sysconfig.get_path("purelib"))
    packages = folder / there.relative_to(sys.prefix)
    for path in there.iterdir():
        if "torch" not in path.name:
            (packages / path.name).symlink_to(path)
    for path in Path(sys.prefix, "lib").iterdir():
        if not path.name.startswith("python"):
            (folder / "lib" / path.name).symlink_to(path)
    return packages


def add_torch(packages: Path) -> None:
    """What ``pip install torch`` would do there."""
    for path in Path(sysconfig.get_path("purelib")).glob("*torch*"):
        (packages / path.name).symlink_to(path)
