"""A log of every format: whole ones, made so that their true speed is known, and samples.

Samples are the ``.log`` files beside the formats' tests. Each made log is of one run on 2 nodes with 4 devices each, 130 iterations long, noise in between: warm-up is
slow, the window after iteration 20 up to 120 has iterations of 0.25 to 1 s, and what follows is
slow again, so that a window which is off by one gives another number. Ends of years, days and
epochs lie in the window. Nothing is copied from a real log: lines are filled in as the formats'
modules say that they are printed.
"""

# ruff: noqa: E501 - a log's line is as long as it is

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from places import ROOT

START = datetime(2021, 12, 31, 23, 59, 0, tzinfo=timezone.utc)
NODES, PER_NODE = 2, 4
DEVICES = NODES * PER_NODE
BATCH = 32
SAMPLES = BATCH * DEVICES
"""In one iteration without accumulation, over all devices."""

LAST = 130
_CYCLE = (0.25, 0.25, 0.5, 0.5, 1.0)
TOPOLOGY = {"nodes": NODES, "gpus_per_node": PER_NODE}


@dataclass(frozen=True)
class Log:
    """``stated`` are the settings that the user has to give because the log does not have them.
    ``true`` is samples/s over all devices by each rule, with the relative error that the printed
    digits allow."""

    format: str
    text: str
    stated: Mapping[str, Any]
    true: Mapping[str, tuple[float, float]]
    name: str = ""


class Pace:
    """When each iteration of a run ends; ``slow`` makes another rank's of it."""

    def __init__(self, slow: float = 1.0) -> None:
        self.slow = slow

    def at(self, n: int) -> float:
        """Seconds from the start until ``n`` iterations are done."""
        window = min(max(n - 20, 0), 100)
        cycles, rest = divmod(window, len(_CYCLE))
        slow = 2.0 * min(n, 20) + 1.0 * max(n - 120, 0)
        return (slow + cycles * sum(_CYCLE) + sum(_CYCLE[:rest])) * self.slow

    def took(self, first: int, last: int) -> float:
        """Seconds of the iterations after ``first`` up to ``last``."""
        return self.at(last) - self.at(first)

    def rate(self, first: int, last: int, samples: float = SAMPLES) -> float:
        """Samples/s of those iterations."""
        return samples * (last - first) / self.took(first, last)

    def running(self, n: int, origin: int = 0, samples: float = SAMPLES) -> float:
        """Samples/s from the iteration ``origin`` on."""
        return self.rate(origin, n, samples)

    def loss(self, n: int) -> float:
        """Falls; no two iterations or ranks have the same."""
        return 10 + 1 / self.slow - n / 64

    def time(self, n: int) -> datetime:
        """When ``n`` iterations are done."""
        return START + timedelta(seconds=self.at(n))

    def epoch(self, n: int) -> float:
        """This time in seconds since 1970 (with some decimals whatever ``n``)."""
        return self.time(n).timestamp() + 0.21875

    def comma(self, n: int) -> str:
        """As Python's logging prints it."""
        moment = self.time(n)
        return f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"

    def dotted(self, n: int) -> str:
        """As ``str`` of a datetime prints it: without a fraction if that is 0."""
        return str(self.time(n).replace(tzinfo=None))

    def stamp(self, n: int) -> str:
        """Seconds since 1970 to the microsecond."""
        return f"{self.time(n).timestamp():.6f}"

    def absl(self, n: int, module: str = "model_training_utils.py:505") -> str:
        """absl's head of a line: no year."""
        return f"I{self.time(n):%m%d %H:%M:%S.%f} 140405777909504 {module}] "


Made = Iterator[str]
_MAKERS: dict[str, Callable[[Pace], Made]] = {}
_STATED: dict[str, Mapping[str, Any]] = {}
_TRUE: dict[str, Mapping[str, tuple[float, float]]] = {}
_WINDOW = SAMPLES * 100 / 50
"""Samples/s of the iterations after 20 up to 120."""

_EXACT = 1e-6


@dataclass
class _Format:
    """Declares the maker of a format's log: the settings it lacks, and its true speeds."""

    stated: Mapping[str, Any]
    true: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    name: str = ""

    def __call__(self, maker: Callable[[Pace], Made]) -> Callable[[Pace], Made]:
        name = self.name or maker.__name__
        _MAKERS[name], _STATED[name], _TRUE[name] = maker, self.stated, self.true
        return maker


def names() -> list[str]:
    """Names of the logs: a format's, or a format's and something behind a colon."""
    return list(_MAKERS)


def log(name: str, slow: float = 1.0, last: int = LAST) -> Log:
    """One log. With ``slow``, the speeds of another rank; ``last`` shortens all but the end."""
    lines = _MAKERS[name](Pace(slow))
    if last < LAST:
        lines = _shortened(list(lines), last)
    text = "".join(line + "\n" for line in lines)
    return Log(name.partition(":")[0], text, _STATED[name], _TRUE[name], name)


