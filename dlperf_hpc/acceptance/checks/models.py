"""Our models beside others' of the same size on one device (benchmarks/models.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dlperf_hpc.acceptance.checks import tiny
from dlperf_hpc.acceptance.checks.commands import benchmark
from dlperf_hpc.acceptance.checks.kernels import where_time_goes
from dlperf_hpc.acceptance.finding import FAIL, OK, SKIPPED, Finding, judged, skipped

_GOALS = {("bert-large", 512): 0.50, ("gpt2-small", 1024): 0.45, ("gpt2-medium", 1024): 0.50}
"""MFU in bf16 on H100 and H200, model and tokens of a sample: told, never a FAIL."""
_ON_CARD = (
    ("bert-base", 128, 256),
    ("bert-large", 512, 32),
    ("gpt2-small", 1024, 32),
    ("gpt2-medium", 1024, 16),
)
"""Model, tokens, batch size: the largest that are sure to fit 80 GB."""
_ON_CPU = (("bert-tiny", 64, 4),)
_SHORT = ("--modes", "eager", "--warmup", 2, "--iterations", 2, "--windows", 2, "--seconds", 5)
_OURS = ("dlperf_hpc", "dlperf_hpc-no-ddp")
_LAST_TABLE_S = 190.0
"""No table of kernels is begun later: it compiles its model once more, within the check's limit."""


def run(device: str) -> Iterator[Finding]:
    """bf16 on a card, eager and compiled; ours is at least 0.98 of each other code. Where a model
    falls short of its goal, a table of kernels says where its time goes."""
    card, begun, short = device == "cuda", time.monotonic(), list[tuple[dict[str, Any], int, int]]()
    for model, seq_len, batch_size in _ON_CARD if card else _ON_CPU:
        words = ["--device", device, "--models", model, "--seq-len", seq_len]
        words += ["--batch-size", batch_size, "--precisions", "bf16" if card else "fp32"]
        words += ["--seconds", 18] if card else _SHORT
        try:
            found = benchmark("models.py", *words)
        except RuntimeError as error:
            yield Finding(model, str(error), verdict=FAIL)
            continue
        if found is None:
            yield skipped("models", "benchmarks/ is part of a checkout, not of a wheel")
            return
        for row in found["rows"]:
            yield _of_row(row, seq_len, card)
        if best := _short_of_goal(found["rows"], seq_len, card):
            short.append((best, seq_len, batch_size))
    for row, seq_len, batch_size in short:
        what = f"{_name(row, seq_len)}: where its time goes"
        if time.monotonic() - begun > _LAST_TABLE_S:
            yield skipped(what, "no time was left for its table of kernels")
        else:
            yield Finding(what, _profiled(row, seq_len, batch_size, device))


def _short_of_goal(
    rows: Sequence[dict[str, Any]], seq_len: int, card: bool
) -> dict[str, Any] | None:
    """Our row of the best mode, if the goal is not reached; on a CPU, which has none, any."""
    ours = [row for row in rows if row["code"] == _OURS[0] and row["samples_per_s"]]
    best = max(ours, key=lambda row: float(row["samples_per_s"]), default=None)
    if best is None or not card:
        return best
    goal, share = _GOALS.get((best["model"], seq_len)), best["share_of_peak"]
    return best if goal is not None and share is not None and share < goal else None


def _profiled(row: dict[str, Any], seq_len: int, batch_size: int, device: str) -> str:
    case = tiny.case(row["model"], device, row["precision"], batch_size, mode=row["mode"])
    return where_time_goes(replace(case, seq_len=seq_len))


def _name(row: dict[str, Any], seq_len: int) -> str:
    return f"{row['model']} {seq_len} {row['precision']} {row['mode']}, {row['code']}"


def _of_row(row: dict[str, Any], seq_len: int, card: bool) -> Finding:
    ours = row["code"] in _OURS
    what = _name(row, seq_len)
    if not row["samples_per_s"]:
        return Finding(what, row["refused"], verdict=FAIL if ours else SKIPPED)
    share = row["share_of_peak"]
    value = f"{row['samples_per_s']:g} samples/s"
    value += f", {share:.1%} of the peak" if share is not None else ""
    if ours:
        goal = _GOALS.get((row["model"], seq_len))
        return Finding(what, value, f"goal {goal:.0%}" if goal else "", OK)
    ratio, high = row["ratio"], row["ratio_high"]
    value += f"; ours {ratio:.3f} of it"
    if high is not None:
        value += f" [{row['ratio_low']:.3f}, {high:.3f}]"
    return judged(what, value, ">= 0.98", (ratio if high is None else high) >= 0.98 or not card)
