"""``python -m dlperf_hpc.sweep FILE`` submits a sweep file, as ``dlperf sweep FILE`` does."""

from __future__ import annotations

import sys

from dlperf_hpc import leave_current_directory

if __name__ == "__main__":
    leave_current_directory()
    from dlperf_hpc.cli.sweep import main

    sys.exit(main())
