"""The Trainer's summary divides what was planned: it is held against what the log says was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.result import RunResult

RATE = 40.0
"""Samples/s that each of these runs really has: 1000 examples, 64 of them a step."""

EPOCH_S = 1000 / RATE


def plan(epochs: int = 10, batch: int = 8, total: int = 64, accumulation: int = 2) -> list[str]:
    """What the Trainer prints at level INFO as it begins."""
    return [
        "***** Running training *****",
        "  Num examples = 1,000",
        f"  Num Epochs = {epochs}",
        f"  Instantaneous batch size per device = {batch}",
        f"  Total train batch size (w. parallel, distributed & accumulation) = {total}",
        f"  Gradient Accumulation steps = {accumulation}",
        f"  Total optimization steps = {16 * epochs}",
    ]


def losses(first: int, last: int) -> list[str]:
    """A loss line at the end of each epoch."""
    return [
        f"{{'loss': {3 - n / 10:.2f}, 'learning_rate': 1e-05, 'epoch': {float(n)}}}"
        for n in range(first, last + 1)
    ]


def summary(seconds: float, planned: int = 10, epoch: str = "10.0") -> str:
    """The end's line: samples and steps of ``planned`` epochs over the time really taken."""
    return (
        f"{{'train_runtime': {seconds:.4f}, 'train_samples_per_second': "
        f"{1000 * planned / seconds:.3f}, 'train_steps_per_second': {16 * planned / seconds:.3f}, "
        f"'train_loss': 2.5, 'epoch': {epoch}}}"
    )


def read(tmp_path: Path, lines: list[str], **stated: int) -> RunResult:
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines) + "\n")
    (result,) = gather([log], rule(), stated, ScanCache(None)).results
    return result


def test_a_whole_run_keeps_the_summary(tmp_path: Path) -> None:
    result = read(tmp_path, [*plan(), *losses(1, 10), summary(10 * EPOCH_S)])
    assert result.samples_per_s == pytest.approx(RATE)
    assert not any("planned" in warning for warning in result.warnings)


@pytest.mark.parametrize("informed", [True, False])
def test_early_stopping_leaves_the_part_that_was_done(tmp_path: Path, informed: bool) -> None:
    """Three of ten epochs: the summary says 133 samples/s."""
    end = summary(3 * EPOCH_S, epoch="3.0")
    table = ["  train_samples            =       1000"]
    head = plan() if informed else ["the data has 1000 examples"]
    result = read(
        tmp_path,
        [*head, *losses(1, 3), *([] if informed else table), end],
        nodes=1,
        gpus_per_node=4,
    )
    assert result.samples_per_s == pytest.approx(RATE, rel=1e-4)
    (told,) = [warning for warning in result.warnings if "planned" in warning]
    assert "3 of 10 epochs were done" in told and "0.3 of the printed figure" in told


def test_a_resumed_run_counts_what_it_did_itself(tmp_path: Path) -> None:
    head = [
        *plan(),
        "  Continuing training from checkpoint, will skip to saved global_step",
        "  Continuing training from epoch 8",
        "  Continuing training from global step 128",
    ]
    result = read(tmp_path, [*head, *losses(9, 10), summary(2 * EPOCH_S)])
    assert result.samples_per_s == pytest.approx(RATE, rel=1e-4)
    assert any("80 % of them before a checkpoint" in warning for warning in result.warnings)


def test_a_resume_shows_in_the_first_loss_lines_too(tmp_path: Path) -> None:
    table = ["  train_samples            =       1000"]
    lines = [*losses(9, 10), *table, summary(2 * EPOCH_S)]
    result = read(tmp_path, lines, nodes=1, gpus_per_node=4)
    assert result.samples_per_s == pytest.approx(RATE, rel=1e-4)


def test_a_resume_of_an_unknown_length_leaves_no_number(tmp_path: Path) -> None:
    result = read(tmp_path, [*losses(9, 10), summary(2 * EPOCH_S)], nodes=1, gpus_per_node=4)
    assert result.samples_per_s is None and "checkpoint" in result.reason


def test_steps_count_before_epochs_and_a_contradiction_leaves_no_number(tmp_path: Path) -> None:
    output = "TrainOutput(global_step={}, training_loss=2.5, metrics={})"
    end = summary(3 * EPOCH_S, epoch="3.0")
    fits = read(tmp_path, [*plan(), *losses(1, 3), output.format(48, end)])
    assert fits.samples_per_s == pytest.approx(RATE, rel=1e-4)
    assert any("48 of 160 steps were done" in warning for warning in fits.warnings)
    belied = read(tmp_path, [*plan(), *losses(1, 3), output.format(96, end)])
    assert belied.samples_per_s is None
    assert "96 of 160 steps" in belied.reason and "contradict each other" in belied.reason


def test_a_bar_on_the_summary_s_line_shows_the_steps(tmp_path: Path) -> None:
    bar = " 30%|###       | 48/160 [01:15<02:55,  1.56s/it]"
    end = summary(3 * EPOCH_S, epoch="3.0")
    result = read(tmp_path, [*losses(1, 3), end + bar], nodes=1, gpus_per_node=4)
    assert result.samples_per_s == pytest.approx(RATE, rel=2e-3)


def test_a_summary_that_nothing_bears_out_says_so(tmp_path: Path) -> None:
    result = read(tmp_path, [summary(50.0)], nodes=1, gpus_per_node=4)
    assert result.samples_per_s == pytest.approx(200.0)
    (told,) = [warning for warning in result.warnings if "planned" in warning]
    assert "no line says how many were trained" in told


