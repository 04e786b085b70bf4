"""``python -u -m dlperf_hpc.train <sweep directory> <array>``: one rank of one run."""

import sys

# Before anything is imported that an older Python cannot even read.
if sys.version_info < (3, 9):  # noqa: UP036 - an environment's Python is not the one that submits
    sys.exit(
        "dlperf_hpc: an environment's Python must be 3.9 or newer, and this one is "
        + sys.version.split()[0]
    )

if __name__ == "__main__":
    from pathlib import Path

    from dlperf_hpc.train.worker import main

    if len(sys.argv) != 3:
        sys.exit("usage: python -u -m dlperf_hpc.train <sweep directory> <array>")
    main(Path(sys.argv[1]), sys.argv[2])
