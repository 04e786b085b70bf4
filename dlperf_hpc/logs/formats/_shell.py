"""Settings that a benchmark's shell script shows with ``set -x``: ``+ num_gpus=8``."""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Line

NEEDLE = "+ num_gpus="
_FACTS = {"num_gpus": "gpus_per_node", "num_accumulation_steps_phase1": "accumulation"}
_SETTING = re.compile(rf"\++ (?P<name>{'|'.join(_FACTS)})=(?P<value>[0-9]{{1,9}})\s*")


def shell_fact(line: Line, draft: Draft) -> bool:
    """True if the line is one of these."""
    match = _SETTING.fullmatch(line.text)
    if match is not None:
        draft.fact(line, _FACTS[match["name"]], match["value"])
    return match is not None
