r"""PaddlePaddle: the models of 1.8, PaddleClas and PaddleNLP.

paddle18_bert
-------------
PaddlePaddle 1.8 BERT (PaddlePaddle/models PaddleNLP/pretrain_language_models/BERT/train.py).

| since | line |
|---|---|
| 2019 | ``epoch: 1, progress: 1/1, step: 60, loss: 10.487363, ppl: 17796.216797,`` |
|  | ``next_sent_acc: 0.560417, speed: 1.060437 steps/s, file: demo_wiki_train.gz`` |
| 2020-10 | ``[epoch: 1, progress: 1/1, step: 60] loss: .., batch_cost: .. sec, speed: ..`` |

The step counts from 1. ``speed`` is of the steps since the line before, times the number of
trainers (``skip_steps = args.skip_steps * nccl2_num_trainers``), each of which drives all devices
of its node: a run's samples/s are speed x batch x devices of *one* trainer. How many trainers
there are, ``trainers_num:4`` states at the start; without that line one is assumed. (In 2019 a run
of several trainers counted its steps times their number as well; no line shows which it is.)
Lines of ``[validation_set]`` have a speed too, but no file.

paddle18_resnet
---------------
PaddlePaddle 1.8 image classification (PaddlePaddle/models PaddleCV/image_classification).

``[Pass 0, train batch 19] \tloss 7.07123, acc1 0.00000, acc5 0.00781, lr 0.10000, elapse 0.3425
sec``, in one line (2 decimals before 2019; without accuracies under mixup). ``test  batch`` lines
are not training.

The batch is a 0-based index within the pass: a pass's length is not printed, so later ones
are counted on from the last printed batch. ``elapse`` is the seconds of that batch alone, over
all devices; until 2020 the time in which the loader is waited for is not in it.

paddleclas
----------
PaddleClas (PaddlePaddle/PaddleClas ppcls/static/program.py and ppcls/engine/train/utils.py).

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

Count and mean begin anew with each epoch, the meters are reset after its first iterations too. The
dynamic graph states an epoch's length; of the static one, later epochs are counted on from the last
printed iteration. The lines of ``eval``, ``END`` and the dump of arguments (``ips: 127.0.0.1``) are
not steps.

paddlenlp
---------
PaddleNLP's pretraining scripts (PaddlePaddle/PaddleNLP examples, run_pretrain.py and others).

``tobal step: 40, epoch: 0, batch: 39, loss: 11.128925, avg_reader_cost: 0.00011 sec,
avg_batch_cost: 0.13001 sec, avg_samples: 64.00000, ips: 492.25918 sequences/sec``, in one line;
later ``total step:``, in dynamic graphs ``global step:``, in benchmarks ``global step 40 / 500``.

The step counts batches from 1: with gradient merge, micro-steps. ``ips`` is of one device, over
the steps since the line before; trainer 0 prints it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from dlperf_hpc.logs.format import (
    Columns,
    Groups,
    Line,
    LinePattern,
    ReadingBuilder,
    whole,
)
from dlperf_hpc.logs.lineparts import DECIMAL, FULL_STAMP, NUMBER, WHOLE, full_stamp, word

# --- paddle18_bert

_BERT_HEAD = re.compile(
    rf"{word('epoch: ')}[0-9]+, progress: [0-9]+/[0-9]+, step: (?P<done>[0-9]+)[],] "
    rf"(?:loss: (?P<loss>{NUMBER}),)?"
)
_SPEED = re.compile(rf", speed: (?P<speed>{NUMBER}) steps/s, file: ")
_TRAINERS = re.compile(r"\btrainers_num:(?P<trainers>[0-9]{1,6})\b")


def _read_bert(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A printed step, or the number of trainers."""
    head = _BERT_HEAD.search(line.text)
    if head is None:
        trainers = _TRAINERS.search(line.text)
        if trainers and int(trainers["trainers"]) > 0:
            builder.printed = replace(builder.printed, scale=1 / int(trainers["trainers"]))
        return
    speed = _SPEED.search(line.text, head.end() - 1)
    if speed is None:
        builder.note(line, "a step of Paddle's BERT, but without its speed")
        return
    builder.step(
        line,
        head["done"],
        stamp=full_stamp(line.text),
        printed=speed["speed"],
        loss=head["loss"],
    )


