"""The all-reduce probe on one rank's side: what it times, and what it says where it cannot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dlperf_hpc.train.measurement import MeasuredWindow, probe_all_reduces
from dlperf_hpc.train.ranks import World

WINDOW = MeasuredWindow(0.0, 10.0, [], 0.0, 0.0, 10, [], 10, 0, True)  # steps of 1 s


@dataclass
class Averaging:
    """A session with these buckets, whose all-reduces move 1 MB in a second."""

    buckets: list[int]
    left_out: dict[str, Any] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    right: bool = True

    def gradient_buckets(self) -> list[int]:
        return self.buckets

    def timed_all_reduces(self, sizes: Sequence[int], budget_s: float) -> dict[str, Any]:
        self.sizes += sizes
        rows = [{"bytes": size, "us": size, "iterations": 3, "right": self.right} for size in sizes]
        return {"by": "hand", "rows": rows, **self.left_out}


def probed(session: Any, left_s: float = math.inf) -> tuple[Any, str]:
    comm = SimpleNamespace(bcast=lambda value, root: value)
    return probe_all_reduces(session, World(0, ("a", "a"), comm), WINDOW, left_s)


def test_the_whole_gradient_is_timed_first_and_then_sizes_of_its_buckets() -> None:
    session = Averaging([1000, 3000, 3000, 2000])
    found, reason = probed(session)
    assert (session.sizes, reason) == ([9000, 3000, 2000, 1000], "")
    assert (found.by, found.ranks, found.buckets) == ("hand", 2, 4)
    assert (found.bytes, found.ms) == ((9000, 3000, 2000, 1000), (9.0, 3.0, 2.0, 1.0))


def test_of_many_sizes_four_are_timed_and_of_one_bucket_one() -> None:
    many, one = Averaging([*range(100, 200)]), Averaging([500])
    assert probed(many)[0].bytes == (sum(range(100, 200)), 199, 174, 149, 124)
    assert probed(one)[0].bytes == (500,)


def test_what_is_left_out_is_said() -> None:
    session = Averaging([1000, 500], {"left_out": "the budget is spent", "from": 500})
    assert probed(session)[1] == "none of 500 bytes and less: the budget is spent"


@pytest.mark.parametrize(
    ("session", "changes", "why"),
    [
        (Averaging([]), {}, "not exchange its gradients by torch.distributed"),
        (object(), {}, "not exchange its gradients by torch.distributed"),
        (Averaging([8]), {"left_s": 39.0}, "the time limit is near"),
        (Averaging([8], {"left_out": "a result was wrong"}, right=False), {}, "was wrong"),
    ],
)
def test_where_it_cannot_be_timed_it_is_said_why(
    session: Any, changes: dict[str, Any], why: str
) -> None:
    found, reason = probed(session, **changes)
    assert found is None
    assert why in reason


def test_a_limit_that_is_far_enough_does_not_hold_it_back() -> None:
    """3 x (5 steps of 1 s, and 5 s) and 10 s to end in."""
    assert probed(Averaging([8]), left_s=41.0)[1] == ""
