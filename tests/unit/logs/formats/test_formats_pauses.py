"""Evaluations and checkpoints among the lines of programs that train on images: they are in the
clock, no line has their seconds, and the speed is that of the other lines."""

# ruff: noqa: E501 - a line of a log is as long as it is

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from damage import scan

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.model.result import RunResult

DAY = datetime(2024, 2, 5, 7, 45, 0)
STATED = {"nodes": 1, "gpus_per_node": 1, "batch_size": 8, "global_batch": 8}


def mmengine(number: int, moment: datetime, each: float) -> str:
    return f"{moment:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(train) [{number:5d}/20000]  lr: 1.0000e-02  eta: 0:10:00  time: {each:.4f}  data_time: 0.0100  memory: 1234  loss: 0.5000"


def mmcv(number: int, moment: datetime, each: float) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S},000 - mmseg - INFO - Iter [{number}/80000]\tlr: 1.000e-02, eta: 1:57:37, time: {each:.3f}, data_time: 0.008, memory: 3946, loss: 1.0031"


def mmcv_json(number: int, _: datetime, each: float) -> str:
    return f'{{"mode": "train", "epoch": 1, "iter": {number}, "lr": 0.00198, "memory": 3883, "data_time": 0.0125, "loss": 9.84375, "time": {each:.5f}}}'


def detectron2(number: int, moment: datetime, _: float) -> str:
    return f"[{moment:%m/%d %H:%M:%S} d2.utils.events]:  eta: 9:12:35  iter: {number - 1}  total_loss: 1.362  time: 1.0000  last_time: 1.0000  data_time: 0.0119  last_data_time: 0.0072   lr: 0.000475  max_mem: 4331M"


PROGRAMS = {
    "mmengine": (
        mmengine,
        "{0:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(val) [  50/2560]    eta: 0:01:49  time: 0.0280  data_time: 0.0029  memory: 579\n"
        "{0:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(val) [2560/2560]    aAcc: 87.5900  mIoU: 56.0600  data_time: 0.0069  time: 0.0345",
        "{0:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Saving checkpoint at 2000 iterations",
    ),
    "mmcv": (
        mmcv,
        "{0:%Y-%m-%d %H:%M:%S},000 - mmseg - INFO - Iter(val) [240]\tmIoU: 10.6022",
        "{0:%Y-%m-%d %H:%M:%S},000 - mmseg - INFO - Saving checkpoint at 2000 iterations",
    ),
    "mmcv_json": (
        mmcv_json,
        '{{"mode": "val", "epoch": 1, "iter": 240, "lr": 0.02, "mIoU": 0.296}}',
        "",
    ),
    "detectron2": (
        detectron2,
        "[{0:%m/%d %H:%M:%S} d2.evaluation.evaluator]: Start inference on 22 batches\n"
        "[{0:%m/%d %H:%M:%S} d2.evaluation.evaluator]: Inference done 11/22. Dataloading: 0.0005 s/iter.",
        "[{0:%m/%d %H:%M:%S} fvcore.common.checkpoint]: Saving checkpoint to ./output/model_0004999.pth",
    ),
}


def paused(program: str, what: str, seconds: float) -> RunResult:
    """A run of 1 s an iteration, with a pause behind iteration 60."""
    write, evaluation, checkpoint = PROGRAMS[program]
    lines = []
    for number in range(20, 181, 20):
        late = seconds * (number > 60)
        each = 1.0 + (seconds / 20 if number == 80 else 0.0)
        lines.append(write(number, DAY + timedelta(seconds=number + late), each))
        if number == 60:
            line = {"evaluation": evaluation, "checkpoint": checkpoint}[what]
            lines.append(line.format(DAY + timedelta(seconds=number + 3)))
    scanned = scan(("\n".join(lines) + "\n").encode())
    (only,) = interpret(scanned, (), (), STATED, rule("default")).results
    return only


@pytest.mark.parametrize("seconds", [7.0, 70.0])
@pytest.mark.parametrize(
    ("program", "what"),
    [(name, "evaluation") for name in PROGRAMS]
    + [(name, "checkpoint") for name in PROGRAMS if name != "mmcv_json"],
)
def test_a_pause_is_left_out(program: str, what: str, seconds: float) -> None:
    """With 7 s of it in the time it would be 7.5 samples/s, with 70 s 4.7."""
    ran = paused(program, what, seconds)
    assert ran.external is not None and ran.external.format == program
    assert ran.external.basis == ("printed" if program == "mmcv_json" else "clock")
    assert ran.samples_per_s == pytest.approx(8.0)
    assert f"without 20 iterations, for unknown times of {what} (once)" in ran.warnings
