"""PyTorch's ImageNet example (pytorch/examples imagenet/main.py).

| since | line |
|---|---|
| 2017 | ``Epoch: [0][10/5005]\\tTime 0.545 (0.812)\\tData 0.003 (0.021)\\tLoss 6.91 (6.98)...`` |
| 2019 | ``Epoch: [0][ 1/53]       Time  0.970 ( 6.512)    Data  0.002 ( 0.001)    Loss ...`` |
| 2022 | like 2019, but counted from 1 (``progress.display(i + 1)``) |

``Time`` is seconds of one iteration: all ranks' own batches together. Its first number is the
last batch's alone, the one in brackets the mean since the epoch began; the second is read, for it
covers the batches between two lines whatever ``--print-freq`` is, but to 3 decimals only: the
error of a window is up to 0.0005 s times the sum of its two counts. The loss is the last batch's.

Every process prints, without a label. Count and mean begin anew with each epoch, whose length
stands in each line. Lines counted from 1 show themselves by their first: number 1 of an epoch with
both times the same.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import NUMBER, Draft, Format, Line, word
from dlperf_hpc.logs.scan.rows import DECIMAL, Columns, Rows, whole
from dlperf_hpc.logs.scanned import Averaging, Evidence, Printed, Unit

_HEAD = re.compile(
    rf"{word('Epoch: ')}\[(?P<era>[0-9]{{1,9}})\]"
    r"\[ *(?P<number>[0-9]{1,9})/(?P<length>[0-9]{1,9})\]"
)
_TIME = re.compile(rf"\s+Time +(?P<last>{NUMBER}) \( *(?P<mean>{NUMBER})\)")
_BESIDE = rf"[\t ]+[A-Z][a-z]+(?:@[0-9])? +{DECIMAL} \( *{DECIMAL}\)"


def _in_first_epoch(draft: Draft, columns: Columns) -> bool:
    """Whether all lines are of the file's first epoch, of the known length, and count from 0."""
    (epoch, *others), lengths = set(columns["era"]), set(columns["length"])
    if others or lengths != {str(draft.state.get("epoch_length"))}:
        return False
    from_one = draft.state.get("from_one", min(whole(columns["index"])) < 2)
    return not from_one and draft.first_epoch_up_to(int(epoch), 0)


_ROWS = Rows(
    rf"Epoch: \[(?P<era>[0-9]{{1,9}})\]\[ *(?P<index>[0-9]{{1,9}})/(?P<length>[0-9]{{1,9}})\]"
    rf"[\t ]+Time +{DECIMAL} \( *(?P<printed>{DECIMAL})\)[\t ]+Data +{DECIMAL} \( *{DECIMAL}\)"
    rf"[\t ]+Loss +(?P<loss>{DECIMAL}) \( *{DECIMAL}\)(?:{_BESIDE})*",
    usual=_in_first_epoch,
)
_LOSS = re.compile(rf"{word('Loss ')} *(?P<loss>{NUMBER}) \(")
_MODEL = re.compile(r"=> creating model '(?P<model>[^']{1,80})'")


def read(line: Line, draft: Draft) -> None:
    """A printed batch, or the model's name."""
    head = _HEAD.search(line.text)
    if head is None:
        model = _MODEL.search(line.text)
        if model:
            draft.fact(line, "model", model["model"])
        return
    time = _TIME.match(line.text, head.end())
    if time is None:
        draft.note(line, "a batch of the ImageNet example, but without its time")
        return
    done = _done(head["number"], time["last"] == time["mean"], draft)
    at = draft.in_epoch(line, int(head["era"]), done, int(head["length"]))
    if at is None:
        return
    loss = _LOSS.search(line.text, time.end())
    draft.step(
        line,
        at,
        printed=time["mean"],
        loss=loss["loss"] if loss else None,
    )


def _done(number: str, alone: bool, draft: Draft) -> int:
    """Batches done; ``alone``: the mean is of one batch. What counts from 0 or 1 stays so."""
    if "from_one" not in draft.state and (number == "0" or (number == "1" and alone)):
        draft.state["from_one"] = number == "1"
    return int(number) if draft.state.get("from_one") else int(number) + 1


FORMATS = (
    Format(
        name="pytorch_imagenet",
        title="PyTorch ImageNet example",
        framework="pytorch",
        evidence=Evidence.QUOTED,
        source="pytorch/examples imagenet/main.py; "
        "README of Oneflow-Inc/DLPerf PyTorch/resnet50v1.5",
        needles=("Epoch: [",),
        read=read,
        printed=Printed(Unit.S_PER_ITERATION, averaging=Averaging.RUNNING),
        facts_needles=("=> creating model '",),
        rows=(_ROWS,),
    ),
)
