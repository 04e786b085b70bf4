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

from dlperf_hpc.logs.format import (
    Columns,
    Groups,
    Line,
    LinePattern,
    ReadingBuilder,
    whole,
)
from dlperf_hpc.logs.lineparts import NUMBER, word

_HEAD = (
    rf"{word('Epoch: ')}\[(?P<era>[0-9]{{1,9}})\]"
    r"\[ *(?P<index>[0-9]{1,9})/(?P<length>[0-9]{1,9})\]"
)


def _in_first_epoch(builder: ReadingBuilder, columns: Columns) -> bool:
    """Whether all lines are of the file's first epoch, of the known length, and count from 0."""
    (epoch, *others), lengths = set(columns["era"]), set(columns["length"])
    if others or lengths != {str(builder.state.get("epoch_length"))}:
        return False
    from_one = builder.state.get("from_one", min(whole(columns["index"])) < 2)
    return not from_one and builder.first_epoch_up_to(int(epoch), 0)


def _read_batch(line: Line, builder: ReadingBuilder, match: Groups) -> None:
    """A printed batch."""
    done = _done(match["index"], match["last"] == match["printed"], builder)
    at = builder.in_epoch(line, int(match["era"]), done, int(match["length"]))
    if at is not None:
        builder.step(line, at, printed=match["printed"], loss=match["loss"])


def _done(number: str, alone: bool, builder: ReadingBuilder) -> int:
    """Batches done; ``alone``: the mean is of one batch. What counts from 0 or 1 stays so."""
    if "from_one" not in builder.state and (number == "0" or (number == "1" and alone)):
        builder.state["from_one"] = number == "1"
    return int(number) if builder.state.get("from_one") else int(number) + 1


LINES = {
    "pytorch_imagenet": (
        LinePattern(
            rf"{_HEAD}\s+Time +(?P<last>{NUMBER}) \( *(?P<printed>{NUMBER})\)"
            rf"(?:.*?{word('Loss ')} *(?P<loss>{NUMBER}) \()?",
            take=_read_batch,
            usual=_in_first_epoch,
        ),
        LinePattern(_HEAD, note="a batch of the ImageNet example, but without its time"),
        LinePattern(r"=> creating model '(?P<model>[^']{1,80})'"),
    ),
}
