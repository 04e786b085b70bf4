"""What does the wrapper cost? Its timed loop beside the training loop one would write by hand.

``python benchmarks/wrapper_cost.py [--framework NAME] [--rounds N] [--device cpu|cuda] [--control |
--timer] [--cpu-time] [--json]``, in the Python of that framework's environment. One process, one
rank. Both loops drive the same model, optimizer, process group and data, in turn (ABBA, so that a
drift of the machine meets both alike): a round is two blocks of each, and its ratio is that of the
two throughputs.
Target: the median within 0.5 % of 1. With ``--control`` the bare loop stands in both places: how
far its ratio is from 1, a process of this framework cannot tell on this machine. With ``--timer``
it is iterations that a ``dlperf_hpc.Timer`` steps beside others, with a back end of PyTorch's;
``--cpu-time`` then takes the process's CPU time, of all its threads, in place of the time of day:
on a machine that does something else as well this is what can be told.

Nothing else should run on the machine: the interval says how much of it was noise. On a CPU the
greatest noise is the C library giving memory back and faulting it in again, in blocks now of one
loop, now of the other; so it is told to keep what it has.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bare_loops import BARE

from dlperf_hpc import Timer
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.model.statistics import Interval, median_interval
from dlperf_hpc.train.measurement import timed_loop, warm_up
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.session import Session
from dlperf_hpc.train.watchdog import Watchdog
from dlperf_hpc.train.workloads.bert import BertConfig, predictions_per_sequence, synthetic_batch

TARGET = 0.005


def keep_memory() -> None:
    """glibc: never trim the heap, never map a block of its own (mallopt(3))."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        trim_threshold, mmap_max = -1, -4
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)


def make_case(arguments: argparse.Namespace, ranks: int = 1) -> Case:
    """The benchmark's case on one node, with every option at its default."""
    declared = registry()
    declarations = declared.options(arguments.framework, arguments.model)
    options = {option.name: option.default for option in declarations}
    return Case(
        framework=arguments.framework,
        model=arguments.model,
        topology=Topology(1, ranks),
        precision=arguments.precision,
        batch_size=arguments.batch_size,
        seq_len=arguments.seq_len,
        device=arguments.device,
        options=tuple(sorted(options.items())),
    )


# A BERT of a tenth of bert-tiny, so that many rounds fit into a minute.
SMALL = BertConfig(layers=1, hidden=64, heads=2, ffn=128, vocab=1024)


def build_small(library: str, _case: Case) -> Any:
    """The small model, in that library's form."""
    module = importlib.import_module(f"dlperf_hpc.train.{library}.models")
    return module.BertForPreTraining(SMALL)


def batch_small(case: Case, rank: int) -> dict[str, Any]:
    """Its batch."""
    predictions = predictions_per_sequence(case.seq_len)
    return synthetic_batch(SMALL, case.batch_size, case.seq_len, predictions, rank)


def wrapped_loop(session: Session, guard: Watchdog, iterations: int) -> int:
    """The wrapper's loop as a run has it, but for the barriers outside of it; nanoseconds."""
    session.open_window(iterations)
    session.synchronize()
    return timed_loop(session, iterations, guard.beat)


def timer_ratios(session: Session, clock: Callable[[], int], rounds: int) -> list[float]:
    """Throughput of iterations that a ``dlperf_hpc.Timer`` steps over that of iterations without,
    in turn within its window: a machine that drifts or does something else as well meets both
    alike. What the Timer does as its window begins and ends is in neither."""
    ratios = []
    with tempfile.TemporaryDirectory() as logs:
        timer = Timer(batch_size=1, warmup=1, iterations=2 * rounds, logs=logs, quiet=True)
        timer.step()
        for _ in range(rounds):
            spent = {"A": 0, "B": 0}
            for side in "ABBA":
                begun = clock()
                session.iterate()
                if side == "B":
                    timer.step(session._loss)  # type: ignore[attr-defined]
                spent[side] += clock() - begun
            ratios.append(spent["A"] / spent["B"])
        assert timer.samples_per_s
    return ratios[:-1]  # in the last one the window ends


def measure(sides: Mapping[str, Callable[[], int]], rounds: int) -> list[float]:
    """Throughput of side B over that of side A, round by round; each side gives the nanoseconds of
    a block."""
    ratios = []
    gc.collect()
    gc.disable()  # once: a collection between blocks takes longer than a block
    for number in range(rounds):
        spent = {"A": 0, "B": 0}
        for side in "ABBA" if number % 2 == 0 else "BAAB":
            spent[side] += sides[side]()
        ratios.append(spent["A"] / spent["B"])
    return ratios


