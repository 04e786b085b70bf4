"""BERT of NVIDIA's DeepLearningExamples for TensorFlow 2: three lines for each round of steps.

::

    I0302 02:15:34.291999 140.. model_training_utils.py:538] Step: 47 Lr 1.6526e-05 Loss ..
    I0302 02:15:34.292104 140.. ..539] Train Step: 47/90  / loss = 11.0390625 / time = 0.136 sec
    I0302 02:15:34.292135 140.. ..540] Perf 7.74

``Step`` is missing without 16 bits. The number is of optimizer steps done; ``Perf`` is the speed
over all GPUs and accumulated micro-batches, of the steps since the line before, without what the
loop does besides them. The stamps have no year. Rank 0 prints. At the end stand the averages of
:mod:`._ngc_tensorflow` and ``DLL .. -  throughput_train : ..``, which are known from the source.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _ngc_tensorflow
from dlperf_hpc.logs.formats._dllogger import Program, records, tell
from dlperf_hpc.logs.formats._figures import cut_short
from dlperf_hpc.logs.formats._numbers import NUMBER
from dlperf_hpc.logs.scan.stamps import absl_stamp
from dlperf_hpc.logs.scanned import Evidence, Stamps

_RATE = re.compile(rf"\] Step: (?P<step>[0-9]+) Lr (?P<lr>{NUMBER})")
_STEP = re.compile(rf"Train Step: (?P<step>[0-9]+)/[0-9]+  / loss = (?P<loss>{NUMBER}) / time = ")
_PERF = re.compile(rf"\] Perf (?P<perf>{NUMBER})\s*$")

_END = Program((), (), (), 1, totals={"throughput_train": "throughput_train"})


def read(line: Line, draft: Draft) -> None:
    """One line of a round, or of the run. A round is told when its ``Perf`` or the next came."""
    if "Train Step: " in line.text:
        if " / time = " in line.text:
            _train_step(line, draft)
    elif "] Perf " in line.text:
        match = _PERF.search(line.text)
        _tell(draft, match["perf"] if match else None)
    elif "] Step: " in line.text:
        match = _RATE.search(line.text)
        if match is not None:
            draft.state["lr"] = (match["step"], match["lr"])
    elif not _ngc_tensorflow.averages(line, draft):
        _whole_run(line, draft)


def _train_step(line: Line, draft: Draft) -> None:
    _tell(draft, None)
    match = _STEP.search(line.text)
    if match is None:
        draft.note(line, "Train Step, but not as the training loop prints it")
    else:
        draft.state["round"] = (line, match["step"], match["loss"])


def _tell(draft: Draft, perf: str | None) -> None:
    if "round" not in draft.state:
        return
    line, step, loss = draft.state.pop("round")
    of, lr = draft.state.get("lr", (None, None))
    if perf is not None and cut_short(perf, 2):
        draft.note(line, f"Perf {perf[:40]!r} is cut")
        perf = None
    draft.step(
        line,
        step,
        stamp=absl_stamp(line.text),
        stamps=Stamps.NO_YEAR,
        printed=perf,
        loss=loss,
        lr=lr if of == step else None,
    )


def _whole_run(line: Line, draft: Draft) -> None:
    """The TensorFlow 1 program prints this record too: it is ours below our own lines only."""
    _tell(draft, None)
    if not draft.steps and not draft.totals:
        return
    for record in records(line.text):
        if record.step == ():
            tell(_END, line, draft, record)


FORMAT = Format(
    name="ngc_tf2_bert",
    title="NVIDIA DeepLearningExamples TensorFlow 2 BERT",
    framework="ngc-tensorflow",
    evidence=Evidence.QUOTED,
    source="NVIDIA/DeepLearningExamples TensorFlow2/LanguageModeling/BERT"
    " official/modeling/model_training_utils.py",
    needles=(
        "Train Step: ",
        "] Perf ",
        "] Step: ",
        "Throughput Average (sequences/sec)",
        "throughput_train : ",
    ),
    read=read,
    facts_needles=_ngc_tensorflow.PHASES,
)
