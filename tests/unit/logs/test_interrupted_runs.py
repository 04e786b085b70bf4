"""An interrupted training: the traceback that comes of it is no fault of the program."""

from __future__ import annotations

import pytest
from scanned_lines import run

from dlperf_hpc.model.result import RunResult, Status

STEPS = [
    f" iteration {n:8d}/     500 | consumed samples: {64 * n:12d} | elapsed time per iteration"
    f" (ms): 500.0 | learning rate: 1.500E-04 | global batch size:    64 | lm loss: 2.6E+00 |"
    for n in range(1, 131)
]
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>']
CTRL_C = [*TRACEBACK, "KeyboardInterrupt"]
FAULT = [*TRACEBACK, "ValueError: no more data"]
TORCHRUN = [
    *[f"[rank0]: {line}" for line in TRACEBACK],
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15",
]
HANG_UP = [*TORCHRUN[:-1], TORCHRUN[-1].replace(": 15", ": 1")]
WORKER = [*TRACEBACK, "RuntimeError: DataLoader worker (pid 9) is killed by signal: Terminated. "]
KILLED = [line.replace("Terminated", "Killed") for line in WORKER]


def ran(*ends: list[str], steps: int = 130) -> RunResult:
    text = [*STEPS[:steps], *[line for end in ends for line in end]]
    return run(text, nodes=1, gpus_per_node=8)


@pytest.mark.parametrize(
    "ends",
    [[CTRL_C], [TORCHRUN], [HANG_UP], [WORKER, WORKER], [CTRL_C, CTRL_C], [CTRL_C, FAULT]],
)
def test_an_interrupt_behind_the_window_is_cancelled_and_the_speed_counts(
    ends: list[list[str]],
) -> None:
    result = ran(*ends)
    assert result.status is Status.CANCELLED and result.cause == "interrupted"
    assert result.reason.endswith("(after the window)")
    assert result.whole and result.samples_per_s == pytest.approx(64 / 0.5)


def test_two_ranks_that_print_side_by_side_are_interrupted() -> None:
    both = [line for line in CTRL_C for _ in range(2)]
    assert ran(both).status is Status.CANCELLED


@pytest.mark.parametrize("ends", [[FAULT, CTRL_C], [FAULT, WORKER], [KILLED], [FAULT]])
def test_what_broke_counts_whoever_interrupts_too(ends: list[list[str]]) -> None:
    result = ran(*ends)
    assert result.status is Status.FAILED and not result.whole


def test_an_interrupt_within_the_window_gives_no_number() -> None:
    result = ran(CTRL_C, steps=60)
    assert result.status is Status.CANCELLED and not result.whole
