"""Hugging Face Trainer: what it prints of a training run, and the files it writes.

| line | since |
|---|---|
| ``{'loss': 10.2, 'learning_rate': 4.9e-05, 'epoch': 0.01}`` | 4 (``grad_norm`` since 4.38) |
| ``{'loss': '0.1363', 'grad_norm': '0.1436', ..., 'epoch': '2.731'}`` | 5: values are strings |
| ``{'train_runtime': 101.9003, 'train_samples_per_second': 1.963, 'epoch': 0.69}`` | 4, the end |
| ``  train_samples_per_second =      6.213`` | ``***** train metrics *****`` |
| ``    "train_samples_per_second": 6.213,`` | ``train_results.json``, ``trainer_state.json`` |

Process 0 prints. The one speed is the whole run's: all processes' samples over the time of
``train()``, with warm-up and checkpoints; no line has the speed of a part of it. A loss line has an
epoch's fraction and no step, so it shows which program wrote the log but is no iteration, unless
it has ``'step'`` as early ones did. Settings come from the log at level INFO
(``Instantaneous batch size per device = 8``). Real lines were read where documents and issues
quote them.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.scanned import Evidence

_SPEED = "train_samples_per_second"
_FIGURE = r"[-+.0-9a-z]{1,40}"
_TOTAL = re.compile(
    rf"{_SPEED}(?:['\"]: {{0,4}}['\"]?(?P<item>{_FIGURE})['\",}}]| *= *(?P<row>{_FIGURE})\s*$)"
)
_LOG = re.compile(
    rf"\{{'loss': '?(?P<loss>{_FIGURE})'?, (?P<rest>[^{{}}]{{0,2000}}?'epoch': [^{{}}]{{1,400}})\}}"
)
_LR = re.compile(rf"'learning_rate': '?({_FIGURE})[',]")
_STEP = re.compile(r"'step': '?([0-9]{1,18})(?:[', ]|$)")
_SETTING = re.compile(
    r"(Instantaneous batch size per device|Total train batch size \(w\. parallel, distributed"
    r" & accumulation\)|Gradient Accumulation steps) = ([0-9,]{1,20})\s*$"
)
_SETTINGS = {"I": "batch_size", "T": "global_batch", "G": "accumulation"}


def read(line: Line, draft: Draft) -> None:
    """A loss line, the end's speed in any of its forms, or a setting."""
    if _SPEED in line.text:
        _read_total(line, draft)
    elif match := _LOG.search(line.text):
        _read_log(line, draft, match["loss"], match["rest"])
    elif match := _SETTING.search(line.text):
        draft.hold(line, _SETTINGS[match[1][0]], match[2].replace(",", ""))


def _read_total(line: Line, draft: Draft) -> None:
    match = _TOTAL.search(line.text)
    if match is None:
        draft.note(line, f"{_SPEED} without a number")
        return
    known = len(draft.totals)
    draft.total(line, _SPEED, match["item"] or match["row"])
    if known and len(draft.totals) > known and draft.totals[-1].value == draft.totals[-2].value:
        draft.totals.pop()  # printed as a dictionary, and again as a table
    if draft.totals:
        draft.release_held()


def _read_log(line: Line, draft: Draft, loss: str, rest: str) -> None:
    draft.release_held()
    step, lr = _STEP.search(rest), _LR.search(rest)
    if step:
        draft.step(line, step[1], loss=loss, lr=lr[1] if lr else None)
    else:
        draft.recognise(line)


FORMATS = (
    Format(
        name="hf_trainer",
        title="Hugging Face Trainer",
        framework="transformers",
        evidence=Evidence.QUOTED,
        source="huggingface/transformers src/transformers/trainer.py, trainer_utils.py",
        needles=(_SPEED, "{'loss': "),
        instead="the total",
        read=read,
        facts_needles=(
            "Instantaneous batch size per device = ",
            "Total train batch size (w. parallel",
            "Gradient Accumulation steps = ",
        ),
    ),
)
