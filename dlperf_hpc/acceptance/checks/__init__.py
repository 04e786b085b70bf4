"""The checks in the order of their value: a budget that ends early has shown the most.

Each is a module of this folder with ``run(device) -> Iterator[Finding]``; ``device`` ``cpu`` is a
rehearsal at the smallest size. Standard library only here: the pack reads the list without torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """``name`` is its module's; ``limit_s`` the seconds that it may take at most."""

    name: str
    title: str
    limit_s: float


CHECKS = (
    Check("environment", "versions, the card, its clocks, MPI", 60),
    Check("ceilings", "matrix products and a copy, without a model", 60),
    Check("precision", "products are computed as asked, also after torch.compile", 90),
    Check("numerics", "tiny models: against transformers, a CPU, fp32; compiled or not", 150),
    Check("clock", "the events' times are the window's; a kernel of known length is seen", 60),
    Check("waiting", "nothing waits for the device inside the window", 90),
    Check("matrix", "precisions x eager and compiled, optimizers, accumulation", 150),
    Check("sweep", "doctor, a sweep of three cases, its report", 150),
    Check("models", "models beside others' of the same size", 240),
    Check("tuned", "models in mode tuned: MFU, kernels", 240),
    Check("wrapper", "the wrapper's loop beside a bare one", 60),
    Check("telemetry", "NVML: energy, and what watching costs", 60),
    Check("memory", "a line through three batches foretells a fourth", 60),
    Check("checkpoint", "10 + 10 iterations through a checkpoint against 20", 90),
    Check("exchange", "one rank: with and without all-reduce", 60),
    Check("sharing", "two ranks on one card: a clear error, at once", 90),
    Check("endings", "runs that raise, die, hang or run out of memory end as what they are", 150),
)  # fmt: skip
FIRST = CHECKS[0].name
"""Where this one fails, no other can say anything."""
