"""What a new environment holds, said in one line; fails if it cannot be used: check.py NAME."""

from __future__ import annotations

import importlib
import sys

MODULES = {
    "deepspeed": ("torch", "deepspeed"),
    "tensorflow": ("tensorflow",),
    "horovod": ("tensorflow", "torch", "horovod", "horovod.tensorflow", "horovod.torch"),
}
MODULES["frameworks"] = (*MODULES["horovod"], "deepspeed")

if __name__ == "__main__":
    name = sys.argv[1]
    # MPI before TensorFlow, as the wrapper does it.
    modules = ["mpi4py.MPI", "numpy", "dlperf_hpc", *MODULES[name]]
    found = {module: importlib.import_module(module) for module in modules}
    versions = {m: getattr(found[m], "__version__", "") for m in modules}
    print(f"{name}: " + ", ".join(f"{m} {v}".strip() for m, v in versions.items()))
