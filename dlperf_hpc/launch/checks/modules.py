"""The environment's Python and its modules, on every node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dlperf_hpc
from dlperf_hpc.launch.checks.ending import listed
from dlperf_hpc.launch.checks.finding import Finding
from dlperf_hpc.launch.checks.trial import Trial

OLDEST_PYTHON = (3, 9)  # that the wrapper runs on
_EXTRAS = {"mpi4py": "mpi", "torch": "torch"}

Facts = Mapping[str, Any]


def environment(trial: Trial, firsts: Sequence[Facts]) -> Iterator[Finding]:
    """The Python and its modules, on every node."""
    yield _python(trial, firsts)
    for name in trial.target.modules:
        yield _module(trial, name, {node["host"]: node["modules"][name] for node in firsts})
    others = {
        f"{name} {version}"
        for node in firsts
        for name, version in node["installed"].items()
        if name not in trial.target.modules
    }
    if others:
        yield trial.found("ok", "also installed", listed(sorted(others)))


def _python(trial: Trial, firsts: Sequence[Facts]) -> Finding:
    versions = {node["python"] for node in firsts}
    seen = listed(sorted({f"{node['python']} ({node['executable']})" for node in firsts}))
    if len(versions) > 1:
        to_do = "the nodes do not have the same environment: install it on a shared file system"
        return trial.found("FAIL", "python", f"differs from node to node: {seen}", to_do)
    old = [v for v in versions if tuple(map(int, v.split(".")[:2])) < OLDEST_PYTHON]
    if old:
        to_do = "give this environment a Python 3.9 or newer in the site profile"
        return trial.found("FAIL", "python", seen, to_do)
    return trial.found("ok", "python", seen)


def _module(trial: Trial, name: str, found: Mapping[str, Facts]) -> Finding:
    errors = {host: facts["error"] for host, facts in found.items() if "error" in facts}
    if errors:
        where = "" if len(errors) == len(found) else f" on {listed(errors)}"
        python = trial.environment.interpreter
        seen = f"{next(iter(errors.values()))}{where}"
        return trial.found("FAIL", name, seen, _how_to_install(name, python))
    versions = {facts["version"] for facts in found.values()}
    if len(versions) > 1:
        each = listed(f"{host} {facts['version']}" for host, facts in found.items())
        to_do = "the nodes do not have the same environment: install it on a shared file system"
        return trial.found("FAIL", name, f"differs from node to node: {each}", to_do)
    facts = next(iter(found.values()), {"version": "unknown"})
    details = [facts["library"]] if "library" in facts else []
    details += [f"CUDA {facts['cuda']}"] if facts.get("cuda") else []
    slow = max((f.get("seconds", 0) for f in found.values()), default=0)
    details += [f"imported in {slow:.1f} s"] if slow >= 1 else []
    seen = facts["version"] + (f" ({listed(details)})" if details else "")
    if name == "dlperf_hpc" and facts["version"] != dlperf_hpc.__version__:
        to_do = f"install the login node's version there: {dlperf_hpc.__version__}"
        return trial.found("warn", name, seen, to_do)
    return trial.found("ok", name, seen)


def _how_to_install(name: str, python: str) -> str:
    if name == "dlperf_hpc":
        extra = "a checkout of this project, with the extras mpi and that of the framework"
    elif name in _EXTRAS:
        extra = f"this project's extra {_EXTRAS[name]!r}"
    else:
        extra = name
    return f"install {extra}, with {python} -m pip; or load its module in setup of the site profile"
