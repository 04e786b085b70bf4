"""Readers of progress bars: the Trainer's, LLaMA-Factory's log, Lightning's and tqdm's, Keras'."""

# ruff: noqa: E501 - a line of a log is as long as it is

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from damage import scan
from drawn_bars import bar, clock
from external_corpus import samples

from dlperf_hpc.logs.formats.bars import bar_of
from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.lineparts import seconds_of
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.logs.scanned import LogStep, Reading, ScannedFile, Stamps, Unit
from dlperf_hpc.model.result import RunResult, Status

ONE: Mapping[str, Any] = {"nodes": 1, "gpus_per_node": 1, "batch_size": 8}
SAMPLES = {path.stem: path.read_bytes() for path in samples()}


def found(text: str) -> ScannedFile:
    return scan(text.encode())


def reading(text: str) -> Reading:
    (only,) = found(text).readings
    return only


def figures(steps: Iterable[LogStep]) -> list[tuple[int, float | None, float | None]]:
    """Iteration, stamp and loss of each."""
    return [(step.iteration, step.stamp, step.loss) for step in steps]


def result(scanned: ScannedFile, by: str = "default", **stated: Any) -> RunResult:
    (only,) = interpret(scanned, (), (), {**ONE, **stated}, rule(by)).results
    return only


# --- a bar


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (bar(45, 100, "00:10", " 4.30it/s"), ("", 45, 100, 10.0, "4.30")),
        ("Epoch 0: |      | 45/? [00:10<00:00, 4.30it/s]", ("Epoch 0", 45, None, 10.0, "4.30")),
        ("Epoch 0: 45it [00:10,  4.30it/s, loss=1]", ("Epoch 0", 45, None, 10.0, "4.30")),
        ("Epoch 3:  " + bar(1, 4, "1:02:03", "45.1s/it"), ("Epoch 3", 1, 4, 3723.0, None)),
        (bar(2, 4, "00:40", " 0.05it/s"), ("", 2, 4, 40.0, None)),
        (bar(0, 4, "00:00", "?it/s"), ("", 0, 4, 0.0, None)),
        (bar(2, 4, "00:09", "1.50it/s", ", loss=2.5, v_num=a b"), ("", 2, 4, 9.0, "1.50")),
    ],
)
def test_a_bar_is_taken_apart(text: str, read: tuple[object, ...]) -> None:
    assert bar_of(text) is not None and bar_of(text)[:5] == read  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    [
        "|          | 5/? [00:00<?, ?it/s]",
        "iteration 45it [00:10, 4.30it/s]",
        "model.safetensors:  31%|###1      | 1.2G/3.9G [00:10<00:20, 118MB/s]",
        "Map:  50%|#####     | 500/1000 [00:01<00:01, 499.22 examples/s]",
        "100%|##########| 5/4 [00:09<00:00,  1.50it/s]",
        " 50%|#####     | 2/4 [00:99<00:02,  1.50it/s]",
        "50% | 2/4 [00:09<00:02, 1.50it/s]",
    ],
)
def test_what_is_no_bar_of_iterations_is_none(text: str) -> None:
    assert bar_of(text) is None


def test_a_bar_cut_anywhere_is_none() -> None:
    whole = bar(45, 100, "00:10", " 4.30it/s", ", loss=0.43")
    assert not any(bar_of(whole[:end]) for end in range(len(whole)))


def test_the_time_of_a_bar() -> None:
    assert [seconds_of(text) for text in ("00:07", "61:00", "100:00:01", "1:2:3", "0:61", "7")] == [
        7.0,
        None,
        360001.0,
        None,
        None,
        None,
    ]


# --- the Trainer


def trainer(last: int, total: int, seconds_of_step: float, **keys: str) -> str:
    """A log of the Trainer: a loss line every tenth step, and the bar at each."""
    text = "\r" + bar(0, total, "00:00", "?it/s")
    for n in range(1, last + 1):
        drawn = bar(n, total, clock(seconds_of_step * n))
        text += "\r" + drawn
        if n % 10 == 0:
            more = "".join(f", '{key}': '{value}'" for key, value in keys.items())
            losses = f"{{'loss': '{5 - n / 100:.2f}', 'learning_rate': '1e-05', 'epoch': '0.{n:03d}'{more}}}"
            text += f"\r{' ' * 50}\r{losses}\n\r{drawn}"
    return text + "\n"


