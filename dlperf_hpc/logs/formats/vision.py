r"""Programs that train on images: timm, MetricLogger's, detectron2, OpenCLIP, PyTorch's
ImageNet example, nnU-Net.

timm
----
timm: pytorch-image-models' ``train.py``, and the scripts that were made of it.

| since | line |
|---|---|
| 2019 | ``Train: 0 [  50/1251 (  4%)]  Loss:  6.912345 (6.9234)  Time: 0.245s, 1044.90/s  (0.312s,  820.51/s)  LR: 1.000e-05  Data: 0.010 (0.080)`` |
| 2022 | as above with ``Loss: 6.91 (6.92)`` |

The index counts from 0 (since 2023 optimizer steps; before, batches, which were the same). Rank 0
prints, without a time stamp. ``820.51/s`` is samples per second of all devices: the line's batch
over the mean time since the epoch began, data loader and first iterations included. Mean and count
begin anew with each epoch, so the first epoch is read. An epoch's last batch may have fewer
samples, which makes its line's figure too low by that factor: it is not read. With batches of
changing size (``Using NaFlex loader``) none is.

The global batch is printed where the learning rate is scaled by it. Quoted lines of both forms were
read, in the README of phamdinhkhanh/general_backbone and in notes of repositories made of timm.

metric_logger
-------------
The MetricLogger of torchvision's references, and of the many programs that copied it.

DETR, DeiT, MAE, DINO and DINOv2, BEiT, ConvNeXt, VideoMAE, ALBEF, BLIP and others.

| program | line |
|---|---|
| torchvision | ``Epoch: [0]  [  20/5005]  eta: 1:00:00  lr: 0.1  img/s: 400.1  loss: 6.97 (6.98)  acc1: 0.0 (0.2)  time: 0.3012  data: 0.0031  max mem: 3524`` |
| DETR, DeiT, MAE | as above without ``img/s`` |
| DINO | ``Epoch: [0/100]  [2240/2502]  eta: 0:02:44  loss: 5.38 (7.54)  ..`` |
| DINOv2 | ``I20231111 00:21:00 65566 dinov2 helpers.py:103] Training  [  3280/164000]  eta: ..`` |
| ALBEF, BLIP | ``Train Epoch: [0]  [   50/1000]  eta: ..`` |

The index counts batches of the epoch from 0, micro-steps where gradients are accumulated. ``time``
is seconds of a batch, data loader included: of all devices' own batches together, and a mean over
the last 20 batches (``SmoothedValue``, at the epoch's begin over fewer), whatever the distance of
lines is. Lines that are closer print means that overlap, so those whose index is a multiple of 20
are read, and no others: with the default distances of 10, 20 and 100 each of these stands for the
batches since the one before, or for the last 20 of them. ``img/s`` is the last batch's and of one
process: it is not read. Means begin anew with each epoch; the first line of a later one, which is
of its first batch alone, is not read. Rank 0 prints. Lines of ``Test:`` are those of an evaluation.

DINO's evaluations load a ``checkpoint_key``: the linear classifier that one of them trains on frozen
features is passed over.

RF-DETR (``grad_accum_steps=2`` and ``group_detr=13`` of its arguments) counts optimizer steps.

``batch_size`` of the arguments is one device's in all programs named here. Quoted lines were read:
fangwei123456/Spike-Element-Wise-ResNet issue 10 (torchvision), THU-MIG/PYRA issue 3 (DeiT),
facebookresearch/dino issue 69, facebookresearch/dinov2 issue 307.

detectron2
----------
detectron2 (``detectron2/utils/events.py``), and what is built on it: d2go, Detic, MaskFormer.

| since | line |
|---|---|
| 2019 | ``[11/01 11:23:38 d2.utils.events]:  eta: 8:08:27  iter: 639  total_loss: 1.194  loss_cls: 0.831  time: 0.3326  data_time: 0.0328  lr: 0.006394  max_mem: 3961M`` |
| 2022 | as above with ``time: 0.3326  last_time: 0.3311  data_time: ..  last_data_time: ..`` |
| a file | ``[04/14 09:05:02] d2.utils.events INFO:  eta: 0:11:54  iter: 119  ..`` |
| hooks | ``[04/14 09:10:02 d2.evaluation.evaluator]: Start inference on 5000 batches`` |
| | ``[04/14 09:10:01 fvcore.common.checkpoint]: Saving checkpoint to ./output/model_0004999.pth`` |
| end | ``[04/14 09:15:02 d2.engine.hooks]: Overall training speed: 8997 iterations in 0:10:00 (0.0667 s / it)`` |

``iter`` is an index from 0 over the whole run, printed every 20 iterations. The losses are medians
over 20 iterations; ``time`` is the mean since the third iteration of this start, of all devices'
own batches together, without the hooks (evaluation, checkpoints), which are in the clock. The
stamps of quoted lines bear it out: 20 iterations took 4 s where ``time`` fell from 0.3633 to
0.3147. The total leaves out these two iterations and the hooks (until 2020 it divided by one
iteration too few). The stamp has no year, and no fraction of a second. Rank 0 prints.

``IMS_PER_BATCH`` of the configuration is the batch over all devices (``total_batch_size`` of a lazy
configuration). A real log of 300 iterations was read, Richard-cpu2333/tx2dl models/log/R50-FPN_log.py
(of its window the clock and the printed times differ by 0.3 %), and quoted lines of
facebookresearch/detectron2 issue 195, facebookresearch/d2go issues 19 and 524 and
ChenhongyiYang/QueryDet-PyTorch issue 17.

open_clip
---------
OpenCLIP (mlfoundations/open_clip src/open_clip_train/train.py), and programs made of it.

| since | line |
|---|---|
| 2022 | ``2023-06-29,15:45:36 | INFO | Train Epoch: 0 [  6464/109468 (3%)] Loss: 0.97884 (1.023) Data (t): 0.158 Batch (t): 0.559, 36.0876/s LR: 0.000001 ..`` |
| 2023 | ``.. Batch (t): 6.466, 2533.71/s, 79.1783/s/gpu LR: 0.000000 Logit Scale: 14.286 Contrastive_loss: 9.7031 (9.7031) Loss: 9.7031 (9.7031)`` |

The count is of samples over all devices, the first line's is a global batch. Where its time and its
samples/s say otherwise (the log begins later, or a fork counts otherwise) no line is read. ``Batch
(t)`` is the mean over the batches since the line before, the samples/s are the last batch's and not
read. The master prints. Lines of mlfoundations/open_clip issue 681 were read, and of
mertyg/vision-language-models-are-bows issue 27, whose count is twice its batch.

pytorch_imagenet
----------------
PyTorch's ImageNet example (pytorch/examples imagenet/main.py).

| since | line |
|---|---|
| 2017 | ``Epoch: [0][10/5005]\tTime 0.545 (0.812)\tData 0.003 (0.021)\tLoss 6.91 (6.98)...`` |
| 2019 | ``Epoch: [0][ 1/53]       Time  0.970 ( 6.512)    Data  0.002 ( 0.001)    Loss ...`` |
| 2022 | like 2019, but counted from 1 (``progress.display(i + 1)``) |

``Time`` is seconds of one iteration: all ranks' own batches together. Its first number is the
last batch's alone, the one in brackets the mean since the epoch began; the second is read, for it
covers the batches between two lines whatever ``--print-freq`` is, but to 3 decimals only: the
error of a window is up to 0.0005 s times the sum of its two counts. The loss is the last batch's.

Every process prints, without a label. Count and mean begin anew with each epoch, whose length
stands in each line. Lines counted from 1 show themselves by their first: number 1 of an epoch with
both times the same.

nnunet
------
nnU-Net 2 (MIC-DKFZ/nnUNet), whose trainer prints an epoch on some lines:

    2025-11-19 00:07:35.259727: Epoch 72
    2025-11-19 00:09:11.854378: train_loss -0.5525
    2025-11-19 00:09:11.881562: Epoch time: 96.61 s

An epoch is 250 iterations, whatever the data set (``num_iterations_per_epoch``; a trainer derived
from this one may have others, which no line says), and 50 iterations of a validation, whose time is
in it. The batch of the configuration is that of all devices. Rank 0 prints.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

from dlperf_hpc.logs.format import Columns, Groups, Line, LinePattern, ReadingBuilder, whole
from dlperf_hpc.logs.lineparts import FIGURE, NUMBER, full_stamp, further, perhaps, word
from dlperf_hpc.logs.scanned import Counter, Unit

_COUNT = r"[0-9]{1,12}"

# --- timm


def _update(figure: str) -> str:
    """The pattern of a printed update; ``figure`` names the group of the speed."""
    return (
        rf"Train: (?P<only_epoch>{_COUNT}) \[ {{0,12}}(?P<index>{_COUNT})/(?P<length>{_COUNT})"
        rf" \( {{0,3}}[0-9]{{1,3}}%\)\] {{1,4}}Loss: {{1,4}}(?P<loss>{FIGURE}) \( {{0,4}}{FIGURE}\)"
        rf" {{1,4}}Time: {{1,4}}{FIGURE}s, {{1,8}}{FIGURE}/s"
        rf" {{1,4}}\({FIGURE}s, {{1,8}}(?P<{figure}>{FIGURE})/s\)"
        rf"(?: {{1,4}}LR: (?P<lr>{FIGURE}) )?"
    )


def _has_full_batch(builder: ReadingBuilder, columns: Columns) -> bool:
    """Whether the batch of a line is that of all before it."""
    (index,), (length,) = columns["index"], columns["length"]
    return "naflex" not in builder.state and int(index) + 1 < int(length)


_TIMM = (
    LinePattern(_update("printed"), clock="full", usual=_has_full_batch),
    LinePattern(_update("other"), clock="full"),
    LinePattern(
        r" per process\. ?Process [0-9]{1,9}, total (?P<devices>[0-9]{1,9})[.,]", held=True
    ),
    LinePattern("Training with a single process on (?P<devices>1) ", held=True),
    LinePattern(
        r"and effective global batch size \((?P<global_batch>[0-9]{1,12})\) with ", held=True
    ),
    LinePattern(r"\bModel (?P<model>[A-Za-z0-9_.-]{1,80}) created, param count:", held=True),
    LinePattern(
        r"AMP not enabled\. Training in (?:torch\.)?(?P<precision>float32|float16|bfloat16)\.",
        held=True,
    ),
    LinePattern("(?P<naflex>Using NaFlex loader)", kept=True),
)

# --- metric_logger

_WINDOW = 20  # batches of a mean
_LOGGER_HEAD = (
    rf"(?:Epoch: \[(?P<epoch>{_COUNT})(?:/{_COUNT})?\]|\bTraining)"
    rf"  \[ {{0,12}}(?P<index>{_COUNT})/(?P<length>{_COUNT})\]  eta: "
)


def _has_mean(builder: ReadingBuilder, columns: Columns) -> bool:
    """Whether a line's mean is that of the batches since the line before it, of a training."""
    evaluates = builder.state.get("program") == "checkpoint_key"
    later = builder.state.get("first_epoch", 0) not in map(int, columns.get("epoch", "0"))
    numbers = whole(columns["index"])
    return not evaluates and not any(n % _WINDOW or (later and not n) for n in numbers)