def samples() -> list[Path]:
    """The samples, each called after its format."""
    return sorted((ROOT / "tests" / "unit" / "logs" / "formats").glob("*.log"))


def corpus() -> list[Log]:
    """Every made log."""
    return [log(name) for name in _MAKERS]


def _shortened(lines: list[str], last: int) -> Made:
    """The beginning, in proportion, and the end."""
    yield from lines[: max(60, len(lines) * last // LAST)]
    yield from lines[-6:]


def _noise(n: int) -> Made:
    """What else programs print: progress bars, colours, false friends, nothing."""
    yield from (
        "",
        f"n1:4711:{4800 + n} [1] NCCL INFO Channel {n:02d} : 0[1a000] -> 1[1b000] via P2P/IPC",
        f"\r{n}%|##        | {n}/100 [00:{n % 60:02d}<01:30, 1.97it/s]\r{n + 1}%|##        |",
        "\x1b[33mWARNING\x1b[0m: step, loss and speed of the 20 ranks: see epoch.txt",
        "  warnings.warn('epoch: 1, step: 2 is not what it was')",
        f"2022-01-01 00:00:{n % 60:02d}.{n:06d}: I tensorflow/stream_executor/platform: ok",
        "ips: 127.0.0.1,127.0.0.2",
    )


def _with_noise(lines: Iterable[str], every: int = 7) -> Made:
    for n, line in enumerate(lines):
        if n % every == every - 1:
            yield from _noise(n % 90)
        yield line


def _tens(every: int = 10) -> range:
    return range(every, LAST + 1, every)


# --- DeepSpeed, Megatron


@_Format(
    {"accumulation": 2},
    {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, _EXACT)},
)
def deepspeed(pace: Pace) -> Made:
    """0.3: micro-steps, a running average from the second on."""
    yield "[2021-12-31 23:58:00,001] [INFO] [launch.py:89:main] nnodes=2, num_local_procs=4, node=0"
    yield "[2021-12-31 23:58:00,002] [INFO] [launch.py:101:main] dist_world_size=8"
    yield "[2021-12-31 23:58:01,003] [INFO] [config.py:624:print]   train_batch_size ............. 512"
    yield "[2021-12-31 23:58:01,004] [INFO] [config.py:624:print]   fp16_enabled ................. True"
    yield from _noise(3)
    for n in _tens(5):
        head = f"[{pace.comma(n)}] [INFO] "
        yield f"{head}[logging.py:60:log_dist] [Rank 0] step={n // 2}, skipped=0, lr=[0.0001], mom=[0.9]"
        yield f"{head}[timer.py:157:stop] 0/{n}, SamplesPerSec={pace.running(n, 2)}"
        yield from _noise(n) if n % 20 == 0 else ()


@_Format({}, {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, _EXACT)}, "deepspeed:2022")
def _deepspeed_2022(pace: Pace) -> Made:
    """Optimizer steps, both speeds, memory."""
    for host in ("vs001", "vs002"):
        yield f"{host}: [2021-12-31 23:58:00,002] [INFO] [launch.py:101:main] dist_world_size=8"
        yield f"{host}: [2021-12-31 23:58:00,002] [INFO] [launch.py:89:main] nnodes=2, num_local_procs=4, n"
        yield f"{host}: [2021-12-31 23:58:01,003] [INFO] [config.py:7:print]   train_batch_size ..... 256"
    for n in range(3, LAST + 1):
        yield (
            f"vs001: [{pace.comma(n)}] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, "
            f"RunningAvgSamplesPerSec={pace.running(n, 2)}, CurrSamplesPerSec={pace.rate(n - 1, n)}, "
            f"MemAllocated=17.54GB, MaxMemAllocated={60 + n / 100:.2f}GB"
        )
        if n % 20 == 0:
            yield "vs002: "
            yield f"vs002: n1:4711:4812 [1] NCCL INFO Channel {n:02d} : 0[1a000] -> 1[1b000] via P2P"


@_Format({"devices": DEVICES, "batch_size": 8}, {"printed": (_WINDOW, 1e-8)})
def bing_bert(pace: Pace) -> Made:
    """Optimizer steps with a loss, and every 20 of them a speed, counted in micro-steps."""
    yield "Running Config File:  bert_base"
    yield "Args = Namespace(config_file='x.json', max_seq_length=128, gradient_accumulation_steps=4)"
    yield f"[{pace.comma(0)}] [INFO] [config.py:624:print]   gradient_accumulation_steps .. 4"
    yield "12/31/2021 23:58:00 - INFO - turing.logger -   worker-0: begin epoch 1 current_sample_count 0"
    for n in range(1, LAST + 1):
        if n % 10 == 0:
            done = f"step={n}, loss={pace.loss(n)}, lr={n * 1e-06}, sample_count={n * 256}"
            yield f"bing_bert_progress: {done}"
        if n % 20 == 0:
            rate = pace.rate(n - 20, n)
            yield f" At step {n * 4}, the throughput is {rate:2f} Samples/s"
        yield "LR Schedule is EP EP"
    yield "Warning: Early epoch termination due to max steps limit, epoch step =520, global step =130"