def test_the_trainers_steps_are_those_of_its_bar() -> None:
    read = reading(trainer(30, 200, 1.5))
    assert read.format == "hf_trainer" and read.stamps is Stamps.ELAPSED
    assert figures(read.steps)[9:12] == [(19, 28.0, None), (20, 30.0, 4.8), (21, 31.0, None)]
    assert [step.iteration for step in read.steps] == list(range(10, 31))


def test_the_trainers_speed_is_the_clock_of_its_bar() -> None:
    ran = result(found(trainer(150, 200, 0.8)), accumulation=1)
    assert ran.external is not None and ran.external.basis == "clock"
    assert ran.samples_per_s == pytest.approx(8 / 0.8)
    assert not ran.warnings


@pytest.mark.parametrize(
    "other",
    [
        "Map: " + bar(3, 200, "00:09"),
        bar(3, 5, "00:09"),
        "Loading checkpoint shards: " + bar(1, 3, "00:04"),
    ],
)
def test_other_bars_are_no_steps(other: str) -> None:
    text = trainer(30, 200, 1.5)
    places = [at for at, char in enumerate(text) if char == "\r"]
    for at in (places[0], places[12], places[30]):
        read = reading(text[:at] + "\r" + other + text[at:])
        assert [step.iteration for step in read.steps] == list(range(10, 31))


def test_bars_alone_and_buffered_losses_are_no_steps() -> None:
    bars = "".join("\r" + bar(n, 200, clock(n)) for n in range(1, 31))
    assert not found(bars).readings
    losses = "".join(f"{{'loss': 2.5, 'epoch': 0.{n}}}\n" for n in range(10, 40))
    for text in (f"{bars}\n{losses}", f"{bars}\r{losses}{bars}"):
        assert not reading(text).steps


def test_losses_behind_all_bars_show_whose_these_are(tmp_path: Path) -> None:
    """Standard output was buffered until the end: a bar is drawn again at each loss."""
    bars = ""
    for done in range(1, 150):
        drawn = f"\r{bar(done, 200, clock(3 * done))}"
        bars += drawn + drawn * (done % 50 == 0)
    losses = "".join(f"{{'loss': 2.5, 'epoch': 0.{n}}}\n" for n in range(10, 40))
    log = tmp_path / "run.log"
    for text in (f"{bars}\n{losses}", f"{bars}\n{losses}\r{bar(149, 200, clock(447))}\n"):
        log.write_text(text)
        (result,) = gather([log], rule(), {"global_batch": 8, **ONE}, ScanCache(None)).results
        assert result.samples_per_s == pytest.approx(8 / 3)


def test_a_stated_number_of_steps_needs_no_loss_line_behind_which_the_bar_is_drawn() -> None:
    """And a loss line between two states of the bar has no step for certain."""
    head = (
        "***** Running training *****\n  Num examples = 1,600\n  Total optimization steps = 200\n"
    )
    text = head + "\r" + bar(8, 200, "00:08") + "\r{'loss': 2.5, 'epoch': 0.1}\n\r"
    text += bar(11, 200, "00:11") + "\r" + bar(2, 5, "00:01") + "\r" + bar(12, 200, "00:12") + "\n"
    assert figures(reading(text).steps) == [(8, 8.0, None), (11, 11.0, None), (12, 12.0, None)]


@pytest.mark.parametrize(
    "first",
    [
        "--max_steps 200 --per_device_train_batch_size 16",
        "--per_device_train_batch_size=16 --max_steps=200",
    ],
)
def test_a_trainer_that_was_stopped_before_its_first_loss_line(first: str) -> None:
    """The launch line says how many steps the bar of the training has, and of what batch."""
    bars = "".join("\r" + bar(n, 200, clock(0.8 * n)) for n in range(151))
    other = "".join("\r" + bar(n, 300, clock(0.1 * n)) for n in range(301))
    ran = result(found(f"+ torchrun train.py {first} --bf16\n{other}\n{bars}\n"), accumulation=1)
    assert ran.samples_per_s == pytest.approx(16 / 0.8)
    assert ran.external is not None and ran.external.basis == "clock"
    for less in ("--max_steps 200", "--per_device_train_batch_size 16"):
        assert not found(f"+ torchrun train.py {less}\n{bars}\n").readings


