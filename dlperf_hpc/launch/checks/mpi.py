"""MPI's world against what the launcher started, and where its ranks lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dlperf_hpc.launch.checks.ending import last_words, listed, stuck_in
from dlperf_hpc.launch.checks.finding import Finding, Grade
from dlperf_hpc.launch.checks.login import other_mpi
from dlperf_hpc.launch.checks.trial import Trial


def world(trial: Trial, engine: str) -> Finding:
    """MPI's world is what the launcher started."""
    worlds = [part["world"] for part in trial.parts.values() if "world" in part]
    wanted = trial.target.ranks
    mpi = trial.environment.mpi
    how = f"--mpi={mpi}" if engine == "slurm" else "mpiexec"
    errors = [world["error"] for world in worlds if "error" in world]
    if errors:
        grade: Grade = "skipped" if "ModuleNotFoundError" in errors[0] else "FAIL"
        to_do = (
            "install an MPI library beside mpi4py (the extra 'mpi'), or load the site's in setup"
        )
        return trial.found(grade, "mpi", f"cannot be started: {errors[0]}", to_do)
    to_do = other_mpi(mpi) if engine == "slurm" else "use the mpiexec of this environment's MPI"
    stuck = stuck_in(trial)
    if len(worlds) < wanted:
        why = last_words(trial)
        seen = f"{len(worlds)} of {wanted} ranks came through MPI_Init under {how}: {why}"
        return trial.found("FAIL", "mpi", seen, to_do)
    sizes = Counter(world["size"] for world in worlds)
    library = worlds[0]["library"]
    if set(sizes) == {1} and wanted > 1:
        seen = f"{wanted} ranks each believe they are alone (world size 1) under {how}; {library}"
        return trial.found("FAIL", "mpi", seen, to_do)
    if set(sizes) != {wanted}:
        seen = f"world sizes {listed(sorted(sizes))}, {wanted} ranks under {how}; {library}"
        return trial.found("FAIL", "mpi", seen, to_do)
    if stuck:
        seen = f"world size {wanted} under {how}, but stuck in {stuck}"
        to_do = "the ranks find each other but do not get through: which network does MPI choose?"
        return trial.found("FAIL", "mpi", seen, to_do)
    alone = " (a single rank: nothing to find)" if wanted == 1 else ""
    return trial.found("ok", "mpi", f"world size {wanted} under {how}{alone}; {library}")


def placement(trial: Trial, hosts: Sequence[str]) -> Finding:
    """So many ranks on each of so many hosts."""
    per_node = Counter(hosts)
    each = trial.target.array.tasks[0].case.ranks_per_node
    seen = listed(f"{host} {count}" for host, count in per_node.items())
    if len(per_node) == trial.target.topology.nodes and set(per_node.values()) == {each}:
        return trial.found("ok", "placement", f"ranks on {seen}")
    wanted = f"{each} on each of {trial.target.topology.nodes} nodes wanted"
    to_do = "look at srun and sbatch in the site profile: --distribution, --ntasks-per-node"
    return trial.found("FAIL", "placement", f"ranks on {seen}; {wanted}", to_do)
