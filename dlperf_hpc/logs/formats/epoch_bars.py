"""Progress bars of an epoch's batches: PyTorch Lightning's, and tqdm's under any program.

| line | program |
|---|---|
| ``Epoch 0:  22%|..| 4/18 [00:17<01:02,  4.47s/it, loss=9.92, v_num=3]`` | Lightning 1 |
| ``Epoch 0:   3%|..| 4/150 [00:00<00:08, 18.02it/s, v_num=3, train_loss=0.3]`` | Lightning 2 |
| ``Epoch 0: |..| 45/? [00:02<00:00, 18.80it/s, v_num=5]`` | of an iterable data set |
| ``Epoch 3/10:  45%|..| 45/100 [00:10<00:12,  4.30it/s, loss=0.43]`` | ``tqdm(loader, desc=..)`` |

A bar counts batches, whatever is accumulated, and begins anew with each epoch, as its time does;
what lies between two epochs stands in no bar. The first epoch is read, and of it what comes before
the first validation: until Lightning 2.0 the bar counted validation's batches too, and its time
goes on during validation. Process 0 draws Lightning's bar.

Lightning draws with ``smoothing=0``: its rate is the mean since the epoch began, to 2 decimals
(``tqdm_progress.py``; from 2.1 on always in it/s). A rate in s/it is not read, since its line says
as much by the time. Lightning is known by ``v_num=``, the version of its logger, or by ``TPU
available: False, using: 0 TPU cores`` as it begins. Of other programs the time alone is read, and
only of bars that name an epoch's number: what another bar counts (files, epochs, downloads) is not
known. The bars of rich (``RichProgressBar``, Lightning's own from 2.6 on where rich is installed)
leave one line in a file, at the end of the last epoch: no speed.

A step is drawn twice: Lightning draws its own loss behind it, programs that call ``set_postfix`` in
the loop the next step's, so that of these the first drawing counts.

Real lines were read in Lightning-AI/pytorch-lightning issues 4225 and 11471 and ecmwf/anemoi-core
issue 614, and whole logs of Lightning 2.6 that were made by runs on a CPU.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats import _bars
from dlperf_hpc.logs.lineparts import NUMBER

_VERSION = "v_num="
_LIGHTNING = "TPU available: "
_VALIDATES = "Validati"
_NO_BAR = LinePattern(
    rf"^(?!.*(?:{_LIGHTNING}|{_VALIDATES}))[^\[\n]*$",  # each bar has its times in brackets
    passed_over=True,
)
_NAME = re.compile(r"(?:^|\W)[Ee]poch\W{0,3}(?P<epoch>[0-9]{1,9})(?!\w)")
_NO_TRAINING = re.compile(r"(?i)val|eval|test|sanity|predict|infer")
_LOSS = re.compile(rf"[, ](?:train[_/])?loss(?:_step)?=(?P<loss>{NUMBER})[,\]]")


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A state of the bar of an epoch's batches, or what shows that Lightning draws it."""
    bar = _bars.bar_of(line.text) if "poch" in line.text else None
    if _LIGHTNING in line.text or (bar and _VERSION in bar.rest):
        builder.state["lightning"] = True
    if bar and bar.done and not _NO_TRAINING.search(bar.name):
        if name := _NAME.search(bar.name):
            _read_bar(line, builder, bar, name["epoch"])
    elif builder.steps and _VALIDATES in line.text:
        builder.state["over"] = True


def _read_bar(line: Line, builder: ReadingBuilder, bar: _bars.Bar, epoch: str) -> None:
    if builder.later_epoch(line, epoch) or builder.state.get("over"):
        return
    if bar.total != builder.state.setdefault("total", bar.total):
        return
    again = bool(builder.steps) and builder.steps[-1].iteration == bar.done
    lightning = "lightning" in builder.state
    loss = _LOSS.search(bar.rest) if again == lightning else None
    speed = bar.rate if lightning and not again else None
    _bars.add(line, builder, bar, printed=speed, loss=loss["loss"] if loss else None)


LINES = {
    "epoch_bars": (
        _NO_BAR,
        LinePattern(take=read),
    ),
}
