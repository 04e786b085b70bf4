r"""Trainers of language models on PyTorch: torchtitan, torchtune, LitGPT, nanotron.

torchtitan
----------
torchtitan (pytorch/torchtitan, torchtrain until 2024-04).

| since | line, behind ``[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - `` |
|---|---|
| 2024-03 | ``step: 10  loss:  7.0123  wps: 5,762  peak_memory: 50.6%`` |
| 2024-03 | ``step: 10  loss:  7.0123  memory: 40.10GiB(50.63%)  wps: 5,762  mfu: 37.41%`` |
| 2024-11 | the same with ``tps:`` for ``wps:`` |
| 2025-02 | ``tflops: 370.02`` before ``mfu:`` |
| 2025-06 | ``grad_norm:  1.6558`` behind the loss |
| 2026-02 | five decimals of the loss; ``mfu: N/A`` with float8 |

Steps are optimizer steps done, printed at step 1 and at every tenth (``log_freq``). ``tps`` is
tokens per second of one device: those of a data-parallel rank over the time since the line before,
divided by the devices that share its batch (tensor and pipeline parallel; context parallel from
2024-10 on, when it came). It has the data loader and checkpoints in it, and in the first line
set-up and compilation. ``validate step:`` (2025-07) is no training, and the time of a validation is
not in the next line's ``tps`` but in its time stamp. Every rank prints; torchrun shows rank 0's
unless told otherwise. A pipeline's ranks without a loss print one of -1.

Settings: ``Building 1-D device mesh with ['dp_shard'], [8]`` or, since 2026, ``.. mesh with
parallelism: pp=1, dp_replicate=1, dp_shard=8, ..`` are all devices; ``local batch size 8, global
batch size 64, gradient accumulation steps 1, sequence length 2048,`` (2024-07, accumulation since
2025-06; gone in 2026-08); ``Model llama3 8B size: 8,030,261,248 total parameters``. Whole logs of
2024 to 2026 were read where repositories hold them.

torchtune
---------
torchtune (meta-pytorch/torchtune), its recipes for fine-tuning.

| where | line |
|---|---|
| ``log_1723844072.txt`` of DiskLogger, or StdoutLogger's | ``Step 12 \| loss:1.23 lr:2e-05 tokens_per_second_per_gpu:405.04 peak_memory_alloc:14.2 ``, with memory (GiB) if it was asked for |
| the same of DiskLogger as JSON lines (2025) | ``{"step": 12, "loss": 1.23, "lr": 2e-05, "tokens_per_second_per_gpu": 405.04}`` |
| standard error, every recipe | ``1\|12\|Loss: 1.2345:   6%\|▌         \| 12/200 [00:30<08:00,  2.55s/it]`` |

Steps are optimizer steps, counted from 1 over all epochs. The tokens/s are those of the last step
alone (``log_every_n_steps``), of one device, and which tokens they count has changed: with padding
until 2024-10, since then those that the loss counts (no padding, no prompt where it is masked).
No samples/s follow from them, whatever the sequence length; they are rank 0's own until 2024-10,
the mean over all ranks since.

The bar is tqdm's, one for each epoch: epoch, step, the loss, then the steps of this epoch and the
time since it began, in whole seconds. That time is the clock here, of the first epoch that is
printed. Each step draws the bar twice, at first with the description of the step before: a line
whose two numbers do not fit each other is left. Rank 0 prints both, and ``Validation loss: 1.2345``.

Settings are the configuration in YAML that a recipe prints as it begins (``batch_size: 4``, of one
device unless the model is split by ``tensor_parallel_dim``). Real lines: meta-pytorch/torchtune
pull requests 1358, 2274 and repositories that quote a bar.

litgpt
------
LitGPT (Lightning-AI/litgpt, lit-gpt before 2024-03) and TinyLlama, which was made of it.

| since | line |
|---|---|
| 2023 | ``iter 77 step 39: loss 10.8259, iter time: 214.40ms (optimizer.step)`` |
| 2024-02 | ``iter 77 | step 39: loss 10.8259, iter time: 214.40 ms (optimizer.step)`` |
| 2024-03 | ``Epoch 1 | iter 8 step 2 | loss train: 1.761, val: n/a | iter time: 121.17 ms (step)``, and for pre-training ``remaining time: 3 days, 1:00:00`` behind it |

``iter`` counts micro-steps, ``step`` optimizer steps; a mark stands where a micro-step ends one. Until
2024-03 some of the programs count ``iter`` from 0, so that it may be one too low. The time is that
of the one micro-step, of all devices together. It is read where every micro-step has a line: at a
line the program waits for the device, so that where lines are rarer (``log_interval``) the time has
work of the micro-steps before in it. Rank 0 prints.

The ``Tok/sec`` at the end is not read: that of pre-training divides the tokens by the time of day at
which it began, that of fine-tuning is one process's over the whole run with its validations. Real
lines: Lightning-AI/litgpt issues 689, 1110.

nanotron
--------
nanotron (huggingface/nanotron).

| since | line, behind ``01/17/2024 14:02:16 [INFO|DP=0|PP=0|TP=0|host]: `` |
|---|---|
| 2023-12 | ``iteration: 992 / 1000 | consumed_tokens: 635K | elapsed_time_per_iteration_ms: 268 | tokens_per_sec: 2.39K | tokens_per_sec_per_gpu: 298 | global_batch_size: 20 | lm_loss: 9.69 | lr: 1e-05 | ..`` |
| 2025-03 | ``time_per_iteration_ms: 268``; ``global_batch_size`` in tokens; a head without the year |

The iteration counts optimizer steps done. The tokens/s are those of the last iteration alone, of all
devices, after all ranks have waited for each other; every iteration has a line unless
``iteration_step_info_interval`` is set. Numbers have three digits, so that a speed may be off by 0.5 %
(1.01K); K, M, G or B (since 2025-04) and T are powers of 1000. The time stamps, of whole seconds, are
not read.

Settings: ``mbs: 2 | grad_accum: 8 | sequence_length: 4096 | global_batch_size: 1024 | train_steps:``
as the training starts, in sequences. Real lines: huggingface/nanotron#390, #233, pull request 23.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import math
import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder, is_not_split
from dlperf_hpc.logs.lineparts import (
    COUNT,
    NUMBER,
    first_of,
    full_stamp,
    further,
    megabytes,
    perhaps,
    word,
)

# --- torchtitan

_TITAN_STEP = (
    rf"step: (?<!\wstep: )(?<!validate step: ) *(?P<iteration>{COUNT})"
    rf" +loss: +(?:-1\.0[0-9]*|(?P<loss>{NUMBER}))(?= )"
)
_PARALLELISM = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp)=([0-9]{1,9}),")


def _batches(local: str) -> str:
    """The pattern of the line of batches; ``local`` names the group of the local one."""
    return (
        rf"with local batch size (?P<{local}>[0-9]{{1,9}}), "
        r"global batch size (?P<global_batch>[0-9]{1,12}), "
        r"(?:gradient accumulation steps (?P<accumulation>[0-9]{1,9}), )?"
        r"sequence length (?P<seq_len>[0-9]{1,9}), total steps "
    )


def _read_mesh(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """All devices; and whether a local batch is one device's."""
    if found["names"]:
        names = re.findall(r"[a-z_]+", found["names"])
        sizes = list(map(int, re.findall(r"[0-9]{1,9}", found["sizes"])))
    else:
        names, sizes = [], []
        for name, size in _PARALLELISM.findall(line.text):
            names.append(name)
            sizes.append(int(size))
    if sizes and len(names) == len(sizes) and min(sizes) > 0:
        builder.hold(line, "devices", math.prod(sizes))
        builder.state["split"] = any(
            size > 1 for name, size in zip(names, sizes) if not name.startswith(("dp", "batch"))
        )


