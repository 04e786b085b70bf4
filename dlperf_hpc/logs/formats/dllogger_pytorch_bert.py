"""BERT of NVIDIA's DeepLearningExamples for PyTorch, on the screen (dllogger).

| since | line |
|---|---|
| 2020 | ``DLL 2021-12-14 .. - Training Epoch: 0 Training Iteration: 14  average_loss : 9.1  step_loss : 9.0  learning_rate : ..`` |
| 2022 | ``... Training Iteration: 1  average_loss : 11.18  learning_rate : 0.001  skipped_steps : 1`` |
| last | ``... Training Iteration: 20  final_loss : 8.566 None`` |
| end | ``DLL .. -  e2e_train_time : 898.39 s training_sequences_per_second : 4208.1 sequences/s ..`` |

An iteration is an optimizer step, accumulation inside, counted over the epochs; the number is the
steps done, so that one which overflowed under AMP repeats it (0 if it was the first). The speed is
printed once, of the whole run: sequences over ``raw_train_time``, warm-up included, units since
2022. In the dump ``train_batch_size`` is before or after it was divided: it is left.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _shell
from dlperf_hpc.logs.formats._dllogger import PARAMETERS, Program, Record, precision, read_lines
from dlperf_hpc.logs.scan.rows import DECIMAL, FULL_STAMP, WHOLE, Rows
from dlperf_hpc.logs.scanned import Evidence

_ACCUMULATION = re.compile(r"\bgradient_accumulation_steps=([0-9]{1,9})\b", re.ASCII)
_ROWS = Rows(
    rf"DLL (?P<full>{FULL_STAMP}) - Training Epoch: {WHOLE} "
    rf"Training Iteration: (?P<iteration>{WHOLE})  average_loss : {DECIMAL}  "
    rf"step_loss : (?P<loss>{DECIMAL})  learning_rate : (?P<lr>{DECIMAL}) "
)
_LENGTH = re.compile(r"\bmax_seq_length=([0-9]{1,9})\b", re.ASCII)
_HALF = re.compile(r"\b(?:fp16|amp)=(True|False)\b", re.ASCII)


def _parameters(line: Line, draft: Draft, record: Record) -> None:
    if "batch_size_per_gpu" in record.metrics:
        draft.fact(line, "batch_size", str(record.metrics["batch_size_per_gpu"]))
    if "Namespace(" not in record.text:
        return
    for name, pattern in (("accumulation", _ACCUMULATION), ("seq_len", _LENGTH)):
        match = pattern.search(record.text)
        if match is not None:
            draft.fact(line, name, match[1])
    draft.fact(line, "precision", precision(*_HALF.findall(record.text)))


PROGRAM = Program(
    marks=("average_loss", "step_loss", "final_loss"),
    losses=("step_loss", "average_loss", "final_loss"),
    lrs=("learning_rate",),
    depth=2,
    totals={"training_sequences_per_second": "training_sequences_per_second"},
    parameters=_parameters,
)


def read(line: Line, draft: Draft) -> None:
    """One line of an iteration, of the run, or with arguments."""
    if not _shell.shell_fact(line, draft):
        read_lines(PROGRAM, line, draft)


FORMAT = Format(
    name="dllogger_pytorch_bert",
    title="NVIDIA DeepLearningExamples PyTorch BERT (dllogger text)",
    framework="ngc-pytorch",
    evidence=Evidence.REAL,
    source="NVIDIA/DeepLearningExamples PyTorch/LanguageModeling/BERT/run_pretraining.py",
    needles=("Training Iteration: ", "training_sequences_per_second : "),
    read=read,
    facts_needles=(PARAMETERS, _shell.NEEDLE),
    rows=(_ROWS,),
)
