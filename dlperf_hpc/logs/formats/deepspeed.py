"""DeepSpeed: the engine's own timer, and DeepSpeedExamples' BERT.

deepspeed
---------
DeepSpeed's ThroughputTimer, all five generations of its line.

| since | line |
|---|---|
| 2020-02 | ``0/50, SamplesPerSec=1292.64`` after ``[INFO 2020-02-06 19:53:56]`` |
| 0.3.0 | as above after ``[2021-05-29 19:53:43,103] [INFO] [timer.py:157:stop]`` |
| 2021-11 | ``0/40, SamplesPerSec=83.48, MemAllocated=0.26GB, MaxMemAllocated=9.02GB`` |
| 2022 | ``0/4, RunningAvgSamplesPerSec=16.15, CurrSamplesPerSec=15.72, MemAllocated=...`` |
| 2022-12 | ``epoch=0/micro_step=3/global_step=3, RunningAvgSamplesPerSec=..., Curr...`` |

``0/50`` is epoch / micro-steps of this epoch; since 2022-12 ``micro_step`` is that and
``global_step`` counts the optimizer steps of all epochs. Each generation averages over what it
counts, from step 3 on (the timer's clock begins when step 2 ends), over all data-parallel ranks;
time in the data loader is not in it. Global rank 0 prints. Real lines of every generation were
read; between 2022-07 and 2022-12 the figure is wrong where gradients are accumulated.

bing_bert
---------
DeepSpeedExamples' ``bing_bert/deepspeed_train.py``: BERT pre-training.

| line | counts |
|---|---|
| ``bing_bert_progress: step=100, loss=7.5, lr=1e-05, sample_count=409600`` | optimizer steps |
| `` At step 1280, the throughput is 272.123456 Samples/s`` | micro-steps |

Rank 0 prints both. The first comes every ``--print_steps`` optimizer steps (a fork adds
``step_time=``). The second comes every 20 optimizer steps and is all ranks' samples over the time
of all micro-steps since the second before it, data loader included; so the first one has the
warm-up in it. Its step is made one of optimizer steps with ``gradient_accumulation_steps`` of the
engine's configuration dump, for a reading has one counter; where the log lacks that dump, the
reading counts micro-steps and leaves the progress lines out. What the engine's own timer prints
between them is another format's. Lines are known from the source only.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import DECIMAL, FULL_STAMP, WHOLE, full_stamp
from dlperf_hpc.logs.scanned import Counter

# --- deepspeed

_COUNT = r"[0-9]{1,18}"
_RATE = r"[-+.0-9a-z]{1,40}"  # nan and inf too: ReadingBuilder notes what is no measurement
_GB = r"[0-9]{1,12}(?:\.[0-9]{1,12})? ?GB"
_TIMER = re.compile(
    rf"(?:(?<![0-9])(?P<epoch>{_COUNT})/(?P<step>{_COUNT})"
    rf"|epoch=(?P<era>{_COUNT})/micro_step=(?P<micro>{_COUNT})/global_step=(?P<whole>{_COUNT}))"
    rf", (?P<running>RunningAvg)?SamplesPerSec=(?P<rate>{_RATE})"
    rf"(?(running), CurrSamplesPerSec={_RATE})"
    rf"(?:, MemAllocated={_GB}, MaxMemAllocated=(?P<memory>{_GB}))?(?=[\s,]|$)"
)
_ROWS = LinePattern(
    rf"^\[(?:INFO )?(?P<full>{FULL_STAMP})\] (?:\[INFO\] \[[a-z]+\.py:[0-9]+:[a-z]+\] )?"
    rf"0/(?P<iteration>{WHOLE}), SamplesPerSec=(?P<printed>{DECIMAL})$",
    usual=lambda builder, _: bool(builder.steps) and builder.counter is Counter.MICRO_STEPS,
)
_SCHEDULE = re.compile(
    rf"(?<![a-z_])step=(?P<step>{_COUNT}), skipped={_COUNT}, lr=\[(?P<lr>{_RATE})[,\]]"
)
_LAUNCH = re.compile(r"\bnnodes=(?P<nodes>[0-9]{1,9}), num_local_procs=(?P<local>[0-9]{1,9})\b")
_WORLD = re.compile(r"\bdist_world_size=([0-9]{1,9})\b")
_CONFIG = re.compile(
    r"(?<![a-z_])(train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps"
    r"|fp16_enabled|bfloat16_enabled) \.{0,30} ([0-9]{1,12}|True)\s*$"
)
_SETTINGS = {
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "batch_size",
    "gradient_accumulation_steps": "accumulation",
}
_PRECISIONS = {"fp16_enabled": "fp16", "bfloat16_enabled": "bf16"}


def _read_deepspeed(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A line of the timer's, or one on which the engine or its launcher states a setting."""
    if "SamplesPerSec=" not in line.text:
        _read_setting(line, builder)
        return
    start = 0
    counts = line.text.rfind(", ", 0, line.text.find("SamplesPerSec="))
    # There is no blank in what stands before that comma.
    for match in _TIMER.finditer(line.text, line.text.rfind(" ", 0, max(counts, 0)) + 1):
        _read_timer(line, builder, match, full_stamp(line.text[start : match.start()]))
        start = match.end()
    if start == 0:
        builder.note(line, "SamplesPerSec, but not as any DeepSpeed prints it")


