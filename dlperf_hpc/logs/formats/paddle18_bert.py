"""PaddlePaddle 1.8 BERT (PaddlePaddle/models PaddleNLP/pretrain_language_models/BERT/train.py).

| since | line |
|---|---|
| 2019 | ``epoch: 1, progress: 1/1, step: 60, loss: 10.487363, ppl: 17796.216797,`` |
|  | ``next_sent_acc: 0.560417, speed: 1.060437 steps/s, file: demo_wiki_train.gz`` |
| 2020-10 | ``[epoch: 1, progress: 1/1, step: 60] loss: .., batch_cost: .. sec, speed: ..`` |

The step counts from 1. ``speed`` is of the steps since the line before, times the number of
trainers (``skip_steps = args.skip_steps * nccl2_num_trainers``), each of which drives all devices
of its node: a run's samples/s are speed x batch x devices of *one* trainer. How many trainers
there are, ``trainers_num:4`` says at the start; without that line one is assumed. (In 2019 a run
of several trainers counted its steps times their number as well; no line tells the two apart.)
Lines of ``[validation_set]`` have a speed too, but no file.
"""

from __future__ import annotations

import re
from dataclasses import replace

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._numbers import NUMBER, word
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Evidence, Printed, Unit

_HEAD = re.compile(
    rf"{word('epoch: ')}[0-9]+, progress: [0-9]+/[0-9]+, step: (?P<done>[0-9]+)[],] "
    rf"(?:loss: (?P<loss>{NUMBER}),)?"
)
_SPEED = re.compile(rf", speed: (?P<speed>{NUMBER}) steps/s, file: ")
_TRAINERS = re.compile(r"\btrainers_num:(?P<trainers>[0-9]{1,6})\b")


def read(line: Line, draft: Draft) -> None:
    """A printed step, or the number of trainers."""
    head = _HEAD.search(line.text)
    if head is None:
        trainers = _TRAINERS.search(line.text)
        if trainers and int(trainers["trainers"]) > 0:
            draft.printed = replace(draft.printed, scale=1 / int(trainers["trainers"]))
        return
    speed = _SPEED.search(line.text, head.end() - 1)
    if speed is None:
        draft.note(line, "a step of Paddle's BERT, but without its speed")
        return
    draft.step(
        line,
        head["done"],
        stamp=full_stamp(line.text),
        printed=speed["speed"],
        loss=head["loss"],
    )


FORMAT = Format(
    name="paddle18_bert",
    title="PaddlePaddle 1.8 BERT",
    framework="paddle",
    evidence=Evidence.QUOTED,
    source="PaddlePaddle/models (release/1.8) PaddleNLP/pretrain_language_models/BERT/train.py",
    needles=(" steps/s, file: ",),
    read=read,
    printed=Printed(Unit.ITERATIONS_PER_S),
    facts_needles=(" trainers_num:",),
)
