"""Checks of any back end's session under real MPI: ``session_checks.py RESULTS FRAMEWORK WEIGHTS``.

Each check is a function of this rank's world and of a back end's name; rank 0 writes what every
rank found as one JSON object, ``{check: [rank 0's, rank 1's]}``. WEIGHTS is a file of initial
weights that all back ends begin with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlperf_hpc.model.case import Case, Measure, Optimizer, Schedule, Topology
from dlperf_hpc.train.measurement import measure_communication, measure_window, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry

# AdamW at a rate that shows, over a schedule.
CURVE = {"optimizer": Optimizer(lr=2e-3), "schedule": Schedule("polynomial", warmup=2, total=20)}

Check = Callable[[World, str], Any]


def make_case(framework: str, ranks: int, weights: str, **changes: Any) -> Case:
    """bert-tiny on CPUs, dropout off, every other option at its default."""
    model = changes.pop("model", "bert-tiny")
    options = {o.name: o.default for o in registry().options(framework, model)}
    options.update(dropout=0.0, initial_weights=weights)
    options.update(changes.pop("options", {}))
    values: dict[str, Any] = {"precision": "fp32", "batch_size": 2, "seq_len": 16, **changes}
    topology = values.pop("topology", Topology(1, ranks))
    pairs = tuple(sorted(options.items()))
    return Case(framework, model, topology, options=pairs, device="cpu", **values)


@contextmanager
def opened(world: World, framework: str, **changes: Any) -> Iterator[Any]:
    """A session; it stays open, since a process can join some frameworks once only."""
    case = make_case(framework, world.size, sys.argv[3], **changes)
    backend = registry().backends[framework]
    yield backend.open_session(case, world, registry().workloads[case.model])
    world.barrier()


def losses(session: Any, iterations: int) -> list[float]:
    """Train for so many micro-batches: this rank's loss of each."""
    session.open_window(iterations)
    session.mark()
    for _ in range(iterations):
        session.iterate()
        session.mark()
    session.synchronize()
    found: list[float] = session.losses()
    return found


def curve(world: World, framework: str) -> dict[str, Any]:
    """Ten optimizer steps; the first, where warm-up begins, at a rate of 0."""
    with opened(world, framework, **CURVE) as session:
        return {"losses": losses(session, 10), "fingerprint": session.fingerprint()}


def a_window(
    world: World, framework: str, digest: Callable[[Any], str], **options: Any
) -> dict[str, Any]:
    """What the worker does with a session, with dropout and accumulation. Each rank begins with
    numbers of its own, which are then rank 0's."""
    options.update(initial_weights="", dropout=0.1)
    with opened(world, framework, accumulation=2, seed=1 + world.rank, options=options) as session:
        before = digest(session)
        estimate = warm_up(session, 2, lambda: None)
        timed = measure_window(session, world, 4, lambda: None)
        digests = [before, digest(session)]
        return {
            "digests": digests,
            "communication": communication(world, session, digest),
            "estimate": estimate,
            "timed": vars(timed),
            "facts": session.facts(),
        }


def communication(world: World, session: Any, digest: Callable[[Any], Any]) -> Any:
    """A step without all-reduce, and the share of it as the worker measures it after a window
    that was long enough; with accumulation 2, as a window ends in the midst of it. None if the back
    end cannot."""
    if not session.set_all_reduce(False):
        return None
    for _ in range(2):
        session.iterate()
    alone = digest(session)
    timed = measure_window(session, world, 1, lambda: None)
    measure = Measure(warmup=0, communication_steps=2)
    timed = replace(timed, optimizer_steps=50)
    found = measure_communication(session, world, measure, 2, timed, lambda: None)
    return {**vars(found), "exposed": found.exposed, "alone": alone}


def accumulated(world: World, framework: str, **changes: Any) -> dict[str, Any]:
    """Three optimizer steps of two micro-batches each."""
    with opened(world, framework, accumulation=2, **changes) as session:
        return {
            "losses": losses(session, 6),
            "fingerprint": session.fingerprint(),
            "counts": session.counts(),
        }


def main(checks: Sequence[Check]) -> None:
    """Run the checks and write what came out of them."""
    world = discover()
    framework = sys.argv[2]
    found = {check.__name__: world.gather(check(world, framework)) for check in checks}
    if world.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main([curve])