def _config_setting(text: str) -> tuple[str, str] | None:
    """(key, value) of a line of the engine's configuration dump, ``True`` or a number; or None."""
    match = _CONFIG.search(text)
    return (match[1], match[2]) if match else None


def _read_timer(
    line: Line, builder: ReadingBuilder, match: re.Match[str], stamp: float | None
) -> None:
    whole = match["whole"]
    counter = Counter.OPTIMIZER_STEPS if whole else Counter.MICRO_STEPS
    if not builder.steps:
        builder.counter = counter
    if builder.counter is not counter:
        builder.note(line, f"counts {counter.value}, unlike the lines before: not read")
        return
    if not whole and int(match["epoch"]):
        if "epochs" not in builder.state:
            builder.state["epochs"] = True
            why = "steps are counted anew in each epoch: only the first was read"
            builder.note(line, why, partly=True)
        return
    if whole and int(match["era"]) == 0:
        _read_accumulation(line, builder, int(match["micro"]), int(whole))
    step, lr = builder.state.get("schedule", (None, None))
    builder.step(
        line,
        whole or match["step"],
        stamp=stamp,
        printed=match["rate"],
        lr=lr if step is not None and step == whole else None,
        memory_mb=_megabytes(match["memory"]),
    )


def _read_accumulation(line: Line, builder: ReadingBuilder, micro: int, whole: int) -> None:
    # Equal counts prove nothing: a pipeline engine's timer does not see micro-steps.
    if whole and micro > whole and micro % whole == 0:
        builder.fact(line, "accumulation", micro // whole)


def _megabytes(gigabytes: str | None) -> float | None:
    return float(gigabytes[:-2]) * 1024 if gigabytes else None


def _read_setting(line: Line, builder: ReadingBuilder) -> None:
    setting = _config_setting(line.text)
    if setting is not None:
        key, value = setting
        if key in _SETTINGS:
            builder.fact(line, _SETTINGS[key], value)
        elif value == "True":
            builder.fact(line, "precision", _PRECISIONS[key])
    elif match := _SCHEDULE.search(line.text):
        builder.state["schedule"] = (match["step"], match["lr"])
    elif match := _LAUNCH.search(line.text):
        builder.fact(line, "nodes", match["nodes"])
        builder.fact(line, "gpus_per_node", match["local"])
    elif match := _WORLD.search(line.text):
        builder.fact(line, "devices", match[1])


# --- bing_bert

_FIGURE = r"[-+.0-9a-zA-Z]{1,40}"
_PROGRESS = re.compile(
    r"bing_bert_progress: step=(?P<step>[0-9]{1,18}), loss=(?P<loss>"
    rf"{_FIGURE}), lr=(?P<lr>{_FIGURE}), sample_count="
)
_THROUGHPUT = re.compile(
    rf"At step (?P<step>[0-9]{{1,18}}), the throughput is (?P<rate>{_FIGURE}) Samples/s"
)
_SEQ_LEN = re.compile(r"[( ,]max_seq_length=([0-9]{1,9})[,)]")


def _read_bing_bert(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A progress or a throughput line, or one that states a setting."""
    if match := _PROGRESS.search(line.text):
        builder.release_held()
        _read_progress(line, builder, match)
    elif match := _THROUGHPUT.search(line.text):
        builder.release_held()
        _read_throughput(line, builder, match)
    elif "Args = Namespace(" in line.text:
        if match := _SEQ_LEN.search(line.text):
            builder.hold(line, "seq_len", match[1])
    elif setting := _config_setting(line.text):
        if setting[0] == "gradient_accumulation_steps" and setting[1] != "True":
            builder.state["accumulation"] = int(setting[1])
    elif "bing_bert_progress: step=" in line.text or "Samples/s" in line.text:
        builder.note(line, "a figure of bing_bert's, but not as it prints it")


def _read_progress(line: Line, builder: ReadingBuilder, match: re.Match[str]) -> None:
    if builder.counter is Counter.OPTIMIZER_STEPS:
        stamp = full_stamp(line.text[: match.start()])
        builder.step(line, match["step"], stamp=stamp, loss=match["loss"], lr=match["lr"])


def _read_throughput(line: Line, builder: ReadingBuilder, match: re.Match[str]) -> None:
    step = int(match["step"])
    if builder.counter is Counter.OPTIMIZER_STEPS:
        accumulation: int = builder.state.get("accumulation", 0)
        if not accumulation:
            _count_micro_steps(line, builder)
        elif step % accumulation:
            builder.note(line, f"step {step} is no multiple of the accumulation, {accumulation}")
            return
        else:
            step //= accumulation
    before, known = builder.steps[-1] if builder.steps else None, len(builder.steps)
    stamp = full_stamp(line.text[: match.start()])
    builder.step(line, step, stamp=stamp, printed=match["rate"])
    if before and len(builder.steps) > known and before[1:3] == builder.steps[-1][1:3]:
        # The progress line of the same step: one iteration, one step.
        builder.steps[-2:] = [builder.steps[-1]._replace(loss=before.loss, lr=before.lr)]


def _count_micro_steps(line: Line, builder: ReadingBuilder) -> None:
    """A speed matters more than a loss."""
    if builder.steps:
        builder.note(line, "no gradient_accumulation_steps in the log: progress lines left out")
    builder.steps.clear()
    builder.counter = Counter.MICRO_STEPS


LINES = {
    "deepspeed": (
        _ROWS,
        LinePattern(take=_read_deepspeed),
    ),
    "bing_bert": (LinePattern(take=_read_bing_bert),),
}
