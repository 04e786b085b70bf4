"""Our models beside others' of the same size on one device (benchmarks/models.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlperf_hpc.acceptance.checks.commands import benchmark
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


def run(device: str) -> Iterator[Finding]:
    """bf16 on a card, eager and compiled; ours is at least 0.98 of each other code."""
    card = device == "cuda"
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


def _of_row(row: dict[str, Any], seq_len: int, card: bool) -> Finding:
    ours = row["code"] in _OURS
    what = f"{row['model']} {seq_len} {row['precision']} {row['mode']}, {row['code']}"
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
