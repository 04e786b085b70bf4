"""Which of the GPUs that a rank sees are its own. For every framework alike."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.train.ranks import World


def gpu_indices(
    world: World, seen: Sequence[Sequence[str]], count: int = 1, nobody: str = "no GPU"
) -> list[int]:
    """Which ``count`` of the GPUs it sees are this rank's; ``seen[r]`` are the UUIDs rank r sees.

    srun may show a rank its own GPUs only (--gpus-per-task), or all of the node's. DeviceError if
    there are not so many, beginning with ``nobody`` where this rank sees none at all.
    """
    mine = seen[world.rank]
    visible = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}"
    if not mine:
        raise DeviceError(f"{nobody} on {world.host} ({visible})")
    neighbours = (u for r, u in enumerate(seen) if r != world.rank and world.hosts[r] == world.host)
    shared = any(mine[0] in uuids for uuids in neighbours)
    first = world.local_rank * count if shared else 0
    if first + count > len(mine):
        each = f"{world.local_size} ranks on {world.host}, {count} GPU{'s' * (count > 1)} each"
        raise DeviceError(
            f"{each}, but rank {world.rank} sees {len(mine)} of its GPUs, shared with others"
            f" ({visible}): check how the site profile asks for GPUs"
        )
    return list(range(first, first + count))
