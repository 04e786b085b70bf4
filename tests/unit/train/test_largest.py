"""The search for the largest batch size: which sizes it tries, and what it takes from trials that
lie on disk. What a trial itself does is tested with real ranks, in tests/mpi."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from spec_samples import cases

from dlperf_hpc.errors import LedgerError, RunError
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.failures import Verdict
from dlperf_hpc.records.layout import trial_of
from dlperf_hpc.records.store import Attempt, open_attempt
from dlperf_hpc.train import largest
from dlperf_hpc.train.ranks import World, alone
from dlperf_hpc.train.trials import TrialEnd


def walk(most: int) -> tuple[int, list[int]]:
    """The answer, and the sizes tried, where ``most`` samples fit."""
    fits, too_large, tried = 0, None, list[int]()
    while (size := largest.next_size(fits, too_large)) is not None:
        tried.append(size)
        fits, too_large = (size, too_large) if size <= most else (fits, size)
    return fits, tried


def test_the_answer_is_the_largest_within_its_grain_for_every_truth() -> None:
    for most in (*range(1, 2500), 10_000, 65_535):
        answer, tried = walk(most)
        grain = largest.grain(answer)
        assert answer <= most < answer + grain or answer == most
        assert grain == 1 or grain <= answer / 16
        assert len(set(tried)) == len(tried) <= math.log2(most) + 7
    assert walk(0) == (0, [1])
    assert walk(15) == (15, [1, 2, 4, 8, 16, 12, 14, 15])
    assert walk(100)[0] == 100 and walk(99)[0] == 96
    assert walk(10**9) == (largest.MOST, [2**n for n in range(17)])


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    (case,) = cases(tmp_path, case='batch_size = "max"')
    found = open_attempt("s", Run(case, 2), tmp_path, "4711_1.0")
    assert found is not None
    return found


def leave(attempt: Attempt, size: int, fits: bool, **more: Any) -> Path:
    path = trial_of(attempt.paths.root, attempt.run.case.id, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    reason = "" if fits else f"rank 0 on n1: no memory for {size}"
    memory = [100.0 + size] if fits else None
    path.write_text(json.dumps({"fits": fits, "memory_mb": memory, "reason": reason, **more}))
    return path


def found_by(attempt: Attempt) -> tuple[Any, Any]:
    """The search of a rank that is alone; a trial, which is not to happen, would fail."""
    return largest.find(attempt, World(0, ("n1",), alone()), lambda: None)


def test_a_repeat_takes_what_another_task_has_found(attempt: Attempt) -> None:
    for size, fits in {1: True, 2: True, 4: True, 8: False, 6: False, 5: True}.items():
        leave(attempt, size, fits)
    leave(attempt, 7, True)  # beside the way: no size that the search comes to
    case, search = found_by(attempt)
    assert case.batch_size == 5 and not case.sought and case.id == attempt.run.case.id
    assert attempt.paths.log.parent.parent.name == "bzmax"
    assert search == {
        "size": 5,
        "grain": 1,
        "tried": [1, 2, 4, 8, 6, 5],
        "memory_mb": [105.0],
        "reason": "6 per device do not fit: rank 0 on n1: no memory for 6",
    }


def test_where_nothing_fits_a_sentence_says_so(attempt: Attempt) -> None:
    leave(attempt, 1, False)
    with pytest.raises(MemoryError) as caught:
        found_by(attempt)
    assert str(caught.value) == (
        'batch_size = "max": one sample per device does not fit, so that nothing is measured:'
        " rank 0 on n1: no memory for 1"
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"fits": 1, "reason": ""}', '{"fits": true}'])
def test_a_damaged_trial_is_named(attempt: Attempt, text: str) -> None:
    path = leave(attempt, 1, True)
    path.write_text(text)
    with pytest.raises(LedgerError, match=re.escape(str(path))):
        found_by(attempt)


def test_memory_of_any_rank_decides_and_any_other_failure_ends_the_run() -> None:
    lost = TrialEnd("n1", verdict=Verdict(Status.FAILED, "RuntimeError: Connection closed"))
    lost = TrialEnd(lost.host, verdict=lost.verdict, consequence=True)
    memory = TrialEnd("n2", verdict=Verdict(Status.OUT_OF_MEMORY, "MemoryError"))
    other = TrialEnd("n2", verdict=Verdict(Status.FAILED, "RuntimeError: odd", fault="library"))
    well = TrialEnd("n1", memory_mb=7.0)
    assert largest._judged(8, [well, well])["memory_mb"] == [7.0, 7.0]
    judged = largest._judged(8, [lost, TrialEnd("n1"), memory])
    assert judged == {"fits": False, "memory_mb": None, "reason": "rank 2 on n2: MemoryError"}
    with pytest.raises(
        RunError, match=r"trial of 8 samples per device: rank 1 on n2: .*odd"
    ) as error:
        largest._judged(8, [lost, other])
    assert error.value.fault == "library"