@_Format(TOPOLOGY, {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, _EXACT)})
def megatron(pace: Pace) -> Made:
    """The current one, with a stamp."""
    yield "using world size: 8, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel"
    yield "------------------------ arguments ------------------------"
    yield "  micro_batch_size ................................ 2"
    yield "  params_dtype .................................... torch.bfloat16"
    yield "  seq_length ...................................... 2048"
    for n in _tens():
        ms = 1000 * pace.took(n - 10, n) / 10
        yield (
            f" [{pace.time(n):%Y-%m-%d %H:%M:%S.%f}] iteration {n:8d}/     130 | consumed samples: "
            f"{n * SAMPLES:12d} | elapsed time per iteration (ms): {ms:.1f} | throughput per GPU "
            f"(TFLOP/s/GPU): 134.0 | learning rate: 8.000000E-06 | global batch size: {SAMPLES:5d} | "
            f"lm loss: {pace.loss(n):.6E} | loss scale: 1.0 | grad norm: 1.520 | number of skipped "
            "iterations:   0 | number of nan iterations:   0 |"
        )
        if n == 10:
            yield (
                "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1234.5 | max allocated: "
                "23456.75 | reserved: 30000.0 | max reserved: 30000.0"
            )
        yield from _noise(n)


@_Format({**TOPOLOGY, "batch_size": BATCH, "accumulation": 1}, {"printed": (_WINDOW, 1e-6)})
def megatron_gpt2(pace: Pace) -> Made:
    """2020: no colon behind keys, no batch on the line."""
    yield "using world size: 8 and model-parallel size: 1 "
    yield "  batch_size ................... 32"
    yield "  seq_length ................... 1024"
    for n in _tens():
        ms = 1000 * pace.took(n - 10, n) / 10
        yield (
            f" iteration {n:8d}/     130 | elapsed time per iteration (ms): {ms:.1f} | learning rate "
            f"{n * 1e-6:.3E} | lm loss {pace.loss(n):.6E} | loss scale 65536.0 |"
        )
        yield f"after {n} iterations memory (MB) | allocated: 1.5 | max allocated: {20 + n}.25 | cached: 7.0"
        yield " time (ms) | forward: 100.00 | backward: 200.00"


# --- programs that print totals


@_Format({**TOPOLOGY}, {"total": (1.3 * SAMPLES, 1e-5)})
def hf_trainer(pace: Pace) -> Made:
    """Losses without a step, and one speed, of the whole run."""
    yield "  Instantaneous batch size per device = 32"
    yield "  Total train batch size (w. parallel, distributed & accumulation) = 256"
    yield "  Gradient Accumulation steps = 1"
    for n in _tens():
        loss = round(pace.loss(n), 4)
        yield f"{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 4.9e-05, 'epoch': {n / 100}}}"
        # A bar without a name would be the Trainer's own.
        yield from (line.replace("\r", "\rMap: ") for line in _noise(n))
    rate = round(LAST * SAMPLES / pace.at(LAST), 3)
    yield (
        f"{{'train_runtime': {round(pace.at(LAST), 4)}, 'train_samples_per_second': {rate}, "
        f"'train_steps_per_second': 1.3, 'train_loss': 9.5, 'epoch': 1.3}}"
    )
    yield "***** train metrics *****"
    yield f"  train_samples_per_second =    {rate:.3f}"


@_Format(TOPOLOGY, {"printed": (_WINDOW, 1e-6), "total": (551.4, 1e-9)})
def horovod_synthetic(pace: Pace) -> Made:
    """A line per block of one batch, of one device; the total is a mean of rates."""
    yield "Model: resnet50"
    yield "Batch size: 32"
    yield "Number of GPUs: 8"
    yield "Running warmup..."
    yield "Running benchmark..."
    rates = [pace.rate(n - 1, n, BATCH) for n in range(1, LAST + 1)]
    yield from _with_noise(f"Iter #{n}: {rate:.1f} img/sec per GPU" for n, rate in enumerate(rates))
    mean = sum(rates) / len(rates)
    yield f"Img/sec per GPU: {mean:.1f} +-71.5"
    yield f"Total img/sec on 8 GPU(s): {8 * mean:.1f} +-572.1"


