"""``python -m dlperf_hpc.acceptance --out DIR [--budget S] [--device cuda|cpu] [--only CHECK]``.

Exit code: 0 no row says FAIL, 1 a row says FAIL, 2 invalid request.
"""

import argparse
import sys
from pathlib import Path

from dlperf_hpc.acceptance.pack import CHECKS, TABLE, failed, run_pack


def main() -> int:
    """Run the pack, and say where its table lies; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dlperf_hpc.acceptance")
    names = [check.name for check in CHECKS]
    parser.add_argument("--out", type=Path, required=True, help="directory for the table")
    parser.add_argument("--budget", type=float, default=540.0, metavar="S", help="seconds")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="CHECK")
    given = parser.parse_args()
    try:
        rows = run_pack(given.out, given.device, given.budget, given.only)
    except OSError as error:
        print(f"{given.out}: {error.strerror}: --out names a directory that can be written")
        return 2
    print(given.out / TABLE)
    return int(failed(rows))


if __name__ == "__main__":
    sys.exit(main())
