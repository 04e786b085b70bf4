"""Logs that were damaged: nothing raises, nothing is invented, time and memory stay bounded."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from random import Random

import pytest
from damage import (
    HARMLESS,
    REAL,
    RULES,
    SPREAD,
    STATED,
    check_cut_results,
    check_figures,
    check_nothing_invented,
    check_prefix,
    check_results,
    check_values,
    content,
    interpreted,
    logs_on_disk,
    part_of,
    scan,
    some_cuts,
    tagged,
    with_bytes,
    with_characters,
    with_nuls,
    with_numbers,
    woven,
)
from external_corpus import log, names
from places import ROOT

from dlperf_hpc.logs.scanned import ScannedFile

LONG = os.environ.get("DLPERF_LONG_DAMAGE")
"""Set: each real log is cut at 200 places, in place of 5, and so on."""

_TIMES = 40 if LONG else 1


@functools.cache
def whole(name: str) -> ScannedFile:
    return scan(content(name))


def stated(name: str) -> dict[str, object]:
    return {**STATED, **({} if os.path.isabs(name) else log(name).stated)}


LOGS = [*names(), *logs_on_disk()]


def short(name: str) -> str:
    """A log's name, wherever the real logs and this checkout are: it is also the seed of what is
    done to the log."""
    return name.removeprefix(str(REAL)).removeprefix(str(ROOT))


each_log = pytest.mark.parametrize("name", LOGS, ids=short)


@each_log
def test_a_cut_log_gives_the_first_steps_and_no_other_number(name: str) -> None:
    data, known = content(name), whole(name)
    readings = {reading.format: reading for reading in known.readings}
    before = {basis: interpreted(known, basis, stated(name)) for basis in RULES}
    for at in some_cuts(len(data), 5 * _TIMES, Random(short(name))):
        cut = scan(data[:at])
        check_figures(cut)
        check_nothing_invented(cut, known, data)
        for reading in cut.readings:
            check_prefix(reading, readings[reading.format])
        for basis in RULES:
            found = interpreted(cut, basis, stated(name))
            check_results(found)
            check_cut_results(found, before[basis], known)


@each_log
@pytest.mark.parametrize("damage", [with_nuls, with_bytes, with_characters])
def test_bytes_that_are_no_text_invent_nothing(
    name: str, damage: Callable[[bytes, Random], bytes]
) -> None:
    random = Random(short(name))
    for _ in range(_TIMES):
        damaged = scan(damage(content(name), random))
        check_figures(damaged)
        if damage is not with_characters:  # which are text: who knows what they are to say
            check_nothing_invented(damaged, whole(name), content(name))
        for basis in RULES:
            check_results(interpreted(damaged, basis, stated(name)))


@each_log
def test_numbers_that_are_none_are_never_figures(name: str) -> None:
    random = Random(short(name))
    for _ in range(2 * _TIMES):
        damaged = scan(with_numbers(content(name), random))
        check_figures(damaged)
        for basis in RULES:
            check_results(interpreted(damaged, basis, stated(name)))


@each_log
def test_line_ends_and_marks_of_an_editor_change_nothing(name: str) -> None:
    for change in HARMLESS:
        changed = scan(change(content(name)))
        steps = [reading.steps for reading in changed.readings]
        assert [[step[1:] for step in each] for each in steps] == [
            [step[1:] for step in reading.steps] for reading in whole(name).readings
        ]


@each_log
@pytest.mark.parametrize("block", [1, 7, 4096])
def test_it_does_not_matter_how_a_file_comes_in_blocks(name: str, block: int) -> None:
    data = content(name)
    assert scan(data, block if len(data) < 60000 else block + 500) == whole(name)


# --- ranks

UNTAGGED = [name for name in names() if whole(name).launcher == "none"]


@pytest.mark.parametrize("name", UNTAGGED)
@pytest.mark.parametrize("chunked", [False, True], ids=["lines", "parts of lines"])
def test_lines_shuffled_between_ranks_stay_with_their_rank(name: str, chunked: bool) -> None:
    """Each rank with speeds of its own, woven as Open MPI weaves them: no figure changes rank."""
    texts = [log(name, slow).text for slow in (1.0, 1.25, 1.5)]
    alone = [scan(text.encode()).readings[0] for text in texts]
    for seed in range(_TIMES):
        scanned = scan(tagged(texts, Random(seed), chunked))
        check_figures(scanned)
        assert scanned.launcher == "ompi"
        reading = scanned.readings[0]
        if name in SPREAD:
            check_values(reading, "".join(texts).encode())
            continue
        for rank, own in enumerate(alone):
            mine = [step for step in reading.steps if step.rank == rank]
            assert len(mine) == len(own.steps)
            assert all(part_of(step, other) for step, other in zip(mine, own.steps))
        for basis in RULES:
            check_results(interpreted(scanned, basis, stated(name)))


@pytest.mark.parametrize("name", UNTAGGED)
def test_lines_shuffled_between_ranks_without_a_tag_invent_nothing(name: str) -> None:
    texts = [log(name, slow).text for slow in (1.0, 1.25, 1.5)]
    known = [step for text in texts for step in scan(text.encode()).readings[0].steps]
    for seed in range(_TIMES):
        scanned = scan(woven(texts, Random(seed)))
        check_figures(scanned)
        check_values(scanned.readings[0], "".join(texts).encode())
        for step in scanned.readings[0].steps if name not in SPREAD else ():
            assert any(part_of(step, other) for other in known)
        for basis in RULES:
            check_results(interpreted(scanned, basis, stated(name)))
