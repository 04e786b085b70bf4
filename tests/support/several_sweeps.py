"""Sweeps to be reported side by side: the same cases on other hardware, or with other software."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from record_samples import SWEEP, a_run, a_sweep, ended, ended_ok, token_of

from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout

TOPOLOGIES = ("1n1g", "1n2g", "1n4g")
RUNS = [a_run(topology, repeat=n) for topology in TOPOLOGIES for n in (1, 2, 3)]
CPUS = {"may": "EPYC 7742", "june": "EPYC 9654", "july": "EPYC 9654"}
TORCH = {"may": "2.12.0", "june": "2.12.0", "july": "2.13.0"}
SECONDS = {"may": 0.10, "june": 0.05, "july": 0.04}


def a_sweep_of(
    root: Path,
    name: str,
    seconds: float = 0.05,
    facts: Mapping[str, str] | None = None,
    base: str = "1n1g",
    status: Status = Status.OK,
    topologies: Sequence[str] = TOPOLOGIES,
) -> Path:
    """A sweep of this name, in a directory of the same or another, with arrays of its own: an
    iteration takes 1.1 x ``seconds`` / 3, whatever the topology. ``facts`` replaces words of the
    logs."""
    runs = [run for run in RUNS if str(run.case.topology) in topologies]
    a_sweep(root, runs)
    for run in runs:
        if status is Status.OK:
            ended_ok(root, run, seconds=seconds)
        else:
            ended(root, run, status, "no GPU")
    manifest = root / layout.MANIFEST
    text = manifest.read_text().replace(SWEEP, name).replace('"base": "1n1g"', f'"base": "{base}"')
    for topology in TOPOLOGIES:
        text = text.replace(
            token_of(topology), f"dlperf-{str(root).encode().hex()[-40:]}{topology[2]}"
        )
    manifest.write_text(text)
    for log in root.rglob("*.log"):
        text = log.read_text()
        for old, new in (facts or {}).items():
            assert old in text
            text = text.replace(old, new)
        log.write_text(text)
    return root


def three_sweeps(place: Path, names: Sequence[str] = ("may", "june", "july")) -> list[Path]:
    """Sweeps on two kinds of CPU, with two versions of PyTorch, each with a speed of its own."""
    return [
        a_sweep_of(
            place / name,
            name,
            SECONDS[name],
            {
                '"an \\"odd\\" name"': f'"{CPUS[name]}"',
                'hosts=["n1"]': f'hosts=["n1"] torch="{TORCH[name]}"',
            },
        )
        for name in names
    ]
