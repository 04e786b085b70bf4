"""Our models in mode ``tuned``, beside the goals of MFU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.checks.kernels import where_time_goes
from dlperf_hpc.acceptance.checks.models import (
    GOALS,
    ON_CARD,
    ON_CPU,
    OURS,
    Row,
    Size,
    measured,
    name_of,
)
from dlperf_hpc.acceptance.finding import Finding, skipped

_LAST_TABLE_S = 150.0
"""No table of kernels is begun later: it compiles its model once more, within the check's limit."""


def run(device: str) -> Iterator[Finding]:
    """bf16 on a card. Where a model falls short of its goal, a table of kernels says where its time
    goes."""
    card, begun, short = device == "cuda", time.monotonic(), list[tuple[Row, Size]]()
    for size in [size for size in ON_CARD if size[:2] in GOALS] if card else ON_CPU:
        findings, rows = measured(size, device, "tuned")
        yield from findings
        if best := _short_of_goal(rows, size[1], card):
            short.append((best, size))
    for row, (_, seq_len, batch_size) in short:
        what = f"{name_of(row, seq_len)}: where its time goes"
        if time.monotonic() - begun > _LAST_TABLE_S:
            yield skipped(what, "no time was left for its table of kernels")
            continue
        case = tiny.case(row["model"], device, row["precision"], batch_size, mode=row["mode"])
        yield Finding(what, where_time_goes(replace(case, seq_len=seq_len)))


def _short_of_goal(rows: Sequence[Row], seq_len: int, card: bool) -> Row | None:
    """Our row, if its goal is not reached; on a CPU, which has none, any."""
    ours = next((row for row in rows if row["code"] == OURS[0] and row["samples_per_s"]), None)
    if ours is None or not card:
        return ours
    goal, share = GOALS.get((ours["model"], seq_len)), ours["share_of_peak"]
    return ours if goal is not None and share is not None and share < goal else None
