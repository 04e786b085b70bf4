"""The Trainer of Hugging Face, and PaddleNLP's, which descends from it.

| line | since |
|---|---|
| ``{'loss': 10.2, 'learning_rate': 4.9e-05, 'epoch': 0.01}`` | 4 (``grad_norm`` since 4.38) |
| ``{'loss': '0.1363', 'grad_norm': '0.1436', ..., 'epoch': '2.731'}`` | 5: values are strings |
| ``{'train_runtime': 101.9003, 'train_samples_per_second': 1.963, 'epoch': 0.69}`` | 4, the end |
| ``{'loss': .., 'num_input_tokens_seen': 512, .., 'train_tokens_per_second': '1734'}`` | 4.56 |
| ``  5%|5         | 10/200 [00:05<01:35,  1.98it/s]`` | 4, tqdm's bar of the training |
| ``  train_samples_per_second =      6.213`` | ``***** train metrics *****`` |
| ``    "train_samples_per_second": 6.213,`` | ``train_results.json``, ``trainer_state.json`` |
| ``loss: 3.2, .., global_step: 10, .., interval_steps_per_second: 4.427, ..`` | PaddleNLP |
| ``train_runtime: 88.2, train_samples_per_second: 90.7, train_steps_per_second: ..`` | PaddleNLP |

Process 0 prints. The one speed is the whole run's: the samples that *were to be trained* over the
time of ``train()``, with warm-up and checkpoints. After early stopping, or where the run went on
from a checkpoint, fewer were, so the lines that say what was planned and what was done are counted
(``Num examples = 7,000``, ``Continuing training from global step 500``, the end's ``'epoch'``,
``TrainOutput(global_step=..``, a progress bar on the line of the end). Until 4.6 the figure of that
name was of steps (transformers pull request 11818): ``train_steps_per_second`` is not beside it.

A loss line of Hugging Face's has an epoch's fraction and no step (early ones had ``'step'``). The
step is that of the bar: the loss is written where the bar stood, and the bar is drawn again behind
it (``ProgressCallback`` of trainer_callback.py, tqdm's ``write``). So the bar without a name that
stands directly behind two loss lines is that of the training, and its total the number of steps;
where the log states ``Total optimization steps``, that is its total. All other bars (evaluation,
download, ``Map:``, ``Loading checkpoint shards:``) have a name or another total. Several loss lines
in a row were buffered, and show neither a bar nor a step; a loss between two different states of
the bar is no step's for certain, and is left out. Bars are looked for once the log has shown whose
it is, by its settings or by the first loss line. The bar's whole seconds are the clock: they have
everything in them, evaluations and checkpoints too. Its rate is not read (:mod:`._bars`). axolotl,
TRL and LLaMA-Factory print the same lines with keys of their own; axolotl's
``tokens/train_per_sec_per_gpu`` counts the tokens with a label only, and is no speed here.

``train_tokens_per_second`` on a loss line is the mean over all devices since ``train()`` began; on
the end's line (``include_tokens_per_second``, since 4.36) it divides what was planned, as the
samples' does.

PaddleNLP's loss lines have a step, and a time stamp before them; of their speeds the steps/s are
read, since in 2022 ``interval_samples_per_second`` was one step's samples over the time of several.

Settings come from the log at level INFO (``Instantaneous batch size per device = 8``); the number
of devices follows from three of them, unless the model is split over devices. Real lines were read
where documents, notebooks and issues quote them (PaddleNLP's of 2022-08-31; bars beside losses in
huggingface/trl issue 2875 and axolotl-ai-cloud/axolotl issue 592), and whole logs of transformers 5
that were made by runs on a CPU.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats import _bars
from dlperf_hpc.logs.lineparts import full_stamp
from dlperf_hpc.logs.scanned import Averaging, Printed, Unit

_SPEED = "train_samples_per_second"
_STEPS = "train_steps_per_second"
_INTERVAL = ", interval_steps_per_second: "
_RUNNING = "***** Running "
_FIGURE = r"[-+.0-9a-z]{1,40}"
_TOTAL = re.compile(
    rf"{_SPEED}(?:['\"]: {{0,4}}['\"]?(?P<item>{_FIGURE})['\",}}]| *= *(?P<row>{_FIGURE})\s*$"
    rf"|: (?P<paddle>{_FIGURE}),)"
)
_LOG = re.compile(
    rf"\{{'loss': '?(?P<loss>{_FIGURE})'?, (?P<rest>[^{{}}]{{0,2000}}?'epoch': [^{{}}]{{1,400}})\}}"
)
_LR = re.compile(rf"'learning_rate': '?({_FIGURE})[',]")
_STEP = re.compile(r"'step': '?([0-9]{1,18})(?:[', ]|$)")
_TOKENS_SPEED = "train_tokens_per_second"
_TOKENS = re.compile(rf"'{_TOKENS_SPEED}': '?({_FIGURE})'?(?:,|}}|$)")
_BEHIND = 2
"""Lines from a loss line to the bar that is drawn again, a blank one among them."""

_Figures = dict[str, "str | None"]
_MOST_HELD = 10_000
"""Bars kept until it is known whose they are: a loss line may come late."""
_PADDLE = re.compile(
    rf"(?:\bloss: (?P<loss>{_FIGURE}), )?(?:learning_rate: (?P<lr>{_FIGURE}), )?"
    rf"global_step: (?P<step>[0-9]{{1,18}}), .{{0,600}}interval_steps_per_second: "
    rf"(?P<rate>{_FIGURE}),"
)
_SETTING = re.compile(
    r"(Instantaneous batch size per device|Total train batch size \(w\. parallel, distributed"
    r" & accumulation\)|Gradient Accumulation steps) = ([0-9,]{1,20})\s*$"
)
_SETTINGS = {"I": "batch_size", "T": "global_batch", "G": "accumulation"}
_SPLIT = re.compile(r"(?:tensor|pipeline|sep|context)_parallel_degree *: *([0-9]{1,6})\b")

_NUMBER = r"['\"]?(?P<value>[0-9][0-9,]{0,24}(?:\.[0-9]{1,20})?)"
_PLAN = (
    ("epoch_samples", re.compile(rf"Num examples = {_NUMBER}\s*$")),
    ("epochs_asked", re.compile(rf"Num Epochs = {_NUMBER}\s*$")),
    ("steps_asked", re.compile(rf"Total optimization steps = {_NUMBER}\s*$")),
    ("resumed", re.compile(rf"Continuing training from global step {_NUMBER}\s*$")),
    ("resumed_epochs", re.compile(rf"Continuing training from epoch {_NUMBER}\s*$")),
    ("epoch_samples", re.compile(rf"^ *\"?train_samples\"?(?: *= *|: ){_NUMBER},?\s*$")),
    ("epochs", re.compile(rf"^ *\"?epoch\"?(?: *= *|: ){_NUMBER},?\s*$")),
    ("steps", re.compile(rf"^ *\"global_step\": {_NUMBER},\s*$")),
    ("steps_asked", re.compile(rf"^ *\"max_steps\": {_NUMBER},\s*$")),
    ("seconds", re.compile(rf"^ *\"train_runtime\": {_NUMBER},?\s*$")),
)
_DURATION = re.compile(
    r"^ *train_runtime *= *(?:(?P<days>[0-9]{1,5}) days?, )?(?P<hours>[0-9]{1,6}):"
    r"(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2}(?:\.[0-9]{1,6})?)\s*$"
)
_AT_THE_END = (
    ("seconds", re.compile(rf"\btrain_runtime['\"]?: {_NUMBER}['\"]?[,}}]")),
    ("steps_per_s", re.compile(rf"\b{_STEPS}['\"]?: {_NUMBER}['\"]?[,}}]")),
    ("epochs", re.compile(rf"\bepoch['\"]?: {_NUMBER}(?:['\"]?[,}}]|\s*$)")),
    ("steps", re.compile(rf"\bTrainOutput\(global_step={_NUMBER},")),
    ("steps", re.compile(rf"\| *{_NUMBER}/[0-9]{{1,18}} \[[0-9:]{{4,12}}<")),
)
_EPOCH = re.compile(rf"'epoch': {_NUMBER}")


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A loss line, the end's speed in any of its forms, or a setting."""
    if _SPEED in line.text:
        _read_total(line, builder)
    elif match := _LOG.search(line.text):
        _read_log(line, builder, match["loss"], match["rest"])
    elif _INTERVAL in line.text:
        _read_paddle(line, builder)
    elif _bars.is_bare(line.text):
        _read_bar(line, builder, _bars.bar_of(line.text))
    elif _bars.LITERAL in line.text:
        return  # another bar, of which there may be very many
    elif _RUNNING in line.text:
        builder.state["evaluates"] = "training" not in line.text
    elif match := _SETTING.search(line.text):
        _read_setting(line, builder, _SETTINGS[match[1][0]], match[2].replace(",", ""))
    elif match := _SPLIT.search(line.text):
        if int(match[1]) > 1:
            builder.state["split"] = True
    else:
        _read_plan(line, builder)


