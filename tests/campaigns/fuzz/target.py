"""What must hold of the scanner and of interpretation for any bytes at all."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from damage import STATED, check_figures, check_results, interpreted, line_by_line, scan

from dlperf_hpc.logs.scan.search import packed, unpacked
from dlperf_hpc.logs.scanned import ScannedFile

FINDINGS = Path(__file__).parent / "findings"

_STATED: Sequence[Mapping[str, Any]] = (STATED, {}, {**STATED, "nodes": 1, "gpus_per_node": 1})
_RULES = ("printed", "clock[2:6]", "printed[2:6]", "lines[1:4]", "mean[1:]", "total")
"""Windows that small inputs reach too."""


def check(data: bytes) -> None:
    """No input raises; figures and results are what they must be; the sizes of blocks, rows and the
    cache change nothing."""
    digest = zlib.crc32(data)
    whole = scan(data)
    check_figures(whole)
    check_whole_numbers(whole, data)
    if digest % 4:
        check_whole_numbers(scan(data[: digest % (len(data) + 1)]), data)
    check_results(interpreted(whole, "default", _STATED[digest % len(_STATED)]))
    check_results(interpreted(whole, _RULES[digest % len(_RULES)]))
    assert unpacked(packed(whole)) == whole
    assert line_by_line(data) == whole
    if len(data) < 512 or not digest % 8:
        assert scan(data, 1 + digest % 97) == whole


def check_whole_numbers(scanned: ScannedFile, data: bytes) -> None:
    """Every figure is all of a number in the file, no part of one."""
    if scanned.launcher in ("ompi", "horovodrun") or b"\x1b" in data:
        return  # what the file has in parts has been put together
    numbers = {float(number) for number in _WHOLE.findall(data)}
    for reading in scanned.readings:
        for step in reading.steps:
            figures = {abs(each) for each in (step.printed, step.loss, step.lr) if each is not None}
            assert not figures - numbers, step
        assert not {total.value for total in reading.totals} - numbers


_WHOLE = re.compile(rb"(?<![0-9.])(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![0-9])")
