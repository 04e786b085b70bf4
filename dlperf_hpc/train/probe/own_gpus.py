"""Which GPUs are whose, where several processes of one host may see the same ones.

What a process sees depends on the site: all of its node's (CUDA_VISIBLE_DEVICES alike), its own
only (``--gpus-per-task``), those near its cores (``--gpu-bind=closest``), or all of them with its
own first (a rotated CUDA_VISIBLE_DEVICES). A number among those it sees means nothing to another
process; a UUID means the same to all.
"""

from __future__ import annotations

from collections.abc import Sequence


def share_out(
    hosts: Sequence[str], seen: Sequence[Sequence[str]], count: int = 1
) -> list[list[int] | None]:
    """For each process which ``count`` of the GPUs it sees are its own, as indices into its list.

    ``seen[r]`` are the UUIDs that process r sees on ``hosts[r]``. No GPU is given twice. A process
    takes the first of its list that nobody has; where that leaves a later one without, earlier ones
    give way (augmenting paths of a bipartite matching). All processes that call this with the same
    lists get the same answer. None for a process that cannot have so many, whoever gives way.
    """
    slots = [rank for rank in range(len(hosts)) for _ in range(count)]
    takers: dict[tuple[str, str], int] = {}  # of each GPU the slot that has it

    def place(slot: int, tried: set[tuple[str, str]]) -> bool:
        rank = slots[slot]
        mine = [(hosts[rank], uuid) for uuid in seen[rank]]
        free = [gpu for gpu in mine if gpu not in takers]
        if free:
            takers[free[0]] = slot
            return True
        for gpu in mine:
            if gpu not in tried:
                tried.add(gpu)
                if place(takers[gpu], tried):
                    takers[gpu] = slot
                    return True
        return False

    placed = [place(slot, set()) for slot in range(len(slots))]
    own: list[list[int] | None] = []
    for rank, host in enumerate(hosts):
        held = [i for i, uuid in enumerate(seen[rank]) if _is_of(takers, (host, uuid), slots, rank)]
        whole = all(placed[slot] for slot, of in enumerate(slots) if of == rank)
        own.append(held[:count] if whole else None)
    return own


def _is_of(
    takers: dict[tuple[str, str], int], gpu: tuple[str, str], slots: Sequence[int], rank: int
) -> bool:
    return gpu in takers and slots[takers[gpu]] == rank
