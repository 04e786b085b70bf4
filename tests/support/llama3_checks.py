"""Llama 3 tiny through the back ends, under real MPI.

``mpiexec -n RANKS python -m mpi4py llama3_checks.py RESULTS CHECK ...``: each check is a function
of this rank's world; rank 0 writes what it found as one JSON object, ``{check: ...}``, which
``test_llama3.py`` and ``test_llama3_deepspeed.py`` judge.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from deepspeed_checks import STAGES, curve, curves_of, opened
from gpt2_session_checks import quick_compiler

from dlperf_hpc.train.measurement import measure_window, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.workloads import llama3
from dlperf_hpc.train.workloads.llama3 import SIZES

TINY = "llama3-tiny"
VOCABULARY = 1024
"""Of what is trained, unless the size itself is looked at: the embedding is most of the model."""


def _losses(world: World, framework: str = "ddp", **changes: Any) -> list[float]:
    with opened(world, framework, model=TINY, **changes) as session:
        return curve(session, 4)


def variants(world: World) -> Any:
    """Losses under DDP in each precision and mode, and under FSDP."""
    again = {"checkpoint_activations": True}
    found: dict[str, Any] = {
        "fp32": _losses(world),
        "bf16": _losses(world, precision="bf16"),
        "checkpointed": _losses(world, options=again),
        "accumulation": _losses(world, accumulation=2),
        "placed": _losses(world, options={"optimizer_placement": True}),
        "sharded": _losses(world, "fsdp"),
        "sharded, checkpointed": _losses(world, "fsdp", options=again),
    }
    modes: dict[str, dict[str, Any]] = {
        "compiled": {"mode": "compile"},
        "compiled, checkpointed": {"mode": "compile", "options": again},
        "tuned": {"mode": "tuned"},
        "tuned, bf16": {"mode": "tuned", "precision": "bf16"},
    }
    for name, changes in modes.items():
        with quick_compiler():
            found[name] = _losses(world, **changes)
    return found


def execution(world: World) -> Any:
    """What a window tells of the way in which the model was run, and its size."""
    found: dict[str, Any] = {}
    for mode in ("eager", "compile"):
        with quick_compiler(), opened(world, "ddp", model=TINY, mode=mode) as session:
            warm_up(session, 4, lambda: None)
            found[mode] = dict(measure_window(session, world, 2, lambda: None).execution)
            found["parameters"] = session.parameters
            found["buffers"] = len(list(session.module.buffers()))
    return found


def stages(world: World) -> Any:
    """DDP and stages of ZeRO, with the head tied and with one of its own."""
    found = {"tied": curves_of(world, 5, STAGES, model=TINY)}
    with mock.patch.dict(SIZES, {TINY: replace(SIZES[TINY], tied=False, layers=1)}):
        found["untied"] = curves_of(world, 5, (0, 3), model=TINY)
    again = {"checkpoint_activations": True}
    found["checkpointed"] = curves_of(world, 5, (3,), model=TINY, options=again)
    return found


def half(world: World) -> Any:
    """bf16, in which DeepSpeed keeps the parameters too."""
    return curves_of(world, 5, (0, 3), model=TINY, precision="bf16")


CHECKS = (variants, execution, stages, half)

if __name__ == "__main__":
    if "execution" not in sys.argv[2:]:
        llama3._ORDINARY = VOCABULARY
        SIZES[TINY] = replace(SIZES[TINY], vocab=VOCABULARY)
    here = discover()
    results = {each.__name__: each(here) for each in CHECKS if each.__name__ in sys.argv[2:]}
    if here.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
