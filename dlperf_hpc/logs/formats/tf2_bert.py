"""TensorFlow 2's official BERT (tf-models-official 2.3), its custom training loop.

``I0826 15:12:50.113950 140405777909504 model_training_utils.py:505] Train Step: 20/120  / loss =
10.88  masked_lm_accuracy = 0.012000  ...``: the number is of optimizer steps done (there is no
accumulation), the loss the mean since the line before. No speed is printed: it is the clock's. The
stamp has no year. Under MultiWorkerMirroredStrategy each host's process prints the lines.
NVIDIA's version of the loop adds ``/ time = ...``: those lines are :mod:`.ngc_tf2_bert`'s.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _tf2
from dlperf_hpc.logs.formats._numbers import NUMBER
from dlperf_hpc.logs.scan.rows import ABSL_STAMP, DECIMAL, WHOLE, Rows
from dlperf_hpc.logs.scan.stamps import absl_stamp
from dlperf_hpc.logs.scanned import Evidence, Stamps

_STEP = re.compile(rf"Train Step: (?P<step>[0-9]+)/[0-9]+  / loss = (?P<loss>{NUMBER})")

_ROWS = Rows(
    rf"I(?P<absl>{ABSL_STAMP}) [0-9]+ model_training_utils\.py:[0-9]+\] "
    rf"Train Step: (?P<iteration>{WHOLE})/[0-9]+  / loss = (?P<loss>{DECIMAL})"
    rf"(?:  [a-z_]+ = {DECIMAL})*"
)


def read(line: Line, draft: Draft) -> None:
    """One line of a training step, or of the devices."""
    if _tf2.NEEDLES[0] in line.text:
        _tf2.strategy_facts(line, draft)
    elif " / time = " not in line.text:
        _train_step(line, draft)


def _train_step(line: Line, draft: Draft) -> None:
    match = _STEP.search(line.text)
    if match is None:
        draft.note(line, "Train Step, but not as the training loop prints it")
        return
    draft.step(
        line,
        match["step"],
        stamp=absl_stamp(line.text),
        stamps=Stamps.NO_YEAR,
        loss=match["loss"],
    )


FORMAT = Format(
    name="tf2_bert",
    title="TensorFlow 2 official BERT",
    framework="tensorflow",
    evidence=Evidence.SOURCE,
    source="tensorflow/models official/nlp/bert/model_training_utils.py",
    needles=("Train Step: ",),
    read=read,
    facts_needles=_tf2.NEEDLES,
    rows=(_ROWS,),
)