def test_an_evaluation_adds_no_time_to_the_step_before_it() -> None:
    text = trainer(20, 200, 1.5).rstrip("\n")
    text += f"\r{{'eval_loss': '2.1', 'epoch': '0.1'}}\n\r{bar(20, 200, '09:59')}\r{bar(21, 200, '10:00')}\n"
    assert figures(reading(text).steps)[-2:] == [(20, 30.0, 4.8), (21, 600.0, None)]


def test_the_examples_of_an_evaluation_are_not_those_of_the_training() -> None:
    counts = {count.name: count.value for count in reading(SAMPLES["hf_trainer"].decode()).counts}
    assert counts["epoch_samples"] == 9600


def test_a_run_appended_to_another_is_a_run_of_its_own() -> None:
    """Its bar begins again with less time: no rank side by side, whose clock is a little behind."""
    scanned = found(trainer(150, 200, 0.8) + trainer(150, 200, 0.4))
    runs = interpret(scanned, (), (), {**ONE, "accumulation": 1}, rule("default")).results
    assert [run.samples_per_s for run in runs] == pytest.approx([10.0, 20.0])


@pytest.mark.parametrize(("step_s", "warned"), [(0.3, True), (0.6, False)])
def test_whole_seconds_make_a_short_window_uncertain(step_s: float, warned: bool) -> None:
    ran = result(found(trainer(150, 200, step_s)), accumulation=1)
    assert ran.samples_per_s == pytest.approx(8 / step_s)
    assert any("may be off by 3 %" in warning for warning in ran.warnings) == warned


def test_whole_seconds_leave_no_speed_where_it_may_be_off_by_more_than_5_percent() -> None:
    text = trainer(150, 200, 0.1)
    ran = result(found(text), accumulation=1)
    assert ran.samples_per_s is None and "a window of 200 iterations or more" in ran.reason
    total = "{'train_runtime': 15.2, 'train_samples_per_second': 78.947, 'train_steps_per_second': 9.868, 'epoch': 0.15}"
    beside = result(found(text + total + "\n"), "default", accumulation=1)
    assert beside.external is None or beside.external.basis == "total"


def test_a_step_between_two_loss_lines_lacks_no_loss() -> None:
    text = trainer(150, 200, 0.8)
    assert not result(found(text), "clock[20:125]", accumulation=1).warnings
    for place in ("'3.90'", "'3.80'"):  # of steps 110 and 120
        text = text.replace(f"'loss': {place}", "'loss': 'nan'")
    (warning,) = result(found(text), "clock[20:125]", accumulation=1).warnings
    assert "iteration 125 has no finite loss" in warning


def test_tokens_of_a_loss_line_are_a_mean_since_the_beginning() -> None:
    """20 steps of 2 s, then 1 s each: 1024 tokens a step."""
    text = ""
    for n in range(1, 131):
        elapsed = 2.0 * min(n, 20) + max(n - 20, 0)
        drawn = "\r" + bar(n, 500, clock(elapsed))
        tokens = f"'train_runtime': '{elapsed:.4g}', 'train_tokens_per_second': '{1024 * n / elapsed:.4f}'"
        text += f"{drawn}\r{{'loss': '2.5', 'epoch': '0.1', {tokens}}}\n{drawn}"
    read = reading(text + "\n")
    assert read.printed.unit is Unit.TOKENS_PER_S
    ran = result(found(text + "\n"), "printed[20:120]", seq_len=128)
    assert ran.samples_per_s == pytest.approx(1024 / 128, rel=1e-6)


