"""60 programs whose output confuses a reader, and a player of them under the real supervisor.

Each program is a function that trains (:meth:`Program.train` stamps the end of each step, which is
the truth) and prints. Played, its clock is simulated: what it writes goes through a pipe into the
supervisor's own watch, whose clock is the same, and the log that it leaves is read as a report
reads it. Run (``python confusing.py NAME STAMPS``), it sleeps and prints. ``python confusing.py``
prints the table: program, verdict, figure over truth, and what was said.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

WARMUP, WINDOW = 20, 100
START = 1_795_500_000.0
RIGHT, NONE, SAID, SILENT, FALSE = "right", "none", "said", "silent", "false reason"
MOST_OFF = 0.02
SHORTER = 40  # is the time of programs that are run than that of those that are played


@dataclass
class Program:
    """What a program can do: train, wait, print. ``wait`` takes the time."""

    write: Callable[[bytes], object]
    wait: Callable[[float], object]
    now: Callable[[], float]
    rank: int = 0
    stamps: list[float] = field(default_factory=list)

    def train(self, seconds: float = 0.2) -> int:
        """A step; its number, from 1 on. The first 20 take three times as long."""
        self.wait(seconds * (3 if len(self.stamps) < WARMUP else 1))
        self.stamps.append(self.now())
        return len(self.stamps)

    def say(self, text: str) -> None:
        self.write(text.encode() + b"\n")

    def bar(self, name: str, done: int, total: int, since: float, rate: str = "") -> None:
        """A state of a bar as tqdm draws it."""
        passed = int(self.now() - since)
        left = f"{passed // 60:02d}:{passed % 60:02d}<00:09"
        rate = rate or f"{done / max(self.now() - since, 1e-9):5.2f}it/s"
        head = f"{name}: " if name else ""
        drawn = "#" * (10 * done // total)
        share = f"{100 * done // total:3d}%"
        self.write(f"\r{head}{share}|{drawn:10}| {done}/{total} [{left}, {rate}]".encode())


@dataclass(frozen=True)
class Row:
    """A program of the table. ``want`` is its verdict, ``words`` what its reason, or what is said,
    must hold; ``batch`` the samples of a step, where they are not those that the sweep asks for."""

    name: str
    run: Callable[[Program], None]
    want: str
    words: str = ""
    read: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    launch: str = "rank"
    batch_size: int = 4
    accumulation: int = 1
    batch: int = 0
    window: tuple[int, int] = (WARMUP, WARMUP + WINDOW)


ROWS: dict[str, Row] = {}
STEP = {"line": r"step (?P<iteration>[0-9]+)"}
BAR = {"line": r"(?P<iteration>[0-9]+)/[0-9]+ \["}
STAMPED = {"line": r"^(?P<time>[0-9: -]+) step (?P<iteration>[0-9]+)"}
SPEED = {
    "line": r"step (?P<iteration>[0-9]+) .* (?P<printed>[0-9.]+) samples/s",
    "printed": {"unit": "samples/s", "scope": "all"},
}
LOSS = {"line": r"loss (?P<loss>[0-9.]+)"}
MNIST = r"Epoch: (?P<epoch>[0-9]+) \[(?P<{0}>[0-9]+)/"


def program(want: str, words: str = "", **more: Any) -> Callable[[Any], Any]:
    def keep(run: Callable[[Program], None]) -> Callable[[Program], None]:
        name = run.__name__.strip("_").replace("_", "-")
        ROWS[name] = Row(name, run, want, words, **more)
        return run

    return keep


# --- bars


@program(NONE, "progress bar")
def bar_of_tqdm(p: Program) -> None:
    begun = p.now()
    for _ in range(200):
        p.bar("", p.train(), 200, begun)


@program(RIGHT, read=BAR)
def bar_of_tqdm_told(p: Program) -> None:
    bar_of_tqdm(p)


@program(RIGHT)
def bar_of_an_epoch(p: Program) -> None:
    begun = p.now()
    for _ in range(200):
        p.bar("Epoch 0", p.train(), 200, begun)


@program(RIGHT)
def bar_of_short_epochs(p: Program) -> None:
    for epoch in range(40):
        begun = p.now()
        for done in range(1, 41):
            p.train()
            p.bar(f"Epoch {epoch}", done, 40, begun)
        p.write(b"\n")


@program(RIGHT, read={"line": r"Epoch (?P<epoch>[0-9]+): .* (?P<iteration>[0-9]+)/[0-9]+ \["})
def bar_of_short_epochs_told(p: Program) -> None:
    bar_of_short_epochs(p)


@program(NONE, "epoch", read=BAR)
def bar_that_begins_anew(p: Program) -> None:
    bar_of_short_epochs(p)


@program(RIGHT)
def bar_for_20_minutes(p: Program) -> None:
    begun = p.now()
    for _ in range(1000):
        p.bar("Epoch 0", p.train(9.0), 1000, begun)


@program(RIGHT, read=BAR)
def bar_for_20_minutes_told(p: Program) -> None:
    begun = p.now()
    for _ in range(1000):
        p.bar("", p.train(9.0), 1000, begun, "9.00s/it")


@program(NONE, "no line of the program")
def bar_of_rich(p: Program) -> None:
    for _ in range(200):
        done = p.train()
        p.write(f"\r\x1b[2KWorking... \x1b[38;5;197m━━━━━━\x1b[0m {done // 2:3d}% 0:00:07".encode())


@program(RIGHT, read={"line": r"(?P<iteration>[0-9]+)/[0-9]+ "})
def bar_of_rich_told(p: Program) -> None:
    for _ in range(200):
        p.write(f"\r\x1b[2KTrain \x1b[38;5;197m━━━━━━\x1b[0m {p.train():3d}/200 0:00:07".encode())


@program(RIGHT, read={"line": r"Epoch (?P<epoch>[0-9]+): .* (?P<iteration>[0-9]+)/[0-9]+ \["})
def bars_nested(p: Program) -> None:
    first = p.now()
    for epoch in range(20):
        p.bar("Epochs", epoch, 20, first)
        p.write(b"\n")
        begun = p.now()
        for done in range(1, 21):
            p.train()
            p.bar(f"Epoch {epoch}", done, 20, begun)
        p.write(b"\x1b[A")


@program(NONE, "epoch", read={"line": r"batches: .* (?P<iteration>[0-9]+)/[0-9]+ \["})
def bars_nested_without_epoch(p: Program) -> None:
    first = p.now()
    for epoch in range(20):
        p.bar("epochs", epoch, 20, first)
        p.write(b"\n")
        begun = p.now()
        for done in range(1, 21):
            p.train()
            p.bar("batches", done, 20, begun)
        p.write(b"\x1b[A")


@program(NONE, "fit read.line|epoch", read=BAR)
def bars_of_training_and_validation(p: Program) -> None:
    for _ in range(5):
        begun = p.now()
        for done in range(1, 51):
            p.train()
            p.bar("Train", done, 50, begun)
        begun = p.now()
        for done in range(1, 11):
            p.wait(0.05)
            p.bar("Validate", done, 10, begun)


@program(RIGHT, launch="node", ranks=2)
def bars_of_ranks_on_one_stream(p: Program) -> None:
    begun = p.now()
    for _ in range(200):
        done = p.train()
        for _ in range(2):
            p.bar("Epoch 0", done, 200, begun)


@program(RIGHT, launch="node", ranks=2, read=BAR)
def bars_of_ranks_on_one_stream_told(p: Program) -> None:
    begun = p.now()
    for _ in range(200):
        done = p.train()
        for _ in range(2):
            p.bar("", done, 200, begun)


@program(RIGHT)
def bar_through_a_pseudo_terminal(p: Program) -> None:
    begun = p.now()
    p.write(b"start\r\n")
    for _ in range(200):
        done = p.train()
        p.bar("\x1b[32mEpoch 0", done, 200, begun)
        p.write(b"\x1b[0m\r\n\x1b[A" if done % 50 == 0 else b"\x1b[0m")


@program(RIGHT, read=BAR)
def bar_in_pieces(p: Program) -> None:
    begun = p.now()
    whole = p.write
    for _ in range(200):
        done = p.train()
        made: list[bytes] = []
        p.write = made.append
        p.bar("", done, 200, begun)
        text = b"".join(made)
        for piece in (text[:9], text[9:40], text[40:]):
            whole(piece)


@program(RIGHT, read=BAR)
def bar_of_fast_steps(p: Program) -> None:
    begun = drawn = p.now()
    for _ in range(6000):
        done = p.train(0.03)
        if p.now() - drawn > 0.1:
            drawn = p.now()
            p.bar("", done, 6000, begun)


@program(RIGHT, read=BAR)
def bar_of_each_4th_step(p: Program) -> None:
    begun = p.now()
    for _ in range(50):
        p.train(), p.train(), p.train()
        p.bar("", p.train(), 200, begun)


@program(SAID, "taken from the last one printed", read={
    "line": r"Epoch (?P<epoch>[0-9]+): .* (?P<iteration>[0-9]+)/[0-9]+ \["
})  # fmt: skip
def bar_of_short_epochs_each_4th(p: Program) -> None:
    for epoch in range(20):
        begun = p.now()
        for done in range(1, 31):
            p.train()
            if done % 4 == 0:
                p.bar(f"Epoch {epoch}", done, 30, begun)


@program(NONE, "resumes", read=BAR)
def bar_of_a_resumed_run(p: Program) -> None:
    begun = p.now()
    for _ in range(200):
        p.bar("", 1000 + p.train(), 2000, begun)


@program(SILENT, read=BAR, batch_size=8)
def bar_of_samples(p: Program) -> None:
    begun = p.now()
    for _ in range(200):
        p.bar("", 8 * p.train(), 1600, begun)


@program(RIGHT, read={
    "line": r" (?P<iteration>[0-9]+)/[0-9]+ \[.*, *(?P<printed>[0-9.]+)it/s",
    "printed": {"unit": "iterations/s", "averaging": "running"},
})  # fmt: skip
def bar_with_its_rate(p: Program) -> None:
    bar_of_tqdm(p)


# --- each, first, epoch


@program(RIGHT, read={**LOSS, "each": 10, "first": 0})
def each_from_0(p: Program) -> None:
    for _ in range(400):
        done = p.train()
        if (done - 1) % 10 == 0:
            p.say("loss 1.5")


@program(SAID, "read.first", read={**LOSS, "each": 10})
def each_from_0_not_told(p: Program) -> None:
    each_from_0(p)


@program(RIGHT, read={**LOSS, "each": 10})
def each_from_10(p: Program) -> None:
    for _ in range(400):
        if p.train() % 10 == 0:
            p.say("loss 1.5")


@program(RIGHT, read={"line": r"epoch (?P<epoch>[0-9]+) loss", "each": 10, "first": 0})
def each_in_epochs(p: Program) -> None:
    for epoch in range(9):
        for batch in range(51):
            p.train()
            if batch % 10 == 0:
                p.say(f"epoch {epoch} loss 1.5")


@program(NONE, "several processes", launch="node", ranks=2, read={**LOSS, "each": 10})
def each_of_two_printers(p: Program) -> None:
    for _ in range(400):
        if p.train() % 10 == 0:
            p.say("loss 1.5")
            p.say("loss 1.5")


@program(SAID, "fit read.line", read={**LOSS, "each": 10})
def each_with_evaluation(p: Program) -> None:
    for _ in range(400):
        done = p.train()
        if done % 10 == 0:
            p.say("train loss 1.5")
        if done % 20 == 0:
            p.wait(0.1)
            p.say("valid loss 1.6 acc 0.5")


@program(RIGHT, read={"line": MNIST.format("consumed"), "each": 10, "first": 0}, batch_size=64)
def mnist_consumed(p: Program) -> None:
    for _ in range(400):
        done = p.train()
        if (done - 1) % 10 == 0:
            p.say(f"Train Epoch: 1 [{64 * (done - 1)}/60000 ({done // 10}%)]\tLoss: 2.300024")


# --- numbers that count something else


@program(NONE, "samples", read={"line": MNIST.format("iteration")}, batch_size=64)
def mnist_samples_as_iterations(p: Program) -> None:
    mnist_consumed(p)


@program(SAID, "samples", read=STEP, batch_size=8)
def samples_as_iterations(p: Program) -> None:
    for _ in range(400):
        p.say(f"step {8 * p.train()}")


@program(RIGHT, read=STEP, batch_size=4)
def every_100_is_no_batch(p: Program) -> None:
    for _ in range(400):
        done = p.train()
        if done % 20 == 0:
            p.say(f"step {done}")


@program(SAID, "read.counts", read=STEP, accumulation=4)
def micro_steps(p: Program) -> None:
    for step in range(200):
        for micro in range(3):
            p.wait(0.05)
            p.say(f"step {4 * step + micro + 1}")
        p.train(0.05)
        p.say(f"step {4 * step + 4}")


@program(NONE, "read.counts", read=SPEED, accumulation=4)
def micro_steps_with_speed(p: Program) -> None:
    for step in range(200):
        for micro in range(3):
            p.wait(0.05)
            p.say(f"step {4 * step + micro + 1} speed 80.0 samples/s")
        p.train(0.05 / (3 if step < WARMUP else 1))
        p.say(f"step {4 * step + 4} speed 80.0 samples/s")


@program(RIGHT, read={**STEP, "counts": "micro-steps"}, accumulation=4, window=(5, 30))
def micro_steps_told(p: Program) -> None:
    for step in range(200):
        for micro in range(3):
            p.wait(0.05)
            p.say(f"step {4 * step + micro + 1}")
        p.train(0.05)
        p.say(f"step {4 * step + 4}")


@program(RIGHT, read=STEP, accumulation=4)
def optimizer_steps(p: Program) -> None:
    for _ in range(200):
        p.say(f"step {p.train()}")


@program(NONE, "epoch", read=STEP)
def numbers_begin_anew(p: Program) -> None:
    for _ in range(20):
        for step in range(50):
            p.train()
            p.say(f"step {step + 1}/50")


@program(NONE, "resumes", read=STEP)
def resumed(p: Program) -> None:
    for _ in range(200):
        p.say(f"step {1000 + p.train()}")


# --- lines that are of something else


@program(NONE, "fit read.line", read=STEP)
def evaluation_of_the_same_form(p: Program) -> None:
    for _ in range(400):
        done = p.train()
        p.say(f"train step {done} loss 1.5")
        if done % 50 == 0:
            for step in range(10):
                p.wait(0.05)
                p.say(f"eval step {step + 1} loss 1.6")


@program(NONE, "fit read.line|epoch", read=STEP)
def evaluation_in_the_same_words(p: Program) -> None:
    for _ in range(400):
        done = p.train()
        p.say(f"step {done} loss 1.5")
        if done % 50 == 0:
            for step in range(10):
                p.wait(0.05)
                p.say(f"step {step + 1} loss 1.6")


@program(SAID, "repeat an iteration", read=STEP)
def evaluation_at_a_step(p: Program) -> None:
    for _ in range(400):
        done = p.train()
        p.say(f"step {done} loss 1.5")
        if done % 60 == 0:
            p.wait(4)
            p.say(f"step {done} eval loss 1.6")


@program(RIGHT, read=STEP)
def evaluation_before_training(p: Program) -> None:
    for step in range(5):
        p.wait(0.05)
        p.say(f"step {step + 1} loss 1.6")
    for _ in range(400):
        p.say(f"step {p.train()} loss 1.5")


@program(RIGHT, read=STEP)
def short_warm_up_loop(p: Program) -> None:
    for step in range(30):
        p.wait(0.05)
        p.say(f"step {step + 1} loss 1.6")
    for _ in range(400):
        p.say(f"step {p.train()} loss 1.5")


@program(SILENT, read=STEP)
def long_warm_up_loop(p: Program) -> None:
    for step in range(150):
        p.wait(0.05)
        p.say(f"step {step + 1} loss 1.6")
    for _ in range(400):
        p.say(f"step {p.train()} loss 1.5")


@program(SAID, "RuntimeError", read=STEP)
def steps_that_fail(p: Program) -> None:
    for step in range(200):
        if step < 10:
            p.say(f"step {p.train()} loss 1.5")
        else:
            p.wait(0.05)
            p.say(f"step {step + 1} failed: RuntimeError: CUDA error: device-side")
    for _ in range(200):
        p.train()


@program(NONE, "not finite", read={"line": STEP["line"] + r" loss (?P<loss>\S+)"})
def loss_that_is_none(p: Program) -> None:
    for _ in range(200):
        done = p.train()
        p.say(f"step {done} loss {'nan' if done > 50 else 1.5}")


# --- ranks


@program(SAID, "rank 1", ranks=2, read=STEP)
def ranks_at_different_speeds(p: Program) -> None:
    for _ in range(600):
        p.say(f"step {p.train(0.2 * (1 + p.rank))}")


@program(SAID, "rank 1", ranks=2, launch="node", read={
    "line": r"rank (?P<rank>[0-9]) step (?P<iteration>[0-9]+)"
})  # fmt: skip
def ranks_at_different_speeds_on_one_stream(p: Program) -> None:
    for _ in range(300):
        p.wait(0.1)
        p.say(f"rank 0 step {2 * len(p.stamps) + 1}")
        done = p.train(0.1)
        p.say(f"rank 0 step {2 * done}")
        p.say(f"rank 1 step {done}")


@program(SAID, "out of order", ranks=2, launch="node", read=STEP)
def ranks_at_different_speeds_without_label(p: Program) -> None:
    for _ in range(300):
        p.wait(0.1)
        p.say(f"step {2 * len(p.stamps) + 1}")
        done = p.train(0.1)
        p.say(f"step {2 * done}")
        p.say(f"step {done}")


@program(RIGHT, ranks=2, read=STEP)
def ranks_in_step(p: Program) -> None:
    for _ in range(200):
        p.say(f"step {p.train()}")


@program(RIGHT, ranks=2, launch="node", read=STEP)
def ranks_in_step_without_label(p: Program) -> None:
    for _ in range(200):
        done = p.train()
        p.say(f"step {done}")
        p.say(f"step {done}")


@program(SAID, "states", ranks=2, read=STEP, batch=4)
def two_copies_of_one_process(p: Program) -> None:
    for _ in range(200):
        p.say(f"step {p.train(0.2 + 0.002 * p.rank)} loss 1.5")


# --- clocks


@program(NONE, "buffered", read=STEP)
def slow_pipe(p: Program) -> None:
    for number in range(20):
        for step in range(75):
            p.stamps.append(p.now() + step * 2.6 / 75)
        p.wait(2.3)
        for step in range(75):
            p.wait(0.004)
            p.say(f"step {75 * number + step + 1}")


@program(RIGHT, read=SPEED)
def slow_pipe_with_speed(p: Program) -> None:
    for number in range(20):
        for step in range(75):
            p.stamps.append(p.now() + step * 2.6 / 75)
        p.wait(2.3)
        for step in range(75):
            p.wait(0.004)
            p.say(f"step {75 * number + step + 1} speed {4 * 75 / 2.6:.2f} samples/s")


@program(NONE, "buffered", read=STEP)
def all_at_the_end(p: Program) -> None:
    for _ in range(200):
        p.train()
    for step in range(200):
        p.say(f"step {step + 1}")


@program(SILENT, read=STEP)
def host_ahead_of_the_device(p: Program) -> None:
    for step in range(400):
        p.stamps.append(START + 0.2 * step)
        p.wait(0.05)
        p.say(f"step {step + 1}")


@program(SAID, "steady", read=STEP)
def host_ahead_until_its_queue_is_full(p: Program) -> None:
    for step in range(400):
        p.stamps.append(START + 0.2 * step)
        p.wait(0.05 if step < 70 else 0.2)
        p.say(f"step {step + 1}")


def clock(now: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(now, timezone.utc).strftime(form)


@program(RIGHT, read=STAMPED)
def whole_seconds(p: Program) -> None:
    for _ in range(200):
        done = p.train(0.2961)
        p.say(f"{clock(p.now())} step {done}")


@program(RIGHT, read=STAMPED)
def whole_seconds_of_a_short_window(p: Program) -> None:
    for _ in range(200):
        done = p.train(0.0361)
        p.say(f"{clock(p.now())} step {done}")


@program(SILENT, read=STEP, batch_size=100)
def samples_of_a_round_batch(p: Program) -> None:
    for _ in range(400):
        p.say(f"step {100 * p.train()}")


@program(SAID, "whole seconds", read=STAMPED)
def whole_seconds_and_buffered(p: Program) -> None:
    rows = []
    for _ in range(200):
        done = p.train(0.2045)
        rows.append(f"{clock(p.now())} step {done}")
    for row in rows:
        p.say(row)


@program(RIGHT, read={"line": r"^(?P<time>[0-9:. -]+) step (?P<iteration>[0-9]+)"})
def stamps_and_buffered(p: Program) -> None:
    rows = []
    for _ in range(200):
        done = p.train()
        rows.append(f"{clock(p.now(), '%Y-%m-%d %H:%M:%S.%f')} step {done}")
    for row in rows:
        p.say(row)


@program(RIGHT, read={"line": r"^(?P<time>[0-9:. -]+) step (?P<iteration>[0-9]+)"})
def clock_that_is_set_back(p: Program) -> None:
    for _ in range(200):
        done = p.train()
        now = p.now() - (3600 if done > 70 else 0)
        p.say(f"{clock(now, '%Y-%m-%d %H:%M:%S.%f')} step {done}")


# --- nothing, and too little


@program(NONE, "nothing", read=STEP)
def says_nothing(p: Program) -> None:
    for _ in range(200):
        p.train()


@program(NONE, "after iteration 100", read=STEP)
def ends_too_early(p: Program) -> None:
    for _ in range(100):
        p.say(f"step {p.train()}")


@program(RIGHT, read={"line": r"step (?P<iteration>[0-9,]+)"})
def every_50th(p: Program) -> None:
    for _ in range(1000):
        done = p.train()
        if done % 50 == 0:
            p.say(f"step {done:,}")


# --- played


class _Child:
    """A program that is played: what the supervisor reads, and whether it was ended."""

    def __init__(self) -> None:
        self.output, self._end = os.pipe()
        os.set_blocking(self.output, False)
        self.signals: list[int] = []

    def write(self, data: bytes) -> None:
        os.write(self._end, data)

    def tell(self, number: int) -> None:
        self.signals.append(number)

    tell_all = tell

    def poll(self) -> None:
        """It has not ended by itself."""

    def close(self) -> None:
        os.close(self._end)
        os.close(self.output)


@dataclass(frozen=True)
class Found:
    """What came of a program: its verdict, figure over truth, and the words that were said.
    ``signals`` are those that its supervisors sent."""

    verdict: str
    ratio: float | None
    words: str
    result: Any
    signals: list[int]


def played(row: Row, place: Path) -> Found:
    """A program's verdict by the real supervisor and reader, on a clock that is simulated."""
    from dlperf_hpc.model.case import Case, Topology

    shape = Topology(1, row.ranks)
    case = Case(
        "mine", "toy", shape, "fp32", row.batch_size, 0, accumulation=row.accumulation,
        processes_per_node=row.ranks if row.launch == "rank" else 1, launch=row.launch,
        replicas=row.ranks,
    )  # fmt: skip
    supervisors = case.ranks
    events: list[tuple[float, int, bytes]] = []
    ends: list[list[float]] = []
    for rank in range(supervisors):
        one, made = _simulated(rank)
        row.run(one)
        ends.append(one.stamps)
        events += made
    batch = row.batch or case.global_batch
    last = [max(each) for each in zip(*ends)]
    true = 0.0
    begin, end = row.window
    if len(last) >= end:
        true = batch * (end - begin) / (last[end - 1] - last[begin - 1])
    done = _supervised(case, row, sorted(events, key=lambda each: each[0]), place)
    if isinstance(done, str):
        return Found(FALSE, None, done, None, [])
    return _judged(row, done[0], true, done[1])