_LOGGER_BATCH = LinePattern(
    _LOGGER_HEAD
    + further(
        rf"  time: (?P<printed>{FIGURE})  data: {FIGURE}(?:  max mem: (?P<memory_mb>[0-9]{{1,9}}))?"
    )
    + perhaps(rf"  (?:total_)?loss: (?P<loss>{FIGURE}) \(")
    + perhaps(rf"  lr: (?P<lr>{FIGURE})(?: \({FIGURE}\))?  "),
    clock="glog",
    usual=_has_mean,
)


def _read_rfdetr(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.counter = Counter.OPTIMIZER_STEPS
    for name, value in found.items():
        builder.hold(line, name, value)


_LOGGER = (
    _LOGGER_BATCH,
    _LOGGER_BATCH.of_another(),
    LinePattern(_LOGGER_HEAD, note="a batch of a MetricLogger's, but without its time"),
    LinePattern(r"^Test: .*\]  eta: ", pause="evaluation", in_speed=False),
    LinePattern(r"\]  eta: ", passed_over=True),
    LinePattern(r"^(?P<program>checkpoint_key|momentum_teacher): ", kept=True),
    LinePattern(r"^batch_size_per_gpu: (?P<batch_size>[0-9]{1,9})\s*$", held=True),
    LinePattern(r"^world_size: (?P<devices>[0-9]{1,9})\s*$", held=True),
    LinePattern(r"^effective batch size: (?P<global_batch>[0-9]{1,12})\s*$", held=True),
    LinePattern(r"^accumulate grad iterations: (?P<accumulation>[0-9]{1,12})\s*$", held=True),
    LinePattern(
        r"^Namespace\("
        + further(r"\bgrad_accum_steps=(?P<accumulation>[0-9]{1,9})[,)]")
        + further(r"\bgroup_detr=[0-9]")
        + further(r"(?<![a-z_])batch_size=(?P<batch_size>[0-9]{1,9})[,)]")
        + further(r"(?<![a-z_])world_size=(?P<devices>[0-9]{1,9})[,)]"),
        take=_read_rfdetr,
    ),
    # Arguments as argparse prints them, on one line or (MAE) on a line each.
    LinePattern(
        r"^(?=Namespace\(|(?:batch_size|world_size|accum_iter)=)"
        + perhaps(r"(?<![a-z_])batch_size=(?P<batch_size>[0-9]{1,9})[,)]")
        + perhaps(r"(?<![a-z_])world_size=(?P<devices>[0-9]{1,9})[,)]")
        + perhaps(r"(?<![a-z_])accum_iter=(?P<accumulation>[0-9]{1,9})[,)]"),
        held=True,
    ),
)

# --- detectron2

_SPEED = "Overall training speed: "
_MOST_STARTS = 100  # kept of a file


def _read_amp(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """The configuration's ``AMP:``, or ``ENABLED:`` on the line below it."""
    enabled = found["enabled"]
    if not enabled:
        builder.state["amp"] = line.number
    elif builder.state.get("amp") == line.number - 1:
        builder.hold(line, "precision", {"t": "fp16", "f": "fp32"}[enabled[0].lower()])


def _read_start(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A start, which may go on where a run before it broke off."""
    if len(starts := builder.state.setdefault("starts", [])) < _MOST_STARTS:
        starts.append(line.number)


_DETECTRON2 = (
    LinePattern(
        r"d2\.utils\.events.{0,400}? iter: (?P<index>[0-9]{1,15})(?=  )"
        + perhaps(rf"  time: (?P<printed>{FIGURE})  ")
        + perhaps(rf"  total_loss: (?P<loss>{FIGURE})  ")
        + perhaps(rf" lr: (?P<lr>{FIGURE})  ")
        + perhaps(r"  max_mem: (?P<memory_mb>[0-9]{1,9})M"),
        clock="month_day",
    ),
    LinePattern(
        rf"{_SPEED}[0-9]{{1,15}} iterations in [0-9a-z,: ]{{1,40}} \((?P<total>{FIGURE}) s / it\)",
        name="overall training speed",
        unit=Unit.S_PER_ITERATION,
    ),
    LinePattern("d2.engine.train_loop.{1,9} Starting training from iteration ", take=_read_start),
    LinePattern(_SPEED, note="the overall training speed without its number"),
    LinePattern(r"d2\.evaluation.{1,40} Start inference on ", pause="evaluation", in_speed=False),
    LinePattern(r"checkpoint.{1,9} Saving checkpoint to ", pause="checkpoint", in_speed=False),
    LinePattern(
        r"Rank of current process: [0-9]{1,9}\. World size: (?P<devices>[0-9]{1,9})\s*$", held=True
    ),
    LinePattern(
        r"(?:^ {0,4}IMS_PER_BATCH|^ {2,8}total_batch_size): (?P<global_batch>[0-9]{1,9})\s*$",
        held=True,
    ),
    LinePattern(r"Auto-scaling the config to batch_size=(?P<global_batch>[0-9]{1,9}), ", held=True),
    LinePattern(r"^(?:  AMP:|    ENABLED: (?P<enabled>true|True|false|False))\s*$", take=_read_amp),
)

# --- pytorch_imagenet

_IMAGENET_HEAD = (
    rf"{word('Epoch: ')}\[(?P<era>[0-9]{{1,9}})\]"
    r"\[ *(?P<index>[0-9]{1,9})/(?P<length>[0-9]{1,9})\]"
)


def _in_first_epoch(builder: ReadingBuilder, columns: Columns) -> bool:
    """Whether all lines are of the file's first epoch, of the known length, and count from 0."""
    (epoch, *later), lengths = set(columns["era"]), set(columns["length"])
    if later or lengths != {str(builder.state.get("epoch_length"))}:
        return False
    from_one = builder.state.get("from_one", min(whole(columns["index"])) < 2)
    return not from_one and builder.first_epoch_up_to(int(epoch), 0)


def _read_batch(line: Line, builder: ReadingBuilder, match: Groups) -> None:
    done = _done(match["index"], match["last"] == match["printed"], builder)
    at = builder.in_epoch(line, int(match["era"]), done, int(match["length"]))
    if at is not None:
        builder.step(line, at, printed=match["printed"], loss=match["loss"])


def _done(number: str, alone: bool, builder: ReadingBuilder) -> int:
    """Batches done; ``alone``: the mean is of one batch. What counts from 0 or 1 stays so."""
    if "from_one" not in builder.state and (number == "0" or (number == "1" and alone)):
        builder.state["from_one"] = number == "1"
    return int(number) if builder.state.get("from_one") else int(number) + 1


# --- open_clip

_PLAIN = r"[0-9]{1,15}\.?[0-9]{0,20}(?:e[-+][0-9]{1,2})?"


def _read_clip(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    samples, every = int(found["samples"]), int(found["every"])
    if "batch" not in builder.state:
        alone = abs(float(found["time"]) * float(found["speed"]) - samples) <= 0.02 * samples
        builder.state["batch"] = alone * samples
    batch = builder.state["batch"]
    if not batch or samples % batch or every < batch:
        builder.note(line, "the log does not begin with an epoch's first batch: which is not known")
        return
    builder.fact(line, "global_batch", batch)
    at = builder.in_epoch(line, int(found["epoch"]), samples // batch, every // batch)
    if at is not None:
        stamp = full_stamp(line.text[:10] + " " + line.text[11:])
        builder.release_held()
        builder.step(
            line, at, stamp=stamp, printed=found["time"], loss=found["loss"], lr=found["rate"]
        )


_CLIP = (
    LinePattern(
        rf"Train Epoch: (?P<epoch>{_COUNT}) \[ {{0,12}}(?P<samples>{_COUNT})/(?P<every>{_COUNT})"
        rf" \([0-9.]{{1,6}}%\)\] .{{0,2000}}?Batch \(t\): (?P<time>{_PLAIN})s?, "
        rf"(?P<speed>{_PLAIN})/s(?:, {_PLAIN}/s/gpu)? LR: (?P<rate>{FIGURE}) "
        + perhaps(rf"(?<!_)Loss: (?P<loss>{FIGURE}) \("),
        take=_read_clip,
    ),
    LinePattern(
        r"Process \(global: [0-9]{1,9}, local [0-9]{1,9}\), total (?P<devices>[0-9]{1,9})\.",
        held=True,
    ),
)

# --- nnunet

_NNUNET_EPOCH = 250  # iterations


def _read_epoch_time(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    if "counted" not in builder.state:
        return
    why = f"an epoch's number of iterations is taken for nnU-Net's {_NNUNET_EPOCH}"
    builder.note_once(line, f"{why}, and its time has a validation in it")
    builder.release_held()
    epoch = int(builder.state.pop("counted"))
    at = builder.in_epoch(line, epoch, _NNUNET_EPOCH, _NNUNET_EPOCH)
    builder.step(line, at or 0, stamp=full_stamp(found["time"]), printed=found["seconds"])


_NNUNET = (
    LinePattern(r": Epoch (?P<counted>[0-9]{1,9}) *$", kept=True),
    LinePattern(
        r"^(?P<time>[0-9-]{10} [0-9:]{8}\.[0-9]{6}): Epoch time: (?P<seconds>[0-9.]{1,12}) s *$",
        take=_read_epoch_time,
    ),
    LinePattern(r"\bThe world size is (?P<devices>[0-9]{1,9})\.", held=True),
    LinePattern(
        r"^ ?\{'data_identifier': .{1,2000}?'batch_size': (?P<global_batch>[0-9]{1,9}),", held=True
    ),
)

LINES = {
    "nnunet": _NNUNET,
    "open_clip": _CLIP,
    "pytorch_imagenet": (
        LinePattern(
            rf"{_IMAGENET_HEAD}\s+Time +(?P<last>{NUMBER}) \( *(?P<printed>{NUMBER})\)"
            rf"(?:.*?{word('Loss ')} *(?P<loss>{NUMBER}) \()?",
            take=_read_batch,
            usual=_in_first_epoch,
        ),
        LinePattern(_IMAGENET_HEAD, note="a batch of the ImageNet example, but without its time"),
        LinePattern(r"=> creating model '(?P<model>[^']{1,80})'"),
    ),
    "timm": _TIMM,
    "metric_logger": _LOGGER,
    "detectron2": _DETECTRON2,
}