def _read_total(line: Line, builder: ReadingBuilder) -> None:
    match = _TOTAL.search(line.text)
    if match is None:
        builder.note(line, f"{_SPEED} without a number")
        return
    known, before = len(builder.totals), [t.value for t in builder.totals if t.name == _SPEED][-1:]
    in_line = match["item"] and ("{'" in line.text or "'epoch'" in line.text)
    of_steps = in_line and _STEPS not in line.text
    unit = Unit.ITERATIONS_PER_S if of_steps else Unit.SAMPLES_PER_S
    figure = match["item"] or match["row"] or match["paddle"]
    builder.total(line, _SPEED, figure, unit)
    if len(builder.totals) > known and [builder.totals[-1].value] == before:
        builder.totals.pop()  # printed as a dictionary, and again as a table
    if tokens := _TOKENS.search(line.text):
        builder.total(line, _TOKENS_SPEED, tokens[1], Unit.TOKENS_PER_S)
    if builder.totals:
        builder.release_held()
    if match["row"] is None:
        for name, pattern in _AT_THE_END:
            if found := pattern.search(line.text):
                _count(line, builder, name, found["value"])
    if of_steps:
        builder.count(line, "steps_per_s", figure)
    builder.state.pop("epochs", None)


def _read_log(line: Line, builder: ReadingBuilder, loss: str, rest: str) -> None:
    builder.release_held()
    step, lr, tokens = _STEP.search(rest), _LR.search(rest), _TOKENS.search(rest)
    if epoch := _EPOCH.search(rest):
        _read_epoch(line, builder, epoch["value"])
    figures: _Figures = {
        "loss": loss,
        "lr": lr[1] if lr else None,
        "printed": tokens[1] if tokens else None,
    }
    if tokens and not builder.steps:
        builder.printed = Printed(Unit.TOKENS_PER_S, averaging=Averaging.RUNNING)
    if step:
        builder.step(line, step[1], loss=loss, lr=figures["lr"], printed=figures["printed"])
    else:
        builder.recognise(line)
        written = builder.state.setdefault("written", [])
        written[1:] = [(line.number, figures)]  # one or several: that is all that matters