@_Format({**TOPOLOGY}, {"printed": (8 * _WINDOW, 4e-4), "total": (2662.4, 1e-9)})
def tf_cnn_benchmarks(pace: Pace) -> Made:
    """Under Horovod every rank prints a running mean of its own, and the total of all."""
    for rank in range(DEVICES):
        tag = f"[1,{rank}]<stdout>:"
        yield f"{tag}Model:       resnet50"
        yield f"{tag}Batch size:  2048 global"
        yield f"{tag}             256 per device"
        yield f"{tag}Devices:     {[f'horovod/gpu:{i}' for i in range(DEVICES)]}"
        yield f"{tag}Step\tImg/sec\ttotal_loss"
    for n in _tens():
        rate = pace.running(n, 0, 8 * BATCH)
        for rank in range(DEVICES):
            figures = (
                f"{n}\timages/sec: {rate:.1f} +/- 0.2 (jitter = 0.5)\t{pace.loss(n) + rank:.3f}"
            )
            yield f"[1,{rank}]<stdout>:{figures}"
        yield "[1,0]<stderr>:n1:4711:4812 [1] NCCL INFO Channel 03 : 0[1a000] -> 1[1b000] via P2P"
    for rank in range(DEVICES):
        yield f"[1,{rank}]<stdout>:----------------------------------------------------------------"
        yield f"[1,{rank}]<stdout>:total images/sec: {8 * LAST * SAMPLES / pace.at(LAST):.2f}"


# --- NVIDIA


@_Format(
    {**TOPOLOGY},
    {"clock": (2 * _WINDOW, _EXACT), "total": (665.6, 1e-9)},
)
def dllogger_pytorch_bert(pace: Pace) -> Made:
    """Losses of optimizer steps; the only speed is the whole run's."""
    yield "+ num_gpus=4"
    yield (
        f'DLL {pace.dotted(0)} - PARAMETER Config : ["Namespace(amp=False, fp16=True, '
        'gradient_accumulation_steps=2, max_seq_length=128, train_batch_size=64)"] '
    )
    yield f"DLL {pace.dotted(0)} - PARAMETER batch_size_per_gpu : 32 "
    for n in range(1, LAST + 1):
        if n % 16 == 15:  # a record behind a progress bar
            yield f"Iteration: {n}%|###   | {n}/130 [00:10<00:20,  1.9it/s]\r{n}%|###|DLL nothing"
        yield (
            f"DLL {pace.dotted(n)} - Training Epoch: 0 Training Iteration: {n}  average_loss : "
            f"{pace.loss(n)}  step_loss : {pace.loss(n)}  learning_rate : {n / 4096} "
        )
    rate = 2 * LAST * SAMPLES / pace.at(LAST)
    yield (
        f"DLL {pace.dotted(LAST)} -  e2e_train_time : 101.5 s training_sequences_per_second : {rate} "
        f"sequences/s final_loss : 8.5 None raw_train_time : {pace.at(LAST)} s"
    )


@_Format(
    TOPOLOGY,
    {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, 1e-4), "total": (332.8, 1e-4)},
)
def dllogger_pytorch_resnet(pace: Pace) -> Made:
    """images/s of each iteration, over all devices."""
    yield (
        f"DLL {pace.dotted(0)} - PARAMETER arch : resnet50  batch_size : 32  optimizer_batch_size : -1"
        "  world_size : 8  amp : True  fp16 : False "
    )
    for n in range(1, LAST + 1):
        rate = pace.rate(n - 1, n)
        yield (
            f"DLL {pace.dotted(n)} - Epoch: 0 Iteration: {n}  train.loss : {pace.loss(n):.5f} None "
            f"train.compute_ips : {rate * 1.1:.2f} images/s train.total_ips : {rate:.2f} images/s"
        )
        yield from _noise(n) if n % 25 == 0 else ()
    rate = LAST * SAMPLES / pace.at(LAST)
    yield f"DLL {pace.dotted(LAST)} - Summary: train.loss : 9.1 None train.total_ips : {rate:.2f} images/s"


@_Format(
    {"nodes": NODES},
    {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, 1e-6), "total": (332.8, 1e-6)},
)
def dllogger_mxnet_resnet(pace: Pace) -> Made:
    """Indices within epochs of 65 iterations, and a table at the end."""
    yield (
        f"DLL {pace.dotted(0)} - PARAMETER arch : resnetv1.5  num_layers : 50  batch_size : 256  "
        "gpus : [0, 1, 2, 3]  kv_store : horovod  dtype : float16  amp : False  benchmark_iters : 65 "
    )
    for n in _tens(5):
        epoch, index = divmod(n - 1, 65)
        yield (
            f"DLL {pace.dotted(n)} - Epoch: {epoch} Iteration: {index}  train.loss : {pace.loss(n)}  "
            f"train.ips : {pace.rate(n - 5, n)} images/s train.lr : 0.1 "
        )
        if index == 64:
            yield f"DLL {pace.dotted(n)} - Epoch: {epoch}  train.loss : 9.0  epoch_time : 65.0 s"
    yield f"DLL {pace.dotted(LAST)} - Summary: train.loss : 9.0  train.ips : 340.0 images/s"
    yield "train.ips"
    yield "           |     32    |"
    yield "------------------------"
    yield f"     8     |   {SAMPLES * LAST / pace.at(LAST):.5g}   |"


