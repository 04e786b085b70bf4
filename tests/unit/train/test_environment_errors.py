"""Which errors before the first step say that the environment lacks something."""

from __future__ import annotations

import pytest

from dlperf_hpc.errors import DeviceError, RunError, WorldError
from dlperf_hpc.records.quarantine import KINDS
from dlperf_hpc.train.ranks import World, gpu_indices
from dlperf_hpc.train.session import fault_of, load

DDP = ("torch",)


def test_a_module_that_the_back_end_declares() -> None:
    with pytest.raises(ImportError) as caught:
        import no_such_framework.nn  # type: ignore[import-not-found]  # noqa: F401
    assert fault_of(caught.value, ("no_such_framework",)) == "framework"
    assert fault_of(caught.value, DDP) == ""


def test_a_back_end_that_says_so_itself() -> None:
    with pytest.raises(RunError) as caught:
        load("no_such_framework", "Framework", "install it")
    assert fault_of(caught.value, DDP) == "framework"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ImportError("libcudart.so.12: cannot open", name="torch._C"), "library"),
        (OSError("libcublas.so.12: cannot open shared object file: No such file"), "library"),
        (WorldError("mpi4py cannot start MPI on n1", fault="mpi"), "mpi"),
        (ModuleNotFoundError("No module named 'h5py'", name="h5py"), ""),
        (FileNotFoundError(2, "No such file or directory", "/data/x"), ""),
        (RuntimeError("CUDA error: uncorrectable ECC error"), ""),
        (DeviceError("precision bf16"), ""),
        (RunError("fault drill: rank 0 raises"), ""),
        (MemoryError(), ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_is_and_what_is_not_of_the_environment(error: Exception, kind: str) -> None:
    assert fault_of(error, DDP) == kind
    assert kind in ("", *KINDS)


def test_no_gpu_is_the_environments_only_where_no_rank_has_one() -> None:
    world = World(1, ("n1", "n2"))
    for seen, kind in (([[], []], "gpu"), ([["GPU-1"], []], "")):
        with pytest.raises(DeviceError) as caught:
            gpu_indices(world, seen)
        assert fault_of(caught.value, DDP) == kind