def marks_us(session: Session, guard: Watchdog, times: int = 20_000) -> float:
    """What the wrapper adds to an iteration, alone: one mark and one beat, microseconds."""
    session.open_window(times)
    mark, beat = session.mark, guard.beat
    start = time.perf_counter_ns()
    for _ in range(times):
        mark()
        beat()
    session.synchronize()
    return (time.perf_counter_ns() - start) / 1e3 / times


def verdict(interval: Interval | None) -> str:
    """What the interval says of the target."""
    if interval is None:
        return "one round says nothing"
    if interval.low >= 1 - TARGET and interval.high <= 1 + TARGET:
        return "met"
    if interval.high < 1 - TARGET or interval.low > 1 + TARGET:
        return "missed"
    return "not shown: the interval is wider than the target; more rounds, or a quieter machine"


def summary(
    ratios: list[float],
    case: Case,
    facts: dict[str, Any],
    iterations: int,
    compared: str = "wrapper / bare",
) -> dict[str, Any]:
    """Everything that is printed, as plain values."""
    interval = median_interval(ratios)
    return {
        "framework": case.framework,
        "model": case.model,
        "precision": case.precision,
        "batch_size": case.batch_size,
        "seq_len": case.seq_len,
        "device": facts["device_name"],
        "library": facts.get("torch") or facts.get("tensorflow"),
        "iterations_per_block": iterations,
        "compared": compared,
        "ratios": [round(ratio, 5) for ratio in ratios],
        "median": statistics.median(ratios),
        "interval": vars(interval) if interval else None,
        "target": f"within {TARGET:.1%} of 1",
        "verdict": verdict(interval),
    }


def show(found: dict[str, Any]) -> None:
    """The summary for people."""
    print(
        f"{found['framework']}: {found['model']} {found['precision']}, {found['batch_size']} x"
        f" {found['seq_len']} tokens on {found['device']}, {found['library']}; blocks of"
        f" {found['iterations_per_block']} iterations, ABBA"
    )
    if len(found["ratios"]) <= 100:
        for number, ratio in enumerate(found["ratios"], 1):
            print(f"round {number:3}  {found['compared']}  {ratio:.4f}")
    print(f"{found['compared']}: median {found['median']:.4f}", end="")
    if found["interval"]:
        low, high, coverage = found["interval"].values()
        print(f", {coverage:.1%} interval [{low:.4f}, {high:.4f}]", end="")
    print(f"; target: {found['target']}: {found['verdict']}")
    print(f"mark and beat alone: {found['marks_us']:.2f} us an iteration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--framework", choices=tuple(BARE), default="ddp")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=5, help="in each of a round's 4 blocks")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", help="default: bert-tiny on cpu, bert-base on cuda")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument(
        "--small", action="store_true", help="steps of a few ms: the wrapper's share at its largest"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--control", action="store_true", help="the bare loop against itself")
    instead.add_argument(
        "--timer", action="store_true", help="a loop under dlperf_hpc.Timer against that loop"
    )
    parser.add_argument("--cpu-time", action="store_true", help="of --timer: the process's")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.model = arguments.model or {"cpu": "bert-tiny", "cuda": "bert-base"}[arguments.device]
    keep_memory()
    case = make_case(arguments)
    guard = Watchdog(0, time_limit_s=float("inf"))
    guard.watch()
    guard.phase("benchmark", float("inf"))
    workload = registry().workloads[case.model]
    if arguments.small:
        workload = replace(workload, build=build_small, batch=batch_small)
    session = registry().backends[case.framework].open_session(case, discover(), workload)
    warm_up(session, arguments.warmup, guard.beat)
    iterations = arguments.iterations
    clock = time.process_time_ns if arguments.cpu_time else time.perf_counter_ns
    loops: dict[str, Callable[[], int]] = {
        "bare": lambda: BARE[case.framework](session, iterations),
        "wrapper": lambda: wrapped_loop(session, guard, iterations),
    }
    one, other = "wrapper", "bare"
    if arguments.control:
        one = "bare"
    if arguments.timer:
        one, other, iterations = "timer", "untimed", 1
        ratios = timer_ratios(session, clock, arguments.rounds)
    else:
        ratios = measure({"A": loops[other], "B": loops[one]}, arguments.rounds)
    found = summary(ratios, case, session.facts(), iterations, f"{one} / {other}")
    found["marks_us"] = marks_us(session, guard)
    print(json.dumps(found)) if arguments.json else show(found)
    session.close()


if __name__ == "__main__":
    main()
