"""Horovod under PyTorch and under TensorFlow: two back ends, one all-reduce of gradients. MPI
carries the gradients on CPUs, NCCL on GPUs where Horovod was built with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.case import LARGEST, MODES, Case, Option
from dlperf_hpc.sweepfile.declarations import BackendDeclaration
from dlperf_hpc.train.backends import ALIKE, BIND, XLA, replicated
from dlperf_hpc.train.session import opener

if TYPE_CHECKING:
    from dlperf_hpc.train.ranks import World

_CURE = "make an environment with it: dlperf env make horovod (docs/frameworks.md)"


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
    """Version and build of Horovod, by ``hvd``, its module."""
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


def _check(case: Case) -> Iterator[tuple[str, str]]:
    if case.largest:
        why = "Horovod's need MPI, which only the ranks of a job can join: give a number"
        yield "batch_size", f'"{LARGEST}" starts new processes for each size, and {why}'


_HOROVOD: dict[str, Any] = {
    **ALIKE, "framework_name": "Horovod", "modules": ("horovod",), "check": _check
}  # fmt: skip
BACKENDS = (
    BackendDeclaration(
        name="horovod-torch",
        doc="Horovod for PyTorch",
        library="torch",
        open_session=opener("torch.horovod", "HorovodTorchSession", "Horovod for PyTorch", _CURE),
        modes=MODES[:2],
        memory=replicated,
        options=_OPTIONS,
        **_HOROVOD,
    ),
    BackendDeclaration(
        name="horovod-tensorflow",
        doc="Horovod for TensorFlow",
        library="tensorflow",
        open_session=opener(
            "tensorflow.horovod", "HorovodTensorflowSession", "Horovod for TensorFlow", _CURE
        ),
        options=(*_OPTIONS, XLA),
        **_HOROVOD,
    ),
)
