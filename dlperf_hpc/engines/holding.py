"""``python -m dlperf_hpc.engines.holding``: the name by which batch scripts call
:mod:`dlperf_hpc.engines.suspects`, which queued ones keep."""

from __future__ import annotations

import sys

from dlperf_hpc.engines.suspects import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
