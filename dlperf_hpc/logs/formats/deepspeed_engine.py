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

from dlperf_hpc.logs.format import Columns, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import COUNT, FULL_STAMP, full_stamp, further, megabytes
from dlperf_hpc.logs.scanned import Counter

# --- deepspeed

_RATE = r"[-+.0-9a-z]{1,40}"  # nan and inf too: ReadingBuilder notes what is no measurement
_GB = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_MICRO_STEP = rf"(?P<era>{COUNT})/(?P<iteration>{COUNT})"
_GLOBAL_STEP = (
    rf"epoch=(?P<first>{COUNT})/micro_step=(?P<micro>{COUNT})/global_step=(?P<whole>{COUNT})"
)
_FIGURES = (
    rf", (?P<running>RunningAvg)?SamplesPerSec=(?P<printed>{_RATE})"
    rf"(?(running), CurrSamplesPerSec={_RATE})"
    rf"(?:, MemAllocated={_GB} ?GB, MaxMemAllocated=(?P<memory_gib>{_GB}) ?GB)?(?=[\s,]|$)"
)
_TIMER = re.compile(rf"(?:(?<![0-9]){_MICRO_STEP}|{_GLOBAL_STEP}){_FIGURES}")


def _are_usual(builder: ReadingBuilder, columns: Columns) -> bool:
    """Whether lines count the micro-steps of the first epoch, as those before."""
    counts_micro_steps = builder.steps and builder.counter is Counter.MICRO_STEPS
    return bool(counts_micro_steps) and set(columns["era"]) == {"0"}


