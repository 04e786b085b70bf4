"""``dlperf onebox ...``: a real Slurm of several nodes on this machine (slurm/README.md)."""

from __future__ import annotations

import runpy
import sys

SUMMARY = "start a real Slurm on this machine: `onebox run -- COMMAND`"


def main(argv: list[str] | None = None) -> int:
    """Run onebox with its own arguments, in this process, which its signals are meant for."""
    from dlperf_hpc.bundled import folder

    program = folder("slurm") / "onebox"
    sys.argv = [str(program), *(sys.argv[1:] if argv is None else argv)]
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, int) or left.code is None:
            return left.code or 0
        raise
    return 0
