"""The largest batch size that fits: ``batch_size = "max"``.

The size is doubled until it does not fit, then bisected down to a grain of 1/16 of the power of two
below it. What came of each size is written once, beside the runs of the case, and never changed.
Every task of the case walks the same way over these files, and tries what is missing: so a search
goes on where a killed task left it, tasks that start together help each other, and all repeats get
one answer, without a lock and without anybody who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LedgerError, RunError, raising, redacted
from dlperf_hpc.files import dump_json, make_directories, read_regular, write_once
from dlperf_hpc.model.case import LARGEST, Case
from dlperf_hpc.model.checks import parse
from dlperf_hpc.records.layout import trial_of
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.store import Attempt
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.trials import TrialEnd, try_case

MOST = 1 << 16
"""No larger size is tried."""

Row = dict[str, Any]
"""What came of a trial: ``fits``, ``memory_mb`` of each rank (MiB), and ``reason``, if not."""


def grain(size: int) -> int:
    """How far a larger size lies that is known not to fit, at most, where ``size`` fits."""
    return max(1, (1 << size.bit_length() >> 1) // 16)


def next_size(fits: int, too_large: int | None) -> int | None:
    """What to try where ``fits`` is the largest size that is known to fit (0: none), and
    ``too_large`` the smallest that does not (None: none); None where ``fits`` is the answer."""
    if too_large is None:
        return None if fits >= MOST else max(1, 2 * fits)
    return (fits + too_large) // 2 if too_large - fits > grain(fits) else None


def find(attempt: Attempt, world: World, beat: Callable[[], None]) -> tuple[Case, Row]:
    """The case with its batch size, found by all ranks together, and what the log has of the
    search. MemoryError where not even one sample fits, RunError where a trial ends otherwise, and
    LedgerError for a trial's file that cannot be written or read."""
    case, rows = attempt.run.case, dict[int, Row]()
    fits, too_large = 0, None
    while (size := next_size(fits, too_large)) is not None:
        rows[size] = row = _outcome(attempt, size, world, beat)
        fits, too_large = (size, too_large) if row["fits"] else (fits, size)
    if not fits:
        one = f'batch_size = "{LARGEST}": one sample per device does not fit, so that nothing is'
        raise MemoryError(f"{one} measured: {rows[1]['reason']}")
    memory = rows[fits]["memory_mb"]
    found = {"size": fits, "grain": grain(fits), "tried": list(rows), "memory_mb": memory}
    if too_large is not None:
        found["reason"] = f"{too_large} per device do not fit: {rows[too_large]['reason']}"
    return replace(case, batch_size=fits), found


def _outcome(attempt: Attempt, size: int, world: World, beat: Callable[[], None]) -> Row:
    """What came of a size, in this task or in another before it."""
    path = trial_of(attempt.paths.root, attempt.run.case.id, size)
    row: Row | None = world.broadcast(_read(path) if world.rank == 0 else None)
    if row is None:
        ends = try_case(replace(attempt.run.case, batch_size=size), world, beat)
        made = {"batch_size": size, **_judged(size, ends), "launch": attempt.launch, "time": utc()}
        if world.rank == 0:
            with raising(LedgerError, f"{path}: cannot be written"):
                make_directories(path.parent)
                write_once(path, redacted(dump_json(made)))  # of two tasks the first counts
        row = world.broadcast((_read(path) or made) if world.rank == 0 else None)
    return row


def _judged(size: int, ends: list[TrialEnd]) -> Row:
    """What a trial says. RunError where it failed for something else than memory."""
    failed = [(end, end.verdict, rank) for rank, end in enumerate(ends) if end.verdict]
    if not failed:
        return {"fits": True, "memory_mb": [end.memory_mb for end in ends], "reason": ""}
    end, verdict, rank = min(failed, key=lambda row: (not row[0].no_memory, row[0].consequence))
    reason = f"rank {rank} on {end.host}: {verdict.reason}"
    if not end.no_memory:
        raise RunError(f"trial of {size} samples per device: {reason}", verdict.fault)
    return {"fits": False, "memory_mb": None, "reason": reason}


def _read(path: Path) -> Row | None:
    try:
        row = parse(read_regular(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: cannot be read, remove it: {error}") from error
    if not (isinstance(row, dict) and isinstance(row.get("fits"), bool) and "reason" in row):
        raise LedgerError(f"{path}: is not what a trial of a batch size leaves: remove it")
    return {"fits": row["fits"], "memory_mb": row.get("memory_mb"), "reason": str(row["reason"])}
