"""TensorFlow's ``tf_cnn_benchmarks.py``, alone and under Horovod.

| line | what |
|---|---|
| ``Model:       resnet101``, ``Batch size:  128 global``, ``   64 per device`` | settings |
| ``Devices:     ['horovod/gpu:0', 'horovod/gpu:1']`` | every process's under Horovod |
| ``10\\timages/sec: 241.6 +/- 0.2 (jitter = 0.5)\\t7.880`` | step, running mean, total loss |
| ``total images/sec: 238.68`` | whole run, all processes |

Under mpirun every rank prints every line: the step lines are the process's own, the total is all
processes' together (not so where mpirun starts processes that know nothing of each other). The
mean is that of all steps after the warm-up; steps count from there, and each is an optimizer step.
An evaluation prints a total of its own: one without a step line before it is not read. Real lines
were read where documents and issues quote them.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._held import hold, tell
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Averaging, Evidence, Printed, Scope

_FIGURE = r"[-+.0-9a-z]{1,40}"
_STEP = re.compile(
    rf"(?<![0-9.])(?P<step>[0-9]{{1,18}})\s{{1,16}}images/sec: (?P<rate>{_FIGURE}) \+/- {_FIGURE}"
    rf" \(jitter = {_FIGURE}\)(?:\s{{1,16}}(?P<loss>[0-9]{{1,12}}\.[0-9]{{3}}|nan|inf)\b)?"
)
_TOTAL = re.compile(r"total images/sec: (?P<rate>[0-9]{1,15}\.[0-9]{2})(?![0-9])")
_MODEL = re.compile(r"^Model: {2,12}(\S{1,60})\s*$")
_GLOBAL = re.compile(r"^Batch size: {2,4}([0-9]{1,12})(?:\.0)? global\s*$")
_DEVICE = re.compile(r"^\s*([0-9]{1,12})(?:\.0)? per device\s*$")
_MODE = re.compile(r"^Mode: {2,12}(\S{1,40})")


def read(line: Line, draft: Draft) -> None:
    """A step line, the total, or a line of the head."""
    if match := _STEP.search(line.text):
        tell(draft)
        draft.step(
            line,
            match["step"],
            stamp=full_stamp(line.text[: match.start()]),
            printed=match["rate"],
            loss=match["loss"],
        )
    elif match := _TOTAL.search(line.text):
        if draft.steps:
            draft.total(line, "total images/sec", match["rate"])
    elif "images/sec: " in line.text:
        draft.note(line, "images/sec, but not as tf_cnn_benchmarks prints it")
    else:
        _read_head(line, draft)


def _read_head(line: Line, draft: Draft) -> None:
    text = line.text
    if match := _MODEL.search(text):
        hold(line, draft, "model", match[1])
    elif match := _GLOBAL.search(text):
        hold(line, draft, "global_batch", match[1])
    elif match := _DEVICE.search(text):
        hold(line, draft, "batch_size", match[1])
    elif text.startswith("Devices: "):
        hold(line, draft, "devices", text.count("'horovod/"))  # 0: this process's only, no fact
    elif (match := _MODE.search(text)) and match[1] != "training":
        draft.note(line, f"mode {match[1]}: these speeds are no training's")


FORMAT = Format(
    name="tf_cnn_benchmarks",
    title="TensorFlow tf_cnn_benchmarks",
    framework="tensorflow",
    evidence=Evidence.QUOTED,
    source="tensorflow/benchmarks scripts/tf_cnn_benchmarks/benchmark_cnn.py",
    needles=("images/sec: ",),
    read=read,
    printed=Printed(scope=Scope.PROCESS, averaging=Averaging.RUNNING),
    facts_needles=(
        "Model:       ",
        "Batch size:  ",
        " per device",
        "Devices:     ",
        "Mode:        ",
    ),
)
