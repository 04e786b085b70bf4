"""MirroredStrategy with two devices in one process. Arguments: RESULTS FRAMEWORK WEIGHTS.

A process of its own: the number of a CPU's logical devices is reconcile once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from session_checks import CURVE, losses, main, opened

from dlperf_hpc.model.case import Topology
from dlperf_hpc.train.ranks import World


def mirrored(world: World, framework: str) -> dict[str, Any]:
    changes = {**CURVE, "topology": Topology(1, 2), "processes_per_node": 1}
    with opened(world, framework, options={"strategy": "mirrored"}, **changes) as session:
        found = losses(session, 10)
        components = [session.strategy.experimental_local_results(v) for v in session.variables]
        checkpoint = Path(sys.argv[1]).with_name("mirrored-checkpoint")
        session.save(checkpoint)
        on = losses(session, 3)
        session.load(checkpoint)
        goes_on = losses(session, 3) == on
        equal = all((a.numpy() == b.numpy()).all() for a, b in components)
        facts = session.facts()
        return {"losses": found, "facts": facts, "equal": bool(equal), "goes on": goes_on}


if __name__ == "__main__":
    main([mirrored])
