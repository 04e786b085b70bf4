"""The back ends, each a module that sets ``BACKENDS``, and what several of them declare."""

from __future__ import annotations

from typing import Any

from dlperf_hpc.model.case import OPTIMIZERS, Option

ALIKE: dict[str, Any] = {
    "precisions": ("fp32", "tf32", "bf16", "fp16"),
    "optimizers": OPTIMIZERS,
    "data_sources": ("synthetic", "real"),
}
"""Fields of :class:`.BackendDeclaration` with one value in all back ends."""

XLA = Option("xla", False, "XLA compiles what is a device's own work, not all-reduce")
BIND = Option(
    "bind",
    "none",
    "gpu: a rank runs only on those of its cores that are next to its GPU, and fails where the"
    " machine does not tell which; none: wherever the launcher lets it",
    choices=("none", "gpu"),
)
