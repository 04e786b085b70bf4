"""Real logs of other programs against what was published of them.

They are not part of the project: ``DLPERF_REAL_LOGS`` names a directory that holds them, with the
published figure of each in ``expected.csv``. Without it the made corpus alone is read.
"""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest

from dlperf_hpc.cli.report import main as report
from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import ExternalWindow

LOGS = Path(os.environ.get("DLPERF_REAL_LOGS", "/nonexistent"))
pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="DLPERF_REAL_LOGS names no directory")

UNREPRODUCED = "PaddleNLP_bert_base_seqlen128_bs96_fp16_DP_N1C8_log"
"""Its published figure follows from no rule; ours is to be the mean of the lines named."""


def published() -> list[dict[str, str]]:
    if not LOGS.is_dir():
        return []
    with open(LOGS / "expected.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def as_rule(row: dict[str, str]) -> str:
    """``mean of lines[5:]`` of a field, as a window rule of ours."""
    if row["field"].endswith(("_table", "_final")):
        return "total:table" if row["field"].endswith("_table") else "total"
    lines = re.search(r"lines\[(\d+):\]", row["rule that fits best"])
    return f"lines[{lines[1]}:]" if lines else "lines"


def measured(log: Path, by: str) -> ExternalWindow:
    found = gather([log], rule(by), {}, ScanCache(None))
    (result,) = found.results
    assert result.external is not None, (result.status, result.reason)
    return result.external


@pytest.mark.parametrize("row", published(), ids=lambda row: Path(row["log"]).name[-50:])
def test_published_figure_is_reproduced(row: dict[str, str]) -> None:
    window = measured(LOGS / row["log"], as_rule(row))
    wanted = row["value"] if row["log"].endswith(UNREPRODUCED) else row["published"]
    assert window.samples_per_s == pytest.approx(float(wanted), rel=5e-5)
    assert window.evidence == "real logs"
    if window.unit == "samples/s":
        assert window.factor == float(row["multiplier"])


def test_every_keras_log_by_both_of_dlperf_s_scripts() -> None:
    expected = json.loads((LOGS / "tf2_resnet50" / "expected.json").read_text(encoding="utf-8"))
    for key, by in (("speed", "tf2-resnet-logs"), ("time", "tf2-resnet-time")):
        found = gather([LOGS / "tf2_resnet50"], rule(by), {}, ScanCache(None))
        assert len(found.results) == 10
        for result in found.results:
            assert result.external is not None
            runs = expected[key]["per_run"][str(result.run.case.topology)]
            wanted = runs[str(result.run.repeat)]
            assert result.external.samples_per_s == pytest.approx(wanted, abs=0.0051)


def test_a_report_on_all_of_them_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--no-cache", "--out", str(out), "--card", "V100", "--parquet", "--sqlite"]
    code = report([str(LOGS), *arguments])
    assert code == 1  # some are excerpts, too short for a window
    with open(out / "runs.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(bool(row["samples_per_s"]) is bool(row["basis"]) for row in rows)
    keras = [row for row in rows if row["format"] == "tf2_resnet"]
    assert len(keras) == 10 and {row["basis"] for row in keras} == {"clock"}
    told = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert any("give --nodes" in line for line in told["unread"])
    assert {"runs.parquet", "speedup.parquet", "report.sqlite"} <= {p.name for p in out.iterdir()}
