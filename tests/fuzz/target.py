"""What must hold of the scanner and of judgement for any bytes at all."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from damage import SAID, check_figures, check_results, judged, scan

from dlperf_hpc.parsers.cache import packed
from dlperf_hpc.records.foreign import ScannedFile

FINDINGS = Path(__file__).parent / "findings"

_RULES = ("default", "printed", "clock[2:6]", "printed[2:6]", "lines[1:4]", "mean[1:]", "total")
"""Windows that small inputs reach too."""


def check(data: bytes) -> None:
    """Nothing raises; figures are figures; results are such; blocks and the cache are no matter."""
    whole = scan(data)
    check_figures(whole)
    for rule in _RULES:
        check_results(judged(whole, rule))
    check_results(judged(whole, "default", {}))
    check_results(judged(whole, "default", {**SAID, "nodes": 1, "gpus_per_node": 1}))
    size = 1 + zlib.crc32(data) % 97
    assert scan(data, size if len(data) < 4096 else 50 * size) == whole
    assert ScannedFile.from_dict(json.loads(zlib.decompress(packed(whole)))) == whole
