"""Throughput against physics: TFLOPS per device, share of the card's peak, and what cannot be.

Where model, sequence length, precision or card is not known, there is no figure and no finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from dlperf_hpc.analysis import accelerators
from dlperf_hpc.analysis.flags import Finding
from dlperf_hpc.analysis.flops import ConvNet, architecture, flops_of_case
from dlperf_hpc.records.observed import ObservedCase
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.sweepfile.case import Case


def tflops_per_device(case: Case | ObservedCase, samples_per_s: float) -> float | None:
    """Model TFLOPS of one device: samples/s over all devices x FLOPs per sample / devices."""
    flops = flops_of_case(case)
    if flops is None or not samples_per_s > 0:
        return None
    value = samples_per_s * flops / case.topology.devices / 1e12
    return value if math.isfinite(value) else None


def mfu(case: Case | ObservedCase, samples_per_s: float, accelerator: str | None) -> float | None:
    """Model FLOPS utilisation: share of the card's dense peak in the case's precision, 1 = all.

    ``accelerator`` is a device's name, or a person's word for it
    (:func:`dlperf_hpc.analysis.accelerators.accelerator`).
    """
    tflops = tflops_per_device(case, samples_per_s)
    peak = None if accelerator is None else accelerators.peak(accelerator, case.precision)
    return None if tflops is None or peak is None else tflops / peak


def of_physics(
    case: Case | ObservedCase, samples_per_s: float, accelerator: str | None
) -> list[Finding]:
    """``over-peak`` for more than the card can do, ``near-peak`` for more than any training does.

    ``samples_per_s`` is over all devices: give the fastest run's, for each must be possible.
    """
    flops, tflops = flops_of_case(case), tflops_per_device(case, samples_per_s)
    peak = None if accelerator is None else accelerators.peak(accelerator, case.precision)
    if flops is None or tflops is None or accelerator is None or peak is None:
        return []
    share, known = tflops / peak, accelerators.accelerator(accelerator)
    if share <= accelerators.CEILING:
        return []
    figures = (
        f"{samples_per_s:.2f} samples/s are {tflops:.4g} TFLOPS per device ({flops / 1e9:.5g} "
        f"GFLOP per {_sample(case)}), {100 * share:.1f} % of the dense {case.precision} peak of "
        f"{known.name if known else accelerator}, {peak:g}"
    )
    doubts = ", ".join(_doubts(case, tflops, accelerator))
    if share > 1:
        return [Finding("over-peak", f"{figures}: impossible; look for {doubts}")]
    ceiling = f"{100 * accelerators.CEILING:.0f} %"
    most = f"more than the {ceiling} that matrix products alone hardly pass"
    return [Finding("near-peak", f"{figures}: {most}; look for {doubts}")]


def _sample(case: Case | ObservedCase) -> str:
    if isinstance(architecture(case.model), ConvNet):
        return "image of 224 x 224"
    return f"sequence of {case.seq_len} tokens, padding included"


def _doubts(case: Case | ObservedCase, tflops: float, accelerator: str) -> Iterator[str]:
    """What may be otherwise than it was taken; a run of our own has checked its precision."""
    if isinstance(case, ObservedCase):
        tf32 = accelerators.peak(accelerator, "tf32")
        if case.precision in ("fp32", "float32"):
            if tf32 is not None and tflops <= tf32:
                yield f"TF32 (it would be {100 * tflops / tf32:.1f} % of that peak, {tf32:g})"
            yield "mixed precision"
        yield "more devices than were counted"
    if isinstance(architecture(case.model), ConvNet):
        yield "smaller images"
        yield "convolutions done with fewer operations (Winograd)"
    else:
        yield "sequences that are packed, unpadded or shorter"
    yield "samples counted by a wrong factor"


def accelerator_of(results: Iterable[RunResult], said: str | None = None) -> str | None:
    """The device that the runs' own logs name, else ``said``, a person's word.

    None if runs or ranks were on cards of different peaks: no one peak is theirs.
    """
    names = [name for result in results for name in _device_names(result)]
    if not names:
        return said
    found = {accelerators.accelerator(name) for name in names}
    return names[0] if len(found) == 1 else None


def _device_names(result: RunResult) -> list[str]:
    world, ranks = result.facts.get("world"), result.facts.get("ranks")
    tables = [world, *(ranks if isinstance(ranks, list) else [])]
    found = [table.get("device_name") for table in tables if isinstance(table, dict)]
    return [name for name in found if isinstance(name, str) and name]
