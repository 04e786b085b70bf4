"""What fuzzing has found stays mended; and a little of it, lest the harness itself breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from fuzz.mutation import mutated
from fuzz.seeds import LONGEST, dictionary, seeds
from fuzz.target import FINDINGS, check
from places import CAMPAIGNS, SUPPORT

CASES = sorted(path.name for path in FINDINGS.iterdir())


@pytest.mark.parametrize("name", CASES)
def test_what_was_found_stays_mended(name: str) -> None:
    check((FINDINGS / name).read_bytes())


def test_what_fuzzing_starts_from_holds() -> None:
    real = os.environ.get("DLPERF_REAL_LOGS")
    for seed in seeds(Path(real) if real else None):
        check(seed)
    assert all(line.startswith('"') and line.endswith('"') for line in dictionary().splitlines())


@pytest.mark.long
def test_changes_of_lines_hold() -> None:
    """Fuzzing without its guide: 1000 inputs."""
    random = Random(12)
    start = list(seeds(None))
    lines = sorted({line for seed in start for line in seed.split(b"\n")} - {b""})
    for _ in range(1000):
        data = random.choice(start)
        for _ in range(random.choice((1, 2, 5))):
            data = mutated(data, lines, random)[:LONGEST]
        try:
            check(data)
        except Exception:
            print(data)
            raise


@pytest.mark.long
def test_fuzzing_runs_for_a_while(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.fuzz_scan", "-runs=2500"],
        env={
            **os.environ,
            "PYTHONPATH": f"{SUPPORT}:{CAMPAIGNS}",
            "FUZZ_DIR": str(tmp_path),
            "FUZZ_SECONDS": "20",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "number_of_executed_units" in done.stderr
    assert not list((tmp_path / "findings").iterdir())
