"""Learning-rate schedules: values worked out by hand from the recipes, and their keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from spec_samples import cases, issues_of, write

from dlperf_hpc.model.case import SCHEDULES, Case, Optimizer, Schedule
from dlperf_hpc.train.schedules import SHAPES, learning_rate


@pytest.mark.parametrize(
    ("peak", "schedule", "expected"),
    [
        (1e-4, Schedule(), {0: 1e-4, 10**6: 1e-4}),
        # tf-models-official BERT-base as DLPerf runs it: 120 steps end within the warm-up.
        (
            5e-5,
            Schedule(name="polynomial", warmup=10_000, total=120),
            {0: 0.0, 1: 5e-9, 100: 5e-7, 119: 5.95e-7, 10_000: 0.0},
        ),
        (
            5e-5,
            Schedule(name="polynomial", warmup=20, total=120),
            {10: 2.5e-5, 19: 4.75e-5, 20: 5e-5 * 100 / 120, 60: 2.5e-5, 120: 0.0, 130: 0.0},
        ),
        # NVIDIA's TensorFlow BERT, LAMB: 7.5e-4, warm-up 2000, power 0.5, here over 8000 steps.
        (
            7.5e-4,
            Schedule(name="polynomial", warmup=2000, total=8000, power=0.5),
            {1000: 3.75e-4, 6000: 3.75e-4, 7920: 7.5e-5},
        ),
        # Megatron-LM's GPT-2 as DLPerf runs it: 1.5e-4, warm-up 0.01 of 1000 iterations.
        (
            1.5e-4,
            Schedule(name="cosine", warmup=10, total=1000),
            {0: 0.0, 5: 7.5e-5, 10: 1.5e-4, 340: 1.125e-4, 505: 7.5e-5, 670: 3.75e-5, 1000: 0.0},
        ),
        # bing_bert's EP as in seed runs: 4e-4, warm-up the whole of 125000, offset 10e-4.
        (
            4e-4,
            Schedule(name="warmup_exp_decay_poly", warmup=125_000, total=125_000, offset=1e-3),
            {0: 1e-3, 31_250: 1.05e-3, 125_000: 1e-3, 130_000: 1e-3},
        ),
        (
            1.0,
            Schedule(name="warmup_exp_decay_poly", warmup=100, total=1000),
            {25: 0.125, 100: 0.81, 500: 0.25, 900: 0.01, 1000: 0.0},
        ),
        # DeepSpeed's tutorial, sequence 128: warm-up 0.02 of 187000, then 0.9 per 1000.
        (
            4e-3,
            Schedule(name="warmup_linear_decay_exp", warmup=3740, decay_rate=0.9, decay_steps=1000),
            {0: 0.0, 1870: 2e-3, 3740: 4e-3, 4740: 3.6e-3, 5740: 3.24e-3, 4240: 4e-3 * 0.9**0.5},
        ),
        (
            1.0,
            Schedule(name="warmup_exp_decay_exp", warmup=100, decay_rate=0.5, decay_steps=10),
            {10: 0.01, 50: 0.25, 100: 1.0, 110: 0.5, 120: 0.25},
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Schedule) else None,
)
def test_rates(peak: float, schedule: Schedule, expected: dict[int, float]) -> None:
    for step, rate in expected.items():
        assert learning_rate(peak, schedule, step) == pytest.approx(rate, rel=1e-12, abs=1e-18)


def test_the_cosine_is_the_one_of_transformers() -> None:
    from transformers import get_cosine_schedule_with_warmup

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    reference = get_cosine_schedule_with_warmup(optimizer, 7, 40)
    for step in range(45):
        ours = learning_rate(0.3, Schedule(name="cosine", warmup=7, total=40), step)
        if step < 40:  # its own rises again
            assert ours == pytest.approx(reference.get_last_lr()[0], rel=1e-12, abs=1e-17)
        optimizer.step()
        reference.step()


def test_every_schedule_has_a_shape_that_starts_without_warm_up() -> None:
    assert set(SHAPES) == set(SCHEDULES)
    for name in SCHEDULES:
        assert learning_rate(0.5, Schedule(name=name, total=10), 0) == 0.5


# --- the keys

FULL = "batch_size = 8\n[case.optimizer]\n{optimizer}\n[case.schedule]\n{schedule}"


def issues(tmp_path: Path, optimizer: str = "", schedule: str = "") -> list[str]:
    case = FULL.format(optimizer=optimizer, schedule=schedule)
    return issues_of(write(tmp_path, case=case))


def test_a_full_recipe_is_read_and_named(tmp_path: Path) -> None:
    optimizer = (
        'name = "lamb-deepspeed"\nlr = 4e-3\nbias_correction = false\nmin_coeff = 0.08\n'
        "max_coeff = 0.5"
    )
    schedule = 'name = "warmup_linear_decay_exp"\nwarmup = 3740\ndecay_rate = 0.9\n'
    schedule += "decay_steps = 1000"
    (case,) = cases(tmp_path, case=FULL.format(optimizer=optimizer, schedule=schedule))
    assert case.optimizer == Optimizer(
        "lamb-deepspeed", lr=4e-3, bias_correction=False, min_coeff=0.08, max_coeff=0.5
    )
    assert case.schedule == Schedule(
        "warmup_linear_decay_exp", warmup=3740, decay_rate=0.9, decay_steps=1000
    )
    assert case.tags == (
        *("nobias", "lr0.004", "maxcoeff0.5", "mincoeff0.08", "lambdeepspeed"),
        *("decay0.9", "per1000", "LE", "warmup3740"),
    )
    assert Case.from_dict(case.to_dict()) == case


def test_a_case_of_an_earlier_version_reads_with_defaults(tmp_path: Path) -> None:
    (case,) = cases(tmp_path)
    data = case.to_dict()
    del data["schedule"]
    for name in ("bias_correction", "max_coeff", "min_coeff"):
        del data["optimizer"][name]
    assert Case.from_dict(data) == case and case.tags == ()


@pytest.mark.parametrize(
    ("optimizer", "schedule", "issue"),
    [
        (
            *("", 'name = "polynomial"'),
            "schedule.total: is missing: the schedule polynomial needs it",
        ),
        (
            *("", 'name = "warmup_exp_decay_poly"\ntotal = 0'),
            "schedule.total: is missing: the schedule warmup_exp_decay_poly needs it",
        ),
        (
            *("", 'name = "warmup_linear_decay_exp"\ndecay_rate = 0.9'),
            "schedule.decay_steps: is missing: the schedule warmup_linear_decay_exp needs it",
        ),
        (
            *("", "warmup = 10"),
            "schedule.warmup: is given, but the schedule does not read it (constant reads"
            " schedule.offset)",
        ),
        (
            *("", 'name = "cosine"'),
            "schedule.total: is missing: the schedule cosine needs it",
        ),
        (
            *("", 'name = "triangle"'),
            "case.schedule.name: \"triangle\" is invalid: write 'constant',"
            " 'polynomial', 'cosine', 'warmup_exp_decay_poly', 'warmup_linear_decay_exp' or"
            " 'warmup_exp_decay_exp'",
        ),
        (
            *("max_coeff = 0.5", ""),
            "optimizer.max_coeff: is given, but only lamb-deepspeed reads it, and this is adamw",
        ),
        (
            *('name = "lamb-deepspeed"\nmin_coeff = 0.8\nmax_coeff = 0.5', ""),
            "optimizer.min_coeff: 0.8 is above max_coeff 0.5",
        ),
        (
            *('name = "sgd"\nbias_correction = false', ""),
            "optimizer.bias_correction: is given, but sgd has none",
        ),
        (
            *('name = "lamb-nvidia"\ngrad_clip = 0', ""),
            "optimizer.grad_clip: must not be 0: lamb-nvidia divides gradients by max(1, global"
            " norm / grad_clip)",
        ),
    ],
)
def test_what_a_recipe_may_not_say(
    tmp_path: Path, optimizer: str, schedule: str, issue: str
) -> None:
    assert issues(tmp_path, optimizer, schedule) == [issue]
