"""Memory that grows within a window, measured of a process that really keeps what it made."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from report_samples import case, oks

from dlperf_hpc.analysis.speedup import summarise

_PROGRAM = """
import sys
from dlperf_hpc.train.measurement import IterationClock, measure_window, summarise
from dlperf_hpc.train.ranks import World, alone
from dlperf_hpc.model.case import Case, Measure, Topology

class Session:
    kept = [bytearray(1 << 20)]

    def iterate(self):
        made = bytearray(b"x") * (8 << 20)
        if sys.argv[1] == "keeps":
            self.kept.append(made)

    def open_window(self, iterations):
        self.clock = IterationClock(iterations)

    def mark(self):
        self.clock.mark(2.0)

    def synchronize(self): pass
    def step_times(self): return self.clock.step_times()
    def losses(self): return self.clock.losses[1:]
    def counts(self): return 20, 0
    def fingerprint(self): return float(len(self.kept))
    def data_wait_s(self): return 0.0

    def memory_mb(self):  # of this program alone: ru_maxrss is also that of what started it
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

session = Session()
session.iterate()
window = measure_window(session, World(0, ("n1",), alone()), 20, lambda: None)
of = Case("ddp", "bert-tiny", Topology(1, 1), "fp32", 1, 128)
print(summarise([window], of, Measure(warmup=1, iterations=20)).memory_growth_mb)
"""


def growth(kind: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, kind], text=True, capture_output=True, timeout=60,
        check=True,
    )  # fmt: skip
    return float(done.stdout)


def flags_of(growth_mb: float, memory_mb: float) -> tuple[str, ...]:
    of = case()
    made = oks(of, 100.0, 101.0, memory_growth_mb=growth_mb, memory_mb=memory_mb)
    (summary,) = summarise([replace(run) for run in made])
    return summary.flags


def test_a_program_that_keeps_what_it_made_is_flagged() -> None:
    kept = growth("keeps")
    assert 96 < kept < 168  # 20 iterations of 8 MiB, less what starting Python took for a while
    assert "memory-grows" in flags_of(kept, 200.0)
    freed = growth("frees")
    assert freed < 16
    assert "memory-grows" not in flags_of(freed, 200.0)


def test_what_is_small_beside_the_peak_is_no_growth() -> None:
    assert "memory-grows" not in flags_of(500.0, 40_000.0)
    assert "memory-grows" in flags_of(900.0, 40_000.0)
