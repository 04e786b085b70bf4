"""Our models beside others' of the same size on one device (benchmarks/models.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlperf_hpc.acceptance.checks.commands import benchmark
from dlperf_hpc.acceptance.finding import FAIL, OK, SKIPPED, Finding, judged, skipped

GOALS = {("bert-large", 512): 0.50, ("gpt2-small", 1024): 0.45, ("gpt2-medium", 1024): 0.50}
"""MFU in bf16 and mode ``tuned`` on H100 and H200 by model and tokens of a sample: told, never a
FAIL."""
ON_CARD = (
    ("bert-base", 128, 256),
    ("bert-large", 512, 32),
    ("gpt2-small", 1024, 32),
    ("gpt2-medium", 1024, 16),
)
"""Model, tokens, batch size: the largest that are sure to fit 80 GB."""
ON_CPU = (("bert-tiny", 64, 4),)
OURS = ("dlperf_hpc", "dlperf_hpc-no-ddp")
_SHORT = ("--warmup", 2, "--iterations", 2, "--windows", 2, "--seconds", 5)

Size = tuple[str, int, int]
Row = dict[str, Any]


def run(device: str) -> Iterator[Finding]:
    """bf16 on a card, eager and compiled; ours is at least 0.98 of each other code."""
    card = device == "cuda"
    for size in ON_CARD if card else ON_CPU:
        yield from measured(size, device, *(("eager", "compile") if card else ("eager",)))[0]


def measured(size: Size, device: str, *modes: str) -> tuple[list[Finding], list[Row]]:
    """What is to be told of a model in these modes, and the benchmark's rows of it."""
    card, (model, seq_len, batch_size) = device == "cuda", size
    words = ["--device", device, "--models", model, "--seq-len", seq_len, "--modes", *modes]
    words += ["--batch-size", batch_size, "--precisions", "bf16" if card else "fp32"]
    try:
        found = benchmark("models.py", *words, *(("--seconds", 18) if card else _SHORT))
    except RuntimeError as error:
        return [Finding(model, str(error), verdict=FAIL)], []
    if found is None:
        return [skipped(model, "benchmarks/ is part of a checkout, not of a wheel")], []
    return [_of_row(row, seq_len, card) for row in found["rows"]], found["rows"]


def name_of(row: Row, seq_len: int) -> str:
    """What a benchmark's row is of."""
    return f"{row['model']} {seq_len} {row['precision']} {row['mode']}, {row['code']}"


def _of_row(row: Row, seq_len: int, card: bool) -> Finding:
    ours = row["code"] in OURS
    what = name_of(row, seq_len)
    if not row["samples_per_s"]:
        return Finding(what, row["refused"], verdict=FAIL if ours else SKIPPED)
    share = row["share_of_peak"]
    value = f"{row['samples_per_s']:g} samples/s"
    value += f", {share:.1%} of the peak" if share is not None else ""
    if ours:
        goal = GOALS.get((row["model"], seq_len)) if row["mode"] == "tuned" else None
        return Finding(what, value, f"goal {goal:.0%}" if goal else "", OK)
    ratio, high = row["ratio"], row["ratio_high"]
    value += f"; ours {ratio:.3f} of it"
    if high is not None:
        value += f" [{row['ratio_low']:.3f}, {high:.3f}]"
    return judged(what, value, ">= 0.98", (ratio if high is None else high) >= 0.98 or not card)