def _simulated(rank: int) -> tuple[Program, list[tuple[float, int, bytes]]]:
    """A program on a clock of its own, and what it will have written when."""
    now, made = [START], list[tuple[float, int, bytes]]()
    one = Program(
        lambda data: made.append((now[0], rank, data)),
        lambda seconds: now.__setitem__(0, now[0] + seconds),
        lambda: now[0],
        rank,
    )
    return one, made


def _supervised(case: Any, row: Row, events: Any, place: Path) -> Any:
    from dlperf_hpc.logs.formats import formats
    from dlperf_hpc.model.case import Limits, Measure, Run
    from dlperf_hpc.records import supervision
    from dlperf_hpc.records.failures import Signs
    from dlperf_hpc.records.lines import write_line
    from dlperf_hpc.sweepfile.programtables import read_table
    from dlperf_hpc.train.program import child as children
    from dlperf_hpc.train.program.stdout import ProgramOutput, Progress

    place.mkdir(parents=True, exist_ok=True)
    table, issues = read_table(row.read, [each.name for each in formats()])
    if issues:
        return str(issues[0])
    now = [START]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0], sleep=lambda _: None)

    def utc(at: float | None = None) -> str:
        moment = datetime.fromtimestamp(now[0] if at is None else at, timezone.utc)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(children, "time", clock))
        stack.enter_context(mock.patch.object(children, "utc", utc))
        stack.enter_context(mock.patch("dlperf_hpc.train.program.stdout.utc", utc))
        make: Any = children.ProgramWatch
        watches: list[Any] = []
        dolls = [_Child() for _ in range(case.ranks)]
        for rank in range(case.ranks):
            output = ProgramOutput(place / f"rank{rank}.out", rank, Progress(table, "mine"), 1,
                                   Signs(table.fail, table.must))  # fmt: skip
            watches.append(make(
                child=dolls[rank], alone=case.ranks == 1, signals=[], started=START,
                manifest=SimpleNamespace(measure=Measure(WARMUP, WINDOW), limits=Limits()),
                program=SimpleNamespace(read=table, stop="after-window"), folder=place,
                output=output, limit_s=1e9, launch="1_0.0", port=0, last=True,
                _beat=START, _heard=START,
            ))  # fmt: skip
        for at, rank, data in events:
            if all(watch._why for watch in watches):
                break
            while now[0] < at:
                now[0] = min(at, now[0] + 1.1)
                for watch in watches:
                    watch._look()
            if not watches[rank]._why:
                watches[rank].child.write(data)
                watches[rank]._read()
                watches[rank]._look()
        for watch in watches:
            watch.output.end()
            watch._look()
        ended = [_ending(supervision, watch) for watch in watches]
        signals = [number for child in dolls for number in child.signals]
        for child in dolls:
            child.close()
    hung = next((watch._reason for watch in watches if watch._why == "hang"), "")
    verdict = supervision.judged(ended, Measure(WARMUP, WINDOW), table)
    status, reason = verdict.status.value, verdict.reason
    if hung:
        status, reason = "failed", hung
    begin = {"format": 1, "sweep": "s", "run": Run(case, 1).id, "repeat": 1, "attempt": 1,
             "launch": "1_0.0"}  # fmt: skip
    stopped = min((each.stopped for each in ended if each.stopped), default=None)
    end = {"ended": "by itself", "stopped": stopped,
           "broken": next((e.broken for e in ended if e.broken), None)}  # fmt: skip
    rows = [
        write_line("begin", begin),
        write_line("case", case.to_dict()),
        write_line("measure", {"warmup": WARMUP, "iterations": WINDOW}),
        write_line("program", {"name": "mine", "read": table.to_dict()}),
        *[(place / f"rank{rank}.out").read_text().rstrip("\n") for rank in range(case.ranks)],
        write_line("program_end", end),
        write_line("end", {"status": status, "reason": reason}),
    ]
    path = place / "run.log"
    path.write_text("\n".join(filter(None, rows)) + "\n", encoding="utf-8")
    return path, signals