@_Format(
    {**TOPOLOGY}, {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, _EXACT), "total": (333.5, 1e-9)}
)
def dllogger_json(pace: Pace) -> Made:
    """The file that dllogger writes beside: JSON, times as strings."""

    def record(n: int, kind: str, **more: Any) -> str:
        head = {
            "timestamp": pace.stamp(n),
            "datetime": pace.dotted(n),
            "elapsedtime": "1.5",
        }
        return "DLLL " + json.dumps({**head, "type": kind, **more})

    yield record(0, "METADATA", metric="train.total_ips", metadata={"unit": "img/s"})
    asked = {"arch": "resnet50", "batch_size": 32, "optimizer_batch_size": -1, "amp": True}
    yield record(0, "LOG", step="PARAMETER", data={**asked, "world_size": 8})
    for n in range(1, LAST + 1):
        figures = {"train.loss": pace.loss(n), "train.total_ips": pace.rate(n - 1, n)}
        yield record(n, "LOG", step=[0, n], data=figures)
        yield record(n, "LOG", step=[0, n], data={"train.data_time": 0.001})
    yield record(LAST, "LOG", step=[], data={"train.loss": 9.1, "train.total_ips": 333.5})


@_Format(
    {"nodes": NODES},
    {"printed": (_WINDOW, 1e-9), "clock": (_WINDOW, _EXACT), "total": (332.8, 1e-6)},
)
def mxnet_ngc(pace: Pace) -> Made:
    """Up to 2020: every rank prints the speed of all, on stderr; a table from rank 0."""
    for n in _tens(20):
        for rank in range(DEVICES):
            yield (
                f"[1,{rank}]<stderr>:{pace.comma(n)}:INFO: Epoch[0] Batch [{n - 20}-{n - 1}]\tSpeed: "
                f"{pace.rate(n - 20, n)} samples/sec\tLR: {n / 4096}\ttrain_loss=9.5"
            )
            yield f"[1,{rank}]<stdout>:n1:4711:4812 [1] NCCL INFO Channel 03 : 0[1a000] via P2P/IPC"
    yield "[1,0]<stdout>:train.total_ips"
    yield "[1,0]<stdout>:           |     32    |"
    yield "[1,0]<stdout>:------------------------"
    yield f"[1,0]<stdout>:     8     |   {SAMPLES * LAST / pace.at(LAST):.5g}   |"


@_Format(
    {**TOPOLOGY, "accumulation": 1},
    {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, 1e-6), "total": (340.25, 1e-9)},
)
def ngc_tf1_bert(pace: Pace) -> Made:
    """The first number comes again where a step overflowed; the end is printed twice."""
    yield "INFO:tensorflow:  name = input_ids, shape = (32, 128)"
    yield "Precision = fp16"
    for repeat in range(5):
        yield (
            f"DLL {pace.dotted(0)} - Iteration: 1  throughput_train : {1 + repeat}.500 seq/s mlm_loss : "
            "10.4043  nsp_loss : 0.7508  total_loss : 11.1551  avg_loss_step : 11.1198  "
            f"learning_rate : 0.0  loss_scaler : {1 << (32 - repeat)} "
        )
    for n in _tens():
        loss = pace.loss(n)
        yield (
            f"DLL {pace.dotted(n)} - Iteration: {n}  throughput_train : {pace.rate(n - 10, n):.3f} "
            f"sequences/s mlm_loss : {loss - 1:.4f}  nsp_loss : 0.7508  total_loss : {loss:.4f}  "
            f"avg_loss_step : 11.1198  learning_rate : {n / 4096}  loss_scaler : 8388608 "
        )
        yield f"Skipping time record for  {n}  due to checkpoint-saving/warmup overhead"
    yield f"DLL {pace.dotted(LAST)} -  throughput_train : 340.250 sequences/s"
    for head in ("INFO:tensorflow:", "I0101 00:01:00.000000 1404 run_pretraining.py:650] "):
        yield f"{head}Total Training Time = 101.00 for Sentences = 33280"
        yield f"{head}Throughput Average (sentences/sec) with overhead = 329.50"
        yield f"{head}Throughput Average (sentences/sec) = 340.25"
    yield "INFO:tensorflow:Total Inference Time = 1.00 for Sentences = 8192"
    yield "INFO:tensorflow:Throughput Average (sentences/sec) = 8192.25"


_FROM_21 = SAMPLES * 99 / 49.75
"""The first line is that of iteration 21."""


@_Format(
    {"nodes": NODES},
    {"clock": (_FROM_21, _EXACT), "printed": (_WINDOW, _EXACT), "total": (444.5, 1e-9)},
)
def ngc_tf1_resnet(pace: Pace) -> Made:
    """The speed of each iteration by itself, after 20 that are not printed."""
    yield f"DLL {pace.dotted(0)} - PARAMETER arch : resnet50  batch_size : 32  iter_unit : batch  amp : True  xla : False "
    yield "Num GPUs 8"
    yield "Per-GPU Batch Size 32"
    lines = (
        f"DLL {pace.dotted(n)} - (0, {n - 1}) total_ips : {pace.rate(n - 1, n)} "
        for n in range(21, LAST + 1)
    )
    yield from _with_noise(lines, 30)
    yield f"DLL {pace.dotted(LAST)} - () train_throughput : 444.5 images/s"