def test_axolotls_tokens_with_a_label_are_no_speed() -> None:
    text = trainer(30, 200, 1.5, **{"tokens/train_per_sec_per_gpu": "5120.5"})
    assert not any(step.printed for step in reading(text).steps)


def test_the_total_of_tokens_stands_beside_that_of_samples() -> None:
    end = "{'train_runtime': 10.0, 'train_samples_per_second': 40.0, 'train_steps_per_second': 5.0, 'train_tokens_per_second': 40960.0, 'epoch': 1.0}"
    table = "  train_samples_per_second = 40.0"
    totals = reading(f"{end}\n{table}\n").totals
    assert [(total.value, total.unit) for total in totals] == [
        (40.0, Unit.SAMPLES_PER_S),
        (40960.0, Unit.TOKENS_PER_S),
    ]


# --- LLaMA-Factory

OLD = (
    '{"current_steps": 3200, "total_steps": 3235, "loss": 4.5, "eval_loss": null, "reward": null, '
    '"learning_rate": 1.5e-08, "epoch": 0.99, "percentage": 98.92, "elapsed_time": "1 day, 5:13:22", '
    '"remaining_time": "0:03:25"}'
)
NEW = (
    '{"current_steps": 10, "total_steps": 90, "loss": 1.25, "lr": 5e-05, "epoch": 0.11, "percentage": '
    '11.11, "elapsed_time": "0:01:10", "remaining_time": "0:09:20", "throughput": 4025.5, '
    '"total_tokens": 281785}'
)


def test_llama_factorys_lines() -> None:
    old, new = reading(f"{NEW}\n{OLD}\n").steps[1], reading(f"{NEW}\n").steps[0]
    assert (old.iteration, old.stamp, old.loss, old.lr) == (3200, 105202.0, 4.5, 1.5e-08)
    assert (new.iteration, new.stamp, new.printed, new.loss) == (10, 70.0, 4025.5, 1.25)
    # By its own account: tokens over the rate are the time.
    assert new.printed is not None and 281785 / new.printed == pytest.approx(70, abs=0.5)
    evaluation = (
        '{"current_steps": 10, "total_steps": 90, "eval_loss": 1.2, "elapsed_time": "0:01:12"}'
    )
    assert [step.iteration for step in reading(f"{NEW}\n{evaluation}\n").steps] == [10]
    assert not found(OLD.replace("4.5", "null") + "\n").readings


def test_llama_factorys_line_cut_anywhere_is_none() -> None:
    for end in range(len(NEW)):
        assert not found(NEW[:end] + "\n").readings


def test_llama_factorys_rate_is_a_mean_since_the_beginning() -> None:
    """Behind a checkpoint it has the tokens of the run before it: of these there is no window."""
    text = SAMPLES["llama_factory"].decode()
    ran = result(found(text), "printed[20:120]", seq_len=1024)
    assert ran.samples_per_s == pytest.approx(8190 / 1.5 / 1024, rel=1e-4)
    resumed = "".join(line + "\n" for line in text.splitlines()[10:])
    assert result(found(resumed), "printed[60:120]", seq_len=1024).samples_per_s is None


# --- Lightning and tqdm


def epoch_bars(name: str, seconds_of_step: float, more: str, last: int = 140) -> str:
    return "".join(
        f"\r{name} "
        + bar(n, 140, clock(seconds_of_step * n), f"{1 / seconds_of_step:5.2f}it/s", more)
        for n in range(1, last + 1)
    )


def test_lightnings_rate_is_a_mean_since_the_epoch_began() -> None:
    ran = result(found(epoch_bars("Epoch 0:", 0.04, ", loss=2.5, v_num=0") + "\n"))
    assert ran.external is not None and ran.external.basis == "printed"
    assert ran.samples_per_s == pytest.approx(8 / 0.04)
    slow = result(found(epoch_bars("Epoch 0:", 0.8, ", v_num=0") + "\n"))
    assert slow.external is not None and slow.external.basis == "clock"
    assert slow.samples_per_s == slow.external.check == pytest.approx(10.0)


