"""Our models beside others' of the same size on one device (benchmarks/models.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlperf_hpc.acceptance.checks.commands import benchmark
from dlperf_hpc.acceptance.finding import FAIL, OK, Finding, judged, skipped

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
_SHORT = ("--modes", "eager", "--warmup", 2, "--iterations", 2, "--windows", 2)


def run(device: str) -> Iterator[Finding]:
    """bf16 on a card, eager and compiled; ours is at least 0.98 of the best other."""
    card = device == "cuda"
    for model, seq_len, batch_size in _ON_CARD if card else _ON_CPU:
        words = ["--device", device, "--models", model, "--seq-len", seq_len]
        words += ["--batch-size", batch_size, "--precisions", "bf16" if card else "fp32"]
        words += ["--warmup", 10, "--iterations", 10] if card else _SHORT
        try:
            found = benchmark("models.py", *words)
        except RuntimeError as error:
            yield Finding(model, str(error), verdict=FAIL)
            continue
        if found is None:
            yield skipped("models", "benchmarks/ is part of a checkout, not of a wheel")
            return
        yield from _rows(found["rows"], seq_len, card)


def _rows(rows: list[dict[str, Any]], seq_len: int, card: bool) -> Iterator[Finding]:
    for mode in dict.fromkeys(row["mode"] for row in rows):
        ours, *others = [row for row in rows if row["mode"] == mode]
        what = f"{ours['model']} {seq_len} {ours['precision']} {mode}"
        if not ours["samples_per_s"]:
            yield Finding(what, ours["refused"], verdict=FAIL)
            continue
        goal, share = _GOALS.get((ours["model"], seq_len)), ours["share_of_peak"]
        value = f"{ours['samples_per_s']:g} samples/s, {ours['memory_mb']} MiB"
        value += f", {share:.1%} of the peak" if share is not None else ""
        yield Finding(what, value, f"goal {goal:.0%}" if goal else "", OK)
        best = max((row["samples_per_s"] or 0.0 for row in others), default=0.0)
        if not best:
            yield skipped(f"{what}: beside others", "transformers is not there")
            continue
        ratio = ours["samples_per_s"] / best
        found = f"{ratio:.3f} of the best other"
        yield judged(f"{what}: beside others", found, ">= 0.98", ratio >= 0.98 or not card)
