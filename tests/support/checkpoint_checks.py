"""Training that is killed and goes on.

Arguments: RESULTS FRAMEWORK WEIGHTS OPTIONS DATA CHECKPOINT.

The process that finds no CHECKPOINT trains, saves it, and trains on; the next one loads it. Both
end by SIGKILL, the second in the midst of saving once more. See ``session_checks`` for the rest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from session_checks import losses, opened

from dlperf_hpc.errors import RunError
from dlperf_hpc.model.case import Optimizer, Schedule
from dlperf_hpc.train.ranks import World, discover

CASE: dict[str, Any] = {
    "accumulation": 2,
    "optimizer": Optimizer(lr=2e-3),
    "schedule": Schedule("polynomial", warmup=2, total=8),
    "data": "real",
    "seq_len": 32,
}
MICRO_STEPS = 4  # before the checkpoint, and after it


def refusal(act: Callable[[Path], None], directory: Path) -> str:
    try:
        act(directory)
    except RunError as error:
        return str(error)
    return ""


def first(session: Any, checkpoint: Path) -> dict[str, Any]:
    """What the unbroken training does behind the checkpoint."""
    before = losses(session, MICRO_STEPS)
    session.save(checkpoint)
    after = losses(session, MICRO_STEPS)
    again = refusal(session.save, checkpoint)
    session.iterate()
    between = refusal(session.save, checkpoint.with_name("between"))
    return {"before": before, "after": after, "again": again, "between": between}


def second(session: Any, checkpoint: Path) -> dict[str, Any]:
    """What a process that loads this checkpoint computes next, and what it refuses."""
    nowhere = refusal(session.load, checkpoint.with_name("nowhere"))
    case = session.case
    session.case = replace(case, seed=7, precision="bf16")
    other = refusal(session.load, checkpoint)
    session.case = case
    session.load(checkpoint)
    return {"after": losses(session, MICRO_STEPS), "nowhere": nowhere, "other": other}


def die_saving(world: World, session: Any, directory: Path) -> None:
    """Rank 1, before it has written its part."""
    if world.rank == 1:
        session.write_state = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    session.save(directory)


def main() -> None:
    world = discover()
    results, framework, _, options, data, checkpoint = sys.argv[1:]
    saved, chosen = Path(checkpoint), {"dropout": 0.1, **json.loads(options)}
    with opened(world, framework, data_path=data, options=chosen, **CASE) as session:
        loads = saved.exists()
        world.barrier()
        found = world.gather((second if loads else first)(session, saved))
        if world.rank == 0:
            Path(results).write_text(json.dumps({"ranks": found}), encoding="utf-8")
        world.barrier()
        if loads:
            die_saving(world, session, saved.with_name("torn"))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
