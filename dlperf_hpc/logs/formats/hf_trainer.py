"""The Trainer of Hugging Face, PaddleNLP's, which descends from it, and LLaMA-Factory's log of it.

hf_trainer
----------
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
a bar on its line). Until 4.6 it was of steps, without ``train_steps_per_second`` (pull 11818).

A loss line of Hugging Face's has an epoch's fraction and no step (early ones had ``'step'``). The
step is that of the bar: the loss is written where the bar stood, and the bar is drawn again behind
it (``ProgressCallback`` of trainer_callback.py, tqdm's ``write``). So the bar without a name that
stands directly behind two loss lines is that of the training, and its total the number of steps;
where the log states ``Total optimization steps``, or a launch line ``--max_steps``, that is its
total. All other bars (evaluation, download, ``Map:``, ``Loading checkpoint shards:``) have a name
or another total. Several loss lines in a row were buffered, and show no step; in such a log the bar
that alone is drawn again in the same state, twice at least, is that of the training. A loss between
two different states of the bar is no step's for certain, and is left out. Bars are
looked for once the log has shown whose it is, by its settings or by the first loss line. The bar's
whole seconds are the clock: they have everything in them. How long an evaluation took, its own line
says (``'eval_runtime': 9.2465``), and a bar of another total shows that there was one. A bar's rate
is not read (:mod:`.bars`). axolotl, TRL and LLaMA-Factory print the same lines with keys of their
own; axolotl's ``tokens/train_per_sec_per_gpu`` counts tokens with a label only, and is no speed.

``train_tokens_per_second`` on a loss line is the mean over all devices since ``train()`` began; on
the end's line (``include_tokens_per_second``, since 4.36) it divides what was planned, as the
samples' does.

PaddleNLP's loss lines have a step, and a time stamp before them; of their speeds the steps/s are
read, since in 2022 ``interval_samples_per_second`` was one step's samples over the time of several.

Scripts of diffusers and accelerate without a Trainer print the same settings, and a bar of
optimizer steps with the total that these state, called ``Steps:`` or nothing: it is read without a
loss line. unsloth has the settings in its banner (``Data Parallel GPUs = 1 | Total batch size (2 x
4 x 1) = 8``), and its notebooks end with ``462.7198 seconds used for training.``

Settings come from the log at level INFO (``Instantaneous batch size per device = 8``); the number
of copies of the model follows from three of them, and of devices if no copy is split: the total
batch of transformers 5 leaves out what ``tp_size`` splits. Real lines were read where documents,
notebooks and issues quote them (PaddleNLP's of 2022-08-31; bars beside losses in huggingface/trl
issue 2875 and axolotl-ai-cloud/axolotl issue 592; unslothai/unsloth issues 1140, 2765 and 3066),
and whole logs of transformers 5 that were made by runs on a CPU.

ms_swift
--------
ms-swift's loss lines (``logging.jsonl`` too), of optimizer steps: ``{'loss': 1.66, ..,
'train_speed(iter/s)': 0.302867, 'epoch': 0.11, 'global_step/max_steps': '340/9060', ..}``, from
version 4 on ``'train_speed(s/it)': '46.6'``, Megatron-SWIFT's with ``'iteration': '5/10635'``.

The speed is the mean since ``train()`` began, evaluations and checkpoints included, and may count
steps before a checkpoint: of a run that went on from one no window is taken. One process prints;
its bars (``Train:``, ``Val:``) say no more. Lines of modelscope/ms-swift issues 4146 and 4366 were
read.

llama_factory
-------------
LLaMA-Factory's ``trainer_log.jsonl`` (``LogCallback`` of train/callbacks.py).

| since | line |
|---|---|
| 2023 | ``{"current_steps": 10, "total_steps": 90, "loss": 4.1, "eval_loss": null, ..`` |
| | ``"learning_rate": 5e-05, "epoch": 0.1, .., "elapsed_time": "0:01:10", ..}`` |
| 2024 (pull request 4066) | without what is null, ``lr``, and at the end |
| | ``.., "throughput": 4025.5, "total_tokens": 281785}`` |

Process 0 writes a line at each loss line of the Trainer; evaluations and the end have lines of
their own, without a loss. The steps are optimizer steps. ``throughput`` is the
tokens of all devices over the time since ``train()`` began, set-up included; it is there with
``include_num_input_tokens_seen``. In a run that went on from a checkpoint it has the tokens of the
run before it over the time of its own (issue 7415), so that no window of it is taken.
``elapsed_time`` is that time in whole seconds. Real lines were read in the issues 774 and 7415.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats.bars import Bar, add_bar, bar_of
from dlperf_hpc.logs.lineparts import COUNT, FIGURE, NUMBER, first_of, full_stamp, perhaps
from dlperf_hpc.logs.scanned import Averaging, LogStep, Printed, Unit

_Figures = dict[str, "str | None"]

# --- hf_trainer

_SPEED = "train_samples_per_second"
_STEPS = "train_steps_per_second"
_TOKENS_SPEED = "train_tokens_per_second"
_TOTAL = (
    rf"{_SPEED}(?:['\"]: {{0,4}}['\"]?(?P<item>{FIGURE})['\",}}]| *= *(?P<row>{FIGURE})\s*$"
    rf"|: (?P<paddle>{FIGURE}),)"
)
_LOG = (
    rf"\{{'loss': '?(?P<loss>{FIGURE})'?, (?P<rest>[^{{}}]{{0,8000}}?'epoch': [^{{}}]{{1,400}})\}}"
)
_LR = re.compile(rf"'learning_rate': '?({FIGURE})[',]")
_STEP = re.compile(r"'step': '?([0-9]{1,18})(?:[', ]|$)")
_TOKENS = re.compile(rf"'{_TOKENS_SPEED}': '?({FIGURE})'?(?:,|}}|$)")
_PADDLE = (
    rf"(?:\bloss: (?P<loss>{FIGURE}), )?(?:learning_rate: (?P<lr>{FIGURE}), )?"
    rf"global_step: (?P<iteration>{COUNT}), .{{0,600}}, interval_steps_per_second: "
    rf"(?P<printed>{FIGURE}),"
)
_BEHIND = 2  # lines from a loss line to the bar that is drawn again, a blank one among them
_MOST_HELD = 10_000  # bars, until it is known whose they are: a loss line may come late

_VALUE = r"['\"]?(?P<value>[0-9][0-9,]{0,24}(?:\.[0-9]{1,20})?)"
_PAUSE = (
    rf"\beval_(?:[0-9A-Za-z_]{{1,40}}_)?runtime['\"]?: {_VALUE}['\"]?,|Saving model checkpoint to "
)
_NOTEBOOK = "seconds used for training"
_ARGUMENT = "--per_device_train_batch_size"  # which only these Trainers have
_END = r"(?:\s*$| \| )"  # unsloth has several settings in a line
_PLAN = (
    ("epoch_samples", re.compile(rf"Num examples = {_VALUE}{_END}")),
    ("epochs_asked", re.compile(rf"Num Epochs = {_VALUE}{_END}")),
    ("steps_asked", re.compile(rf"Total (?:optimization )?steps = {_VALUE}\s*$")),
    ("steps_asked", re.compile(rf"^(?=.*{_ARGUMENT}[ =]).*--max_steps[ =]{_VALUE}(?:\s|$)")),
    ("resumed", re.compile(rf"Continuing training from global step {_VALUE}\s*$")),
    ("resumed_epochs", re.compile(rf"Continuing training from epoch {_VALUE}\s*$")),
    ("epoch_samples", re.compile(rf"^ *\"?train_samples\"?(?: *= *|: ){_VALUE},?\s*$")),
    ("epochs", re.compile(rf"^ *\"?epoch\"?(?: *= *|: ){_VALUE},?\s*$")),
    ("steps", re.compile(rf"^ *\"global_step\": {_VALUE},\s*$")),
    ("steps_asked", re.compile(rf"^ *\"max_steps\": {_VALUE},\s*$")),
    ("seconds", re.compile(rf"^ *\"train_runtime\": {_VALUE},?\s*$")),
)
_DURATION = re.compile(
    r"^ *train_runtime *= *(?:(?P<days>[0-9]{1,5}) days?, )?(?P<hours>[0-9]{1,6}):"
    r"(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2}(?:\.[0-9]{1,6})?)\s*$"
)
_AT_THE_END = (
    ("seconds", re.compile(rf"\btrain_runtime['\"]?: {_VALUE}['\"]?[,}}]")),
    ("steps_per_s", re.compile(rf"\b{_STEPS}['\"]?: {_VALUE}['\"]?[,}}]")),
    ("epochs", re.compile(rf"\bepoch['\"]?: {_VALUE}(?:['\"]?[,}}]|\s*$)")),
    ("steps", re.compile(rf"\bTrainOutput\(global_step={_VALUE},")),
    ("steps", re.compile(rf"\| *{_VALUE}/[0-9]{{1,18}} \[[0-9:]{{4,12}}<")),
)
_AT_THE_BEGINNING = re.compile(f"Total |{_ARGUMENT}")
_EPOCH = re.compile(rf"'epoch': {_VALUE}")
_SETTINGS = {
    "batch size per device": "batch_size",
    "total train batch size": "global_batch",
    "total batch size": "global_batch",
    "gradient accumulation steps": "accumulation",
}
_SETTING = re.compile(
    r"(?P<name>[Bb]atch size per device|Total (?:train )?batch size|Gradient [Aa]ccumulation steps)"
    r"(?: \((?:w\. parallel, distributed & accumulation|[0-9 x]{5,40})\))?"
    rf" = (?P<value>[0-9,]{{1,20}}){_END}"
)


def _read_total(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """The end's speed in any of its forms."""
    _add_held(builder)
    figure = found["item"] or found["row"] or found["paddle"]
    one_line = found["item"] and ("{'" in line.text or "'epoch'" in line.text)
    if one_line and _STEPS not in line.text:
        _add_total(line, builder, figure, Unit.ITERATIONS_PER_S)
        builder.count(line, "steps_per_s", figure)
    else:
        _add_total(line, builder, figure, Unit.SAMPLES_PER_S)
    if tokens := _TOKENS.search(line.text):
        builder.total(line, _TOKENS_SPEED, tokens[1], Unit.TOKENS_PER_S)
    if builder.totals:
        builder.release_held()
    if found["row"] is None:
        for name, pattern in _AT_THE_END:
            if match := pattern.search(line.text):
                _count(line, builder, name, match["value"])
    builder.state.pop("epochs", None)


