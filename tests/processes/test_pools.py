"""Pools of processes work whatever start method Python would choose by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The default of Python 3.14, under which a worker is no child of the process that asks for it.
FORKSERVER = """
import multiprocessing, os, sys
from pathlib import Path
if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
"""
ANY = """
    from dlperf_hpc.pools import pool
    with pool(2, sys.argv[1]) as workers:
        print(*workers.map(os.path.basename, ["a/b", "c/d"]))
"""
LOGS = """
    from dlperf_hpc.logs.scan import search
    from dlperf_hpc.logs.scan.sources import find
    tasks = [[source] for source in find([Path(sys.argv[1])])]
    print(len(list(search._in_parallel(iter(tasks), 2, None))))
"""


def told(place: Path, program: str, argument: str) -> str:
    """What a program prints in a Python that starts processes by a server."""
    script = place / "program.py"
    script.write_text(FORKSERVER + program)
    argv = [sys.executable, str(script), argument]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_live_whatever_the_default_is(tmp_path: Path, method: str) -> None:
    assert told(tmp_path, ANY, method) == "b d\n"


def test_logs_are_read_by_the_workers(tmp_path: Path) -> None:
    """Where all workers have ended the reader itself reads the rest: right, slowly, in silence."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(4):
        (logs / f"{number}.log").write_text("0/1, SamplesPerSec=100.5\n")
    assert told(tmp_path, LOGS, str(logs)) == "4\n"