def test_of_other_programs_bars_the_time_alone_is_read() -> None:
    ran = result(found(epoch_bars("Epoch [3/10]:", 0.04, ", loss=2.5") + "\n"))
    assert ran.samples_per_s is None and "whole seconds" in ran.reason
    slow = result(found(epoch_bars("Train epoch 3:", 0.8, "") + "\n"))
    assert slow.samples_per_s == pytest.approx(10.0)
    assert slow.external is not None and slow.external.check is None


def test_lightning_without_a_logger_is_known_by_how_it_begins() -> None:
    head = "TPU available: False, using: 0 TPU cores\n"
    head += "All distributed processes registered. Starting with 2 processes\n"
    scanned = found(head + epoch_bars("Epoch 0:", 0.04, "") + "\n")
    assert [fact.value for fact in scanned.facts if fact.name == "devices"] == [2]
    assert result(scanned).samples_per_s == pytest.approx(2 * 8 / 0.04)


@pytest.mark.parametrize(
    "name", ["Epoch", "Training:", "Downloading:", "Epoch 1 [valid]:", "Validation Epoch 1:", ""]
)
def test_a_bar_that_names_no_epoch_of_training_is_none(name: str) -> None:
    assert not found(epoch_bars(name, 0.8, ", loss=2.5, v_num=0") + "\n").readings


def validated(
    until: int, seconds: float, *, drawn: float, batches: int = 5, step: float = 0.8
) -> str:
    """A validation behind step ``until`` of an epoch, whose own bar shows ``drawn`` seconds."""
    text = "\n\rValidation: |          | 0/? [00:00<?, ?it/s]\x1b[A"
    for done in range(1, batches + 1):
        passed = drawn * done / batches
        rate = f"{done / passed:5.2f}it/s"
        text += f"\n\rValidation DataLoader 0: {bar(done, batches, clock(passed), rate)}\x1b[A"
    again = until * step + seconds
    return (
        text
        + f"\rEpoch 0: {bar(until, 140, clock(again), f'{until / again:5.2f}it/s', ', v_num=0')}"
    )


def behind(until: int, seconds: float, counted: int = 0, last: int = 140) -> str:
    """The bar of the epoch behind a validation of so many seconds."""
    return "".join(
        f"\rEpoch 0: {bar(n + counted, 140, clock(0.8 * n + seconds), f'{(n + counted) / (0.8 * n + seconds):5.2f}it/s', ', v_num=0')}"
        for n in range(until + 1, last + 1 - counted)
    )


@pytest.mark.parametrize(
    ("drawn", "told"),
    [(20.0, "less 20 s of evaluation (once)"), (12.0, "without 1 iterations, for unknown times")],
)
def test_a_validation_is_no_training(drawn: float, told: str) -> None:
    """By its own bar, if that has all of the time by which the training's stands still."""
    first = epoch_bars("Epoch 0:", 0.8, ", v_num=0", last=70)
    text = first + validated(70, 20.0, drawn=drawn, batches=50) + behind(70, 20.0) + "\n"
    ran = result(found(text))
    assert ran.samples_per_s == pytest.approx(10.0, rel=0.02)
    assert any(told in warning for warning in ran.warnings), ran.warnings
    printed = result(found(text), "printed")
    assert (printed.samples_per_s == pytest.approx(10.0, rel=0.02)) == (drawn == 20.0)
    assert any("evaluation" in warning for warning in printed.warnings)


def test_a_bar_that_counts_validation_is_read_up_to_the_first() -> None:
    """As Lightning's did until 2.0."""
    first = epoch_bars("Epoch 0:", 0.8, ", v_num=0", last=70)
    whole = "\n\rValidating: 100%|##########| 5/5 [00:09<00:00,  2.00it/s]\x1b[A"
    begun = whole.replace("5/5", "1/5")
    rest = behind(70, 9.0, counted=5) + epoch_bars("Epoch 1:", 0.9, ", v_num=0")
    sanity = "\rValidation sanity check: 100%|##########| 2/2 [00:00<00:00, 20.00it/s]\r"
    again = epoch_bars("Epoch 0:", 0.4, ", v_num=0")
    for text in (whole + rest, begun + behind(70, 2.0, last=71) + whole + rest + whole + again):
        scanned = found(sanity + first + text + "\n")
        assert [step.iteration for step in scanned.readings[0].steps] == list(range(1, 71))
        assert any("follows no whole epoch 0" in note.text for note in scanned.notes)


