"""A workload without sequences: images are samples/s, and no table or page speaks of tokens."""

from __future__ import annotations

import csv
from io import StringIO

import pytest
from report_samples import case, oks

from dlperf_hpc.analysis.flops import of_physics
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.page.report_page import page
from dlperf_hpc.reporting.page.visible import NONE, VisibleReport, key_values
from dlperf_hpc.reporting.report_tables import print_report
from dlperf_hpc.reporting.table import csv_table
from dlperf_hpc.reporting.writers.markdown import markdown

IMAGES = {"framework": "ddp", "model": "resnet50", "precision": "fp16", "seq_len": 0}


@pytest.fixture
def report() -> Report:
    one, eight = (case(topology, **IMAGES) for topology in ("1n1g", "1n8g"))
    return Report("r", oks(one, 800, 810, 790) + oks(eight, 6000, 6100, 5900))


def test_no_table_speaks_of_tokens(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report)
    shown = capsys.readouterr().out
    for text in (markdown(report), shown):
        assert "samples/s" in text and "token" not in text
    visible = VisibleReport(report)
    assert visible.units == ("samples/s",)
    assert {key_values(each)["sequence length"] for each in visible.cases} == {NONE}
    assert not any("tokens" in sentence for sentence in page(report).how_to_read)


def test_cells_of_tokens_are_empty(report: Report) -> None:
    for columns, rows in ((CASE_COLUMNS, report.case_rows), (RUN_COLUMNS, report.run_rows)):
        for row in csv.DictReader(StringIO(csv_table(columns, rows).decode())):
            assert float(row["samples_per_s"]) >= 790
            cells = {name: cell for name, cell in row.items() if "tokens" in name}
            assert len(cells) > 1 and {row["seq_len"], *cells.values()} == {""}


@pytest.mark.parametrize("size", [224, 160])
def test_physics_are_of_the_size_of_the_images(size: int) -> None:
    """125 TFLOPS of a V100 are 5 095 images/s of 224 x 224."""
    flops = {224: 24.535e9, 160: 12.52e9}[size]
    images = case("1n1g", options=(("image_size", size),), **IMAGES)
    (flag,) = of_physics(images, 1.5 * 125e12 / flops, "Tesla V100-SXM2-16GB", flops)
    assert flag.name == "over-peak" and f"per image of {size} x {size}" in flag.note
    assert "smaller images" in flag.note and "sequence" not in flag.note
