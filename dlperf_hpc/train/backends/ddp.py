"""PyTorch DistributedDataParallel: NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

from dlperf_hpc.model.case import MODES, Case, Option
from dlperf_hpc.sweepfile.declarations import BackendDeclaration, Memory, ModelSize
from dlperf_hpc.train.backends import ALIKE, BIND, replicated
from dlperf_hpc.train.session import TORCH_CURE, opener


def memory(case: Case, size: ModelSize) -> Memory:
    """What a rank needs. DDP's buckets are the gradients and stay; one rank may be without them."""
    parts = case.ranks if case.option("optimizer_placement") else 1
    return replicated(case, size, parts, case.ranks > 1 or case.option("one_rank") == "ddp")


BACKENDS = (
    BackendDeclaration(
        name="ddp",
        doc=__doc__,
        framework_name="PyTorch",
        library="torch",
        **ALIKE,
        open_session=opener("torch.ddp", "DdpSession", "PyTorch", TORCH_CURE),
        modes=MODES,
        memory=memory,
        options=(
            BIND,
            Option(
                "bucket_mb",
                25,
                "size of DDP's gradient buckets, MiB; in modes that compile 100 unless it is given",
                minimum=1,
                compiled=100,  # as torchtitan's: layers that are compiled end sooner
            ),
            Option(
                "one_rank",
                "ddp",
                "a single rank trains in DDP as many do, or plain: without its copies of gradients",
                ("ddp", "plain"),
            ),
            Option(
                "optimizer_placement",
                False,
                "split the optimizer's state over ranks (ZeRO stage 1): ZeroRedundancyOptimizer",
            ),
        ),
    ),
)
