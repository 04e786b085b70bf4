"""``python -u -m dlperf_hpc.train <sweep directory> <array>``: one rank of one run."""

import sys
from pathlib import Path

from dlperf_hpc.train.worker import main

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -u -m dlperf_hpc.train <sweep directory> <array>")
    main(Path(sys.argv[1]), sys.argv[2])
