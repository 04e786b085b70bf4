"""The DeepSpeed back end's session. Imports torch: never loaded on the login node. DeepSpeed itself
is imported when the device is known: it chooses an accelerator as it is."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import MODES, NO_FP16, Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.backends import width
from dlperf_hpc.train.backends.deepspeed import BUCKET, configuration
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.session import load
from dlperf_hpc.train.torch.optimizers import build_optimizer, forget_steps, set_lr
from dlperf_hpc.train.torch.session import TorchSession, join, random_states, set_random_states

_TAG = "dlperf"  # of the one checkpoint in a directory


def import_deepspeed(world: World, device: torch.device) -> Any:
    """The deepspeed module, which learns here who this process is, as from its launcher. It opens
    no port: it is handed a process group. RunError if it cannot be imported."""
    # The device is LOCAL_RANK to DeepSpeed, and this rank may see its own GPU only, as number 0.
    local = device.index if device.type == "cuda" else world.local_rank
    place = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": local}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ["MASTER_ADDR"] = world.address
    os.environ["DS_ACCELERATOR"] = device.type
    if "OMPI_COMM_WORLD_LOCAL_RANK" in os.environ:  # must not say otherwise
        os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = str(local)
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(_extensions()))
    deepspeed = load(
        "deepspeed", "DeepSpeed", "make an environment with it: dlperf env make deepspeed"
    )
    # Its collectives are deprecated in torch, which would say so anew at every one of them.
    warnings.filterwarnings("ignore", ".*is deprecated", FutureWarning, r"torch\.distributed")
    if device.type == "cpu":
        # Compiled for a minute at the first start, for inference alone; a start that was killed
        # leaves a lock on which all later ones wait in silence.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _extensions() -> Path:
    """Where this environment keeps what DeepSpeed compiles: another's torch may be another."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
    return cache / "dlperf_hpc" / "torch_extensions" / name


class DeepSpeedSession(TorchSession):
    """Model, data and engine of one rank; see :class:`dlperf_hpc.train.session.Session`."""

    def __init__(self, case: Case, world: World, workload: WorkloadDeclaration) -> None:
        self.config = configuration(case)
        super().__init__(case, world, workload)
        if case.precision == "fp16" and self.device.type == "cpu":
            raise DeviceError(f"precision {NO_FP16}")
        self.deepspeed = import_deepspeed(world, self.device)
        join(world, self.device)
        # It finds the process group there, and takes it.
        self.deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
        self.optimizer = build_optimizer(case.optimizer, self.module)
        self.engine = self._engine()
        if case.mode != MODES[0]:
            self.engine.compile()
        self.open_window(0)

    def _engine(self) -> Any:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0  # until set_lr
        engine, *_ = self.deepspeed.initialize(
            model=self.module, optimizer=self.optimizer, config=self.config
        )
        if self.case.option("zero_stage") == 0:
            # In bf16 and fp16 DeepSpeed takes a step of zero gradients to have the states made.
            # It moved nothing, but was counted: the bias corrections would be wrong.
            forget_steps(self.optimizer)
        return engine

    def open_window(self, iterations: int) -> None:
        """As for every back end; steps skipped so far are not the window's."""
        super().open_window(iterations)
        self._skipped_before = self.engine.skipped_steps

    def iterate(self) -> None:
        """One micro-batch; on every k-th the engine averages over ranks and steps."""
        self._micro_steps += 1
        steps, rest = divmod(self._micro_steps, self.case.accumulation)
        loss = self.engine(**self.next_batch())
        with contextlib.nullcontext() if self._reducing else self.engine.no_sync():
            self.engine.backward(loss)
        if rest == 0:
            set_lr(self.optimizer, self.case, steps - 1)
            self._optimizer_steps += 1
        self.engine.step()
        self._loss = loss.detach()

    def set_all_reduce(self, on: bool) -> bool:
        """The engine's ``no_sync``; not under ZeRO, whose optimizer needs all-reduce."""
        if self.case.option("zero_stage"):
            return False
        self._reducing = on
        return True

    def gradient_buckets(self) -> list[int]:
        """The gradient in its precision, in DeepSpeed's buckets of so many numbers."""
        own = self.config["zero_optimization"].get("reduce_bucket_size")
        most = int(own) if isinstance(own, (int, float)) and own >= 1 else BUCKET  # or "auto"
        size = width(self.case)
        cuts = range(0, self.parameters, most)
        return [size * min(most, self.parameters - begin) for begin in cuts]

    def counts(self) -> tuple[int, int]:
        """(optimizer steps, skipped ones) in the window; the engine counts the skipped."""
        return self._optimizer_steps, self.engine.skipped_steps - self._skipped_before

    def held(self) -> Iterable[torch.Tensor]:
        """A parameter that ZeRO-3 has spread is empty between its uses; its part lies beside it."""
        return (getattr(p, "ds_tensor", p) for p in self.module.parameters())

    def state_bytes(self) -> dict[str, int | None]:
        """Not known: besides these DeepSpeed keeps fp32 copies and buffers of its own."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Device, versions, flags, size; DeepSpeed's configuration as in its own file."""
        own = {"deepspeed": self.deepspeed.__version__, "deepspeed_json": json.dumps(self.config)}
        return {**super().facts(), **own}

    def write_state(self, directory: Path) -> None:
        """DeepSpeed's own checkpoint, of which each rank writes its share."""
        state = {"random": self.world.gather(random_states(self.device))}
        self.engine.save_checkpoint(str(directory), tag=_TAG, client_state=state)

    def read_state(self, directory: Path) -> None:
        """Take this rank's share of it."""
        _, state = self.engine.load_checkpoint(str(directory), tag=_TAG)
        set_random_states(state["random"][self.world.rank], self.device)

    def close(self) -> None:
        """Let the engine go, and leave the process group."""
        self.engine.destroy()
        self.deepspeed.comm.destroy_process_group()
