"""``python -u -m dlperf_hpc.train.program <sweep directory> <array> <command of a Python>``."""

import sys

if __name__ == "__main__":
    from pathlib import Path

    from dlperf_hpc.train.program.supervisor import main

    if len(sys.argv) < 4:
        sys.exit("usage: python -u -m dlperf_hpc.train.program <sweep directory> <array> <python>")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
