"""A name for what a Horovod wheel was compiled against: horovod_key.py VERSION COMPILER.

A wheel fits the versions it was compiled with and no others; pip does not know that.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def installed(package: str) -> str:
    """Version of an installed package with its name in front; empty if it is not there."""
    try:
        return f"{package}{version(package)}"
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    horovod, compiler = sys.argv[1], Path(sys.argv[2])
    against = ("torch", "tensorflow", "tensorflow-cpu", "mpich", "openmpi", "impi-rt")
    python = f"py{sys.version_info[0]}.{sys.version_info[1]}-{os.uname().machine}"
    # How it was asked to be built.
    options = {k: v for k, v in os.environ.items() if k.startswith("HOROVOD_")}
    recipe = repr(sorted(options.items())).encode() + compiler.read_bytes()
    parts = [f"horovod{horovod}", python, *map(installed, against)]
    print("_".join([*filter(None, parts), hashlib.sha256(recipe).hexdigest()[:8]]))
