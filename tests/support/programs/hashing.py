"""A program of the tests whose iterations are work of a processor: ``hashing.py STEPS BATCH``.

Each is SHA-256 of the same bytes, with the time that it took, in the form of ``steps.py``.
"""

from __future__ import annotations

import hashlib
import sys
import time

from steps import line

_BYTES = bytes(8 << 20)


def main() -> None:
    steps, batch = int(sys.argv[1]), int(sys.argv[2])
    for step in range(1, steps + 1):
        begin = time.perf_counter()
        hashlib.sha256(_BYTES).digest()
        ms = 1e3 * (time.perf_counter() - begin)
        print(line(step, steps, ms, batch, f"{9 - 0.01 * step:.6E}"), flush=True)


if __name__ == "__main__":
    main()