def test_validations_that_each_hide_a_second_have_no_known_time() -> None:
    """Of one it may be rounding, of ten it is 9 s of 89."""
    text = epoch_bars("Epoch 0:", 0.8, ", v_num=0", last=20)
    for tens in range(2, 13):
        spent = 5.0 * (tens - 1)
        text += validated(10 * tens, spent, drawn=4.1) + behind(
            10 * tens, spent, last=10 * tens + 10
        )
    read = reading(text + "\n")
    lengths = [pause.seconds for pause in read.pauses]
    assert lengths[0] == pytest.approx(4.1, abs=0.01) and set(lengths[1:]) == {None}
    (coarse, apart) = result(found(text + "\n")).warnings
    assert "may be off by 12 %" in coarse and "without 9 iterations, for unknown times" in apart


def test_a_run_behind_a_validation_is_a_run_of_its_own() -> None:
    first = epoch_bars("Epoch 0:", 0.8, ", v_num=0") + validated(140, 9.0, drawn=9.0)
    scanned = found(first + epoch_bars("Epoch 0:", 0.4, ", v_num=0") + "\n")
    runs = interpret(scanned, (), (), ONE, rule("default")).results
    assert [run.samples_per_s for run in runs] == pytest.approx([10.0, 20.0])


def test_a_loss_is_that_of_its_own_step() -> None:
    """Lightning draws a step with the loss before it, then with its own; ``set_postfix`` in a loop
    draws the step before with the loss of the next one."""
    lines = [(1, ""), (1, ", {0}loss=3.5"), (2, ", {0}loss=3.5"), (2, ", {0}loss=2.5")]
    for more, losses in (("v_num=0, train_", [3.5, 2.5]), ("", [None, 3.5])):
        text = "".join(
            "\rEpoch 0: " + bar(n, 140, "00:01", more=end.format(more)) for n, end in lines
        )
        assert [step.loss for step in reading(text + "\n").steps] == losses


# --- Keras


def test_keras_epochs_and_what_evaluate_draws_behind_them() -> None:
    read = reading(SAMPLES["keras"].decode())
    assert [(step.iteration, step.printed, step.loss) for step in read.steps] == [
        (498, 42.0, 1.8),
        (998, 40.0, 1.6),
        (1498, 40.0, 1.4),
    ]
    ran = result(found(SAMPLES["keras"].decode()))
    assert ran.samples_per_s == pytest.approx(16 / 0.040)
    assert str(ran.run.case.topology) == "1n2g"


@pytest.mark.parametrize(
    ("line", "ms"),
    [
        ("500/500 [==============================] - 12s 25ms/step - loss: 0.3 - acc: 0.9", 25.0),
        ("500/500 - 12s - loss: 0.3 - 12s/epoch - 25ms/step", 25.0),
        ("500/500 - 12s - 25ms/step - loss: 0.3", 25.0),
        ("500/500 ━━━━━━━━━━━━━━━━━━━━ 12s 25ms/step - loss: 0.3", 25.0),
        ("500/500 - 640s - 1s/step - loss: 0.3", 1280.0),
        ("500/500 - 60s - 120ms/step - loss: 0.3", 120.0),
        ("500/500 - 0s - 850us/step - loss: 0.3", 0.85),
    ],
)
def test_keras_time_of_a_step_is_the_figure_that_is_rounded_less(line: str, ms: float) -> None:
    (step,) = reading(f"Epoch 2/5\n{line}\n").steps
    assert (step.iteration, step.loss) == (1000, 0.3)
    assert step.printed == pytest.approx(ms)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("500/500 - 2s - 4ms/step - loss: 0.3", "rounded by more than 5 %"),
        ("500/500 - 12s - 25ms/step - loss: 0.3 - val_loss: 0.4", "validation"),
        ("60000/60000 [====] - 11s 176us/sample - loss: 0.2", "counts samples"),
    ],
)
def test_keras_lines_that_give_no_speed_say_why(lines: str, why: str) -> None:
    scanned = found(f"Epoch 1/5\n{lines}\n")
    # Where a figure is rounded too much the iterations still are known: a clock may time them.
    steps = scanned.readings[0].steps
    assert [step.printed for step in steps] == ([None] if "rounded" in why else [])
    assert why in scanned.notes[0].text


