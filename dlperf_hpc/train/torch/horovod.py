"""Horovod under PyTorch. Imports both: never loaded on the login node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import horovod.torch as hvd
import torch

from dlperf_hpc.model.case import MODES, Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.backends.horovod import check_world, horovod_facts
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.torch.optimizers import build_optimizer, pass_scaling_on
from dlperf_hpc.train.torch.session import TorchSession

_NEVER = 2**62  # backward passes


class HorovodTorchSession(TorchSession):
    """Model, data and optimizer of one rank; see :class:`dlperf_hpc.train.session.Session`."""

    def __init__(self, case: Case, world: World, workload: WorkloadDeclaration) -> None:
        super().__init__(case, world, workload)
        hvd.init()  # takes the MPI world that is already there
        check_world(hvd, world)
        self._every = case.option("allreduce") == "every_micro_batch"
        self._passes = 1 if self._every else case.accumulation  # to one all-reduce
        self.model = torch.compile(self.module) if case.mode != MODES[0] else self.module
        hvd.broadcast_parameters(self.module.state_dict(), root_rank=0)
        chosen = case.option("fp16_compression")
        own = build_optimizer(case.optimizer, self.module)
        # Without named parameters it names them itself, by their order.
        self.optimizer = hvd.DistributedOptimizer(
            own,
            compression=hvd.Compression.fp16 if chosen else hvd.Compression.none,
            backward_passes_per_step=self._passes,
            op=hvd.Average,
        )
        pass_scaling_on(own, self.optimizer)
        self.open_window(0)

    @contextmanager
    def reduction(self, last: bool) -> Iterator[None]:
        """Horovod's hooks begin to average in the backward pass."""
        yield
        if (last or self._every) and self._reducing:
            # In mid-accumulation this averages sums, whose earlier parts are averages already and
            # stay what they are.
            self.optimizer.synchronize()

    def step(self) -> None:
        """As for every back end; what was averaged is not averaged again."""
        with self.optimizer.skip_synchronize():
            super().step()

    def set_all_reduce(self, on: bool) -> bool:
        """The hooks send a gradient at every so many-th backward pass; off is never."""
        if on != self._reducing:
            self.optimizer.set_backward_passes_per_step(self._passes if on else _NEVER)
            self._reducing = on
        return True

    def facts(self) -> dict[str, Any]:
        """What all PyTorch sessions tell, and how Horovod was built."""
        return {**super().facts(), **horovod_facts(hvd)}

    def close(self) -> None:
        """End Horovod's thread; MPI stays."""
        hvd.shutdown()
