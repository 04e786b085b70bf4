"""The all-reduce probe of real ranks: what it writes, and that its failure costs nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sweeping import TINY, Workplace, local_environment

from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.logfile import read_log

GRADIENT = 4 * 4_434_242  # bytes of bert-tiny's, fp32
FAILING = """\
import os
if os.environ.get("PMI_RANK") == "1":
    from dlperf_hpc.train.probe import bandwidth
    def timed_sizes(*_, **__):
        raise RuntimeError("a link is down")
    bandwidth.timed_sizes = timed_sizes
"""


def probed(tmp_path: Path, *topologies: str, **environment: str) -> dict[str, RunResult]:
    place = Workplace(tmp_path, {**local_environment(), **environment})
    text = TINY.format(repeats=1, topologies=list(topologies), time_limit="00:20:00")
    text += "allreduce_probe = true\ncheckpoint = true\ncommunication_steps = 0\n"
    done = place.verb("sweep", place.write("probed.toml", text), "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    return place.results("probed")


def test_a_run_has_the_times_of_its_gradients_all_reduce(tmp_path: Path) -> None:
    alone, result = probed(tmp_path, "1n1g", "1n2g").values()
    assert alone.allreduces is None and not alone.warnings  # one process has nobody to meet
    found = result.allreduces
    assert result.status is Status.OK and found is not None and not result.warnings
    assert found.bytes[0] == GRADIENT and all(0 < size < GRADIENT for size in found.bytes[1:])
    assert found.buckets >= len(found.bytes) - 1
    assert (found.by, found.ranks) == ("torch.distributed, gloo", 2)
    assert all(ms > 0 for ms in found.ms) and min(found.iterations) >= 3
    # Of two ranks each sends and receives half of it twice.
    assert found.total_bus_gb_s == pytest.approx(GRADIENT / found.ms[0] / 1e6)
    line = read_log(Path(result.log)).tables["allreduce_probe"]
    assert line["bus_gb_s"][0] == pytest.approx(found.total_bus_gb_s, rel=1e-3)
    assert result.checkpoint is not None  # which comes behind it


def test_a_rank_that_fails_in_it_costs_no_figure_of_the_window(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILING)
    (result,) = probed(tmp_path, "1n2g", PYTHONPATH=os.fspath(tmp_path)).values()
    assert result.status is Status.OK and result.rates["samples/s"] > 0
    assert result.allreduces is None and result.checkpoint is None
    first, second = result.warnings
    assert first.startswith("allreduce_probe: ") and "a link is down" in first
    assert second.startswith("checkpoint: not tried after the probe: ")
