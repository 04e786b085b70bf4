"""Horovod under PyTorch and under TensorFlow: two back ends, one all-reduce of gradients.

MPI carries the gradients on CPUs, NCCL on GPUs where Horovod was built with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.case import MODES, OPTIMIZERS, Case, Option
from dlperf_hpc.sweepfile.declarations import BackendDeclaration, WorkloadDeclaration
from dlperf_hpc.train.backends import BIND, PRECISIONS, XLA
from dlperf_hpc.train.session import load

if TYPE_CHECKING:
    from dlperf_hpc.train.ranks import World
    from dlperf_hpc.train.session import Session

_CURE = "make an environment with it: dlperf env make horovod (docs/frameworks.md)"


def open_torch(case: Case, world: World, workload: WorkloadDeclaration) -> Session:
    """Initialise Horovod and build model, data and optimizer on this rank's device.

    RunError if Horovod or PyTorch cannot be imported, WorldError if Horovod's ranks are not MPI's.
    """
    form = load("dlperf_hpc.train.torch.horovod", "Horovod for PyTorch", _CURE)
    session: Session = form.HorovodTorchSession(case, world, workload)
    return session


def open_tensorflow(case: Case, world: World, workload: WorkloadDeclaration) -> Session:
    """Initialise Horovod and build model, data and optimizer on this rank's device.

    RunError if Horovod or TensorFlow cannot be imported, WorldError if Horovod's ranks are not
    MPI's.
    """
    form = load("dlperf_hpc.train.tensorflow.horovod", "Horovod for TensorFlow", _CURE)
    session: Session = form.HorovodTensorflowSession(case, world, workload)
    return session


def check_world(hvd: Any, world: World) -> None:
    """WorldError unless Horovod's ranks are MPI's; ``hvd`` is its module, initialised."""
    theirs = (hvd.rank(), hvd.size(), hvd.local_rank())
    ours = (world.rank, world.size, world.local_rank)
    if theirs != ours:
        raise WorldError(
            f"Horovod counts rank, size and local rank as {theirs}, MPI as {ours}: unset the"
            " HOROVOD_* variables, and build Horovod with this environment's MPI"
            " (dlperf env make horovod)"
        )


def horovod_facts(hvd: Any) -> dict[str, Any]:
    """Version and build of Horovod, as ``hvd``, its module, tells them."""
    import horovod

    return {
        "horovod": horovod.__version__,
        "horovod_mpi": bool(hvd.mpi_built() and hvd.mpi_enabled()),
        "horovod_nccl": bool(hvd.nccl_built()),
    }


_OPTIONS = (
    BIND,
    Option("fp16_compression", False, "reduce gradients over ranks in half precision"),
    Option(
        "allreduce",
        "post_accumulation",
        "once per optimizer step, or every_micro_batch",
        ("post_accumulation", "every_micro_batch"),
    ),
)
BACKENDS = (
    BackendDeclaration(
        name="horovod-torch",
        doc="Horovod for PyTorch",
        framework_name="Horovod",
        data_sources=("synthetic", "real"),
        library="torch",
        precisions=PRECISIONS,
        optimizers=OPTIMIZERS,
        open_session=open_torch,
        modes=MODES[:2],
        options=(*_OPTIONS,),
        modules=("horovod",),
    ),
    BackendDeclaration(
        name="horovod-tensorflow",
        doc="Horovod for TensorFlow",
        framework_name="Horovod",
        data_sources=("synthetic", "real"),
        library="tensorflow",
        precisions=PRECISIONS,
        optimizers=OPTIMIZERS,
        open_session=open_tensorflow,
        options=(
            *_OPTIONS,
            XLA,
        ),
        modules=("horovod",),
    ),
)
