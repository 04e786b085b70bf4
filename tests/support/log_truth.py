"""Logs of other programs whose training speed is known, since they are written here.

A :class:`Course` is what a run did, step by step, with all that stood between two steps; a function
of ``FAMILIES`` writes it down as a program does. Nothing of the package is used: what a reader
makes of such a log is held against the course. The lines are those of the programs' sources and of
logs in public repositories.
"""

# ruff: noqa: E501 - a line of a log is as long as it is

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

DEVICES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Pause:
    """What the program did behind a step instead of training, and for how many seconds."""

    kind: str
    seconds: float


@dataclass(frozen=True)
class Course:
    """What a run did: the samples and seconds of each step, and the pauses behind a step.

    ``resumed`` steps were done before a checkpoint. The other fields say how the program writes:
    a line each ``every`` steps, ``stopped`` before its end, ``style`` one of its forms, ``jump``
    seconds by which the clock of the machine is set behind step ``jump_at``.
    """

    samples: Sequence[int]
    seconds: Sequence[float]
    pauses: Mapping[int, Sequence[Pause]] = field(default_factory=dict)
    batch: int = 8
    devices: int = 1
    accumulation: int = 1
    every: int = 10
    resumed: int = 0
    stopped: bool = False
    buffered: bool = False
    style: int = 0
    labelled: bool = False
    jump: float = 0.0
    jump_at: int = 0
    seed: int = 0

    @property
    def steps(self) -> int:
        return len(self.samples)

    @property
    def numbers(self) -> range:
        """The numbers of the run's own steps."""
        return range(self.resumed + 1, self.resumed + self.steps + 1)

    @property
    def clean(self) -> bool:
        """Whether nothing lies between the steps, and every line is where it belongs."""
        odd = self.pauses or self.resumed or self.stopped or self.buffered or self.jump
        return not odd and len(set(self.samples)) == 1

    def moment(self, number: int) -> float:
        """Seconds from the beginning until a step is done, without what stands behind it."""
        own = number - self.resumed
        spent = sum(self.seconds[:own])
        return spent + sum(
            p.seconds for at, all_ in self.pauses.items() if at < number for p in all_
        )

    def moments(self) -> dict[int, float]:
        """The moment of each step."""
        found, now = {}, 0.0
        for number, seconds in zip(self.numbers, self.seconds):
            now += seconds
            found[number] = now
            now += sum(pause.seconds for pause in self.pauses.get(number, ()))
        return found

    def speed(self, first: int | None, last: int | None) -> float:
        """Samples/s of the training alone behind step ``first`` up to ``last``."""
        low = max(0, (first or 0) - self.resumed)
        high = self.steps if last is None else last - self.resumed
        return sum(self.samples[low:high]) / sum(self.seconds[low:high])

    @property
    def slowest_and_fastest(self) -> tuple[float, float]:
        """The least and the most samples/s over any ten steps in a row behind the first twenty."""
        rates = [
            self.speed(self.resumed + at, self.resumed + at + 10)
            for at in range(20, self.steps - 10)
        ]
        return min(rates), max(rates)


@dataclass(frozen=True)
class Written:
    """A log, and what a user would say of it."""

    text: str
    stated: Mapping[str, Any]


# --- courses


def course(seed: int, clean: bool = False, ramps: bool = False, coarse: bool = False) -> Course:
    """A course by chance; ``clean``: nothing lies between its steps. ``ramps``: its batch may grow;
    ``coarse``: the program's clock has whole seconds, so that its steps are no shorter than 0.6 s."""
    by = Random(seed)
    steps = by.choice((240, 300, 420))
    step_s = by.choice((0.6, 0.8, 1.0, 1.7, 3.1) if coarse else (0.11, 0.25, 0.8, 1.7, 4.3))
    devices, batch, accumulation = by.choice(DEVICES), by.choice((2, 8, 16)), by.choice((1, 1, 4))
    seconds = [step_s * by.uniform(0.99, 1.01) for _ in range(steps)]
    seconds[0] *= by.choice((1, 1.5, 4))
    made = Course(
        samples=[batch * devices * accumulation] * steps,
        seconds=seconds,
        batch=batch,
        devices=devices,
        accumulation=accumulation,
        every=by.choice((1, 5, 10, 10, 20, 50)),
        style=by.randrange(64),
        labelled=by.random() < 0.2,
        seed=seed,
    )
    return made if clean else _disturbed(made, by, step_s, ramps, 3.0 if coarse else 0.0)


