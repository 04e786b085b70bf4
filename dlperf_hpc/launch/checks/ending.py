"""How a short job ended, and in whose words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from dlperf_hpc.launch.checks.finding import Finding, Grade
from dlperf_hpc.launch.checks.login import other_mpi
from dlperf_hpc.launch.checks.trial import Trial
from dlperf_hpc.launch.epilogue import explain
from dlperf_hpc.records.task import ARRAY_MARK, LAUNCH_MARK
from dlperf_hpc.train.probe.speech import MARK


def ended_well(trial: Trial) -> Finding:
    """Whether the job ran at all, and if not, why."""
    target = trial.target
    nodes, ranks = target.topology.nodes, target.ranks
    shape = f"{nodes} node{'s' * (nodes > 1)}, {ranks} rank{'s' * (ranks > 1)}"
    if trial.refused:
        return trial.found("FAIL", "job", f"refused: {trial.refused}", "see `sweep --dry-run`")
    name = f"job {trial.job_id.split('_')[0]} ({shape})"
    if trial.cancelled:
        grade: Grade = "warn" if "pending" in trial.cancelled else "FAIL"
        to_do = "nothing is known of the compute nodes; try again with a longer --timeout"
        return trial.found(grade, "job", f"{name}: {trial.cancelled}; cancelled", to_do)
    if trial.parts:
        silent = [rank for rank in range(target.ranks) if rank not in trial.parts]
        if not silent:
            return trial.found("ok", "job", f"{name}: every rank reported")
        seen = f"{name}: nothing from rank {listed(silent)}: {last_words(trial)}"
        return trial.found("FAIL", "job", seen)
    return _nothing_heard(trial, name)


def _nothing_heard(trial: Trial, name: str) -> Finding:
    if trial.output:
        to_do = "correct python, mpi or setup of this environment in the site profile"
        words = last_words(trial)
        if f"{trial.directory}/probe" in words:
            to_do = "the log directory is not there on the nodes: give a shared one with --logs"
        if "MPI plug-in" in words:
            to_do = other_mpi(trial.environment.mpi)
        if "SyntaxError" in trial.output:
            to_do = "give this environment a Python 3.9 or newer in the site profile"
        return trial.found("FAIL", "job", f"{name}: {words}", to_do)
    state = trial.state
    where = f" on {state.nodes}" if state and state.nodes else ""
    seen = f"{name}: {state.state} ({state.reason}){where}" if state else f"{name}: gone"
    to_do = (
        f"{trial.logs} must be one directory on login and compute nodes that"
        " both can write: give another with --logs"
    )
    return trial.found("FAIL", "log directory", f"{seen}, and no output of it shows here", to_do)


def last_words(trial: Trial) -> str:
    """Why ranks are missing: in their own words, srun's, or at last the scheduler's."""
    if stuck_in(trial):
        return f"stuck in {stuck_in(trial)}"
    _status, reason = explain(1 if trial.code is None else trial.code, _others(trial.output), [])
    state = trial.state
    if trial.code is None and state and state.state not in ("RUNNING", "COMPLETED", "FINISHED"):
        return f"{reason}; Slurm: {state.state} ({state.reason}) on {state.nodes}"
    return reason


def stuck_in(trial: Trial) -> str:
    """What the ranks were at when one of them had to end itself; '' if none had to."""
    match = re.search(r"^(?:(\d+): )?Timeout \(", trial.output, re.MULTILINE)
    if match is None:
        return ""
    phases = {rank: part["phase"]["name"] for rank, part in trial.parts.items() if "phase" in part}
    common = Counter(phases.values()).most_common(1)
    return phases.get(int(match[1] or -1)) or (common[0][0] if common else "its first step")


def _others(output: str) -> str:
    """The output without the ranks' reports."""
    ours = (MARK, ARRAY_MARK, LAUNCH_MARK)
    kept = [line for line in output.splitlines() if not any(mark in line for mark in ours)]
    return "\n".join(kept) + "\n"


def listed(values: Iterable[Any]) -> str:
    """Values with commas between them."""
    return ", ".join(map(str, values))
