"""The FSDP back end's session, by PyTorch's ``fully_shard`` (FSDP2). Imports torch: never loaded on
the login node.

Each layer is a unit whose parameters are gathered together; what is left of the model (embeddings,
last LayerNorm, heads) is another, the root, which stays gathered from its forward pass to the end
of the backward pass. Parameters, gradients and optimizer state are fp32 shards along dimension 0.
During an accumulation each rank keeps whole fp32 gradients of its own; they are reduced once, in
the backward pass of the last micro-batch. Parameters are gathered for every micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.case import MODES, Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.backends.fsdp import NODE
from dlperf_hpc.train.checkpoints import rank_file
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.torch import session
from dlperf_hpc.train.torch.ddp import compiled
from dlperf_hpc.train.torch.optimizers import build_optimizer


class FsdpSession(session.TorchSession):
    """Model, data and optimizer of one rank; see :class:`dlperf_hpc.train.session.Session`."""

    def __init__(self, case: Case, world: World, workload: WorkloadDeclaration) -> None:
        super().__init__(case, world, workload)
        session.join(world, self.device)
        self.mesh = mesh_over(shards_of(world.hosts, case.option("shard")), self.device)
        if case.mode != MODES[0] and hasattr(self.module, "layers"):
            compiled(self.module, case, ranks=2)  # layer by layer, on one rank too
        elif case.mode != MODES[0]:
            self.module.compile()
        self.model = self._sharded()
        self.optimizer: torch.optim.Optimizer = build_optimizer(case.optimizer, self.module)
        if case.optimizer.name == "sgd":  # torch has no fused one for shards
            for group in self.optimizer.param_groups:
                group.update(fused=False, foreach=True)
        self.open_window(0)

    def placed(self, module: torch.nn.Module) -> torch.nn.Module:
        """In host memory until ``fully_shard`` takes one layer after the other to the device."""
        return module

    def _sharded(self) -> FSDPModule:
        kinds: dict[str, Any] = {}
        if self.case.precision == "bf16":
            kinds = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
        # What comes to a layer is bf16 already; what is float32 there (angles of Llama) stays so.
        inner = MixedPrecisionPolicy(**kinds, cast_forward_inputs=False)
        again = self.case.option("reshard_after_forward")
        for layer in getattr(self.module, "layers", ()):
            fully_shard(layer, mesh=self.mesh, mp_policy=inner, reshard_after_forward=again)
        # The backward pass begins with it: given back, it would be gathered again at once.
        whole = MixedPrecisionPolicy(**kinds)
        return fully_shard(
            self.module, mesh=self.mesh, mp_policy=whole, reshard_after_forward=False
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """None: what is gathered is cast, and the model's inputs."""
        return nullcontext()

    def reduction(self, last: bool) -> AbstractContextManager[None]:
        """FSDP reduces in the backward pass of an accumulation's last micro-batch alone."""
        if self.case.accumulation > 1:
            self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def set_all_reduce(self, on: bool) -> bool:
        """It cannot be left out: the optimizer has a shard, and gets its gradient by reduction."""
        return False

    def gradient_buckets(self) -> list[int]:
        """Each unit's whole gradient, in fp32: what reduce-scatter and all-gather move together, an
        all-reduce does."""
        layers = getattr(self.module, "layers", ())
        counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
        return [4 * count for count in (*counts, self.parameters - sum(counts)) if count]

    def facts(self) -> dict[str, Any]:
        """As for every PyTorch back end, and over how many ranks what is trained is spread."""
        replicas, shards = (1, *self.mesh.shape)[-2:]
        return {**super().facts(), "sharding_degree": shards, "replication_degree": replicas}

    def write_state(self, directory: Path) -> None:
        """This rank's shards, by torch.distributed.checkpoint; of replicas one writes."""
        dcp.save(self._shards(), checkpoint_id=directory)
        random = session.random_states(self.device)
        torch.save(random, rank_file(directory, self.world.rank, "pt"))

    def read_state(self, directory: Path) -> None:
        """Take this rank's shards."""
        shards = self._shards()
        dcp.load(shards, checkpoint_id=directory)
        set_state_dict(
            self.module,
            self.optimizer,
            model_state_dict=shards["module"],
            optim_state_dict=shards["optimizer"],
        )
        path = rank_file(directory, self.world.rank, "pt")
        session.set_random_states(torch.load(path, weights_only=True), self.device)

    def _shards(self) -> dict[str, Any]:
        module, optimizer = get_state_dict(self.module, self.optimizer)
        return {"module": module, "optimizer": optimizer}


def shards_of(hosts: Sequence[str], shard: str) -> list[list[int]]:
    """The ranks that share one set of shards, one list for each replica; ``hosts[r]`` is rank r's
    host, ``shard`` the option. WorldError for ``node`` where nodes have unequal numbers of ranks:
    rank i of each node holds the same part, as its all-reduce partner on every other node."""
    if shard != NODE:
        return [list(range(len(hosts)))]
    nodes = [[r for r, own in enumerate(hosts) if own == host] for host in dict.fromkeys(hosts)]
    if len(set(map(len, nodes))) > 1:
        sizes = ", ".join(str(len(ranks)) for ranks in nodes)
        raise WorldError(
            f"shard = 'node' needs equally many ranks on each node, not {sizes}: check"
            " ntasks-per-node, or set shard = 'all'"
        )
    return nodes


def mesh_over(replicas: Sequence[Sequence[int]], device: torch.device) -> DeviceMesh:
    """The device mesh of FSDP (one replica) or HSDP (several). Its groups have the limit of the
    default group, not torch's own, which is shorter."""
    if len(replicas) == 1:
        everyone: Any = dist.group.WORLD
        return DeviceMesh.from_group(everyone, device.type, mesh_dim_names=("shard",))
    mesh = torch.tensor(replicas)
    groups = [
        dist.new_subgroups_by_enumeration(ranks.tolist(), timeout=session.TIMEOUT)[0]
        for ranks in (mesh.T, mesh)
    ]
    return DeviceMesh.from_group(groups, device.type, mesh, mesh_dim_names=("replicate", "shard"))
