"""The TensorFlow back end under real mpiexec, in the environment of ``make env-tensorflow``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from frameworks import run_checks
from places import SUPPORT
from reference_curve import (
    communication_is_measured,
    ddp_curve,
    is_whole,
    relative,
    same_curve,
    session_checks,
)

from dlperf_hpc.errors import RunError, SpecError
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

Found = dict[str, list[Any]]

SWEEP = """\
topologies = ["{topology}"]
[case]
framework = "tensorflow"
model = "bert-tiny"
batch_size = 2
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensorflow")


@pytest.fixture(scope="module")
def found(directory: Path) -> Found:
    """What each of two workers found, by check."""
    return session_checks("tensorflow", "tensorflow_checks.py", "tensorflow", directory)


@pytest.fixture(scope="module")
def mirrored(directory: Path) -> dict[str, Any]:
    """What one process with two devices found."""
    found = session_checks("tensorflow", "mirrored_checks.py", "tensorflow", directory, ranks=1)
    row: dict[str, Any] = found["mirrored"][0]
    return row


def test_the_loss_curve_is_ddps(found: Found, directory: Path) -> None:
    assert same_curve(found["curve"], ddp_curve(directory))


def test_a_window_is_measured(found: Found) -> None:
    for row in found["window"]:
        is_whole(row)
        assert row["facts"]["strategy"] == "CollectiveAllReduceStrategy"
        assert row["facts"]["fp32_products"] == "fp32" and not row["facts"]["tf32_matmul"]


def test_the_all_reduce_is_left_out_and_its_share_measured(found: Found) -> None:
    communication_is_measured(found["window"])


def test_nothing_is_traced_in_the_window_or_the_warm_up(found: Found) -> None:
    """Both step functions were run before."""
    for row in found["window"]:
        before, after = row["traces"]
        assert before == after and len(before) == 2 and min(before) >= 1


def test_parameters_are_rank_0s_and_stay_equal(found: Found) -> None:
    first, second = (row["digests"] for row in found["window"])
    assert first == second and first[0] != first[1]


def test_xla_computes_the_same(found: Found) -> None:
    for plain, compiled in zip(found["post_accumulation"], found["xla"]):
        assert plain["counts"] == compiled["counts"] == [3, 0]
        assert relative(compiled["losses"], plain["losses"]) < 1e-6
        assert compiled["fingerprint"] == pytest.approx(plain["fingerprint"], rel=1e-7)
        assert compiled["fingerprint"] != plain["fingerprint"], "nothing was compiled"


def test_bf16_trains(found: Found) -> None:
    for half, full in zip(found["in_bf16"], found["post_accumulation"]):
        assert half["losses"] != full["losses"]
        assert relative(half["losses"], full["losses"]) < 1e-2


def test_overflowing_steps_are_skipped_and_counted(found: Found) -> None:
    for first, second in found["overflow"]:
        assert first == [1, 1, False, 0.5]
        assert second == [2, 0, True, 1.0]


def test_one_process_with_two_devices_trains_as_two_do(
    mirrored: dict[str, Any], directory: Path
) -> None:
    ranks = [row["losses"] for row in ddp_curve(directory)]
    means = [sum(pair) / 2 for pair in zip(*ranks)]
    assert relative(mirrored["losses"], means) < 1e-3
    assert mirrored["equal"], "its devices' parameters differ"
    assert mirrored["goes on"], "a checkpoint holds what both devices have"
    assert mirrored["facts"]["strategy"] == "MirroredStrategy"


def test_an_environment_without_it_is_named_with_the_cure() -> None:
    """The tests' own Python has no TensorFlow."""
    with pytest.raises(RunError, match="TensorFlow cannot be imported by") as caught:
        registry().backends["tensorflow"].open_session(None, None, None)
    assert sys.executable in str(caught.value) and "dlperf env make tensorflow" in str(caught.value)


def refusal(tmp_path: Path, topology: str, lines: str) -> str:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.format(topology=topology) + lines, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_sweep(path, registry())
    return str(caught.value)


def test_mirrored_is_one_process(tmp_path: Path) -> None:
    for topology, lines in (
        ("1n2g", 'strategy = "mirrored"'),
        ("2n2g", 'strategy = "mirrored"\nprocesses_per_node = 1'),
    ):
        text = refusal(tmp_path, topology, lines)
        assert "strategy: 'mirrored' is one process" in text and "processes_per_node = 1" in text


def test_processes_per_node_is_one_or_all(tmp_path: Path) -> None:
    assert "or a single one" in refusal(tmp_path, "1n4g", "processes_per_node = 2")
    cpus = refusal(tmp_path, "1n4g", 'processes_per_node = 1\ndevice = "cpu"')
    assert "one CPU device per process" in cpus


def test_a_sweep_may_have_one_process_per_node(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    lines = 'strategy = "mirrored"\nprocesses_per_node = 1\n'
    path.write_text(SWEEP.format(topology="1n4g") + lines, encoding="utf-8")
    (case,) = load_sweep(path, registry()).cases
    assert (case.ranks, case.micro_batch) == (1, 8)
    assert case.tags == ("ppn1", "strategymirrored")


def test_a_reserved_port_is_nobody_elses(tmp_path: Path) -> None:
    """Neither another rank's, nor any other program's; gRPC's server alone can be bound to it."""
    script = SUPPORT / "port_checks.py"
    found = run_checks("tensorflow", script, tmp_path, ranks=1)
    assert found == {"reserved twice": False, "bound by another": False, "by gRPC's way": True}
