"""A process that stood still knows it, and one that computes is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

LOOP = """
import sys, time
from dlperf_hpc.train.measurement import Stops
stops = Stops()
print(flush=True)
{work}
print(stops.end())
"""
WORK = {"waits": "sys.stdin.readline()", "computes": "sum(range(10**8))"}


def test_a_stop_is_seen_and_nothing_else() -> None:
    """``sum`` does not give the interpreter back; waiting uses no CPU time either."""
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", LOOP.format(work=work)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name, work in (*WORK.items(), ("stopped", WORK["waits"]))
    }  # fmt: skip
    for process in started.values():
        assert process.stdout is not None and process.stdout.readline() == "\n"
    os.kill(started["stopped"].pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(started["stopped"].pid, signal.SIGCONT)
    seconds = {name: float(process.communicate("\n")[0]) for name, process in started.items()}
    assert seconds["waits"] == seconds["computes"] == 0
    assert 2 < seconds["stopped"] < 30