def test_max_steps_of_a_part_of_an_epoch_is_a_whole_run(tmp_path: Path) -> None:
    """``--max_steps 8``: half an epoch, which 'Num Epochs' rounds up."""
    head = plan(1)
    head[-1] = "  Total optimization steps = 8"
    end = (
        "{'train_runtime': 12.8, 'train_samples_per_second': 40.0, "
        "'train_steps_per_second': 0.625, 'train_loss': 2.5, 'epoch': 0.5}"
    )
    result = read(tmp_path, [*head, end])
    assert result.samples_per_s == pytest.approx(RATE)
    assert not any("planned" in warning for warning in result.warnings)


def test_until_4_6_the_figure_was_of_steps(tmp_path: Path) -> None:
    """transformers pull request 11818: 'train_steps_per_second' is beside it since."""
    end = "{'train_runtime': 250.0, 'train_samples_per_second': 0.64, 'epoch': 10.0}"
    result = read(tmp_path, [*plan(), *losses(1, 10), end])
    assert result.samples_per_s == pytest.approx(0.64 * 64)
    assert result.external is not None and result.external.unit == "iterations/s"


def test_the_number_of_devices_follows_from_three_lines(tmp_path: Path) -> None:
    result = read(tmp_path, [*plan(), *losses(1, 10), summary(10 * EPOCH_S)])
    assert (str(result.run.case.topology), result.run.case.batch_size) == ("1n4g", 8)
    belied = read(
        tmp_path, [*plan(), *losses(1, 10), summary(10 * EPOCH_S)], nodes=1, gpus_per_node=6
    )
    assert belied.run.case.topology.devices == 4
    assert any("the log says 4 devices, the command line 6" in w for w in belied.warnings)
    odd = plan(batch=6)
    log = tmp_path / "odd.log"
    log.write_text("\n".join([*odd, *losses(1, 10), summary(10 * EPOCH_S)]) + "\n")
    found = gather([log], rule(), {"nodes": 1, "gpus_per_node": 4}, ScanCache(None))
    assert any("no multiple of 6 per device x 2" in remark for remark in found.unread)


def test_trainer_state_json(tmp_path: Path) -> None:
    """Its keys are sorted: what was planned stands behind the total."""
    state = [
        "{",
        '  "epoch": 3.0,',
        '  "global_step": 48,',
        '  "log_history": [',
        *[f'    {{\n      "epoch": {n}.0,\n      "step": {16 * n}\n    }},' for n in (1, 2)],
        "    {",
        '      "epoch": 3.0,',
        '      "step": 48,',
        f'      "train_runtime": {3 * EPOCH_S},',
        f'      "train_samples_per_second": {10_000 / (3 * EPOCH_S):.3f},',
        f'      "train_steps_per_second": {160 / (3 * EPOCH_S):.3f}',
        "    }",
        "  ],",
        '  "max_steps": 160,',
        "}",
    ]
    result = read(tmp_path, state, nodes=1, gpus_per_node=4)
    assert result.samples_per_s == pytest.approx(RATE, rel=1e-4)


STEP_PADDLE = (
    "[2022-08-31 16:{:02d}:{:02d},500] [    INFO] - loss: 2.5, learning_rate: 1e-05, "
    "global_step: {}, interval_runtime: 16.0, interval_samples_per_second: 4.0, "
    "interval_steps_per_second: 0.625, epoch: {:.4f}"
)


def test_paddlenlp_s_steps_have_a_clock_and_its_summary_is_held_against_them(
    tmp_path: Path,
) -> None:
    """The interval's samples/s, which was one step's over the time of all, is not read."""
    head = [f"[2022-08-31 16:00:00,100] [    INFO] - {line}" for line in plan()]
    steps = [STEP_PADDLE.format(16 * n // 60, 16 * n % 60, 10 * n, n / 1.6) for n in range(1, 15)]
    end = (
        "[2022-08-31 16:03:44,600] [    INFO] - train_runtime: 224.0, train_samples_per_second: "
        "44.643, train_steps_per_second: 0.714, train_loss: 2.4, epoch: 8.75"
    )
    result = read(tmp_path, [*head, *steps, end])
    assert result.external is not None
    assert result.external.basis == "clock" and result.samples_per_s == pytest.approx(RATE)
    assert result.external.check == pytest.approx(RATE)
    assert (result.run.case.framework, str(result.run.case.topology)) == ("paddle", "1n4g")
    log = tmp_path / "run.log"
    (total,) = gather([log], rule("total"), {}, ScanCache(None)).results
    assert total.samples_per_s == pytest.approx(44.643 * 140 / 160)
    assert any("140 of 160 steps were done" in warning for warning in total.warnings)


def test_devices_of_a_split_model_do_not_follow_from_the_batch(tmp_path: Path) -> None:
    split = "[2024-01-01 10:00:00,100] [   DEBUG] - tensor_parallel_degree        : 4"
    log = tmp_path / "run.log"
    log.write_text("\n".join([split, *plan(), *losses(1, 10), summary(10 * EPOCH_S)]) + "\n")
    (result,) = gather([log], rule(), {"devices": 16}, ScanCache(None)).results
    assert result.run.case.topology.devices == 16


def test_a_summary_without_a_newline_behind_it_is_whole(tmp_path: Path) -> None:
    """Only what is closed is: every shorter end of the line gives nothing."""
    log = tmp_path / "run.log"
    whole = "\n".join([*plan(), *losses(1, 10), summary(10 * EPOCH_S)])
    log.write_text(whole)
    (result,) = gather([log], rule(), {}, ScanCache(None)).results
    assert result.samples_per_s == pytest.approx(RATE) and result.status.value == "ok"
    for end in (1, 5, 30, 90):
        log.write_text(whole[:-end])
        (result,) = gather([log], rule(), {}, ScanCache(None)).results
        assert result.samples_per_s is None
