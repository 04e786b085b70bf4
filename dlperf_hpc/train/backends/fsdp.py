"""PyTorch FSDP2 (`fully_shard`), over all ranks or within a node: NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from dlperf_hpc.model.case import MODES, Case, Option
from dlperf_hpc.sweepfile.declarations import BackendDeclaration, Memory, ModelSize
from dlperf_hpc.train.backends import BIND, activations, state_bytes, width
from dlperf_hpc.train.session import opener

_CURE = "install torch 2.6 or later there: python -m pip install 'torch>=2.6' numpy"
_LAMB = "its trust ratio needs norms of whole parameters, and each rank holds a part of them"
ALL, NODE = "all", "node"


def check(case: Case) -> Iterator[tuple[str, str]]:
    """A topology that leaves nothing to be sharded within a node. A topology's nodes are equal, so
    that their number of ranks always divides the number of all ranks."""
    if case.option("shard") == NODE and case.topology.nodes > 1 == case.ranks_per_node:
        why = "a node has one rank, which would hold everything: take 'all', or the back end ddp"
        yield "shard", f"'node' is invalid on {case.topology}: {why}"


def memory(case: Case, size: ModelSize) -> Memory:
    """fp32 shards, and whole gradients through an accumulation. At the peak the root is there with
    its gradients, with two layers and the gradients of one, which are reduced as float32 copies."""
    ranks = case.ranks_per_node if case.option("shard") == NODE else case.ranks
    number, own = size.parameters, width(case)
    shards = number * (4 + state_bytes(case.optimizer)) // ranks
    whole = 4 * number if case.accumulation > 1 else 0
    certain = shards + max(4 * number // ranks, whole)
    root = number - size.layers * size.layer
    layers = 2 if case.option("reshard_after_forward") else size.layers
    gathered = own * (2 * root + (layers + 1) * size.layer) + 4 * size.layer
    return Memory(certain, max(certain, shards + whole + gathered + activations(case, size, own)))


BACKENDS = (
    BackendDeclaration(
        name="fsdp",
        doc=__doc__,
        framework_name="PyTorch",
        library="torch",
        precisions=("fp32", "tf32", "bf16"),
        optimizers=("adam", "adamw", "sgd"),
        data_sources=("synthetic", "real"),
        refused={
            "fp16": "a loss scale would have to be agreed on by all shards in each step: take bf16",
            **dict.fromkeys(("lamb", "lamb-nvidia", "lamb-deepspeed"), _LAMB),
        },
        open_session=opener("torch.fsdp", "FsdpSession", "PyTorch with fully_shard", _CURE),
        modes=MODES[:2],
        check=check,
        memory=memory,
        options=(
            BIND,
            Option(
                "reshard_after_forward",
                True,
                "give a layer's whole parameters back after its forward pass, and gather them"
                " again for the backward pass (as ZeRO stage 3; false is nearer to stage 2)",
            ),
            Option(
                "shard",
                ALL,
                "all: parameters, gradients and optimizer state are spread over all ranks; node:"
                " over the ranks of a node, and every node has them all (HSDP)",
                (ALL, NODE),
            ),
        ),
    ),
)