@_Format(
    {**TOPOLOGY, "batch_size": BATCH, "accumulation": 1},
    {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, 1e-6), "total": (345.67, 1e-9)},
)
def ngc_tf2_bert(pace: Pace) -> Made:
    """Three lines for every ten steps."""
    for n in _tens():
        yield (
            pace.absl(n, "model_training_utils.py:538")
            + f"Step: {n} Lr {n / 4096} Loss scale 32768"
        )
        yield (
            pace.absl(n, "model_training_utils.py:539")
            + f"Train Step: {n}/130  / loss = {pace.loss(n)} / time = {pace.took(n - 10, n):.3f} sec"
        )
        yield pace.absl(n, "model_training_utils.py:540") + f"Perf {pace.rate(n - 10, n):.2f}"
    yield "Total Training Time = 101.00 for Sequences = 33280"
    yield "Throughput Average (sequences/sec) with overhead = 329.50"
    yield "Throughput Average (sequences/sec) = 345.67"
    yield f"DLL {pace.dotted(LAST)} -  throughput_train : 345.67 "


# --- TensorFlow's own


@_Format({"batch_size": BATCH, "accumulation": 1}, {"clock": (_WINDOW, _EXACT)})
def tf2_bert(pace: Pace) -> Made:
    """A line per step, without a speed."""
    devices = ", ".join(f"'/job:worker/task:0/device:GPU:{i}'" for i in range(PER_NODE))
    yield (
        pace.absl(0, "collective_all_reduce_strategy.py:360")
        + "MultiWorkerMirroredStrategy with cluster_spec = {'worker': ['a:1', 'b:1']}, task_id = 0, "
        f"num_workers = 2, local_devices = ({devices}), communication = 1"
    )
    yield from _with_noise(
        (
            pace.absl(n)
            + f"Train Step: {n}/130  / loss = {pace.loss(n)}  masked_lm_accuracy = 0.012000"
            + f"  lm_example_loss = 10.250000  next_sentence_accuracy = 0.{n:06d}"
            for n in range(1, LAST + 1)
        ),
        40,
    )
    yield pace.absl(LAST) + "Training Summary: "
    yield "{'total_training_steps': 130, 'train_loss': 9.5}"


@_Format(
    {"accumulation": 1},
    {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, 1e-6), "total": (332.75, 1e-9)},
)
def tf2_resnet(pace: Pace) -> Made:
    """The speed of every 20 steps."""
    devices = ", ".join(f"'/job:worker/task:0/device:GPU:{i}'" for i in range(PER_NODE))
    yield (
        pace.absl(0, "collective_all_reduce_strategy.py:360")
        + f"MultiWorkerMirroredStrategy with num_workers = 2, local_devices = ({devices},)"
    )
    yield pace.absl(0, "resnet.py:1") + "Parameters: batch_size: 256, epoch_size: 1281167"
    yield "Final model parameters: {"
    yield "  'dtype': 'float16',"
    yield "  'enable_xla': True,"
    for n in _tens(20):
        yield (
            pace.absl(n, "keras_utils.py:133")
            + f"TimeHistory: {pace.took(n - 20, n):.2f} seconds, "
            f"{pace.rate(n - 20, n):.2f} examples/second between steps {n - 20} and {n}"
        )
        yield from _noise(n)
    yield "Run stats: {'loss': 9.5, 'avg_exp_per_second': 332.75, 'train_finish_time': 1640995300.5}"


# --- OneFlow, PyTorch, MXNet


def _oneflow_head() -> Made:
    yield "batch_size_per_device = 32"
    yield "gpu_num_per_node = 4"
    yield "num_nodes = 2"


_BOTH = {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, 1e-6)}


@_Format({"accumulation": 1}, _BOTH)
def oneflow_bert(pace: Pace) -> Made:
    """Indices from 0, and seconds since 1970 behind the line."""
    yield from _oneflow_head()
    for n in _tens(20):
        loss = f"total_loss: {pace.loss(n):.3f}, mlm_loss: 8.960, nsp_loss: 0.766"
        yield f"step: {n - 1}, {loss}, throughput: {pace.rate(n - 20, n):.3f} {pace.epoch(n)}"
        if n == 20:
            yield "utilization.gpu [%], memory.used [MiB]"
            yield from (f"100 %, {13850 + i} MiB" for i in range(PER_NODE))


@_Format({"accumulation": 1}, _BOTH)
def oneflow_cnn(pace: Pace) -> Made:
    """Iterations from 1; a validation in between."""
    yield from _oneflow_head()
    for n in _tens():
        yield (
            f"train: epoch 0, iter {n}, loss: {pace.loss(n):.6f}, top_1: 0.000000, top_k: 0.000000, "
            f"samples/s: {pace.rate(n - 10, n):.3f} {pace.epoch(n)}"
        )
    yield "validation: epoch 0, iter 195, top_1: 0.1, top_k: 0.2, samples/s: 4711.000 1640995300.25"