def _disturbed(made: Course, by: Random, step_s: float, ramps: bool, least_s: float) -> Course:
    """The course with evaluations, checkpoints and so on, each by chance. A pause takes ``least_s``
    or longer: below its resolution a clock shows nothing that no line tells."""
    pauses: dict[int, list[Pause]] = {}
    resumed = by.choice((0, 0, 0, 0, 500))
    for kind, often, apart in (
        ("evaluation", 0.7, (10, 25, 50, 100)),
        ("checkpoint", 0.3, (50, 100)),
    ):
        if by.random() < often:
            distance, seconds = by.choice(apart), max(least_s, step_s * by.choice((2, 10, 40)))
            for number in range(resumed + distance, resumed + made.steps + 1, distance):
                pauses.setdefault(number, []).append(Pause(kind, seconds * by.uniform(0.95, 1.05)))
    jump = by.choice((0, 0, 0, 0, 0, 0, -3600, 3600, 45))
    found = replace(
        made,
        pauses=pauses,
        resumed=resumed,
        stopped=by.random() < 0.25,
        buffered=by.random() < 0.1,
        jump=jump,
        jump_at=resumed + by.choice((40, 70, 105)) if jump else 0,
        every=by.choice((1, 5, 10, 10, 20, 50, 100)),
    )
    return _ramped(found, by) if ramps and by.random() < 0.5 else found


def _ramped(made: Course, by: Random) -> Course:
    """A batch that grows in steps; an iteration has a fixed cost and one of its samples."""
    begin, change, size = by.choice((2, 4, 8)), by.choice((10, 17, 30)), made.samples[0]
    samples, seconds, now = [], [], 0
    for n, each in enumerate(made.seconds):
        if n % change == 0:
            now = min(size * begin, now + size)
        samples.append(now)
        seconds.append(each * (0.3 + 0.7 * now / size))
    return replace(made, samples=samples, seconds=seconds)


def _from_the_start(made: Course) -> Course:
    pauses = {number - made.resumed: each for number, each in made.pauses.items()}
    return replace(made, pauses=pauses, resumed=0, jump=0.0, jump_at=0)


# --- parts of lines

_DAY = datetime(2025, 3, 9, 22, 0, 0)


def _stamp(made: Course, since: float, number: int, form: str) -> str:
    """The clock of the machine at a moment; it may have been set."""
    shifted = since + (made.jump if made.jump_at and number >= made.jump_at else 0.0)
    return (_DAY + timedelta(seconds=shifted)).strftime(form)


def _clock(seconds: float) -> str:
    """As tqdm prints a time."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _tqdm(name: str, done: int, total: int, since: float, more: str = "") -> str:
    """A state of tqdm's bar."""
    share = done / total
    rate = "?it/s" if not done or not since else f"{done / since:5.2f}it/s"
    left = "?" if not done else _clock(since * (total - done) / done)
    full = "█" * int(10 * share)
    return f"{name}{int(100 * share):3d}%|{full:<10}| {done}/{total} [{_clock(since)}<{left}, {rate}{more}]"


def _labels(made: Course, text: str) -> str:
    """The lines as ``srun --label`` shows them, among those of other ranks."""
    if not made.labelled:
        return text
    by, lines = Random(made.seed), []
    for line in text.splitlines():
        lines.append(f"0: {line}")
        if made.devices > 1 and by.random() < 0.3:
            lines.append(
                f"{by.randrange(1, made.devices)}: /usr/lib/python3/warnings.py:109: UserWarning: x"
            )
    return "\n".join(lines) + "\n"