def _read_model(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.hold(line, "model", found["model"].replace(" ", "-"))


_TITAN = (
    LinePattern(
        rf"\bvalidate step: +(?P<after>{COUNT}) +loss: ", pause="evaluation", in_speed=False
    ),
    LinePattern(
        _TITAN_STEP
        + further(r" [tw]ps: +(?P<printed>[0-9][0-9,]{0,24}) +(?=tflops|mfu|peak_memory)")
        + perhaps(r" memory: +(?P<memory_gib>[0-9]{1,9}\.[0-9]{2})GiB\("),
        clock="full",
    ),
    LinePattern(
        _TITAN_STEP + further("[tw]ps: "),
        note="a step's tokens per second, but not as torchtitan prints them",
    ),
    LinePattern(
        r"Building (?:[0-9]-D device mesh with \[(?P<names>[a-z_', ]{2,200})\],"
        r" \[(?P<sizes>[0-9, ]{1,80})\]|device mesh with parallelism: pp=[0-9]{1,9},"
        r" dp_replicate=[0-9]{1,9}, dp_shard=[0-9]{1,9}, cp=[0-9]{1,9}, tp=[0-9]{1,9},)",
        take=_read_mesh,
    ),
    LinePattern(_batches("batch_size"), held=True, usual=is_not_split),
    LinePattern(_batches("local"), held=True),
    LinePattern(
        r"\bModel (?P<model>\S{1,40} \S{1,40}) size: [0-9][0-9,]{0,24} total parameters",
        take=_read_model,
    ),
)

# --- torchtune

_SPEED = "tokens_per_second_per_gpu"
_STEP = re.compile(rf"{word('Step ')}(?P<done>{COUNT}) \| (?=loss:)")
_JSON = re.compile(rf"^\{{\"step\": (?P<done>{COUNT}), (?=\"loss\": )")
_METRIC = r"\b{}(?:\": |:)(?P<value>{})(?:(?=[ ,]|}}\s*$)|(?<=[0-9]{{8}})$)"
"""A blank stands behind each number; without it so many digits are as good as all."""
_RATE = re.compile(_METRIC.format(_SPEED, NUMBER))
_LOSS = re.compile(_METRIC.format("loss", NUMBER))
_LR = re.compile(_METRIC.format("lr", NUMBER))
_MEMORY = re.compile(_METRIC.format("peak_memory_alloc", r"[0-9]{1,9}\.[0-9]{1,20}"))
_BAR = re.compile(
    rf"(?<![0-9|])(?P<epoch>[0-9]{{1,9}})\|(?P<done>{COUNT})\|Loss: (?P<loss>{NUMBER}):"
    rf" {{1,4}}[0-9]{{1,3}}%\|[^|]{{0,300}}\| *(?P<drawn>{COUNT})/(?P<length>{COUNT})"
    r" \[(?:(?P<hours>[0-9]{1,6}):)?(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2})<"
)


def _read_torchtune(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A bar, or a logger's line (behind the bar, if both go to one terminal)."""
    if bar := _BAR.search(line.text):
        _read_bar(line, builder, bar)
    if _SPEED in line.text:
        _read_metrics(line, builder)


def _read_metrics(line: Line, builder: ReadingBuilder) -> None:
    match = _STEP.search(line.text) or _JSON.search(line.text)
    rate = _RATE.search(line.text, match.end()) if match else None
    if match is None or rate is None:
        builder.note(line, f"{_SPEED}, but not as torchtune's loggers print it")
        return
    _begin(line, builder)
    builder.step(
        line,
        match["done"],
        stamp=_stamp_of_bar(builder, int(match["done"])),
        printed=rate["value"],
        loss=first_of(_LOSS, line.text, match.end()),
        lr=first_of(_LR, line.text, match.end()),
        memory_mb=megabytes(first_of(_MEMORY, line.text, match.end())),
    )


def _stamp_of_bar(builder: ReadingBuilder, done: int) -> float | None:
    """The stamp of the step that the bar before has printed already, which is taken away: one
    iteration is one step."""
    last = builder.last_step()
    if last is None or last.iteration != done or last.printed is not None:
        return None
    return builder.steps.pop().stamp


def _read_bar(line: Line, builder: ReadingBuilder, bar: re.Match[str]) -> None:
    done, drawn, length = int(bar["done"]), int(bar["drawn"]), int(bar["length"])
    before = builder.last_step()
    if not length or (done - drawn) % length or (before and before.iteration == done):
        return
    if builder.later_epoch(line, bar["epoch"]):
        return
    _begin(line, builder)
    hours, minutes, seconds = (int(bar[name] or 0) for name in ("hours", "minutes", "seconds"))
    elapsed = float((hours * 60 + minutes) * 60 + seconds)
    builder.step(line, done, stamp=builder.on_one_line(done, elapsed), loss=bar["loss"])


def _begin(line: Line, builder: ReadingBuilder) -> None:
    """The first figure shows whose settings those are that were printed before."""
    builder.release_held()
    if "batch" in builder.state:
        builder.fact(line, "batch_size", builder.state.pop("batch"))


def _read_setting(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """A setting. A batch is that of one device, unless devices share it."""
    for name in ("accumulation", "precision"):
        builder.hold(line, name, found[name])
    if found["batch"]:
        builder.state["batch"] = found["batch"]
    elif int(found["split"] or 0) > 1:
        builder.state.pop("batch", None)


_TUNE = (
    LinePattern("batch_size: (?<=.batch_size: )", passed_over=True),
    LinePattern(rf"{word('Validation loss: ')}{NUMBER}\s*$", pause="evaluation"),
    LinePattern(r"Saving checkpoint\. This may take ", pause="checkpoint"),
    LinePattern(
        r"^(?:gradient_accumulation_steps: (?P<accumulation>[0-9]{1,9})"
        r"|dtype: (?P<precision>bf16|fp16|fp32)|batch_size: (?P<batch>[0-9]{1,9})"
        r"|(?:tensor|context)_parallel_dim: (?P<split>[0-9]{1,9}))\s*$",
        take=_read_setting,
    ),
    LinePattern(take=_read_torchtune),
)

# --- litgpt


def _read_micro_step(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """A micro-step. What an optimizer step consists of shows where one ends."""
    done, steps = int(found["done"]), int(found["step"])
    printed = found["ms"]
    if builder.state.get("before") != done - 1:
        printed = None
    builder.state["before"] = done
    stamp = full_stamp(line.text.partition("iter ")[0])
    builder.step(line, done, stamp=stamp, printed=printed, loss=found["loss"])
    if found["ends"] and found["train"] and steps and done % steps == 0:
        builder.fact(line, "accumulation", done // steps)


_LITGPT = LinePattern(
    rf"{word('iter ')} *(?P<done>{COUNT})(?: \|)? step (?P<step>{COUNT})"
    rf"(?::|(?:: loss |(?P<train> \| loss train: ))(?P<loss>{NUMBER}),"
    rf"(?: val: [^ |]{{1,40}} \|)?) iter time: (?P<ms>{NUMBER}) ?ms"
    r"(?P<ends> \((?:optimizer\.)?step\))?",
    take=_read_micro_step,
)

# --- nanotron

_NANOTRON = (
    LinePattern(
        r"\bmbs: [0-9]{1,9} \| grad_accum: (?P<accumulation>[0-9]{1,9}) \|"
        + further(r" global_batch_size: (?P<global_batch>[0-9]{1,12}) \|.{0,40} train_steps: ")
        + perhaps(r" sequence_length: (?P<seq_len>[0-9]{1,9}) \|"),
        held=True,
    ),
    LinePattern(
        rf"{word('iteration: ')}(?P<iteration>{COUNT}) / {COUNT} (?=\| )"
        + further(
            r"\| tokens_per_sec: (?P<printed>[0-9]{1,15}(?:\.[0-9]{1,20})?)(?P<power>[KMGBT]?) \|"
        )
        + perhaps(rf"\| lm_loss: (?P<loss>{NUMBER}) \|")
        + perhaps(rf"\| lr: (?P<lr>{NUMBER}) \|")
    ),
)

LINES = {"torchtitan": _TITAN, "torchtune": _TUNE, "litgpt": (_LITGPT,), "nanotron": _NANOTRON}
