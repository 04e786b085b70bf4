"""What every PyTorch back end's session does alike: device, process group, optimizer step,
counters, facts, and what was seen of attention kernels and torch.compile. Never loaded on the login
node."""

from __future__ import annotations

import contextlib
import datetime
import os
import resource
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from dlperf_hpc.model.case import MODES, Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.checkpoints import Resumable, rank_file
from dlperf_hpc.train.feeds import open_feed
from dlperf_hpc.train.measurement import IterationClock
from dlperf_hpc.train.probe import bandwidth
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.telemetry import take_place
from dlperf_hpc.train.torch.device import (
    AUTOCAST,
    choose_device,
    device_facts,
    set_precision,
    uuid_of,
)
from dlperf_hpc.train.torch.optimizers import set_lr

# Longer than any limit of the watchdog's: torch would abort first, and nothing be written down.
TIMEOUT = datetime.timedelta(days=1)
_KERNELS = {
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_attention_math": "math",
}
"""What torch's profiler calls the operators that ``scaled_dot_product_attention`` chooses from."""


def join(world: World, device: torch.device) -> None:
    """Form the process group; a process that measures several models in turn has one already."""
    if not dist.is_initialized():
        bandwidth.join(world.comm, world.address, device, timeout=TIMEOUT)


def attention_of(work: Callable[[], object]) -> str | None:
    """The attention kernels that a call ran, joined by ``+``; None where none was seen (a compiler
    takes ``math`` apart). It costs a profiler of the host's calls: keep it out of what is timed."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it tells of its beginning and its end
    seen = profile(activities=[ProfilerActivity.CPU])
    try:
        seen.start()
    except RuntimeError:  # another tool may hold the profiler: the run is worth more than this
        work()
        return None
    try:
        work()
    finally:
        seen.stop()
    names = {event.name for event in seen.events() or ()}
    return "+".join(sorted({_KERNELS[name] for name in names & _KERNELS.keys()})) or None


def compiled_so_far() -> tuple[int, int]:
    """(graphs that torch.compile made in this process, graph breaks that it met)."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:  # nothing was compiled: importing it takes a second
        return 0, 0
    counters = dynamo.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