def _loss(number: int) -> float:
    return 2.0 + 8.0 / (1 + number / 50)


def _of_epochs(made: Course) -> int:
    """The steps of an epoch: one holds the usual window, but that of another dozen may not."""
    parts = made.steps // 140
    return made.steps // parts if made.style & 1 else made.steps


# --- Hugging Face's Trainer


def hf_trainer(made: Course) -> Written:
    """``trainer.py`` and ``trainer_callback.py`` of transformers 4 and 5."""
    informed, bars, strings, redraw = (bool(made.style >> bit & 1) for bit in range(4))
    bars = bars or made.stopped or made.buffered
    planned = made.resumed + made.steps + (200 if made.stopped else 0)
    out = "".join(_hf_head(made, planned)) if informed or made.stopped else ""
    err = "\r" + _tqdm("", 0, planned, 0.0) if bars else ""
    text, held, moments = out + err, "", made.moments()

    def write(line: str, bar: str) -> None:
        """``tqdm.write``: the bar is wiped, and drawn again behind the line."""
        nonlocal text, held
        if made.buffered:
            held += line + "\n"
            return
        text += f"\r{' ' * 40}\r{line}\n" if bars else line + "\n"
        text += "\r" + bar if bars and redraw else ""

    for number in made.numbers:
        bar = _tqdm("", number, planned, moments[number])
        text += "\r" + bar if bars and (made.seconds[0] > 0.1 or number % 2) else ""
        epoch = number / planned
        if number % made.every == 0:
            write(
                _hf_dict(
                    {
                        "loss": _loss(number),
                        "grad_norm": 1.25,
                        "learning_rate": 1e-5,
                        "epoch": epoch,
                    },
                    strings,
                ),
                bar,
            )
        for pause in made.pauses.get(number, ()):
            if pause.kind == "evaluation":
                batches = planned if made.style & 16 else 50
                text += "".join(_hf_evaluation(pause, informed, bars, batches))
                seconds = pause.seconds
                write(
                    _hf_dict(
                        {
                            "eval_loss": _loss(number),
                            "eval_runtime": seconds,
                            "eval_samples_per_second": 400 / seconds,
                            "eval_steps_per_second": 50 / seconds,
                            "epoch": epoch,
                        },
                        strings,
                    ),
                    bar,
                )
                if bars and made.style & 32:  # it stands below the other until it is closed
                    text += (
                        "\r" + bar + "\n\r" + _tqdm("", batches, batches, pause.seconds) + "\x1b[A"
                    )
                text += "\r" + bar if bars else ""
            elif informed:
                text += (
                    f"\nSaving model checkpoint to out/checkpoint-{number}\n"
                    if bars
                    else f"Saving model checkpoint to out/checkpoint-{number}\n"
                )
    if not made.stopped:
        seconds = moments[made.numbers[-1]] + sum(
            p.seconds for p in made.pauses.get(made.numbers[-1], ())
        )
        samples = planned * made.samples[0]
        write(
            _hf_dict(
                {
                    "train_runtime": seconds,
                    "train_samples_per_second": samples / seconds,
                    "train_steps_per_second": planned / seconds,
                    "train_loss": 2.5,
                    "epoch": 1.0,
                },
                strings,
            ),
            _tqdm("", planned, planned, seconds),
        )
    stated = {
        "nodes": 1,
        "gpus_per_node": made.devices,
        "batch_size": made.batch,
        "accumulation": made.accumulation,
    }
    return Written(text + "\n" + held, stated)


def _hf_head(made: Course, planned: int) -> Iterator[str]:
    yield "***** Running training *****\n"
    yield f"  Num examples = {planned * made.samples[0]:,}\n"
    yield "  Num Epochs = 1\n"
    yield f"  Instantaneous batch size per device = {made.batch}\n"
    yield f"  Total train batch size (w. parallel, distributed & accumulation) = {made.samples[0]}\n"
    yield f"  Gradient Accumulation steps = {made.accumulation}\n"
    yield f"  Total optimization steps = {planned:,}\n"
    if made.resumed:
        yield "  Continuing training from checkpoint, will skip to saved global_step\n"
        yield "  Continuing training from epoch 0\n"
        yield f"  Continuing training from global step {made.resumed}\n"


