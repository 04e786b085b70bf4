"""Each optimizer of the TensorFlow back ends against formulas written out in NumPy."""

from __future__ import annotations

from typing import Any

import optimizer_references as reference
import pytest
from frameworks import run_checks
from optimizer_references import apart, expected
from places import SUPPORT


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("tensorflow")
    return run_checks("tensorflow", SUPPORT / "tensorflow_optimizer_checks.py", place, ranks=1)


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("name", reference.NAMES)
def test_tensorflow_follows_the_reference(
    tensorflow: dict[str, Any], name: str, correction: bool
) -> None:
    found = tensorflow["trajectory"][f"{name} {correction}"]
    assert apart(found, expected(name, correction)) < 2e-5


def test_tensorflow_compiled_by_xla_follows_it_too(tensorflow: dict[str, Any]) -> None:
    assert apart(tensorflow["trajectory"]["lamb jit"], expected("lamb")) < 2e-5


@pytest.mark.parametrize("name", ["adamw", "lamb-deepspeed"])
def test_tensorflow_updates_each_replica_of_a_strategy(
    tensorflow: dict[str, Any], name: str
) -> None:
    for replica in tensorflow["mirrored"][name]:
        assert apart(replica, expected(name)) < 2e-5


@pytest.mark.parametrize("name", reference.NAMES)
def test_tensorflow_skips_a_step_whole(tensorflow: dict[str, Any], name: str) -> None:
    found = tensorflow["skipping"][name]
    assert found["with"] == found["without"] == found["first"]
    assert found["with"][1][0] == [2.0]  # steps that were applied


def test_tensorflow_takes_gradients_as_a_look_up_gives_them(tensorflow: dict[str, Any]) -> None:
    assert tensorflow["sparse"] == [[1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
