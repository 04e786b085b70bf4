"""Finds every back end and workload by its file: a new one needs no edit anywhere else.

A module of ``train/backends`` declares ``BACKENDS``, one of ``train/workloads`` declares
``WORKLOADS``. Their forms for one framework (``bert_torch.py``) import it at the top and are left
alone here, so that the login node loads none.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from dlperf_hpc.spec.declarations import BackendDeclaration, Registry, WorkloadDeclaration
from dlperf_hpc.train import backends, workloads

_FORMS = ("_torch", "_tensorflow")

# Keys of a sweep that are settled, while what they drive is not built in this version.
PLANNED_BACKENDS = {
    "deepspeed": "the DeepSpeed back end does not exist yet in this version; ddp does",
    "tensorflow": "the TensorFlow back end does not exist yet in this version; ddp does",
    "horovod": "the Horovod back end does not exist yet in this version; ddp does",
}
PLANNED_WORKLOADS: dict[str, str] = {}
PLANNED_OPTIONS = {
    "zero_stage": "ZeRO belongs to the DeepSpeed back end, which does not exist yet",
    "xla": "XLA belongs to the TensorFlow and Horovod back ends, which do not exist yet",
    "optimizer_placement": "optimizer placement (ZeRO-1 style) is not built yet",
    "fp16_compression": "gradient compression belongs to the Horovod back end, not built yet",
    "deepspeed_config": "a DeepSpeed configuration needs the DeepSpeed back end, not built yet",
}


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.endswith(_FORMS):
            yield importlib.import_module(f"{package.__name__}.{info.name}")


@cache
def registry() -> Registry:
    """Everything declared in this installation."""
    found: dict[str, BackendDeclaration] = {}
    for module in _modules(backends):
        found.update({backend.name: backend for backend in module.BACKENDS})
    models: dict[str, WorkloadDeclaration] = {}
    for module in _modules(workloads):
        models.update({workload.name: workload for workload in module.WORKLOADS})
    return Registry(found, models, PLANNED_BACKENDS, PLANNED_WORKLOADS, PLANNED_OPTIONS)