def _add_total(line: Line, builder: ReadingBuilder, figure: str, unit: Unit) -> None:
    """The whole run's speed, once: it is printed as a dictionary, and again as a table."""
    known = len(builder.totals)
    before = [total.value for total in builder.totals if total.name == _SPEED][-1:]
    builder.total(line, _SPEED, figure, unit)
    if len(builder.totals) > known and [builder.totals[-1].value] == before:
        builder.totals.pop()


def _read_log(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.release_held()
    rest = found["rest"]
    if epoch := _EPOCH.search(rest):
        _read_epoch(line, builder, epoch["value"])
    tokens = first_of(_TOKENS, rest)
    figures: _Figures = {"loss": found["loss"], "lr": first_of(_LR, rest), "printed": tokens}
    if tokens and not builder.steps:
        builder.printed = Printed(Unit.TOKENS_PER_S, averaging=Averaging.RUNNING)
    if step := first_of(_STEP, rest):
        builder.step(line, step, loss=found["loss"], lr=figures["lr"], printed=tokens)
    else:
        builder.recognise(line)
        if _total_of(builder):
            _add_held(builder)
        builder.state.setdefault("written", [])[1:] = [(line.number, figures)]  # one or several


def _read_epoch(line: Line, builder: ReadingBuilder, epoch: str) -> None:
    """The first two lines show whether the run began at epoch 0."""
    seen: list[str] = builder.state.setdefault("epochs", [])
    if len(seen) < 2 and epoch not in seen:
        seen.append(epoch)
        builder.count(line, "first_epochs" if len(seen) == 1 else "second_epochs", epoch)


def _read_bar(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A step, if the bar is that of the training; until that is known the bar is held."""
    bar = bar_of(line.text)
    if bar and bar.name == "Steps":
        builder.framework = "diffusers"
    figures = _written(line, builder, bar) if bar else {}
    if bar and bar.done:
        _hold(line, builder, lambda at: _add_bar(at, builder, bar, figures))
    if "Running validation..." in line.text:  # of diffusers' scripts, on the bar's line
        _hold(line, builder, lambda at: builder.pause(at, "evaluation"))


def _hold(line: Line, builder: ReadingBuilder, add: Callable[[Line], None]) -> None:
    """Add what stands among the bars once it is known which of them are the training's."""
    held: list[tuple[Line, Callable[[Line], None]]] = builder.state.setdefault("held_bars", [])
    if len(held) < _MOST_HELD:
        held.append((line._replace(text=""), add))
    known = _total_of(builder) and {"planned", "recognised"} & builder.state.keys()
    if known or builder.framework == "paddle":  # whose lines have the step themselves
        _add_held(builder)


def _add_held(builder: ReadingBuilder) -> None:
    for at, add in builder.state.pop("held_bars", ()):
        add(at)


def _total_of(builder: ReadingBuilder) -> int | None:
    return builder.state.get("planned") or builder.state.get("learned")


def _add_bar(line: Line, builder: ReadingBuilder, bar: Bar, figures: _Figures) -> None:
    """A step, or a bar of something else: an evaluation's, unless its end is told of as well."""
    latest, state = builder.last_step(), builder.state
    if bar.total != _total_of(builder):
        # A full one may be drawn again behind the end of the evaluation.
        state["other_bar"] = state.get("other_bar") or (bool(latest) and bar.done != bar.total)
        return
    if latest and _goes_back(latest, bar):
        _turn_back(builder, latest, bar)
    latest = builder.last_step()
    if latest and bar.done > latest.iteration and state.pop("other_bar", False):
        builder.pause(line, "evaluation")
    builder.release_held()
    add_bar(line, builder, bar, **figures)


def _turn_back(builder: ReadingBuilder, latest: LogStep, bar: Bar) -> None:
    """Find whose bar goes back: a new run's, or an evaluation's of as many batches, or that of the
    training behind it."""
    state = builder.state
    if _was_evaluation(builder, latest, bar):
        builder.steps.clear()
        builder.pauses[:] = [pause._replace(after=bar.done) for pause in builder.pauses]
        return
    if latest.iteration == bar.total:  # a full bar alone, drawn again below the training's
        state.setdefault("anew", len(builder.steps) - 1)
    if state.get("anew") and not _goes_back(builder.steps[state["anew"] - 1], bar):
        _leave_out_other(builder)
    else:
        state["anew"] = len(builder.steps)


def _was_evaluation(builder: ReadingBuilder, latest: LogStep, bar: Bar) -> bool:
    """Whether the first bar that was read, before any of the training's, is an evaluation's: it is
    full as the end of the evaluation is told, took no longer, and the training goes on."""
    if latest.iteration != bar.total or bar.done < 2 or not builder.pauses:
        return False
    pause = builder.pauses[-1]
    return pause.after == bar.total and (pause.seconds or 0.0) > (latest.stamp or 0.0) - 1


def _goes_back(step: LogStep, bar: Bar) -> bool:
    return bar.done < step.iteration or bar.elapsed < (step.stamp or 0.0)


def _leave_out_other(builder: ReadingBuilder) -> None:
    """Take off the bar of an evaluation that has as many batches as the training has steps: it
    began anew, and behind it the training's goes on from where that stood."""
    begin = builder.state.pop("anew", None)
    if begin is not None:
        builder.state["other_bar"] = len(builder.steps) - begin > 1  # else its end, drawn again
        builder.steps[begin:] = []


def _read_pause(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """The end of an evaluation, or a checkpoint. Outside the training no epoch stands beside."""
    seconds = found["value"]
    if not seconds or "epoch" in line.text or "steps" in builder.state.get("counts", ()):
        _hold(line, builder, lambda at: _add_pause(at, builder, seconds))


def _add_pause(line: Line, builder: ReadingBuilder, seconds: str | None) -> None:
    if seconds:
        _leave_out_other(builder)
        builder.state["other_bar"] = False
    builder.pause(line, "evaluation" if seconds else "checkpoint", seconds)


def _written(line: Line, builder: ReadingBuilder, bar: Bar) -> _Figures:
    """The figures of the loss line before the bar. They are of its step for certain if the bar had
    it before that line already."""
    written, before = builder.state.pop("written", []), builder.state.get("bar")
    builder.state["bar"] = bar.done, bar.total
    if len(written) != 1 or line.number - written[0][0] > _BEHIND:
        if before == builder.state["bar"]:
            _learn_by_redrawing(builder, bar)
        return {}
    # Once may be chance. An evaluation's bar may stand there too, but not before the line as well.
    if before is None or before[1] == bar.total:
        if builder.state.get("seen") == bar.total:
            builder.state["learned"] = bar.total
        builder.state["seen"] = bar.total
    if before != builder.state["bar"]:
        return {}
    return dict(written[0][1])


def _learn_by_redrawing(builder: ReadingBuilder, bar: Bar) -> None:
    """Where losses are buffered the bar alone shows when: it is drawn again in the same state. The
    training's has two such states, and no other bar has; a full one may have other reasons."""
    if bar.total is None or bar.done == bar.total or "seen" in builder.state:
        return
    redrawn: Counter[int] = builder.state.setdefault("redrawn", Counter())
    redrawn[bar.total] += 1
    often = [total for total, times in redrawn.items() if times > 1]
    builder.state["learned"] = often[0] if len(often) == 1 else None


def _read_paddle(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    if not builder.steps:
        builder.framework = "paddle"
        builder.printed = Printed(Unit.ITERATIONS_PER_S)
    builder.release_held()
    stamp = full_stamp(line.text.partition("loss: ")[0].partition("global_step: ")[0])
    printed, loss, lr = found["printed"], found["loss"], found["lr"]
    builder.step(line, found["iteration"], stamp=stamp, printed=printed, loss=loss, lr=lr)


def _read_notebook(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """unsloth's seconds of all steps; they are whole batches unless epochs have more samples."""
    builder.recognise(line)
    builder.release_held()
    steps = builder.state.get("planned") or 0
    samples = steps * (builder.latest("global_batch") or 0)
    known = {count.name: count.value for count in builder.counts}
    if 0 < samples >= 0.95 * (known.get("epochs_asked", 1) - 1) * known.get("epoch_samples", 0):
        builder.total(line, _NOTEBOOK, float(found["seconds"]) / steps, Unit.S_PER_ITERATION)
    else:
        builder.note(line, f"{_NOTEBOOK}, but steps or batch are missing or do not fit the epochs")


def _read_running(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    builder.state["evaluates"] = "training" not in line.text


def _read_split(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    if int(found["size"]) > 1:
        builder.state["split"] = True


def _read_setting(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """Settings; with the third of them the copies of the model, unless it is split."""
    known: dict[str, int] = builder.state.setdefault("batches", {})
    for match in _SETTING.finditer(line.text):
        name = _SETTINGS[match["name"].lower()]
        known[name] = int(match["value"].replace(",", "") or 0)
        builder.hold(line, name, known[name])
    if "Total steps = " in line.text or "Num examples = " in line.text:
        _read_plan(line, builder, {})
    one = known.get("batch_size", 0) * known.get("accumulation", 0)
    if len(known) < len(set(_SETTINGS.values())) or builder.state.get("split"):
        return
    if one and known["global_batch"] % one == 0:
        builder.hold(line, "replicas", known["global_batch"] // one)
    else:
        builder.note(
            line,
            f"a total batch of {known['global_batch']} is no multiple of {known['batch_size']} per "
            f"device x {known['accumulation']} accumulated: the number of devices is not taken",
        )
    known.clear()


def _read_plan(line: Line, builder: ReadingBuilder, _: Groups) -> None:
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
            if name == "steps_asked" and _AT_THE_BEGINNING.search(line.text):
                builder.state["planned"] = int(match["value"].replace(",", "").partition(".")[0])
    if match := _DURATION.search(line.text):
        days, hours, minutes = (int(match[name] or 0) for name in ("days", "hours", "minutes"))
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + float(match["seconds"])
        builder.count(line, "seconds", seconds)


def _count(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    builder.count(line, name, value.replace(",", ""))
    if name == "epochs":
        builder.count(line, "epochs_error", 0.5 * 10.0 ** -len(value.partition(".")[2]))


_TRAINER = (
    LinePattern(_TOTAL, take=_read_total),
    LinePattern(_SPEED, note=f"{_SPEED} without a number"),
    LinePattern(_LOG, take=_read_log),
    LinePattern(_PADDLE, take=_read_paddle),
    LinePattern(
        ", interval_steps_per_second: ",
        note="a step of PaddleNLP's Trainer, but not as it prints it",
    ),
    LinePattern(rf"^(?P<seconds>{NUMBER}) {_NOTEBOOK}\.\s*$", take=_read_notebook),
    LinePattern(_PAUSE, take=_read_pause),
    # without a name, or diffusers' one: the share done takes three places
    LinePattern(r"^(?:Steps: ?)?.{3}%\||Running validation\.{3}", take=_read_bar),
    LinePattern(r"%\|", passed_over=True),  # another bar, of which there may be very many
    LinePattern(r"\*{5} Running ", take=_read_running),
    LinePattern(_SETTING.pattern, take=_read_setting),
    LinePattern(
        r"(?:(?:tensor|pipeline|sep|context)_parallel_degree *:|\b(?:auto)?tp_size['\"]?[ =:]{1,3})"
        r" *(?P<size>[0-9]{1,6})\b",
        take=_read_split,
    ),
    LinePattern(take=_read_plan),
)

# --- llama_factory

_LLAMA_FACTORY = LinePattern(
    r'\{"current_steps": (?P<iteration>[0-9]{1,15}), "total_steps": [0-9]{1,15}, '
    rf'"loss": (?P<loss>{NUMBER}),(?= .{{0,2000}}\}}\s*$)'
    + perhaps(rf'"(?:lr|learning_rate)": (?P<lr>{NUMBER}),')
    + perhaps(r'"elapsed_time": "(?P<elapsed>(?:[0-9]{1,5} days?, )?[0-9:]{4,12})"')
    + perhaps(rf'"throughput": (?P<printed>{NUMBER})[,}}]')
)
_LLAMA_EVALUATION = LinePattern(
    rf'\{{"current_steps": (?P<after>[0-9]{{1,15}}), "total_steps": [0-9]{{1,15}}, '
    rf'(?:"loss": null, )?"eval_loss": {NUMBER},',
    pause="evaluation",
)

# --- ms_swift


def _read_swift(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """A loss line: its speed is in one of two units."""
    if not builder.steps:
        unit = Unit.S_PER_ITERATION if found["unit"] == "s/it" else Unit.ITERATIONS_PER_S
        builder.printed = Printed(unit, averaging=Averaging.RUNNING)
    printed, loss, lr = found["speed"], found["loss"], found["rate"]
    builder.step(line, found["done"], printed=printed, loss=loss, lr=lr)


_LATER = "(?=.{0,8000}?"  # GRPO's lines are long
_SWIFT = LinePattern(
    rf"\{{['\"]loss['\"]: ['\"]?(?P<loss>{NUMBER})['\"]?,"
    rf"{_LATER}['\"\[](?:global_step/max_steps\]?|iteration)['\"]: ['\"](?P<done>{COUNT})/)"
    rf"{_LATER}['\"]train_speed\((?P<unit>iter/s|s/it)\)['\"]: "
    rf"['\"]?(?P<speed>{NUMBER})['\"]?(?:,|\}}\s*$))"
    + perhaps(rf"['\"]learning_rate['\"]: ['\"]?(?P<rate>{NUMBER})['\"]?,"),
    take=_read_swift,
)

LINES = {
    "hf_trainer": _TRAINER,
    "llama_factory": (_LLAMA_FACTORY, _LLAMA_EVALUATION),
    "ms_swift": (_SWIFT,),
}
