r"""torchtune (meta-pytorch/torchtune), its recipes for fine-tuning.

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
whose two numbers do not fit each other is left. Rank 0 prints both.

Settings are the configuration in YAML that a recipe prints as it begins (``batch_size: 4``, of one
device unless the model is split by ``tensor_parallel_dim``). Real lines: meta-pytorch/torchtune
pull requests 1358, 2274 and repositories that quote a bar.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER, word
from dlperf_hpc.logs.scanned import LogStep

_COUNT = r"[0-9]{1,18}"
_SPEED = "tokens_per_second_per_gpu"
_STEP = re.compile(rf"{word('Step ')}(?P<done>{_COUNT}) \| (?=loss:)")
_JSON = re.compile(rf"^\{{\"step\": (?P<done>{_COUNT}), (?=\"loss\": )")
_METRIC = r"\b{}(?:\": |:)(?P<value>{})(?:(?=[ ,]|}}\s*$)|(?<=[0-9]{{8}})$)"
"""A blank stands behind each number; without it so many digits are as good as all."""
_RATE = re.compile(_METRIC.format(_SPEED, NUMBER))
_LOSS = re.compile(_METRIC.format("loss", NUMBER))
_LR = re.compile(_METRIC.format("lr", NUMBER))
_MEMORY = re.compile(_METRIC.format("peak_memory_alloc", r"[0-9]{1,9}\.[0-9]{1,20}"))
_BAR = re.compile(
    rf"(?<![0-9|])(?P<epoch>[0-9]{{1,9}})\|(?P<done>{_COUNT})\|Loss: (?P<loss>{NUMBER}):"
    rf" {{1,4}}[0-9]{{1,3}}%\|[^|]{{0,300}}\| *(?P<shown>{_COUNT})/(?P<length>{_COUNT})"
    r" \[(?:(?P<hours>[0-9]{1,6}):)?(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2})<"
)
_SETTING = re.compile(
    r"^(?P<name>batch_size|gradient_accumulation_steps|tensor_parallel_dim|context_parallel_dim"
    r"|dtype): (?P<value>[a-z0-9]{1,9})\s*$"
)
_NAMES = {"gradient_accumulation_steps": "accumulation", "batch_size": "batch_size"}
_PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A bar, a logger's line (behind the bar, if both go to one terminal), or a setting."""
    if bar := _BAR.search(line.text):
        _read_bar(line, builder, bar)
    if _SPEED in line.text:
        _read_step(line, builder)
    elif match := _SETTING.search(line.text):
        _read_setting(line, builder, match["name"], match["value"])


def _read_step(line: Line, builder: ReadingBuilder) -> None:
    match = _STEP.search(line.text) or _JSON.search(line.text)
    rate = _RATE.search(line.text, match.end()) if match else None
    if match is None or rate is None:
        builder.note(line, f"{_SPEED}, but not as torchtune's loggers print it")
        return
    _begin(line, builder)
    loss, lr, memory = (each.search(line.text, match.end()) for each in (_LOSS, _LR, _MEMORY))
    bar = _take_bar(builder, int(match["done"]))
    builder.step(
        line,
        match["done"],
        stamp=bar.stamp if bar else None,
        printed=rate["value"],
        loss=loss["value"] if loss else None,
        lr=lr["value"] if lr else None,
        memory_mb=1024 * float(memory["value"]) if memory else None,
    )


def _take_bar(builder: ReadingBuilder, done: int) -> LogStep | None:
    """The step that the bar before has shown already: one iteration is one step."""
    last = builder.steps[-1] if builder.steps else None
    if last is None or last.iteration != done or last.printed is not None:
        return None
    return builder.steps.pop()


def _read_bar(line: Line, builder: ReadingBuilder, bar: re.Match[str]) -> None:
    done, shown, length = int(bar["done"]), int(bar["shown"]), int(bar["length"])
    before = builder.steps[-1] if builder.steps else None
    if not length or (done - shown) % length or (before and before.iteration == done):
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


def _read_setting(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    if name == "dtype":
        builder.hold(line, "precision", _PRECISIONS.get(value))
    elif not value.isdigit():
        return
    elif name == "gradient_accumulation_steps":
        builder.hold(line, "accumulation", value)
    elif name == "batch_size":
        builder.state["batch"] = value
    elif int(value) > 1:
        builder.state.pop("batch", None)  # of the devices that share a batch


LINES = {
    "torchtune": (LinePattern(take=read),),
}
