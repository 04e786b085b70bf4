"""Finds every back end and workload by its file: a new one needs no edit anywhere else. A module of
``train/backends`` declares ``BACKENDS``, one of ``train/workloads`` declares ``WORKLOADS``. None of
them may import a framework at its top: the login node loads them all."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from dlperf_hpc.sweepfile.declarations import BackendDeclaration, Registry, WorkloadDeclaration
from dlperf_hpc.train import backends, workloads


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(package.__path__):
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
    return Registry(found, models)
