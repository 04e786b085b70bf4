"""Lines that are taken apart many at once: nothing else is read than line by line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from damage import (
    content,
    line_by_line,
    logs_on_disk,
    scan,
    with_bytes,
    with_characters,
    with_nuls,
    with_numbers,
)
from external_corpus import log, names
from places import ROOT

from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.lineparts import absl_stamp, absl_stamps, full_stamp, full_stamps

sys.path.insert(0, str(ROOT / "benchmarks"))
from made_logs import PRINTERS

ODD = (b"0", b"1", b"00", b"-1", b"5.", b".5", b"1e3", b"1e400", b"nan", b"9" * 15, b"9" * 25)
AT_ONCE = sorted(
    each.name
    for each in formats()
    if any(lines.at_once and not lines.passed_over for lines in each.lines)
    and each.name in PRINTERS
)


def usual(name: str, lines: int = 600) -> bytes:
    """A log of one form of line."""
    chance = Random(name)
    return "".join(PRINTERS[name](n + 1, chance) + "\n" for n in range(lines)).encode()


def test_most_made_logs_are_read_at_once() -> None:
    assert len(AT_ONCE) >= 15


@pytest.mark.parametrize("name", AT_ONCE)
def test_usual_lines_are_read_at_once(name: str) -> None:
    data = usual(name)
    found = scan(data)
    assert found == line_by_line(data)
    assert len(found.readings[0].steps) == 600


@pytest.mark.parametrize("prefix", ["vs001: ", "3: ", "[rank2]: ", "[default1]:"])
@pytest.mark.parametrize("name", ["deepspeed", "paddlenlp", "tf2_resnet"])
def test_lines_behind_a_launchers_prefix(name: str, prefix: str) -> None:
    data = b"".join(prefix.encode() + line + b"\n" for line in usual(name).splitlines())
    found = scan(data)
    assert found == line_by_line(data)


@pytest.mark.parametrize("damage", [with_bytes, with_characters, with_nuls, with_numbers])
@pytest.mark.parametrize("name", AT_ONCE)
def test_damaged_lines_give_the_same(name: str, damage: Callable[[bytes, Random], bytes]) -> None:
    data = usual(name, 300)
    for seed in range(3):
        damaged = damage(data, Random(seed))
        assert scan(damaged) == line_by_line(damaged)


@pytest.mark.parametrize("name", AT_ONCE)
def test_any_number_may_be_an_odd_one(name: str) -> None:
    """Each number of a line is once each odd one, one line or another."""
    lines = usual(name, 8).splitlines(keepends=True)
    for place in range(1, 8):
        found = re.finditer(rb"[0-9]+(?:\.[0-9]+)?", lines[place])
        for index, number in enumerate(found):
            for odd in ODD[(place + index) % 7 :: 7]:
                changed = lines[place][: number.start()] + odd + lines[place][number.end() :]
                data = b"".join([*lines[:place], changed, *lines[place + 1 :]])
                assert scan(data) == line_by_line(data), changed


def test_memory_beyond_any_machine_is_left_out_of_many_lines_too() -> None:
    lines = [
        f"Training epoch 0, iteration {n}/99 | lr: 0.1 | global_batch_size: 8 | global_step: {n} | "
        "reduced_train_loss: 9.5 | train_step_timing in s: 1.234 | max_memory_allocated: 9e+99 |\n"
        for n in range(8)
    ]
    data = "".join(lines).encode()
    assert scan(data) == line_by_line(data)


@pytest.mark.parametrize("name", names())
def test_made_logs_give_the_same(name: str) -> None:
    data = log(name).text.encode()
    assert scan(data) == line_by_line(data)
    shuffled = data.splitlines(keepends=True)
    Random(name).shuffle(shuffled)
    assert scan(b"".join(shuffled)) == line_by_line(b"".join(shuffled))


@pytest.mark.parametrize("path", logs_on_disk(), ids=lambda path: Path(path).name[-50:])
def test_logs_on_disk_give_the_same(path: str) -> None:
    assert scan(content(path)) == line_by_line(content(path))


def test_stamps_of_many_are_those_of_each() -> None:
    full = ["2021-05-29 19:53:43", "2021/05/29 23:59:59.5", "2020-02-29 00:00:00,123456789"]
    assert full_stamps(full) == [full_stamp(text) for text in full]
    assert full_stamps([*full, "2021-02-29 00:00:00"]) is None
    short = ["0826 21:43:05.661866", "1231 23:59:59.999999"]
    assert absl_stamps(short) == [absl_stamp(f"I{text}") for text in short]
    assert absl_stamps([*short, "1301 00:00:00.000000"]) is None
