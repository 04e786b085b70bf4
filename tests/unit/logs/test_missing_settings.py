"""A log that leaves out what its neighbours state falls out of their series, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache

HOROVOD = "Model: resnet50\nBatch size: 32\nNumber of GPUs: {0}\nIter #0: 10.0 img/sec per GPU\n"
TOTAL = "Total img/sec on {0} GPU(s): {0}0.0 +-1.0\n"


def write(root: Path, name: str, devices: int, head: str = HOROVOD) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((head + TOTAL).format(devices))


@pytest.mark.parametrize(
    ("names", "head", "told", "option"),
    [
        (("1n1g_fp16.log", "1n4g_fp16.log", "1n8g.log"), HOROVOD, "precision", "--precision"),
        (
            ("1n1g_fp16_b32.log", "1n4g_fp16_b32.log", "1n8g_fp16.log"),
            "Model: resnet50\nNumber of GPUs: {0}\nIter #0: 10.0 img/sec per GPU\n",
            "batch size per device",
            "--batch-size",
        ),
    ],
)
def test_a_row_that_falls_out_of_a_series_names_its_neighbours(
    tmp_path: Path, names: tuple[str, ...], head: str, told: str, option: str
) -> None:
    for name, devices in zip(names, (1, 4, 8)):
        write(tmp_path, name, devices, head)
    results = gather([tmp_path], rule(), {}, ScanCache(None)).results
    gaps = {str(r.run.case.topology): [w for w in r.warnings if "series" in w] for r in results}
    assert gaps["1n1g"] == gaps["1n4g"] == []
    (gap,) = gaps["1n8g"]
    assert told in gap and option in gap and "1n1g (" in gap and "1n4g (" in gap


def test_logs_that_leave_out_the_same_are_one_series(tmp_path: Path) -> None:
    for devices in (1, 8):
        write(tmp_path, f"1n{devices}g.log", devices)
    results = gather([tmp_path], rule(), {}, ScanCache(None)).results
    assert not any("series" in warning for result in results for warning in result.warnings)
    assert len({result.run.case.series for result in results}) == 1


def test_a_log_of_another_model_is_no_neighbour(tmp_path: Path) -> None:
    write(tmp_path, "1n1g_fp16.log", 1, HOROVOD.replace("resnet50", "vgg16"))
    write(tmp_path, "1n8g.log", 8)
    results = gather([tmp_path], rule(), {}, ScanCache(None)).results
    assert not any("series" in warning for result in results for warning in result.warnings)