def _hf_evaluation(pause: Pause, informed: bool, bars: bool, batches: int) -> Iterator[str]:
    if informed:
        yield "\n***** Running Evaluation *****\n  Num examples = 400\n  Batch size = 8\n"
    for tenth in range(11) if bars else ():
        yield (
            "\n\r"
            + _tqdm("", batches * tenth // 10, batches, pause.seconds * tenth / 10)
            + "\x1b[A"
        )


def _hf_dict(values: Mapping[str, float], strings: bool) -> str:
    shown: dict[str, Any] = {
        key: float(f"{value:.4g}") if key != "epoch" else round(value, 4)
        for key, value in values.items()
    }
    for key in (
        "train_runtime",
        "eval_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
    ):
        if key in values:
            shown[key] = round(values[key], 4 if "runtime" in key else 3)
    return str({key: f"{value}" for key, value in shown.items()} if strings else shown)


# --- PaddleNLP's Trainer


def paddlenlp_trainer(made: Course) -> Written:
    """``trainer.py`` of PaddleNLP: each line has a stamp."""
    planned = made.resumed + made.steps + (200 if made.stopped else 0)
    moments, before, lines = made.moments(), (made.resumed, 0.0), []

    def say(since: float, number: int, text: str) -> None:
        stamp = (
            _stamp(made, since, number, "%Y-%m-%d %H:%M:%S,") + f"{int(1000 * since) % 1000:03d}"
        )
        lines.append(f"[{stamp}] [    INFO] - {text}")

    for line in _hf_head(made, planned):
        say(0.0, 0, line.rstrip("\n"))
    for number in made.numbers:
        now = moments[number]
        if number % made.every == 0:
            done, spent = number - before[0], now - before[1]
            say(
                now,
                number,
                f"loss: {_loss(number):.8f}, learning_rate: 1e-05, global_step: {number}, interval_runtime: {spent:.4f}, interval_samples_per_second: {done * made.samples[0] / spent:.4f}, interval_steps_per_second: {done / spent:.4f}, progress_or_epoch: {number / planned:.4f}",
            )
            before = number, now
        for pause in made.pauses.get(number, ()):
            if pause.kind == "evaluation":
                say(now, number, "***** Running Evaluation *****")
                say(now, number, "  Num examples = 400")
                now += pause.seconds
                say(
                    now,
                    number,
                    f"eval_loss: {_loss(number)}, eval_runtime: {pause.seconds:.4f}, eval_samples_per_second: {400 / pause.seconds:.4f}, eval_steps_per_second: {50 / pause.seconds:.4f}, epoch: {number / planned:.4f}",
                )
            else:
                say(now, number, f"Saving model checkpoint to ./out/checkpoint-{number}")
                now += pause.seconds
    if not made.stopped:
        say(now, number, "\nTraining completed. \n")
        say(
            now,
            number,
            f"train_runtime: {now:.4f}, train_samples_per_second: {planned * made.samples[0] / now:.4f}, train_steps_per_second: {planned / now:.4f}, train_loss: 2.5, progress_or_epoch: 1.0",
        )
    return Written(
        _labels(made, "\n".join(lines) + "\n"), {"nodes": 1, "gpus_per_node": made.devices}
    )


# --- Lightning


def lightning(made: Course) -> Written:
    """``tqdm_progress.py`` of Lightning 2: the bar of an epoch, a bar below it for each data loader
    of a validation, behind which the former is drawn again where it stood. The bar of a loader
    begins behind its first batch."""
    length, moments = _of_epochs(made), made.moments()
    text = "GPU available: True (cuda), used: True\nTPU available: False, using: 0 TPU cores\n"
    text += "\rSanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 21.37it/s]\n"
    hidden, loaders = 0.25 * bool(made.style & 2), 1 + bool(made.style & 4)
    begun, drawn = 0.0, 0
    for number in range(1, made.steps + 1):
        epoch, done = divmod(number - 1, length)
        now = moments[number + made.resumed]
        if not done:
            begun, drawn = now - made.seconds[number - 1], 0
        name, more = f"Epoch {epoch}: ", f", v_num=3, train_loss={_loss(number):.3f}"
        if number % min(made.every, 10) == 0 or done + 1 == length:
            drawn = done + 1
            text += "\r" + _tqdm(name, drawn, length, now - begun, more)
        for pause in made.pauses.get(number + made.resumed, ()):
            now += pause.seconds
            if pause.kind == "evaluation":
                shown = (1 - hidden) * pause.seconds / loaders
                text += "".join(_lightning_validation(shown, loaders))
                text += "\r" + _tqdm(name, drawn, length, now - begun, more)
    if not made.stopped:
        text += "\n`Trainer.fit` stopped: `max_epochs=1` reached.\n"
    stated = {
        "nodes": 1,
        "gpus_per_node": made.devices,
        "batch_size": made.batch * made.accumulation,
    }
    return Written(text + "\n", stated)


def _lightning_validation(seconds: float, loaders: int) -> Iterator[str]:
    yield "\n\rValidation: |          | 0/? [00:00<?, ?it/s]\x1b[A"
    for loader in range(loaders):
        for at in (0, 25, 50):
            name = f"Validation DataLoader {loader}: "
            yield "\n\r" + _tqdm(name, at, 50, seconds * at / 50) + "\x1b[A"


# --- Keras


def keras(made: Course) -> Written:
    """``progbar.py`` of Keras 2 and 3, with a bar and with ``verbose=2``. Keras evaluates and saves
    behind the last step of an epoch, and both are in the figures of the epoch's last line."""
    quiet, third, steps = made.style & 1, made.style & 2, 120
    text = ""
    for epoch in range(made.steps // steps):
        text += f"Epoch {epoch + 1}/{made.steps // steps}\n"
        own = made.seconds[epoch * steps : (epoch + 1) * steps]
        spent = 0.0
        for done, seconds in enumerate(own, 1):
            spent += seconds
            each = (spent - own[0]) / max(1, done - 1)
            if not quiet and done < steps:
                text += (
                    _keras_bar(done, steps, spent * (steps - done) / done, each, third)
                    + f" - loss: {_loss(done):.4f}\r"
                )
        kinds = {
            p.kind: p.seconds
            for at, all_ in made.pauses.items()
            for p in all_
            if epoch * steps < at <= (epoch + 1) * steps
        }
        spent += sum(kinds.values())
        more = f" - loss: {_loss(epoch * steps):.4f}" + " - val_loss: 2.5000" * (
            "evaluation" in kinds
        )
        if "checkpoint" in kinds:
            text += f"\nEpoch {epoch + 1}: saving model to out/model-{epoch + 1}.keras\n"
        if quiet:
            ms = _keras_each(spent / steps)
            text += (
                f"{steps}/{steps} - {round(spent)}s - {ms}{more}\n"
                if third
                else f"{steps}/{steps} - {round(spent)}s{more} - {round(spent)}s/epoch - {ms}\n"
            )
        else:
            text += (
                _keras_bar(steps, steps, spent, (spent - own[0]) / (steps - 1), third) + more + "\n"
            )
    stated = {
        "nodes": 1,
        "gpus_per_node": made.devices,
        "batch_size": made.batch * made.accumulation,
    }
    return Written(text, stated)


def _keras_each(seconds: float) -> str:
    return f"{seconds:.0f}s/step" if seconds >= 1 else f"{1000 * seconds:.0f}ms/step"


def _keras_bar(done: int, steps: int, seconds: float, each: float, third: int) -> str:
    if third:
        return f"{done}/{steps} {'━' * 20} {seconds:.0f}s {_keras_each(each)}"
    return f"{done}/{steps} [{'=' * (30 * done // steps):<30}] - {'ETA: ' if done < steps else ''}{seconds:.0f}s {_keras_each(each)}"


# --- timm


def timm(made: Course) -> Written:
    """``train.py`` of timm: a mean since the epoch began; ``Test:`` lines between two epochs."""
    length = _of_epochs(made)
    text = f"Training in distributed mode with multiple processes, 1 device per process.Process 0, total {made.devices}, device cuda:0.\n"
    text += "Model resnet50 created, param count:25557032\n"
    for epoch in range(made.steps // length):
        spent = 0.0
        for at in range(length):
            each, samples = made.seconds[epoch * length + at], made.samples[0]
            spent += each
            if at % min(made.every, 50) == 0 or at == length - 1:
                mean = spent / (at + 1)
                text += f"Train: {epoch} [{at:>4d}/{length} ({100.0 * at / (length - 1):>3.0f}%)]  Loss: {_loss(at):#.3g} ({_loss(at):#.3g})  Time: {each:.3f}s, {samples / each:>7.2f}/s  ({mean:.3f}s, {samples / mean:>7.2f}/s)  LR: 1.000e-05  Data: 0.010 (0.010)\n"
        if any(p.kind == "evaluation" for each in made.pauses.values() for p in each):
            for at in (0, 50, 97):
                text += f"Test: [{at:>4d}/97]  Time: 0.212 (0.592)  Loss:  6.723 ( 6.723)  Acc@1:   0.000 (  0.076)  Acc@5:   1.176 (  3.287)\n"
    return Written(text, {"nodes": 1, "gpus_per_node": made.devices})


# --- Megatron-LM


def megatron(made: Course) -> Written:
    """``training.py`` of Megatron-LM: until 2024 evaluations and checkpoints are in the time of the
    interval behind them, and lines have no stamp; since then the timer is stopped for both."""
    thinned = (
        made.style & 8 and made.seed % 2
    )  # each iteration was printed, and most lines left out
    stamped, told, counted = made.style & 1, made.style & 2, made.style & 4
    lines, moments = (
        [
            f"using world size: {made.devices}, data-parallel-size: {made.devices}, tensor-model-parallel size: 1, pipeline-model-parallel size: 1"
        ],
        made.moments(),
    )
    lines.append(f"  micro_batch_size ................................ {made.batch}")
    consumed, before, interval = made.resumed * made.samples[0], made.resumed, 0.0
    total = made.resumed + made.steps + (200 if made.stopped else 0)
    for number, samples, seconds in zip(made.numbers, made.samples, made.seconds):
        consumed, interval = consumed + samples, interval + seconds
        if number % made.every == 0:
            ms = 1000 * (seconds if thinned else interval / (number - before))
            head = (
                f" [{_stamp(made, moments[number], number, '%Y-%m-%d %H:%M:%S.%f')}]"
                if stamped
                else ""
            )
            told_samples = f" consumed samples: {consumed:12d} |" if counted else ""
            lines.append(
                f"{head} iteration {number:8d}/{total:8d} |{told_samples} elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.500E-04 | global batch size: {samples:5d} | lm loss: {_loss(number):.6E} | loss scale: 1.0 | grad norm: 1.520 | number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
            before, interval = number, 0.0
        for pause in made.pauses.get(number, ()):
            lines += _megatron_pause(pause, number, bool(told))
            interval += 0.0 if stamped else pause.seconds
    stated = {"nodes": 1, "gpus_per_node": made.devices}
    return Written(_labels(made, "\n".join(lines) + "\n"), stated)


def _megatron_pause(pause: Pause, number: int, told: bool) -> Iterator[str]:
    ms = 1000 * pause.seconds
    if pause.kind == "checkpoint":
        yield f"saving checkpoint at iteration {number:7d} to ./checkpoints in torch_dist format"
        yield f"  successfully saved checkpoint at iteration {number:7d} to ./checkpoints"
        if told:
            yield "(min, max) time across ranks (ms):"
            yield f"    save-checkpoint ................................: ({ms:.2f}, {ms:.2f})"
        return
    if told:
        yield "(min, max) time across ranks (ms):"
        yield f"    evaluate .......................................: ({ms:.2f}, {ms:.2f})"
    yield "-" * 93
    yield f" validation loss at iteration {number} | lm loss value: {_loss(number):.6E} | lm loss PPL: 7.255679E+03 | "
    yield "-" * 93


# --- torchtune


def torchtune(made: Course) -> Written:
    """A recipe's bar, of one epoch, with the lines of its validation and of its checkpoints."""
    text, moments = (
        f"batch_size: {made.batch}\ngradient_accumulation_steps: {made.accumulation}\ndtype: bf16\n",
        made.moments(),
    )
    total = made.resumed + made.steps
    for number in made.numbers:
        bar = _tqdm(f"1|{number}|Loss: {_loss(number):.4f}: ", number, total, moments[number])
        text += "\r" + bar
        if made.style & 1 and number % made.every == 0:
            text += f"Step {number} | loss:{_loss(number):.6f} lr:2e-05 tokens_per_second_per_gpu:{1000 / made.seconds[0]:.4f} \n"
        for pause in made.pauses.get(number, ()):
            text += "\r" + bar + "\n"
            if pause.kind == "evaluation":
                text += f"INFO:torchtune.utils._logging:Validation loss: {_loss(number):.4f}\n"
                text += f"Step {number} | val_loss:{_loss(number):.6f} \n" if made.style & 1 else ""
            else:
                text += "INFO:torchtune.utils._logging:Saving checkpoint. This may take some time. Retrieving full model state dict...\n"
    return Written(text + "\n", {"nodes": 1, "gpus_per_node": made.devices})


# --- nanoGPT


def nanogpt(made: Course) -> Written:
    """``train.py`` of nanoGPT: the time of an iteration has the evaluation before it in it."""
    tokens = made.samples[0] * 512
    text = f"Overriding: batch_size = {made.batch}\nblock_size = 512\ntokens per iteration will be: {tokens:,}\n"
    for number in made.numbers:
        index = number - 1
        extra = sum(p.seconds for p in made.pauses.get(index, ()))
        if any(p.kind == "evaluation" for p in made.pauses.get(index, ())):
            text += f"step {index}: train loss {_loss(number):.4f}, val loss {_loss(number):.4f}\n"
            if any(p.kind == "checkpoint" for p in made.pauses.get(index, ())):
                text += "saving checkpoint to out\n"
        elif extra:  # nanoGPT saves behind an evaluation only
            extra = 0.0
        if index % made.every == 0:
            seconds = made.seconds[number - made.resumed - 1] + extra
            text += (
                f"iter {index}: loss {_loss(number):.4f}, time {1000 * seconds:.2f}ms, mfu 31.69%\n"
            )
    return Written(_labels(made, text), {"nodes": 1, "gpus_per_node": made.devices, "seq_len": 512})


FAMILIES: Mapping[str, Callable[[Course], Written]] = {
    "hf_trainer": hf_trainer,
    "paddlenlp_trainer": paddlenlp_trainer,
    "lightning": lightning,
    "keras": keras,
    "timm": timm,
    "megatron": megatron,
    "torchtune": torchtune,
    "nanogpt": nanogpt,
}
COARSE = frozenset({"hf_trainer", "lightning", "torchtune"})
RAMPS = frozenset({"megatron"})
BY_EPOCH = frozenset({"keras", "lightning", "timm"})
"""Programs that count anew in each epoch, so that a resume does not show in their lines."""


def written(family: str, seed: int, clean: bool = False) -> tuple[Course, Written]:
    """A course, and its log."""
    made = course(seed, clean, family in RAMPS, family in COARSE)
    if family in BY_EPOCH:
        made = _from_the_start(made)
    return made, FAMILIES[family](made)
