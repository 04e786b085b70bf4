"""As a user begins: doctor, a sweep of three cases, its report."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dlperf_hpc.acceptance.checks.commands import dlperf, report, spec
from dlperf_hpc.acceptance.finding import Finding, judged, skipped

_OF_A_CARD = ("mfu", "gpu_util", "gpu_memory_mb_max", "gpu_joules_per_sample")


def run(device: str) -> Iterator[Finding]:
    """No line of doctor says FAIL; each case has a figure, and on a card what belongs to it."""
    precisions = ["fp32", "tf32", "bf16"] if device == "cuda" else ["fp32", "bf16"]
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        cases = f'model = "bert-tiny"\n[matrix]\nprecision = {json.dumps(precisions)}'
        path = spec(here, "acceptance", cases, device)
        found = json.loads(dlperf(["doctor", path, "--json"], here).stdout)
        bad = [
            f"{each['check']}: {each['seen']}"
            for each in found["findings"]
            if each["grade"] == "FAIL"
        ]
        count = len(found["findings"])
        yield judged("doctor", "; ".join(bad) or f"{count} checks", "no FAIL", not bad)
        done = dlperf(["sweep", path, "--logs", here / "logs", "--no-check"], here)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        yield judged("sweep", f"exit code {done.returncode} {last}", "0", done.returncode == 0)
        for case in report(here / "logs" / "acceptance")["cases"]:
            yield from _of_case(case, device)


def _of_case(case: dict[str, object], device: str) -> Iterator[Finding]:
    what, rate = f"{case['model']} {case['precision']}", case["samples_per_s"]
    yield judged(what, f"{rate or 0:.1f} samples/s", "a figure", bool(rate))
    if device == "cpu":
        yield skipped(f"{what}: figures of the card", "no card")
        return
    missing = [name for name in _OF_A_CARD if case[name] is None]
    yield judged(f"{what}: figures of the card", f"missing: {missing}", "none", not missing)
