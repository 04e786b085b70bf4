"""Both Horovod back ends on two ranks under real mpiexec, where ``make env-horovod`` put them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frameworks import framework_python
from places import ROOT
from reference_curve import (
    communication_is_measured,
    ddp_curve,
    is_whole,
    relative,
    same_curve,
    session_checks,
)

from dlperf_hpc.errors import RunError
from dlperf_hpc.train.registry import registry

SCRIPTS = {
    "horovod-torch": "horovod_torch_checks.py",
    "horovod-tensorflow": "tensorflow_checks.py",
}
Found = dict[str, list[Any]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("horovod")


@pytest.fixture(scope="module")
def torch_found(directory: Path) -> Found:
    """What each rank found with horovod-torch, by check."""
    return session_checks("horovod", SCRIPTS["horovod-torch"], "horovod-torch", directory)


@pytest.fixture(scope="module")
def tensorflow_found(directory: Path) -> Found:
    """What each rank found with horovod-tensorflow, by check."""
    name = "horovod-tensorflow"
    return session_checks("horovod", SCRIPTS[name], name, directory)


@pytest.fixture(params=["torch_found", "tensorflow_found"])
def found(request: pytest.FixtureRequest) -> Found:
    """One after the other."""
    results: Found = request.getfixturevalue(request.param)
    return results


def test_the_loss_curve_is_ddps(found: Found, directory: Path) -> None:
    assert same_curve(found["curve"], ddp_curve(directory))


def test_a_window_is_measured(found: Found) -> None:
    for row in found["window"]:
        is_whole(row)
        assert row["facts"]["horovod"] == "0.28.1" and row["facts"]["horovod_mpi"]


def test_the_all_reduce_is_left_out_and_its_share_measured(found: Found) -> None:
    communication_is_measured(found["window"])


def test_parameters_are_rank_0s_and_stay_equal(found: Found) -> None:
    first, second = (row["digests"] for row in found["window"])
    assert first == second and first[0] != first[1]


def test_when_gradients_meet_makes_no_difference(found: Found) -> None:
    """For TensorFlow, at the same time: what XLA compiles computes the same."""
    every = "every_micro_batch" if "every_micro_batch" in found else "xla_every_micro_batch"
    for once, often in zip(found["post_accumulation"], found[every]):
        assert once["counts"] == often["counts"] == [3, 0]
        assert relative(often["losses"], once["losses"]) < 1e-6
        assert often["fingerprint"] == pytest.approx(once["fingerprint"], rel=1e-7)


def test_compression_rounds_gradients(found: Found) -> None:
    for plain, rounded in zip(found["post_accumulation"], found["compressed"]):
        assert rounded["fingerprint"] != plain["fingerprint"]
        assert relative(rounded["losses"], plain["losses"]) < 1e-4


def test_overflowing_steps_are_skipped_and_counted(found: Found) -> None:
    for rows in found["overflow"]:
        (first, second) = (row[:3] for row in rows)
        assert first == [1, 1, False]
        assert second == [2, 0, True]


def test_bf16_trains(torch_found: Found) -> None:
    for half, full in zip(torch_found["in_bf16"], torch_found["post_accumulation"]):
        assert half["losses"] != full["losses"]
        assert relative(half["losses"], full["losses"]) < 1e-2


def test_horovod_steps_every_optimizer(torch_found: Found) -> None:
    for row in torch_found["optimizers"]:
        assert set(row) == {"adam", "sgd", "lamb", "lamb-deepspeed"}
        assert all(losses[0] > losses[1] > losses[2] for losses in row.values())


def test_another_world_than_mpis_is_an_error(torch_found: Found) -> None:
    for told in torch_found["another_world"]:
        assert "dlperf env make horovod" in told and "MPI as (0, 1, 0)" in told


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_environment_without_it_is_named_with_the_cure(name: str) -> None:
    """The tests' own Python has no Horovod."""
    backend = registry().backends[name]
    with pytest.raises(RunError, match=r"Horovod for .* cannot be imported by") as caught:
        backend.open_session(None, None, None)
    assert sys.executable in str(caught.value) and "dlperf env make horovod" in str(caught.value)


def test_a_wheels_name_says_what_it_was_compiled_against(tmp_path: Path) -> None:
    """One digest for one environment; another for another build."""
    script = ROOT / "requirements" / "horovod_key.py"
    compiler = script.with_name("compiler.sh")

    def key(version: str, **env: str) -> str:
        argv = [framework_python("horovod"), str(script), version, str(compiler)]
        done = subprocess.run(
            argv, env={**os.environ, **env}, text=True, capture_output=True, check=True
        )
        return done.stdout.strip()

    first = key("0.28.1")
    assert first == key("0.28.1")
    assert all(name in first for name in ("horovod0.28.1", "torch", "tensorflow", "mpich", "py3."))
    assert len({first, key("0.28.0"), key("0.28.1", HOROVOD_GPU_OPERATIONS="NCCL")}) == 3


def test_the_declarations_need_no_framework() -> None:
    code = (
        "import sys; from dlperf_hpc.train.registry import registry; registry();"
        "print({'torch', 'tensorflow', 'horovod', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "set()"
    for name in SCRIPTS:
        assert registry().backends[name].modules == ("horovod",)
        assert registry().backends[name].data_sources == ("synthetic", "real")
