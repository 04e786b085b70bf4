"""What would Horovod's synthetic benchmark print, and what do we state, of the same training?

``mpiexec -n N python -m mpi4py benchmarks/horovod_printed.py [--framework NAME] [--rounds N]
[--batches N] [--log FILE] [--json]``, in the Python of that framework's environment. Horovod itself
prints no throughput, its examples do: rank 0 times blocks of batches with ``timeit``. Both ways of
timing drive one session in turn (AB, BA ...): a block as those examples time it, and a window of
the same length as a run of ours has it. ``--log`` gets the lines that the example would print,
for ``dlperf report FILE``.

What lies between the two figures is taken apart: from mean of rates to rate of the whole, from rank
0 to the slowest rank, and the rest, which is where the clock starts and stops, and noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import timeit
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wrapper_cost import keep_memory, make_case

from dlperf_hpc.train.measurement import measure_window, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.session import Session
from dlperf_hpc.train.watchdog import Watchdog


def times(
    session: Session, world: World, guard: Watchdog, rounds: int, batches: int
) -> dict[str, list[float]]:
    """This rank's seconds of each block and of each window."""
    spent: dict[str, list[float]] = {"blocks": [], "windows": []}
    for number in range(rounds):
        for side in ("blocks", "windows") if number % 2 == 0 else ("windows", "blocks"):
            if side == "blocks":
                spent[side].append(timeit.timeit(session.iterate, number=batches))
            else:
                timed = measure_window(session, world, batches, guard.beat)
                spent[side].append(timed.elapsed_s)
    return spent


def printed(model: str, device: str, batch_size: int, ranks: int, rates: Sequence[float]) -> str:
    """The example's lines: its head, a line per block, and its two last."""
    mean, spread = statistics.mean(rates), 1.96 * statistics.pstdev(rates)

    def lines() -> Iterator[str]:
        yield f"Model: {model}"
        yield f"Batch size: {batch_size}"
        yield f"Number of {device}s: {ranks}"
        yield "Running warmup..."
        yield "Running benchmark..."
        for number, rate in enumerate(rates):
            yield f"Iter #{number}: {rate:.1f} img/sec per {device}"
        yield f"Img/sec per {device}: {mean:.1f} +-{spread:.1f}"
        yield f"Total img/sec on {ranks} {device}(s): {ranks * mean:.1f} +-{ranks * spread:.1f}"

    return "\n".join(lines()) + "\n"


def compare(
    ranks: Sequence[dict[str, list[float]]], batch_size: int, batches: int
) -> dict[str, float]:
    """From the figure that is printed to the one that is stated: samples/s over all ranks."""
    samples = batch_size * batches * len(ranks)
    mine = ranks[0]["blocks"]

    def rate(seconds: Sequence[float]) -> float:
        return samples * len(seconds) / sum(seconds)

    def slowest(side: str) -> list[float]:
        return [max(each) for each in zip(*(rank[side] for rank in ranks))]

    return {
        "printed: ranks x mean of rank 0's rates": samples * statistics.mean(1 / t for t in mine),
        "all batches over rank 0's time": rate(mine),
        "all batches over the slowest rank's time, block by block": rate(slowest("blocks")),
        "stated: the same of our windows": rate(slowest("windows")),
    }


def show(found: dict[str, Any]) -> None:
    """The example's lines, then the way from its figure to ours."""
    print(found["printed"], end="")
    before = 0.0
    for name, figure in found["figures"].items():
        change = f"  {figure / before - 1:+.2%}" if before else ""
        print(f"{figure:10.3f} samples/s  {name}{change}")
        before = figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    names = sorted(registry().backends)
    parser.add_argument("--framework", choices=names, default="horovod-torch")
    parser.add_argument("--model", default="bert-tiny")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batches", type=int, default=10, help="in each block")
    parser.add_argument("--log", type=Path, help="where the example's lines go")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    keep_memory()
    world = discover()
    case = make_case(arguments, world.size)
    guard = Watchdog(world.rank, time_limit_s=float("inf"))
    backend = registry().backends[case.framework]
    session = backend.open_session(case, world, registry().workloads[case.model])
    warm_up(session, arguments.batches, guard.beat)
    ranks = world.gather(times(session, world, guard, arguments.rounds, arguments.batches))
    rates = [case.batch_size * arguments.batches / seconds for seconds in ranks[0]["blocks"]]
    device = "GPU" if arguments.device == "cuda" else "CPU"
    text = printed(case.model, device, case.batch_size, world.size, rates)
    figures = compare(ranks, case.batch_size, arguments.batches)
    if world.rank == 0:
        if arguments.log:
            arguments.log.write_text(text, encoding="utf-8")
        found = {"framework": case.framework, "printed": text, "figures": figures}
        print(json.dumps(found)) if arguments.json else show(found)
    world.barrier()
    session.close()


if __name__ == "__main__":
    main()
