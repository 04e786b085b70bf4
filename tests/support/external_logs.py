"""Logs of other programs for tests, line for line as the programs print them.

They are made from the speed that shall come out. The iterations are even; what comes before the
first, and the first itself, takes long, as it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from dlperf_hpc.model.case import Topology

_LISTINGS = json.loads((Path(__file__).parent / "data" / "worked_examples.json").read_text())
DEEPSPEED_LISTING: dict[str, Any] = _LISTINGS["listings"][0]
TENSORFLOW_LISTING: dict[str, Any] = _LISTINGS["listings"][1]
"""Run speeds that DLPerf published, and its table of them."""

_SETUP_S = 30.0
START = datetime(2020, 10, 27, 11, 28, 12)


def deepspeed(
    speed: float,
    topology: str = "1n1g",
    *,
    batch_size: int = 32,
    last: int = 120,
    digits: int = 3,
    accumulation: int | None = None,
    timer: str = "timer.py:157:stop",
    figures: str = "SamplesPerSec={0}",
    start: datetime = START,
) -> str:
    """DeepSpeed 0.3.0 up to micro-step ``last``: both clock and timer say ``speed`` samples/s.

    Its clock has ``digits`` 3; with 6 the clock gives any speed exactly. With an ``accumulation``
    the launcher and the engine print their settings. On several nodes pdsh labels the lines.
    """
    where = Topology.parse(topology)
    step_s = batch_size * where.devices / speed
    prefix = "vs003: " if where.nodes > 1 else ""

    def line(seconds: float, source: str, text: str) -> str:
        moment = start + timedelta(seconds=seconds)
        fraction = f"{moment.microsecond:06d}"[:digits]
        return f"{prefix}[{moment:%Y-%m-%d %H:%M:%S},{fraction}] [INFO] [{source}] {text}"

    lines = []
    if accumulation is not None:
        nodes, local, world = where.nodes, where.gpus_per_node, where.devices
        settings = {
            "fp16_enabled": False,
            "gradient_accumulation_steps": accumulation,
            "train_batch_size": batch_size * world * accumulation,
            "train_micro_batch_size_per_gpu": batch_size,
        }
        lines += [
            line(0, "launch.py:85:main", f"nnodes={nodes}, num_local_procs={local}, node_rank=0"),
            line(0, "launch.py:100:main", f"dist_world_size={world}"),
            *(
                line(1, "config.py:624:print", f"  {name} {'.' * (29 - len(name))} {value}")
                for name, value in settings.items()
            ),
        ]
    for n in range(3, last + 1):  # the timer begins after step 2
        seconds = round(_SETUP_S + (n - 20) * step_s, digits)
        lines.append(line(seconds, timer, f"0/{n}, {figures.format(speed)}"))
    return "".join(f"{text}\n" for text in lines)


def tf2_bert(
    speed: float,
    topology: str = "1n1g",
    *,
    batch_size: int = 64,
    last: int = 120,
    start: datetime = START,
) -> str:
    """TensorFlow 2's official BERT up to step ``last``: the clock says ``speed`` samples/s."""
    step_s = batch_size * Topology.parse(topology).devices / speed
    lines = []
    for n in range(1, last + 1):
        moment = start + timedelta(seconds=round(_SETUP_S + (n - 20) * step_s, 6))
        lines.append(
            f"I{moment:%m%d %H:%M:%S.%f} 140405777909504 model_training_utils.py:505] "
            f"Train Step: {n}/120  / loss = {11 - n / 100:.6f}  masked_lm_accuracy = 0.012000  "
            "lm_example_loss = 10.200000  next_sentence_accuracy = 0.500000  "
            "next_sentence_loss = 0.690000\n"
        )
    return "".join(lines)


def write(path: Path, text: str) -> Path:
    """A log, with the directories it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_listing(
    root: Path, listing: Mapping[str, Any], make: Callable[[float, str], str]
) -> Path:
    """A log made of speed and topology for each run of a listing, in DLPerf's layout below
    ``root``; its ``bz`` directory."""
    batch_size = listing["batch_size"]
    folder: Path = root / "logs" / listing["framework"] / listing["model"] / f"bz{batch_size}"
    name = f"{listing['model']}_b{batch_size}_{listing['precision']}"
    for topology, row in listing["topologies"].items():
        for repeat, speed in enumerate(row["speeds"], 1):
            write(folder / topology / f"{name}_{repeat}.log", make(speed, topology))
    return folder