# --- paddle18_resnet

_RESNET_BATCH = re.compile(
    r"\[Pass (?P<epoch>[0-9]{1,9}), train batch (?P<index>[0-9]{1,9})\],?\s+"
    rf"loss (?P<loss>{NUMBER}),(?: acc1 {NUMBER}, acc[0-9] {NUMBER},)? "
    rf"lr (?P<lr>{NUMBER}), elapse (?P<time>{NUMBER}) sec"
)


def _read_resnet(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A printed batch."""
    match = _RESNET_BATCH.search(line.text)
    if match is None:
        builder.note(line, "a train batch, but not as Paddle 1.8 prints it")
        return
    builder.step(
        line,
        builder.over_epochs(line, int(match["epoch"]), int(match["index"]) + 1),
        stamp=full_stamp(line.text),
        printed=match["time"],
        loss=match["loss"],
        lr=match["lr"],
    )


# --- paddleclas

_STATIC, _DYNAMIC, _OLD = 4, 5, 10
_CLAS_HEAD = re.compile(
    r"\bepoch:(?P<era>[0-9]{1,9}) {0,3}(?P<comma>,?) {1,3}train step:(?P<static>[0-9]{1,9})\b"
    r"|\[Train\]\[Epoch (?P<epoch>[0-9]{1,9})/[0-9]+\]"
    r"\[Iter: (?P<dynamic>[0-9]{1,9})/(?P<length>[0-9]{1,9})\]"
)


def _in_first_epoch(builder: ReadingBuilder, columns: Columns) -> bool:
    """Whether all lines are of the file's first epoch, behind the reset of the meters."""
    (epoch, *others), numbers = set(columns["era"]), whole(columns["iteration"])
    behind = min(numbers) > _STATIC == builder.printed.origin
    return not others and behind and builder.first_epoch_up_to(int(epoch), max(numbers))


_CLAS_ROWS = LinePattern(
    rf"^\[(?P<full>{FULL_STAMP})\] ppcls INFO: "
    rf"epoch:(?P<era>[0-9]{{1,9}})   train step:(?P<iteration>[0-9]{{1,9}}) {{1,3}}"
    rf"lr: (?P<lr>{DECIMAL}), loss: {{1,8}}(?P<loss>{DECIMAL}) [-a-z0-9_.: ]*, "
    rf"[-a-z0-9_.:, ]*ips: (?P<printed>{DECIMAL}) samples/sec\.?$",
    usual=_in_first_epoch,
)
_NLP_ROWS = LinePattern(
    rf"^(?:\[(?P<full>{FULL_STAMP})\] \[ {{0,4}}INFO\] - )?"
    rf"(?:tobal|total|global) step:? (?P<iteration>{WHOLE}), epoch: [0-9]+, batch: [0-9]+, "
    rf"loss: (?P<loss>{DECIMAL}), (?:avg_[a-z_]+: {DECIMAL}(?: sec)?, )*"
    rf"ips: (?P<printed>{DECIMAL}) sequences/sec$"
)
_CLAS_RATE = re.compile(rf", ips: (?P<rate>{NUMBER}) (?:samples|images)/s")
_CLAS_LOSS = re.compile(rf"{word('loss: ')} *(?P<loss>{NUMBER})")
_LR = re.compile(rf"{word('lr')}(?:\(\w+\))?: *(?P<lr>{NUMBER})", re.ASCII)
_CLAS_BATCH = re.compile(r"DataLoader\.Train\.sampler\.batch_size=(?P<batch>[0-9]+)")


def _read_clas(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A printed iteration, or the batch size among the arguments."""
    marked = "train step:" in line.text or "[Train]" in line.text
    head = _CLAS_HEAD.search(line.text) if marked else None
    if head is None:
        batch = _CLAS_BATCH.search(line.text)
        if batch:
            builder.fact(line, "batch_size", batch["batch"])
        return
    rate = _CLAS_RATE.search(line.text, head.end())
    if rate is None:
        builder.note(line, "an iteration of PaddleClas, but without its speed")
        return
    epoch, (done, origin) = int(head["era"] or head["epoch"]), _count(head)
    at = builder.in_epoch(line, epoch, done, int(head["length"]) if head["length"] else None)
    if at is None:
        return
    if builder.printed.origin != origin:
        builder.printed = replace(builder.printed, origin=origin)
    loss, lr = (pattern.search(line.text, head.end()) for pattern in (_CLAS_LOSS, _LR))
    builder.step(
        line,
        at,
        stamp=full_stamp(line.text),
        printed=None if done <= origin else rate["rate"],
        loss=loss["loss"] if loss else None,
        lr=lr["lr"] if lr else None,
    )


def _count(head: re.Match[str]) -> tuple[int, int]:
    """Iterations of the epoch that are done, and how many of them are not in the mean."""
    if head["dynamic"]:
        return int(head["dynamic"]) + 1, _DYNAMIC
    if head["comma"]:
        return int(head["static"]) + 1, _OLD
    return int(head["static"]), _STATIC


# --- paddlenlp

_NLP_HEAD = re.compile(r"\b(?:tobal|total|global) step:? (?P<done>[0-9]+)(?: / [0-9]+)?,")
_NLP_LOSS = re.compile(rf"{word('loss: ')}(?P<loss>{NUMBER}),")
_NLP_RATE = re.compile(rf"{word('ips: ')}(?P<rate>{NUMBER}) sequences/sec")
_MEMORY = re.compile(rf"{word('max_mem_allocated: ')}(?P<mb>[0-9]+) MB")
_MERGE = re.compile(rf"{word('gradient_merge_steps=')}(?P<value>[0-9]+)")
_NLP_BATCH = re.compile(rf"{word('batch_size=')}(?P<value>[0-9]+)")
_FP16 = re.compile(r"\buse_(?:amp|pure_fp16)=(?P<value>True|False|0|1)\b")


def _read_nlp(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A printed step, or the arguments."""
    head = _NLP_HEAD.search(line.text)
    if head is None:
        if "Namespace(" in line.text:
            _arguments(line, builder)
        return
    rate = _NLP_RATE.search(line.text, head.end())
    if rate is None:
        builder.note(line, "a step of PaddleNLP, but without its speed")
        return
    loss = _NLP_LOSS.search(line.text, head.end())
    memory = _MEMORY.search(line.text, rate.end())
    builder.step(
        line,
        head["done"],
        stamp=full_stamp(line.text),
        printed=rate["rate"],
        loss=loss["loss"] if loss else None,
        memory_mb=memory["mb"] if memory else None,
    )


def _arguments(line: Line, builder: ReadingBuilder) -> None:
    for pattern, name in ((_MERGE, "accumulation"), (_NLP_BATCH, "batch_size")):
        match = pattern.search(line.text)
        if match:
            builder.fact(line, name, match["value"])
    switches = _FP16.findall(line.text)
    if switches:
        on = "True" in switches or "1" in switches
        builder.fact(line, "precision", "fp16" if on else "fp32")


LINES = {
    "paddle18_bert": (LinePattern(take=_read_bert),),
    "paddle18_resnet": (LinePattern(take=_read_resnet),),
    "paddleclas": (
        _CLAS_ROWS,
        _NLP_ROWS.of_another(),
        LinePattern(take=_read_clas),
    ),
    "paddlenlp": (
        _NLP_ROWS,
        LinePattern(take=_read_nlp),
    ),
}
