"""The local engine's side: mpiexec, topologies, cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from dlperf_hpc.launch.checks.finding import Finding
from dlperf_hpc.launch.command import Output, run
from dlperf_hpc.launch.mpiexec import find_mpiexec
from dlperf_hpc.records.manifest import Array


def mpiexec() -> Finding:
    """Whether there is an mpiexec, and whose."""
    path = find_mpiexec()
    if path is None:
        seen = "neither beside this Python nor on the PATH"
        return Finding("FAIL", "mpiexec", seen, "pip install mpich brings one")
    said: Output = run([path, "--version"], timeout_s=20)
    version = [line.strip() for line in said.stdout.splitlines() if "ersion" in line]
    return Finding("ok", "mpiexec", f"{path}: {version[0] if version else 'version not told'}")


def topologies(arrays: Sequence[Array]) -> Iterator[Finding]:
    """Whether this machine can be what the sweep asks for."""
    wide = sorted({str(array.topology) for array in arrays if array.topology.nodes > 1})
    if wide:
        seen = f"{', '.join(wide)}: the local engine has one node, this machine"
        to_do = "use --cluster slurm, or leave them out with --only"
        yield Finding("FAIL", "topologies", seen, to_do)
    cores = len(os.sched_getaffinity(0))
    most = max((a.tasks[0].case.ranks_per_node for a in arrays), default=1)
    seen = f"{cores} for at most {most} ranks"
    if most > cores:
        yield Finding("warn", "cores", seen, "ranks share cores: times tell little")
    else:
        yield Finding("ok", "cores", seen)