def _read_epoch(line: Line, builder: ReadingBuilder, epoch: str) -> None:
    """The first two lines show whether the run began at epoch 0."""
    seen: list[str] = builder.state.setdefault("epochs", [])
    if len(seen) < 2 and epoch not in seen:
        seen.append(epoch)
        builder.count(line, "first_epochs" if len(seen) == 1 else "second_epochs", epoch)


def _read_bar(line: Line, builder: ReadingBuilder, bar: _bars.Bar | None) -> None:
    """A step, if the bar is that of the training; until that is known the bar is held."""
    if bar is None:
        return
    written = builder.state.pop("written", [])
    behind = len(written) == 1 and line.number - written[0][0] <= _BEHIND
    shown, builder.state["shown"] = builder.state.get("shown"), (bar.done, bar.total)
    # The loss line is of this step for certain if the bar had it before that line already.
    figures: _Figures = written[0][1] if behind and shown == (bar.done, bar.total) else {}
    if behind:
        # Once may be chance.
        if builder.state.get("seen") == bar.total:
            builder.state["learned"] = bar.total
        builder.state["seen"] = bar.total
    asked = builder.state.get("asked") or builder.state.get("learned")
    held: list[tuple[Line, _bars.Bar, _Figures]] = builder.state.setdefault("held_bars", [])
    if len(held) < _MOST_HELD and bar.done and asked in (None, bar.total):
        held.append((line._replace(text=""), bar, figures))
    if asked and "recognised" in builder.state:
        for at, state, more in held:
            if state.total == asked:
                _bars.add(at, builder, state, **more)
        held.clear()


def _read_paddle(line: Line, builder: ReadingBuilder) -> None:
    match = _PADDLE.search(line.text)
    if match is None:
        builder.note(line, "a step of PaddleNLP's Trainer, but not as it prints it")
        return
    if not builder.steps:
        builder.framework = "paddle"
        builder.printed = Printed(Unit.ITERATIONS_PER_S)
    builder.release_held()
    builder.step(
        line,
        match["step"],
        stamp=full_stamp(line.text[: match.start()]),
        printed=match["rate"],
        loss=match["loss"],
        lr=match["lr"],
    )


def _read_setting(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    """A setting; with the third of them the number of devices, unless the model is split."""
    builder.hold(line, name, value)
    known: dict[str, int] = builder.state.setdefault("batches", {})
    known[name] = int(value or 0)
    one = known.get("batch_size", 0) * known.get("accumulation", 0)
    if len(known) < len(_SETTINGS) or builder.state.get("split"):
        return
    if one and known["global_batch"] % one == 0:
        builder.hold(line, "devices", known["global_batch"] // one)
    else:
        builder.note(
            line,
            f"a total batch of {known['global_batch']} is no multiple of {known['batch_size']} per "
            f"device x {known['accumulation']} accumulated: the number of devices is not taken",
        )
    known.clear()


def _read_plan(line: Line, builder: ReadingBuilder) -> None:
    """What is to be trained, or was; or a part of the end's table or file."""
    for name, pattern in _PLAN:
        if match := pattern.search(line.text):
            if "Num examples" in line.text:
                if builder.state.get("evaluates"):
                    return
                # a run begins
                builder.state.pop("epochs", None)
                builder.count(line, "resumed", 0)
                builder.count(line, "resumed_epochs", 0)
            _count(line, builder, name, match["value"])
            if "Total optimization steps" in line.text:
                builder.state["asked"] = int(match["value"].replace(",", "").partition(".")[0])
            return
    if match := _DURATION.search(line.text):
        days, hours, minutes = (int(match[name] or 0) for name in ("days", "hours", "minutes"))
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + float(match["seconds"])
        builder.count(line, "seconds", seconds)


def _count(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    builder.count(line, name, value.replace(",", ""))
    if name == "epochs":
        decimals = len(value.partition(".")[2])
        builder.count(line, "epochs_error", 0.5 * 10.0**-decimals)


LINES = {
    "hf_trainer": (LinePattern(take=read),),
}
