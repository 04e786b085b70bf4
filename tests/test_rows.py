"""Lines that are taken apart many at once: nothing else is read than line by line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from damage import line_by_line, scan, with_bytes, with_characters, with_nuls, with_numbers
from foreign_corpus import log, names
from test_damage import content, real_logs

from dlperf_hpc.parsers.registry import formats
from dlperf_hpc.parsers.rows import Rows
from dlperf_hpc.parsers.stamps import absl_stamp, absl_stamps, full_stamp, full_stamps

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from made_logs import PRINTERS

WITH_ROWS = sorted(each.name for each in formats() if each.rows)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How many lines were read as rows, by format."""
    read, count = Rows.read, Counter[str]()

    def reading(self: Rows, text: str, numbers: Sequence[int], *rest: Any) -> bool:
        taken = read(self, text, numbers, *rest)
        count[rest[-1].format.name] += taken * len(numbers)
        return taken

    with patch.object(Rows, "read", reading):
        yield count


def usual(name: str, lines: int = 600) -> bytes:
    """A log of one form of line."""
    chance = Random(name)
    return "".join(PRINTERS[name](n + 1, chance) + "\n" for n in range(lines)).encode()


def test_a_format_with_rows_is_one_of_those_made_here() -> None:
    assert set(WITH_ROWS) <= set(PRINTERS) and len(WITH_ROWS) >= 11


@pytest.mark.parametrize("name", WITH_ROWS)
def test_usual_lines_are_read_as_rows(name: str) -> None:
    data = usual(name)
    with counted() as count:
        found = scan(data)
    assert count[name] >= 300 and found == line_by_line(data)
    assert len(found.readings[0].steps) == 600


@pytest.mark.parametrize("prefix", ["vs001: ", "3: ", "[rank2]: ", "[default1]:"])
@pytest.mark.parametrize("name", ["deepspeed", "paddlenlp", "tf2_resnet"])
def test_rows_behind_a_launchers_prefix(name: str, prefix: str) -> None:
    data = b"".join(prefix.encode() + line + b"\n" for line in usual(name).splitlines())
    with counted() as count:
        found = scan(data)
    assert count[name] >= 300 and found == line_by_line(data)


@pytest.mark.parametrize("damage", [with_bytes, with_characters, with_nuls, with_numbers])
@pytest.mark.parametrize("name", WITH_ROWS)
def test_damaged_lines_give_the_same(name: str, damage: Callable[[bytes, Random], bytes]) -> None:
    data = usual(name)
    for seed in range(5):
        damaged = damage(data, Random(seed))
        assert scan(damaged) == line_by_line(damaged)


@pytest.mark.parametrize("name", names())
def test_made_logs_give_the_same(name: str) -> None:
    data = log(name).text.encode()
    assert scan(data) == line_by_line(data)
    shuffled = data.splitlines(keepends=True)
    Random(name).shuffle(shuffled)
    assert scan(b"".join(shuffled)) == line_by_line(b"".join(shuffled))


@pytest.mark.parametrize("path", real_logs(), ids=lambda path: Path(path).name[-50:])
def test_real_logs_give_the_same(path: str) -> None:
    assert scan(content(path)) == line_by_line(content(path))


def test_stamps_of_many_are_those_of_each() -> None:
    full = ["2021-05-29 19:53:43", "2021/05/29 23:59:59.5", "2020-02-29 00:00:00,123456789"]
    assert full_stamps(full) == [full_stamp(text) for text in full]
    assert full_stamps([*full, "2021-02-29 00:00:00"]) is None
    short = ["0826 21:43:05.661866", "1231 23:59:59.999999"]
    assert absl_stamps(short) == [absl_stamp(f"I{text}") for text in short]
    assert absl_stamps([*short, "1301 00:00:00.000000"]) is None
