"""Repeats of a case on other nodes each: ``spread = true`` of the site profile.

When all repeats are submitted, nobody knows yet which nodes the first will get. So each task, as it
begins, notes its own nodes and takes them off what the waiting repeats of its cases may have
(``scontrol update ... ExcNodeList``), while enough nodes are left; else what the earliest repeats
had may be had again. Where this fails the repeats run where Slurm puts them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dlperf_hpc.engines.base import run
from dlperf_hpc.errors import DlperfError, printable
from dlperf_hpc.files import append_line, read_regular
from dlperf_hpc.records import layout
from dlperf_hpc.records.forms import NODE_LIST
from dlperf_hpc.records.layout import EXCLUDED, task_index
from dlperf_hpc.records.ledger import bound_array
from dlperf_hpc.records.manifest import Array

FILE = "spread.jsonl"  # in jobs/: whose repeats were on which nodes
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_MOST_BYTES = 1 << 24
_USABLE = "idle,allocated,mixed,completing"
_PATIENCE_S = 20.0


def to_leave_out(had: Sequence[Collection[str]], nodes: Collection[str], needed: int) -> list[str]:
    """What of ``nodes`` a repeat shall not have: what earlier repeats ``had`` (in the order of
    time), the latest ones first, as far as ``needed`` nodes are left."""
    out: set[str] = set()
    for each in reversed(had):
        more = out | ({*each} & {*nodes})
        if len(nodes) - len(more) < needed:
            break
        out = more
    return sorted(out)


def noted(root: Path) -> dict[str, list[tuple[str, ...]]]:
    """The nodes of the repeats of each case that have begun, in the order of time."""
    found: dict[str, list[tuple[str, ...]]] = {}
    try:
        lines = read_regular(root / layout.JOBS / FILE, _MOST_BYTES).decode(errors="replace")
    except OSError:
        return found
    for line in lines.splitlines():
        try:
            row = json.loads(line)
            case, nodes = str(row["case"]), tuple(map(str, row["nodes"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if all(map(_NODE.fullmatch, nodes)):
            found.setdefault(case, []).append(nodes)
    return found


def spread(root: Path, array: Array, index: int, env: Mapping[str, str] = os.environ) -> None:
    """Note this task's nodes, and take them off those of the repeats that wait. SiteError where
    Slurm does not answer; OSError where the note cannot be written."""
    size = array.repeats_per_job
    mine = list(dict.fromkeys(r.case.id for r in array.tasks[index * size : (index + 1) * size]))
    here = _hostnames(env.get("SLURM_JOB_NODELIST", ""))
    rows = [json.dumps({"case": case, "nodes": here}) for case in mine]
    append_line(root / layout.JOBS / FILE, "\n".join(rows))
    job, had, own = env.get("SLURM_ARRAY_JOB_ID", ""), noted(root), env.get(EXCLUDED, "")
    nodes = {*_usable(env.get("SLURM_JOB_PARTITION", ""))} - {*_hostnames(own)}
    waiting = _waiting(job)
    for case in mine:
        out = to_leave_out(had.get(case, ()), nodes, array.topology.nodes)
        listed = ",".join(filter(None, [own, *out]))
        of_case = {place // size for place, run in enumerate(array.tasks) if run.case.id == case}
        for task in sorted(of_case & waiting):
            update = ["scontrol", "update", f"JobId={job}_{task}", f"ExcNodeList={listed}"]
            done = run(update, timeout_s=_PATIENCE_S)
            if done.returncode:
                words = printable(done.stderr.strip() or f"exit code {done.returncode}")
                print(f"dlperf_hpc: spread: task {task} runs where Slurm puts it: {words}")
                return


def _hostnames(listed: str) -> list[str]:
    if not listed or not re.fullmatch(NODE_LIST, listed):
        return []
    return run(["scontrol", "show", "hostnames", listed], timeout_s=_PATIENCE_S).stdout.split()


def _usable(partition: str) -> list[str]:
    """Nodes of a partition that run jobs, now or later."""
    argv = ["sinfo", "--noheader", "--Node", f"--states={_USABLE}", "--format=%N"]
    argv += [f"--partition={partition}"] if partition else []
    return run(argv, timeout_s=_PATIENCE_S).stdout.split()


def _waiting(job: str) -> set[int]:
    argv = ["squeue", "--noheader", "--array", "--states=PENDING", f"--jobs={job}", "--format=%K"]
    done = run(argv, timeout_s=_PATIENCE_S) if job.isdigit() else None
    return {int(word) for word in (done.stdout.split() if done else ()) if word.isdigit()}


def main(argv: list[str]) -> int:
    """Spread the repeats that wait; ``argv``: sweep directory and array. What fails is told in the
    task's output, and the run begins all the same."""
    try:
        root = Path(argv[0])
        spread(root, bound_array(root, argv[1])[1], task_index())
    except (DlperfError, OSError) as error:
        print(f"dlperf_hpc: spread: repeats run where Slurm puts them: {printable(str(error))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