@_Format({"accumulation": 1}, {"printed": (_WINDOW, 1e-6)})
def oneflow_gpt(pace: Pace) -> Made:
    """A table."""
    yield "num_gpus_per_node .............................. 4"
    yield "num_nodes ...................................... 2"
    yield "global_batch_size .............................. 256"
    yield "| step     | micro_batches   | samples         | throughput | latency    | loss       |"
    yield "| -------- | --------------- | --------------- | ---------- | ---------- | ---------- |"
    for n in _tens():
        yield (
            f"| {n:<8d} | {n * 8:<15d} | {n * SAMPLES:<15d} | {pace.rate(n - 10, n):<10.5f} | "
            f"{pace.took(n - 10, n):<10.5f} | {pace.loss(n):<10.5f} |"
        )


@_Format({"accumulation": 1}, _BOTH)
def oneflow_gpt2(pace: Pace) -> Made:
    """Steps from 1."""
    yield from _oneflow_head()
    for n in _tens():
        figures = f"loss: {pace.loss(n) / 8:.3f}, throughput: {pace.rate(n - 10, n):.3f}"
        yield f"step: {n}, {figures} {pace.epoch(n)}"
        yield from _noise(n)


@_Format({**TOPOLOGY, "accumulation": 1}, {"printed": (_WINDOW, 1e-6)})
def oneflow_insightface(pace: Pace) -> Made:
    """No time at all."""
    for n in _tens(1):
        yield f"train: iter {n}, loss {pace.loss(n):.3f}, throughput: {pace.rate(n - 1, n):.3f}"


@_Format(
    {**TOPOLOGY, "batch_size": BATCH, "accumulation": 1},
    {"printed": (_WINDOW, 0.0005 * 140 / 50)},
)
def pytorch_imagenet(pace: Pace) -> Made:
    """The mean time since the epoch began, to 3 decimals."""
    yield "=> creating model 'resnet50'"
    for n in _tens():
        last, mean = pace.took(n - 1, n), pace.at(n) / n
        yield (
            f"Epoch: [0][{n - 1:4d}/5005]\tTime {last:6.3f} ({mean:6.3f})\tData  0.002 ( 0.001)\t"
            f"Loss {pace.loss(n):.4e} ({pace.loss(n):.4e})\tAcc@1   1.56 (  1.17)\tAcc@5  10.94 (  6.25)"
        )


@_Format({**TOPOLOGY, "batch_size": BATCH, "accumulation": 1}, {"printed": (_WINDOW, 1e-6)})
def mxnet_gluon_bert(pace: Pace) -> Made:
    """K tokens/s, which are not read, and milliseconds per step."""
    for n in _tens():
        seconds = pace.took(n - 10, n)
        yield (
            f"[step {n}]\tmlm_loss={pace.loss(n):.5f}\tmlm_acc=5.12345\tnsp_loss=0.69315\tnsp_acc="
            f"52.123\tthroughput=18.7K tks/s\tlr=0.0000100 time={seconds:.2f}, latency="
            f"{100 * seconds:.1f} ms/batch"
        )
    yield "[step 130]\tmlm_loss=9.12345\tmlm_acc=5.12\tnsp_loss=0.69\tnsp_acc=52.1\tthroughput=30.1K tks/s"


@_Format(
    {"nodes": 1, "gpus_per_node": 1, "batch_size": 256, "accumulation": 1},
    {"printed": (_WINDOW, 1e-6)},
)
def insightface(pace: Pace) -> Made:
    """Of one process on one device: with more of them nobody could tell. Index 20 is batch 21."""
    for n in range(21, LAST + 1, 20):
        rate = pace.rate(max(0, n - 20), n)
        yield f"INFO:root:Epoch[0] Batch [{n - 1}]\tSpeed: {rate:.2f} samples/sec\tacc=0.000000\tlossvalue={pace.loss(n):.6f}"


@_Format({**TOPOLOGY, "accumulation": 1, "batch_size": BATCH}, _BOTH)
def insightface_partial_fc(pace: Pace) -> Made:
    """Samples, whatever they are called."""
    for n in _tens(20):
        rate = pace.rate(n - 20, n)
        yield (
            f"rank-id:0:{pace.comma(n)}-Iter:{n} Rank:{rate / 8:.2f} it/sec Total:{rate:.2f} it/sec "
            f"[0][loss]:{pace.loss(n):.2f} "
        )


# --- PaddlePaddle, MindSpore, HugeCTR


