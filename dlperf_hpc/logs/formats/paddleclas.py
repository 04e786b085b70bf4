"""PaddleClas (PaddlePaddle/PaddleClas ppcls/static/program.py and ppcls/engine/train/utils.py).

| graph | line, after ``[2022/06/02 16:17:31] ppcls INFO: `` |
|---|---|
| static, 2020-12 on | ``epoch:0   train step:10   lr: 0.100000, loss:  6.9950 top1:  0.0039 ...`` |
|  | ``batch_cost: 0.75584 s, reader_cost: 0.03820 s, ips: 338.69825 samples/sec.`` |
| 2020-11 | ``epoch:0  , train step:50  , loss: 6.92608, ... ips: 225.20036 images/sec.`` |
| dynamic, 2021 on | ``[Train][Epoch 24/120][Iter: 10/304]lr(PiecewiseDecay): 0.00100000, ...`` |
|  | ``batch_cost: 0.62808s, reader_cost: 0.12837, ips: 25.47451 samples/s, eta: 5:08:34`` |

``ips`` is of one device, and a running mean: over the epoch so far, but for its first iterations,
after which the meters are reset. The static graph counts iterations from 1 and drops 4, the
dynamic one counts from 0 and drops 5, that of 2020-11 from 0 and 10 (it is known by its comma).
What is printed before the reset is a mean of other iterations and is left out.

Count and mean begin anew with each epoch: the first is read. The lines of ``eval``, ``END`` and the
dump of arguments (``ips: 127.0.0.1``) are not steps.
"""

from __future__ import annotations

import re
from dataclasses import replace

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._figures import later_epoch, one_more
from dlperf_hpc.logs.formats._numbers import NUMBER, word
from dlperf_hpc.logs.scan.rows import DECIMAL, FULL_STAMP, WHOLE, Rows
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Averaging, Counter, Evidence, Printed, Scope

_STATIC, _DYNAMIC, _OLD = 4, 5, 10
_HEAD = re.compile(
    r"\bepoch:(?P<era>[0-9]+) {0,3}(?P<comma>,?) {1,3}train step:(?P<static>[0-9]+)"
    r"|\[Train\]\[Epoch (?P<epoch>[0-9]+)/[0-9]+\]\[Iter: (?P<dynamic>[0-9]+)/[0-9]+\]"
)
_ROWS = Rows(
    rf"\[(?P<full>{FULL_STAMP})\] ppcls INFO: "
    rf"epoch:(?P<era>[0-9]+)   train step:(?P<iteration>{WHOLE}) {{1,3}}lr: (?P<lr>{DECIMAL}), "
    rf"loss: {{1,8}}(?P<loss>{DECIMAL}) [-a-z0-9_.: ]*, "
    rf"[-a-z0-9_.:, ]*ips: (?P<printed>{DECIMAL}) samples/sec\.?",
    usual=lambda draft, columns: (
        set(columns["era"]) == {draft.state.get("epoch")}
        and min(map(int, columns["iteration"])) > _STATIC == draft.printed.origin
    ),
)
_RATE = re.compile(rf", ips: (?P<rate>{NUMBER}) (?:samples|images)/s")
_LOSS = re.compile(rf"{word('loss: ')} *(?P<loss>{NUMBER})")
_LR = re.compile(rf"{word('lr')}(?:\(\w+\))?: *(?P<lr>{NUMBER})", re.ASCII)
_BATCH = re.compile(r"DataLoader\.Train\.sampler\.batch_size=(?P<batch>[0-9]+)")


def read(line: Line, draft: Draft) -> None:
    """A printed iteration, or the batch size among the arguments."""
    marked = "train step:" in line.text or "[Train]" in line.text
    head = _HEAD.search(line.text) if marked else None
    if head is None:
        batch = _BATCH.search(line.text)
        if batch:
            draft.fact(line, "batch_size", batch["batch"])
        return
    rate = _RATE.search(line.text, head.end())
    if rate is None:
        draft.note(line, "an iteration of PaddleClas, but without its speed")
        return
    if later_epoch(draft, line, head["era"] or head["epoch"]):
        return
    done, origin = _count(head)
    if draft.printed.origin != origin:
        draft.printed = replace(draft.printed, origin=origin)
    loss, lr = (pattern.search(line.text, head.end()) for pattern in (_LOSS, _LR))
    draft.step(
        line,
        done,
        stamp=full_stamp(line.text),
        printed=None if isinstance(done, int) and done <= origin else rate["rate"],
        loss=loss["loss"] if loss else None,
        lr=lr["lr"] if lr else None,
    )


def _count(head: re.Match[str]) -> tuple[int | str, int]:
    """Iterations done, and how many of them are not in the mean."""
    if head["dynamic"]:
        return one_more(head["dynamic"]), _DYNAMIC
    if head["comma"]:
        return one_more(head["static"]), _OLD
    number = head["static"]
    return (int(number) if len(number) < 18 else number), _STATIC


FORMAT = Format(
    name="paddleclas",
    title="PaddleClas",
    framework="paddle",
    evidence=Evidence.REAL,
    source="PaddlePaddle/PaddleClas ppcls/static/program.py, ppcls/engine/train/utils.py",
    needles=(", ips: ",),
    read=read,
    printed=Printed(scope=Scope.DEVICE, averaging=Averaging.RUNNING, origin=_STATIC),
    counter=Counter.MICRO_STEPS,
    facts_needles=("DataLoader.Train.sampler.batch_size=",),
    rows=(_ROWS,),
)
