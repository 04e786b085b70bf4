"""Real data under real MPI: ``mpiexec -n 2 python -m mpi4py mpi_data_checks.py DATA..``.

Arguments: BERT's data, GPT-2's data, and damaged BERT data. Rank 0 prints what every rank found
as one JSON object, ``{check: [rank 0's, rank 1's]}``, and ``test_real_data.py`` judges it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from dlperf_hpc.errors import DataError
from dlperf_hpc.model.case import Case, Optimizer, Topology
from dlperf_hpc.train.feeds import open_feed
from dlperf_hpc.train.measurement import measure_window, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession


def make_case(ranks: int, model: str, path: str, **changes: Any) -> Case:
    options = {option.name: option.default for option in registry().options("ddp", model)}
    values = {"precision": "fp32", "batch_size": 4, "seq_len": 64, "data": "real", **changes}
    settings = {"optimizer": Optimizer(lr=2e-3), "device": "cpu", "data_path": path}
    pairs = tuple(sorted({**options, "dropout": 0.0}.items()))
    return Case("ddp", model, Topology(1, ranks), options=pairs, **{**settings, **values})


def window(world: World, model: str, path: str) -> dict[str, Any]:
    """A window of a real session on real data."""
    case = make_case(world.size, model, path)
    session = DdpSession(case, world, registry().workloads[model])
    warm_up(session, 2, lambda: None)
    timed = measure_window(session, world, 12, lambda: None)
    arguments = session.next_batch()
    batch = {name: list(tensor.shape) for name, tensor in arguments.items()}
    facts = session.facts()
    world.barrier()
    session.close()
    return {
        "wait": timed.data_wait_s,
        "elapsed": timed.elapsed_s,
        "losses": timed.losses,
        "moved": timed.moved,
        "batch": batch,
        "facts": {name: value for name, value in facts.items() if name.startswith("data_")},
    }


def samples(world: World, path: str) -> dict[str, Any]:
    """What this rank sees of one pass."""
    case = make_case(world.size, "bert-tiny", path)
    feed = open_feed(case, world, registry().workloads["bert-tiny"])
    assert feed is not None
    count = feed.facts["data_samples_per_rank"] // case.batch_size
    seen = [row for _ in range(count) for row in feed.next_batch()["input_ids"].tolist()]
    feed.close()
    return {"seen": [",".join(map(str, row)) for row in seen]}


def refusal(world: World, path: str, **changes: Any) -> dict[str, Any]:
    """The error, on every rank, whichever of them met it."""
    case = make_case(world.size, "bert-tiny", path, **changes)
    try:
        open_feed(case, world, registry().workloads["bert-tiny"])
    except DataError as error:
        return {"error": str(error)}
    return {"error": None}


def main() -> None:
    bert, gpt2, damaged = sys.argv[1:]
    world = discover()
    checks: dict[str, Callable[[], Any]] = {
        "bert": lambda: window(world, "bert-tiny", bert),
        "gpt2": lambda: window(world, "gpt2-tiny", gpt2),
        "samples": lambda: samples(world, bert),
        "damaged": lambda: refusal(world, damaged),
        "other_length": lambda: refusal(world, bert, seq_len=128),
    }
    found = {name: world.gather(check()) for name, check in checks.items()}
    if world.rank == 0:
        print("FOUND " + json.dumps(found))


main()