def test_keras_behind_a_launchers_label() -> None:
    text = "".join(f"0: {line}\n" for line in SAMPLES["keras"].decode().split("\n"))
    assert reading(text).steps == reading(SAMPLES["keras"].decode()).steps


def test_a_second_fit_is_a_run_of_its_own() -> None:
    """With other data, and so another number of steps."""
    line = "Epoch {}/2\n{}/{} - 60s - {}ms/step - loss: 0.5\n"
    fits = [line.format(n, s, s, 60_000 // s) for s in (500, 250) for n in (1, 2)]
    (read,) = found("".join(fits)).readings
    assert [step.iteration for step in read.steps] == [500, 1000, 250, 500]


def test_keras_up_to_2_3_counts_samples_under_the_name_of_steps() -> None:
    end = "60000/60000 [==============================] - 30s 500us/step - loss: 0.2"
    samples_head = "Train on 60000 samples, validate on 10000 samples\n"
    assert not reading(f"{samples_head}Epoch 1/5\n{end}\n").steps
    assert reading(f"Epoch 1/5\n{end}\n").steps


def test_other_programs_epochs_and_steps_are_not_keras() -> None:
    for text in (
        "Epoch 1/25\n----------\ntrain Loss: 0.3",
        "500/500 - 12s - 25ms/step - loss: 0.3",
    ):
        assert not found(f"{text}\n").readings
    unclear = "Epoch 1/3\n50/50 - 1s - 25ms/step - loss: 1\n500/500 - 12s - 24ms/step - loss: 1\n"
    scanned = found(unclear)
    assert not scanned.readings[0].steps and "different lengths" in scanned.notes[0].text


def test_a_keras_line_cut_anywhere_gives_its_figures_or_none() -> None:
    for line in (
        "500/500 - 12s - 25ms/step - loss: 0.3125",
        "500/500 [=====] - 12s 25ms/step - loss: 0.3125",
    ):
        for end in range(len(line)):
            for each in found(f"Epoch 1/5\n{line[:end]}\n").readings:
                assert [step.printed for step in each.steps] in ([], [25.0])


# --- all of them


@pytest.mark.parametrize("name", ["hf_trainer", "llama_factory", "epoch_bars", "keras"])
def test_a_senseless_line_is_read_in_a_moment(name: str) -> None:
    from dlperf_hpc.logs.format import Line, ReadingBuilder
    from dlperf_hpc.logs.formats import formats

    (kind,) = (each for each in formats() if each.name == name)
    builder = ReadingBuilder(kind)
    literals = (*kind.literals, *kind.facts_literals)
    for noise in ("9" * 60_000, " " * 60_000, "9%|" * 20_000, "1/1 [" * 12_000, "{'" * 30_000):
        kind.read(Line(1, f"500/500 - 1:02s - 1{noise}ms/step - loss: 0.5"), builder)
        for number, literal in enumerate(literals, 1):
            kind.read(Line(number, f"Epoch 1/2{noise}{literal}{noise}"), builder)
            kind.read(Line(number, literal * 2_000), builder)
    kind.read(Line(1, "500/500 - 1:02s - 25ms/step - loss: 0.5"), builder)
    assert not builder.steps and not builder.totals


def test_a_sample_has_a_number() -> None:
    # In the Trainer's window of 80 s lies an evaluation of 0.2 s.
    for name, per_s in (("hf_trainer", 80.0 * 80 / 79.8), ("epoch_bars", 32.0), ("keras", 400.0)):
        ran = result(scan(SAMPLES[name]), accumulation=1)
        assert ran.status is Status.OK
        assert ran.samples_per_s == pytest.approx(per_s)