def _ending(supervision: Any, watch: Any) -> Any:
    progress, signs = watch.output.progress, watch.output.signs
    return supervision.Ending(
        rank=watch.output.rank, host="n1", code=0, by="window" if watch._why else "itself",
        iteration=progress.iteration, format=progress.format, stopped=watch._stopped,
        bad_loss=getattr(progress.best, "bad_loss", None), failed=signs.failed,
        first=getattr(progress.best, "first", None), broken=signs.broken,
        anew=getattr(progress.best, "anew", False),
        broken_at=signs.broken_at,
    )  # fmt: skip


_NO_NEWS = ("too-few-repeats", "no-finite-loss", "printed-only")


def _judged(row: Row, log: Path, true: float, signals: list[int]) -> Found:
    from dlperf_hpc.analysis.speedup import summarise
    from dlperf_hpc.logs.interpret.rules import rule
    from dlperf_hpc.logs.program_figures import with_figures
    from dlperf_hpc.model.result import Status
    from dlperf_hpc.records.logfile import result_of_log

    (result,) = with_figures([result_of_log(log)], rule())
    flags = [f for each in summarise([result]) for f in each.flags if f not in _NO_NEWS]
    words = "; ".join([result.reason, *result.warnings, *flags]).strip("; ")
    fits = re.search(row.words, words) is not None
    if result.status is not Status.OK or not result.rates:
        return Found(NONE if row.words and fits else FALSE, None, words, result, signals)
    ratio = (result.samples_per_s or 0.0) / true
    verdict = SAID if row.words and fits else SILENT
    if abs(ratio - 1) <= MOST_OFF:
        verdict = RIGHT
    return Found(verdict, ratio, words, result, signals)


