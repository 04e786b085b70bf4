"""``python -m dlperf_hpc.acceptance.checks NAME cuda|cpu``: one check, a line for each finding."""

from __future__ import annotations

import importlib
import sys

from dlperf_hpc.acceptance.checks import CHECKS
from dlperf_hpc.acceptance.finding import judged


def main() -> int:
    """Run the check; the exit code is 0 whatever it finds."""
    name, device = sys.argv[1:]
    if name not in [check.name for check in CHECKS] or device not in ("cuda", "cpu"):
        print(f"{name} {device}: not a check and a device")
        return 2
    try:
        module = importlib.import_module(f"dlperf_hpc.acceptance.checks.{name}")
    except ImportError as error:
        lack = f"{sys.executable}: {error}: run this by the Python that has PyTorch"
        print(judged("imports", lack, "all that a check needs", False).line())
        return 0
    for finding in module.run(device):
        print(finding.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
