"""What must hold of the scanner and of judgement for any bytes at all."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from damage import SAID, check_figures, check_results, judged, scan

from dlperf_hpc.parsers.cache import packed
from dlperf_hpc.records.foreign import ScannedFile

FINDINGS = Path(__file__).parent / "findings"

_SAID = (SAID, {}, {**SAID, "nodes": 1, "gpus_per_node": 1})
_RULES = ("printed", "clock[2:6]", "printed[2:6]", "lines[1:4]", "mean[1:]", "total")
"""Windows that small inputs reach too."""


def check(data: bytes) -> None:
    """Nothing raises; figures are figures; results are such; blocks and the cache are no matter."""
    digest = zlib.crc32(data)
    whole = scan(data)
    check_figures(whole)
    check_results(judged(whole, "default", _SAID[digest % len(_SAID)]))
    check_results(judged(whole, _RULES[digest % len(_RULES)]))
    assert ScannedFile.from_dict(json.loads(zlib.decompress(packed(whole)))) == whole
    size = 1 + digest % 97
    if len(data) < 2048 or not digest % 8:
        assert scan(data, size if len(data) < 2048 else 50 * size) == whole
