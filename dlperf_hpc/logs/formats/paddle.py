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

from dlperf_hpc.logs.format import Columns, Groups, Line, LinePattern, ReadingBuilder, whole
from dlperf_hpc.logs.lineparts import FULL_STAMP, NUMBER, full_stamp, further, perhaps, word

# --- paddle18_bert

_BERT_STEP = (
    rf"{word('epoch: ')}[0-9]+, progress: [0-9]+/[0-9]+, step: (?P<iteration>[0-9]+)[],] "
    rf"(?:loss: (?P<loss>{NUMBER})(?=,))?"
)


def _read_trainers(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    if int(found["trainers"]) > 0:
        builder.printed = replace(builder.printed, scale=1 / int(found["trainers"]))


_BERT = (
    LinePattern(
        _BERT_STEP + further(rf", speed: (?P<printed>{NUMBER}) steps/s, file: "), clock="full"
    ),
    LinePattern(_BERT_STEP, note="a step of Paddle's BERT, but without its speed"),
    LinePattern(r"\btrainers_num:(?P<trainers>[0-9]{1,6})\b", take=_read_trainers),
)


# --- paddle18_resnet

_RESNET = (
    LinePattern(
        r"\[Pass (?P<epoch>[0-9]{1,9}), train batch (?P<index>[0-9]{1,9})\],?\s+"
        rf"loss (?P<loss>{NUMBER}),(?: acc1 {NUMBER}, acc[0-9] {NUMBER},)? "
        rf"lr (?P<lr>{NUMBER}), elapse (?P<printed>{NUMBER}) sec",
        clock="full",
    ),
    LinePattern(", train batch ", note="a train batch, but not as Paddle 1.8 prints it"),
)


# --- paddleclas

_STATIC, _DYNAMIC, _OLD = 4, 5, 10
_STATIC_HEAD = (
    r"\bepoch:(?P<era>[0-9]{1,9}) {0,3}(?P<comma>,?) {1,3}train step:(?P<iteration>[0-9]{1,9})\b"
)
_DYNAMIC_HEAD = (
    r"\[Train\]\[Epoch (?P<era>[0-9]{1,9})/[0-9]+\]"
    r"\[Iter: (?P<index>[0-9]{1,9})/(?P<length>[0-9]{1,9})\]"
)
_LOSS = rf"{word('loss: ')} *(?P<loss>{NUMBER})"
_LR = rf"{word('lr')}(?:\([A-Za-z0-9_]+\))?: *(?P<lr>{NUMBER})"
_IPS = rf", ips: (?P<printed>{NUMBER}) (?:samples|images)/s"
_BETWEEN = "[-a-z0-9_.:, ]*"
_CLAS_FIGURES = further(_IPS) + perhaps(_LOSS) + perhaps(_LR)


def _in_first_epoch(builder: ReadingBuilder, columns: Columns) -> bool:
    """Whether all lines are of the file's first epoch, behind the reset of the meters."""
    (epoch, *later), numbers = set(columns["era"]), whole(columns["iteration"])
    behind = min(numbers) > _STATIC == builder.printed.origin and "comma" not in columns
    return not later and behind and builder.first_epoch_up_to(int(epoch), max(numbers))


def _read_clas(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """An iteration. The first ``origin`` ones of an epoch are not in the printed means."""
    done, origin = int(found.get("iteration") or 0), _STATIC
    if "index" in found:
        done, origin = int(found["index"]) + 1, _DYNAMIC
    elif found["comma"]:
        done, origin = done + 1, _OLD
    length = found.get("length")
    at = builder.in_epoch(line, int(found["era"]), done, length and int(length))
    if at is None:
        return
    if builder.printed.origin != origin:
        builder.printed = replace(builder.printed, origin=origin)
    printed = found["printed"]
    if done <= origin:
        printed = None
    stamp = full_stamp(line.text)
    builder.step(line, at, stamp=stamp, printed=printed, loss=found["loss"], lr=found["lr"])


# --- paddlenlp

_NLP_HEAD = r"(?:tobal|total|global) step:? (?P<iteration>[0-9]+)(?: / [0-9]+)?,"
_NLP_LOSS = rf"{word('loss: ')}(?P<loss>{NUMBER}),"
_NLP_IPS = rf"{word('ips: ')}(?P<printed>{NUMBER}) sequences/sec"
_NLP_ROWS = LinePattern(
    rf"^(?:\[(?P<full>{FULL_STAMP})\] \[ {{0,4}}INFO\] - )?{_NLP_HEAD} epoch: [0-9]+,"
    rf" batch: [0-9]+, {_NLP_LOSS}{_BETWEEN}{_NLP_IPS}$"
)
_FP16 = re.compile(r"\buse_(?:amp|pure_fp16)=(True|False|0|1)\b")


def _read_arguments(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.fact(line, "accumulation", found["merge"])
    builder.fact(line, "batch_size", found["batch"])
    switches = set(_FP16.findall(line.text))
    if switches:
        builder.fact(
            line, "precision", {True: "fp16", False: "fp32"}[not switches <= {"False", "0"}]
        )


LINES = {
    "paddle18_bert": _BERT,
    "paddle18_resnet": _RESNET,
    "paddleclas": (
        LinePattern(
            rf"^\[(?P<full>{FULL_STAMP})\] ppcls INFO: {_STATIC_HEAD} +{_LR}, {_LOSS}"
            rf"{_BETWEEN}{_IPS}",
            take=_read_clas,
            usual=_in_first_epoch,
        ),
        _NLP_ROWS.of_another(),
        LinePattern(_STATIC_HEAD + _CLAS_FIGURES, take=_read_clas),
        LinePattern(_DYNAMIC_HEAD + _CLAS_FIGURES, take=_read_clas),
        LinePattern(
            f"{_STATIC_HEAD}|{_DYNAMIC_HEAD.replace('era', 'epoch')}",
            note="an iteration of PaddleClas, but without its speed",
        ),
        LinePattern(r"DataLoader\.Train\.sampler\.batch_size=(?P<batch_size>[0-9]+)"),
    ),
    "paddlenlp": (
        _NLP_ROWS,
        LinePattern(
            rf"\b{_NLP_HEAD}"
            + further(_NLP_IPS + perhaps(r"\bmax_mem_allocated: (?P<memory_mb>[0-9]+) MB"))
            + perhaps(_NLP_LOSS),
            clock="full",
        ),
        LinePattern(rf"\b{_NLP_HEAD}", note="a step of PaddleNLP, but without its speed"),
        LinePattern(
            r"Namespace\("
            + perhaps(rf"{word('gradient_merge_steps=')}(?P<merge>[0-9]+)")
            + perhaps(rf"{word('batch_size=')}(?P<batch>[0-9]+)"),
            take=_read_arguments,
        ),
    ),
}