def _read_lines(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    start = 0
    counts = line.text.rfind(", ", 0, line.text.find("SamplesPerSec="))
    # There is no blank in what stands before that comma.
    for match in _TIMER.finditer(line.text, line.text.rfind(" ", 0, max(counts, 0)) + 1):
        stamp = full_stamp(line.text[start : match.start()])
        if match["whole"]:
            _read_optimizer_step(line, builder, match, stamp)
        elif _counts(line, builder, Counter.MICRO_STEPS):
            _read_micro_step(line, builder, match, stamp)
        start = match.end()
    if start == 0:
        builder.note(line, "SamplesPerSec, but not as any DeepSpeed prints it")


def _counts(line: Line, builder: ReadingBuilder, counter: Counter) -> bool:
    """Whether the lines before count what this one does, which is noted if they do not."""
    if not builder.steps:
        builder.counter = counter
    if builder.counter is not counter:
        builder.note(line, f"counts {counter.value}, unlike the lines before: not read")
    return builder.counter is counter


def _read_micro_step(
    line: Line, builder: ReadingBuilder, match: re.Match[str], stamp: float | None
) -> None:
    if not int(match["era"]):
        memory = megabytes(match["memory_gib"])
        builder.step(
            line, match["iteration"], stamp=stamp, printed=match["printed"], memory_mb=memory
        )
    elif "epochs" not in builder.state:
        builder.state["epochs"] = True
        why = "steps are counted anew in each epoch: only the first was read"
        builder.note(line, why, partly=True)


def _read_optimizer_step(
    line: Line, builder: ReadingBuilder, match: re.Match[str], stamp: float | None
) -> None:
    if not _counts(line, builder, Counter.OPTIMIZER_STEPS):
        return
    done, micro = int(match["whole"]), int(match["micro"])
    # Equal counts prove nothing: a pipeline engine's timer does not see micro-steps.
    if int(match["first"]) == 0 and done and micro > done and micro % done == 0:
        builder.fact(line, "accumulation", micro // done)
    lr = None
    if builder.state.get("lr_of") == match["whole"]:
        lr = builder.state["lr"]
    builder.step(
        line,
        match["whole"],
        stamp=stamp,
        printed=match["printed"],
        lr=lr,
        memory_mb=megabytes(match["memory_gib"]),
    )


_DEEPSPEED = (
    LinePattern(
        rf"^\[(?:INFO )?(?P<full>{FULL_STAMP})\] (?:\[INFO\] \[[a-z]+\.py:[0-9]+:[a-z]+\] )?"
        rf"{_MICRO_STEP}{_FIGURES}\s*$",
        usual=_are_usual,
    ),
    LinePattern(r"\|E2E latency=", passed_over=True),  # DeepSpeed-Chat's
    LinePattern("SamplesPerSec=", take=_read_lines),
    LinePattern(
        r"(?<![a-z_])(?:train_batch_size \.{0,30} (?P<global_batch>[0-9]{1,12})"
        r"|train_micro_batch_size_per_gpu \.{0,30} (?P<batch_size>[0-9]{1,12})"
        r"|gradient_accumulation_steps \.{0,30} (?P<accumulation>[0-9]{1,12})"
        r"|(?P<precision>fp16|bfloat16)_enabled \.{0,30} True)\s*$"
    ),
    LinePattern(
        rf"(?<![a-z_])step=(?P<lr_of>{COUNT}), skipped={COUNT}, lr=\[(?P<lr>{_RATE})[,\]]",
        kept=True,
    ),
    LinePattern(r"\bnnodes=(?P<nodes>[0-9]{1,9}), num_local_procs=(?P<gpus_per_node>[0-9]{1,9})\b"),
    LinePattern(r"\bdist_world_size=(?P<devices>[0-9]{1,9})\b"),
)


# --- bing_bert

_FIGURE = r"[-+.0-9a-zA-Z]{1,40}"


def _read_progress(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.release_held()
    if builder.counter is Counter.OPTIMIZER_STEPS:
        stamp = full_stamp(line.text.partition("bing_bert_progress")[0])
        builder.step(line, found["step"], stamp=stamp, loss=found["loss"], lr=found["lr"])


def _read_throughput(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.release_held()
    step = int(found["step"])
    if builder.counter is Counter.OPTIMIZER_STEPS:
        accumulation = int(builder.state.get("accumulation", 0))
        if not accumulation:
            _count_micro_steps(line, builder)
        elif step % accumulation:
            builder.note(line, f"step {step} is no multiple of the accumulation, {accumulation}")
            return
        else:
            step //= accumulation
    before, known = builder.last_step(), len(builder.steps)
    stamp = full_stamp(line.text.partition("At step ")[0])
    builder.step(line, step, stamp=stamp, printed=found["rate"])
    if before and len(builder.steps) > known and before[1:3] == builder.steps[-1][1:3]:
        # The progress line of the same step: one iteration, one step.
        builder.steps[-2:] = [builder.steps[-1]._replace(loss=before.loss, lr=before.lr)]


def _count_micro_steps(line: Line, builder: ReadingBuilder) -> None:
    """A speed matters more than a loss."""
    if builder.steps:
        builder.note(line, "no gradient_accumulation_steps in the log: progress lines left out")
    builder.steps.clear()
    builder.counter = Counter.MICRO_STEPS


_BING_BERT = (
    LinePattern(
        rf"bing_bert_progress: step=(?P<step>{COUNT}), loss=(?P<loss>{_FIGURE}),"
        rf" lr=(?P<lr>{_FIGURE}), sample_count=",
        take=_read_progress,
    ),
    LinePattern(
        rf"At step (?P<step>{COUNT}), the throughput is (?P<rate>{_FIGURE}) Samples/s",
        take=_read_throughput,
    ),
    LinePattern(
        "^"
        + further(r"Args = Namespace\(")
        + further(r"[( ,]max_seq_length=(?P<seq_len>[0-9]{1,9})[,)]"),
        held=True,
    ),
    LinePattern(r"Args = Namespace\(", passed_over=True),
    LinePattern(
        r"(?<![a-z_])gradient_accumulation_steps \.{0,30} (?P<accumulation>[0-9]{1,12})\s*$",
        kept=True,
    ),
    LinePattern(
        "bing_bert_progress: step=|Samples/s",
        note="a figure of bing_bert's, but not as it prints it",
    ),
)

LINES = {"deepspeed": _DEEPSPEED, "bing_bert": _BING_BERT}
