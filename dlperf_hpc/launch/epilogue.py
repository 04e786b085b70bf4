"""``python -m dlperf_hpc.launch.epilogue``: what batch scripts queued before 2026-12 call.

It may go when no such job can be in a queue any more. Today's scripts call
:mod:`dlperf_hpc.engines.epilogue`.
"""

from __future__ import annotations

import sys

from dlperf_hpc.engines.epilogue import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