@_Format({**TOPOLOGY, "batch_size": BATCH, "accumulation": 1}, {"printed": (_WINDOW, 1e-6)})
def paddle18_bert(pace: Pace) -> Made:
    """Steps per second, times the number of trainers."""
    yield "worker_endpoints:['a:1', 'b:1'] trainers_num:2 current_endpoint:a:1 trainer_id:0"
    for n in _tens():
        yield (
            f"epoch: 1, progress: 1/1, step: {n}, loss: {pace.loss(n):.6f}, ppl: 17796.216797, "
            f"next_sent_acc: 0.560417, speed: {2 * pace.rate(n - 10, n, 1):.6f} steps/s, file: demo.gz"
        )
    yield "[validation_set] epoch: 1, step: 130, loss: 9.1, global ppl: 1.0, speed: 9.25 steps/s"


@_Format({**TOPOLOGY, "batch_size": BATCH, "accumulation": 1}, _BOTH)
def paddle18_resnet(pace: Pace) -> Made:
    """The seconds of each batch by itself."""
    for n in _tens(1):
        yield (
            f"{pace.comma(n)}-INFO: [Pass 0, train batch {n - 1}] \tloss {pace.loss(n):.5f}, acc1 0.00000,"
            f" acc5 0.00781, lr 0.10000, elapse {pace.took(n - 1, n):.4f} sec"
        )
    yield "[Pass 0, test  batch 0] \tloss 6.9, acc1 0.1, acc5 0.2, elapse 0.1234 sec"


@_Format({**TOPOLOGY}, {"clock": (_WINDOW, _EXACT), "printed": (_WINDOW, 1e-5)})
def paddleclas(pace: Pace) -> Made:
    """One device's, a running mean after the fourth iteration; stamps of whole seconds."""
    yield "ips: 127.0.0.1, port: 8000"
    yield "DataLoader.Train.sampler.batch_size=32"
    for n in _tens():
        yield (
            f"[{pace.time(n):%Y/%m/%d %H:%M:%S}] ppcls INFO: epoch:0   train step:{n:<4d} lr: 0.100000, "
            f"loss: {pace.loss(n):7.4f} top1:  0.0039 top5:  0.0078 batch_cost: 0.75584 s, reader_cost: "
            f"0.03820 s, ips: {pace.running(n, 4, BATCH):.5f} samples/sec."
        )


@_Format({**TOPOLOGY}, _BOTH)
def paddlenlp(pace: Pace) -> Made:
    """One device's, since the line before."""
    yield "Namespace(batch_size=32, gradient_merge_steps=1, use_amp=True, use_pure_fp16=False)"
    for n in _tens():
        yield (
            f"[{pace.comma(n)}] [    INFO] - tobal step: {n}, epoch: 0, batch: {n - 1}, loss: "
            f"{pace.loss(n):.6f}, avg_reader_cost: 0.00011 sec, avg_batch_cost: 0.13001 sec, "
            f"avg_samples: 32.00000, ips: {pace.rate(n - 10, n, BATCH):.5f} sequences/sec"
        )


@_Format({**TOPOLOGY, "batch_size": BATCH, "accumulation": 1}, {"printed": (_WINDOW, 1e-6)})
def mindspore(pace: Pace) -> Made:
    """A step and, on the next line, its milliseconds."""
    for n in _tens():
        ms = 1000 * pace.took(n - 10, n)
        yield f"epoch: {n // 10}, step: {n}, outputs are [{pace.loss(n):.5f}]"
        yield f"epoch time: {ms:.3f} ms, per step time: {ms / 10:.3f} ms"


@_Format({**TOPOLOGY, "batch_size": BATCH, "accumulation": 1}, _BOTH)
def hugectr(pace: Pace) -> Made:
    """The seconds of ten iterations; a time of day."""
    for n in _tens():
        clock = f"{pace.time(n):%H:%M:%S}.{pace.time(n).microsecond // 1000:03d}"
        yield (
            f"[HCTR][{clock}][INFO][RK0][main]: Iter: {n} Time(10 iters): {pace.took(n - 10, n):.6f}s "
            f"Loss: {pace.loss(n):.6f} lr:0.001"
        )


# --- ours


@_Format({**TOPOLOGY, "batch_size": BATCH, "accumulation": 1}, {**_BOTH, "total": (332.8, 1e-9)})
def dlperf(pace: Pace) -> Made:
    """Our own log, as another program's would be read."""

    def event(n: int, text: str) -> str:
        return f"dlperf {pace.time(n):%Y-%m-%dT%H:%M:%S.%f}Z {text}"

    yield event(
        0, "begin format=1 sweep=s run=ddp/bert/bz32/2n4g/bert_b32_fp32_1 repeat=1 attempt=1"
    )
    yield from _with_noise(
        (
            event(n, f"iteration n={n} loss={pace.loss(n)} ms={1000 * pace.took(n - 1, n):.3f}")
            for n in range(1, LAST + 1)
        ),
        50,
    )
    yield event(LAST, f"summary warmup=20 samples_per_s={LAST * SAMPLES / pace.at(LAST)}")
    yield event(LAST, "end status=ok")