def table(place: Path) -> Iterator[tuple[Row, Found]]:
    """Each program of the table, and what came of it."""
    for row in ROWS.values():
        yield row, played(row, place / row.name)


class _Stamps(list[float]):
    """Stamps that stand in a file, whatever becomes of the program."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w", encoding="utf-8")

    def append(self, stamp: float) -> None:
        super().append(stamp)
        print(stamp, file=self._file, flush=True)


def _real(stamps: Path) -> Program:
    """A program that sleeps, for a shorter time, and prints to stderr."""
    return Program(
        lambda data: os.write(2, data),
        lambda seconds: time.sleep(seconds / SHORTER),
        time.time,
        stamps=_Stamps(stamps),
    )


def main(words: list[str]) -> int:
    """Print the table, or be one of its programs."""
    if len(words) == 2:
        ROWS[words[0]].run(_real(Path(words[1])))
        return 0
    if len(words) == 3:  # the same through a pseudo-terminal
        import pty

        return pty.spawn([sys.executable, *sys.argv[:3]])
    import tempfile

    count: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as place:
        for row, found in table(Path(place)):
            if words and row.name not in words:
                continue
            ratio = "" if found.ratio is None else f"{found.ratio:.3f}"
            mark = " " if found.verdict == row.want else "!"
            said = found.words if words else found.words[:150]
            print(f"{mark} {row.name:42} {found.verdict:13}{ratio:>7}  {said}")
            count[found.verdict] = count.get(found.verdict, 0) + 1
    print(len(ROWS), count)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