class TorchSession(Resumable):
    """The half of a :class:`dlperf_hpc.train.session.Session` that no PyTorch back end does its own
    way. One that derives from it wraps ``module``, the plain model on this rank's ``device``, as
    its ``model``, calls :meth:`open_window` when it is ready, and writes :meth:`reduction` and
    :meth:`set_all_reduce`. ``batch`` has the model's arguments by name; ``optimizer`` has this
    rank's state. One whose library scales losses itself writes :meth:`iterate`,
    :meth:`write_state` and :meth:`read_state`, and leaves ``scaler`` alone."""

    model: Any  # as it is called
    module: torch.nn.Module
    optimizer: Any  # torch's, or a library's around it

    def __init__(self, case: Case, world: World, workload: WorkloadDeclaration) -> None:
        self.case = case
        self.world = world
        self.device = choose_device(case, world)
        self.place = take_place(case, uuid_of(self.device))
        set_precision(case, self.device)
        torch.manual_seed(case.seed)
        self.module = self.placed(workload.build("torch", case))
        torch.manual_seed(case.seed * 1_000_003 + world.rank)  # dropout is each rank's own
        self.parameters = sum(p.numel() for p in self.module.parameters())
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=case.precision == "fp16")
        self._feed = open_feed(case, world, workload, self._host_tensors)
        if self._feed:
            self.batch = self._on_device(self._feed.next_batch())
        else:
            self.batch = self._on_device(self._host_tensors(workload.batch(case, world.rank)))
        self._micro_steps = 0
        self._reducing = True
        self._loss = torch.zeros((), device=self.device)
        self._attention: str | None = None
        self._gradient_bytes: int | None = None
        self._compiled_at_first = compiled_so_far()

    def placed(self, module: torch.nn.Module) -> torch.nn.Module:
        """The whole model on this rank's device."""
        return module.to(self.device)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Where a forward pass computes in bf16 or fp16, and nothing in full precision."""
        kind = AUTOCAST.get(self.case.precision)
        return torch.autocast(self.device.type, kind) if kind else contextlib.nullcontext()

    def next_batch(self) -> dict[str, torch.Tensor]:
        """The model's arguments for one micro-batch, on this rank's device. Synthetic data is one
        batch that stays there; real data is the next one read ahead."""
        return self._on_device(self._feed.next_batch()) if self._feed else self.batch

    def _host_tensors(self, arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Tensors in host memory; for a GPU in pages that it can fetch while the host goes on."""
        tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
        if self.device.type != "cuda":
            return tensors
        torch.cuda.set_device(self.device)  # a thread's own setting, and this may be the feed's
        return {name: tensor.pin_memory() for name, tensor in tensors.items()}

    def _on_device(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: t.to(self.device, non_blocking=True) for name, t in tensors.items()}

    def reduction(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around a micro-batch, the ``last`` of an accumulation or not, that is averaged or not."""
        raise NotImplementedError

    def iterate(self) -> None:
        """One micro-batch; on every k-th the gradients are averaged over ranks and applied."""
        self._micro_steps += 1
        last = self._micro_steps % self.case.accumulation == 0
        with self.reduction(last):
            with self.autocast():
                loss = self.model(**self.next_batch())
            share = loss
            if self.case.accumulation > 1:
                share = loss / self.case.accumulation
            self.scaler.scale(share).backward()
        if last:
            self.step()
        self._loss = loss.detach()

    def step(self) -> None:
        """The optimizer's step, with the rate of the schedule."""
        # Not _optimizer_steps: a window counts its own from 0.
        set_lr(self.optimizer, self.case, self._micro_steps // self.case.accumulation - 1)
        if self._gradient_bytes is None:  # later ones are as large
            gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
            self._gradient_bytes = bytes_of(gradients)
        clip = self.case.optimizer.grad_clip
        if clip:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip, foreach=True)
        self.scaler.step(self.optimizer)
        if self.scaler.is_enabled():
            # Kept on the device: asking whether a step was skipped would wait for it.
            self._skipped += sum(self.scaler._found_inf_per_device(self.optimizer).values())
        self.scaler.update()
        # Not Horovod's own, which asks whether an all-reduce is under way: without one it was never
        # begun.
        torch.optim.Optimizer.zero_grad(self.optimizer)
        self._optimizer_steps += 1

    def synchronize(self) -> None:
        """Wait for the GPU; a CPU's work is done when its call returns."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def open_window(self, iterations: int) -> None:
        """Make room for one mark and one loss per iteration, and for those at the beginning."""
        self._retried_before = 0
        self._retried_before = self.memory_account().get("alloc_retries", 0)
        self._graphs_before, _ = compiled_so_far()
        if self._feed:
            self._feed.open_window()
        self._optimizer_steps = 0
        self._skipped: Any = torch.zeros((), device=self.device)
        cuda = torch.cuda if self.device.type == "cuda" else None
        self._clock = IterationClock(iterations, cuda, self._loss)

    def step_times(self) -> list[float]:
        """Seconds of each iteration of the window."""
        self.synchronize()
        return self._clock.step_times()

    def losses(self) -> list[float]:
        """This rank's loss of each iteration of the window."""
        values: list[float] = torch.stack(self._clock.losses[1:]).tolist()
        return values

    def counts(self) -> tuple[int, int]:
        """(optimizer steps, skipped ones) in the window."""
        return self._optimizer_steps, int(self._skipped.item())

    def fingerprint(self) -> float:
        """Sum of magnitudes over what this rank holds of the parameters, in double precision."""
        with torch.no_grad():
            return float(sum(p.abs().sum(dtype=torch.float64) for p in self.held()))

    def held(self) -> Iterable[torch.Tensor]:
        """What this rank holds of the parameters, between two iterations."""
        return map(local, self.module.parameters())

    def state_bytes(self) -> dict[str, int | None]:
        """Bytes that this rank holds of parameters, of gradients as an optimizer step reads them,
        and of the optimizer's state."""
        # A placed optimizer's own half updates this rank's share, and has its state.
        states = getattr(self.optimizer, "optim", self.optimizer).state.values()
        moments = [t for state in states for t in state.values() if torch.is_tensor(t)]
        return {
            "parameter_bytes": bytes_of(self.held()),
            "gradient_bytes": self._gradient_bytes,
            "optimizer_bytes": bytes_of(moments),
        }

    def gradient_buckets(self) -> list[int]:
        """Bytes of each part in which torch.distributed averages the gradients; empty where
        something else does."""
        return []

    def timed_all_reduces(self, sizes: Sequence[int], budget_s: float) -> dict[str, Any]:
        """What :func:`.bandwidth.timed_sizes` gives of all-reduces of these bytes, and by what."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what the allocator keeps is not free
        prepare, comm = bandwidth.by_torch(self.device), self.world.comm
        found = bandwidth.timed_sizes(comm, prepare, "all-reduce", budget_s, self.device, sizes)
        return {"by": f"torch.distributed, {dist.get_backend()}", **found}

    def memory_mb(self) -> float:
        """Peak of the CUDA allocator, or of the process's resident set; MiB."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def memory_account(self) -> dict[str, Any]:
        """How often CUDA's allocator was out of memory in the window, gave its cache back and asked
        again (``alloc_retries``), how often in vain so far (``ooms``), and the most memory it has
        held, in use or not, MiB. Empty for a CPU."""
        if self.device.type != "cuda":
            return {}
        stats = torch.cuda.memory_stats(self.device)
        return {
            "alloc_retries": stats.get("num_alloc_retries", 0) - self._retried_before,
            "ooms": stats.get("num_ooms", 0),
            "reserved_mb": round(stats.get("reserved_bytes.all.peak", 0) / 2**20, 1),
        }

    def iterate_observed(self) -> None:
        """:meth:`iterate`, and see which attention kernel it runs: slower than that."""
        self._attention = attention_of(self.iterate)

    def execution(self) -> dict[str, Any]:
        """How the model was run: the attention kernel that was seen, what this rank held, and of a
        compiled one its graphs, graph breaks, and graphs made since the window was opened."""
        execution: dict[str, Any] = {"attention": self._attention, **self.state_bytes()}
        if self.case.mode != MODES[0]:
            graphs, breaks = compiled_so_far()
            graphs_at_first, breaks_at_first = self._compiled_at_first
            execution["graphs"] = graphs - graphs_at_first
            execution["graph_breaks"] = breaks - breaks_at_first
            execution["recompiles"] = graphs - self._graphs_before
        return execution

    def write_state(self, directory: Path) -> None:
        """This rank's part of a checkpoint."""
        state = {name: part.state_dict() for name, part in self._stateful().items()}
        state["random"] = random_states(self.device)
        torch.save(state, rank_file(directory, self.world.rank, "pt"))

    def read_state(self, directory: Path) -> None:
        """Take this rank's part of a checkpoint."""
        path = rank_file(directory, self.world.rank, "pt")
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, part in self._stateful().items():
            part.load_state_dict(state[name])
        set_random_states(state["random"], self.device)

    def _stateful(self) -> dict[str, Any]:
        # A placed optimizer's own half updates this rank's share, and has its state.
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        return {"module": self.module, "optimizer": optimizer, "scaler": self.scaler}

    def facts(self) -> dict[str, Any]:
        """Device, versions, flags, and the size of what is trained."""
        return {**device_facts(self.device), **self.place, **self.training_facts()}

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is spread over ranks (DTensor); any other as it is."""
    part: torch.Tensor = getattr(tensor, "to_local", lambda: tensor)()
    return part


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of what this rank holds of these tensors."""
    return sum(part.numel() * part.element_size() for part in map(local, tensors))


def random_states(device: torch.device) -> list[torch.Tensor]:
    """Where dropout goes on: the CPU's generator, and a GPU's."""
    gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *gpu]


def set_random_states(states: list[torch.Tensor], device: torch.device) -> None:
    """Inverse of :func:`random_states`."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
