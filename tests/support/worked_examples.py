"""The run listings that DLPerf published, and results made of them."""

from __future__ import annotations

import json
from typing import Any

from places import SUPPORT
from report_samples import case, ok

from dlperf_hpc.model.result import RunResult

_FILE = SUPPORT / "data" / "worked_examples.json"
LISTINGS: list[dict[str, Any]] = json.loads(_FILE.read_text())["listings"]
DEEPSPEED, TENSORFLOW = LISTINGS
IDS = ["deepspeed", "tensorflow"]


def printed(listing: dict[str, Any]) -> dict[str, Any]:
    """The JSON that DLPerf prints for a listing."""
    return {
        listing["model"]: {
            topology: {
                "average_speed": row["average"],
                "batch_size_per_device": listing["batch_size"],
                "median_speed": row["median"],
                "speedup": row["speedup"],
            }
            for topology, row in listing["topologies"].items()
        }
    }


def speeds(listing: dict[str, Any]) -> dict[str, dict[int, float]]:
    rows = listing["topologies"].items()
    return {topology: dict(enumerate(row["speeds"], 1)) for topology, row in rows}


def results(listing: dict[str, Any], **window: Any) -> list[RunResult]:
    names = {key: listing[key] for key in ("framework", "model", "precision", "batch_size")}
    return [
        ok(case(topology, **names), repeat, speed, **window)
        for topology, runs in speeds(listing).items()
        for repeat, speed in runs.items()
    ]
