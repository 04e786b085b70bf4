"""The DeepSpeed back end: what it tells DeepSpeed of a case, and its sessions on two ranks.

The sessions are ``deepspeed_checks``, run once in DeepSpeed's own environment and judged here.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frameworks import run_checks
from optimizer_references import apart, expected
from places import BUSY, SUPPORT
from reference_curve import communication_is_measured

from dlperf_hpc.engines.base import clean_environment
from dlperf_hpc.errors import SpecError
from dlperf_hpc.model.case import Case, Optimizer, Topology
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.backends.deepspeed import configuration, generate, merge
from dlperf_hpc.train.registry import registry

SCRIPT = SUPPORT / "deepspeed_checks.py"
STAGES = (0, 1, 2, 3)
Found = dict[str, list[dict[str, Any]]]


def make_case(**changes: Any) -> Case:
    known = registry().options("deepspeed", "bert-tiny")
    options = {option.name: option.default for option in known}
    options.update(changes.pop("options", {}))
    values: dict[str, Any] = {"precision": "fp32", "batch_size": 32, "seq_len": 64, **changes}
    pairs = tuple(sorted(options.items()))
    return Case("deepspeed", "bert-tiny", Topology(2, 4), options=pairs, **values)


# --- what DeepSpeed is told ---------------------------------------------------------------------


def test_a_case_in_deepspeeds_keys() -> None:
    settings = Optimizer(grad_clip=0.5)
    case = make_case(
        precision="bf16", accumulation=4, optimizer=settings, options={"zero_stage": 2}
    )
    assert generate(case) == {
        "train_batch_size": 32 * 8 * 4,
        "train_micro_batch_size_per_gpu": 32,
        "gradient_accumulation_steps": 4,
        "managed_gradient_accumulation": True,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "fp16": {"enabled": False},
        "bf16": {"enabled": True},
        "steps_per_print": None,
        "timers": {"throughput": {"enabled": False}},
    }


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_precision(precision: str) -> None:
    config = generate(make_case(precision=precision))
    enabled = {kind for kind in ("bf16", "fp16") if config[kind]["enabled"]}
    assert enabled == {precision} & {"bf16", "fp16"}
    assert config["fp16"].get("loss_scale", 0) == 0, "a dynamic loss scale"


def test_its_timer_runs_only_if_it_prints() -> None:
    config = generate(make_case(options={"steps_per_print": 5}))
    assert (config["steps_per_print"], config["timers"]["throughput"]["enabled"]) == (5, True)
    assert config["log_level"] == "info", "or nothing would be seen of it"


def test_a_users_file_is_followed_where_the_sweep_says_nothing() -> None:
    given = {
        "train_batch_size": 32 * 8,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": 1.0,
        "prescale_gradients": True,
        "zero_optimization": {"overlap_comm": True},
        "fp16": {"enabled": False, "initial_scale_power": 8},
        "scheduler": {},
        "elasticity": {"enabled": False},
    }
    config, issues = merge(given, make_case(options={"zero_stage": 1}))
    assert issues == []
    assert config["prescale_gradients"] is True
    assert config["zero_optimization"] == {"stage": 1, "overlap_comm": True}
    assert config["fp16"] == {"enabled": False, "initial_scale_power": 8}
    assert config["train_micro_batch_size_per_gpu"] == 32
    assert not {"scheduler", "elasticity"} & config.keys()
    assert given["train_micro_batch_size_per_gpu"] == "auto", "what was given is left as it was"


CONTRADICTIONS = [
    ({"train_batch_size": 64}, "train_batch_size: is 64 in this file, 256 by the sweep"),
    ({"train_micro_batch_size_per_gpu": 8}, "is 8 in this file, 32 by the sweep (batch_size)"),
    ({"gradient_accumulation_steps": 2}, "is 2 in this file, 1 by the sweep (accumulation)"),
    ({"gradient_clipping": 0.1}, "is 0.1 in this file, 1.0 by the sweep (optimizer.grad_clip)"),
    ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage: is 3 in this file, 0 by the"),
    ({"fp16": {"enabled": True}}, "fp16.enabled: is true in this file, false by the sweep (prec"),
    ({"bfloat16": {"enabled": True}}, "bf16.enabled: is true in this file, false by the sweep"),
    ({"zero_optimization": 1}, 'zero_optimization: is 1 in this file, {"stage": 0} by the sweep'),
    ({"steps_per_print": 10}, "steps_per_print: is 10 in this file, null by the sweep"),
    ({"scheduler": {"type": "WarmupLR"}}, "scheduler: is refused: the learning rate's schedule"),
    ({"torch_autocast": {"enabled": True}}, "torch_autocast: is refused: precision is the sweep's"),
    (
        {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}},
        "optimizer.type: is 'Adam' in this file, which is adam; adamw by the sweep",
    ),
    ({"optimizer": {"type": "Lamb"}}, "is 'Lamb' in this file, which is lamb-deepspeed; adamw by"),
    (
        {"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}},
        "optimizer.params.lr: is 0.1 in this file, 0.0001 by the sweep (optimizer.lr)",
    ),
    (
        {"optimizer": {"type": "AdamW", "params": {"freeze_step": 4}}},
        "optimizer.params.freeze_step: is 4 in this file, null by the sweep",
    ),
]


@pytest.mark.parametrize(("given", "message"), CONTRADICTIONS)
def test_a_contradiction_names_both_values(given: dict[str, Any], message: str) -> None:
    _, issues = merge(given, make_case())
    assert len(issues) == 1
    assert message in str(issues[0])


def test_all_contradictions_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 1, "bf16": {"enabled": True}}))
    with pytest.raises(SpecError) as caught:
        configuration(make_case(options={"deepspeed_config": str(file)}))
    assert len(caught.value.issues) == 2
    assert str(caught.value).startswith(f"{file}: 2 errors")


def test_the_tutorials_own_files_fit_a_sweep_like_them() -> None:
    """DeepSpeed's bing_bert: BERT with Adam, and BERT-large with LAMB."""
    adam = {
        "train_batch_size": 32 * 8,
        "steps_per_print": 1000,
        "prescale_gradients": False,
        "optimizer": {
            "type": "Adam",
            "params": {"lr": 1e-4, "weight_decay": 0.01, "bias_correction": False},
        },
        "gradient_clipping": 1.0,
        "wall_clock_breakdown": False,
        "fp16": {"enabled": True, "loss_scale": 0},
    }
    coefficients = {"max_coeff": 0.5, "min_coeff": 0.08}
    values = {"lr": 4e-3, "weight_decay": 0.01, "bias_correction": False, **coefficients}
    lamb = {**adam, "optimizer": {"type": "Lamb", "params": {**values, "max_grad_norm": 1.0}}}
    options = {"steps_per_print": 1000}
    first = Optimizer("adamw", bias_correction=False)
    second = Optimizer("lamb-deepspeed", lr=4e-3, bias_correction=False, **coefficients)
    for given, settings in ((adam, first), (lamb, second)):
        case = make_case(precision="fp16", optimizer=settings, options=options)
        config, issues = merge(given, case)
        assert issues == []
        assert "optimizer" not in config and config["prescale_gradients"] is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[1]", "must hold one JSON object"),
        ('{"bf16": {}, "bf16": {}}', "cannot be read: bf16 is there twice"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "ds.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SpecError, match=message):
        configuration(make_case(options={"deepspeed_config": str(file)}))


SWEEP = """
topologies = ["1n2g"]
base = "1n2g"
[case]
framework = "deepspeed"
model = "bert-tiny"
batch_size = 8
"""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('precision = "fp16"\ndevice = "cpu"', "precision: fp16 needs a GPU: a CPU only"),
        ('zero_stage = 1\noptimizer.name = "lamb"', "zero_stage: 1 is invalid for lamb"),
        ("zero_stage = 3\ncompile = true", "zero_stage: 3 is invalid with compile"),
        ("zero_stage = 4", "case.zero_stage: 4 is invalid"),
        ("global_batch = 64\nzero_stage = 3", ""),
        (
            'deepspeed_config = "ds.json"\nglobal_batch = 64',
            "deepspeed_config: ds.json: train_batch_size: is 32 in this file, 64 by the sweep",
        ),
        ('deepspeed_config = "ds.json"\naccumulation = 2', ""),
        (
            'deepspeed_config = "broken.json"',
            "deepspeed_config: broken.json: deepspeed_config: can",
        ),
        ('deepspeed_config = "/on/compute/nodes/only.json"', ""),
    ],
)
def test_a_sweep_is_refused_before_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 32, "zero_optimization": {}}')
    (tmp_path / "broken.json").write_text("{")
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP + lines)
    if not message:
        assert len(load_sweep(path, registry()).cases) == 1
        return
    with pytest.raises(SpecError) as caught:
        load_sweep(path, registry())
    (issue,) = caught.value.issues
    assert str(issue).startswith(message)


def test_zero_belongs_to_deepspeed(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.replace("deepspeed", "ddp") + "zero_stage = 1")
    with pytest.raises(SpecError, match="zero_stage: is no option of ddp or bert-tiny"):
        load_sweep(path, registry())


def test_the_declaration_imports_no_framework() -> None:
    code = "import sys, dlperf_hpc.train.backends.deepspeed\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60 * BUSY, check=True
    )
    assert not {"torch", "numpy", "deepspeed"} & set(done.stdout.split())


def test_a_python_without_deepspeed_says_so() -> None:
    """In the tests' own environment, which has torch and no DeepSpeed."""
    code = (
        "import torch\n"
        "from dlperf_hpc.train.torch.deepspeed import import_deepspeed\n"
        "from dlperf_hpc.train.ranks import World\n"
        "import_deepspeed(World(0, ('here',)), torch.device('cpu'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120 * BUSY,
        check=False,
    )
    assert done.returncode == 1
    assert f"RunError: DeepSpeed cannot be imported by {sys.executable}" in done.stderr
    assert "name an environment that has it" in done.stderr


# --- sessions on two ranks ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found, by check."""
    return run_checks("deepspeed", SCRIPT, tmp_path_factory.mktemp("deepspeed"), timeout=540)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("name", "steps"), [("plain", 11), ("accumulation", 4)])
def test_losses_are_those_of_ddp(found: Found, name: str, steps: int, stage: int) -> None:
    for row in found[name]:
        losses, counts, moved, parameters = row[f"zero {stage}"]
        assert losses == pytest.approx(row["ddp"], rel=1e-5)
        assert losses[-1] < losses[0] - 0.5, "it learns, or this tests nothing"
        assert counts == [steps, 0] and moved
        fewer = (30_528 - 1024) * 129  # of the vocabulary, which has 1024 words in the checks
        assert parameters == 4_434_242 - fewer, "also where each rank holds a part"


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb-deepspeed"])
def test_every_optimizer_is_that_of_ddp(found: Found, name: str) -> None:
    for row in found["optimizers"]:
        curves = dict(row[name])
        expected = curves.pop("ddp")
        assert curves
        for losses, *_ in curves.values():
            assert losses == pytest.approx(expected, rel=1e-5)
            assert losses[-1] < losses[0]


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_trains_nearly_alike(found: Found, stage: int) -> None:
    """Also the first steps: DeepSpeed's own step of zero gradients must not count."""
    for row, first in zip(found["half"], found["plain"]):
        losses, counts, kinds = row[f"zero {stage}"]
        assert kinds == ["torch.bfloat16"] and counts == [4, 0]
        assert losses[::2] == pytest.approx(first["ddp"][:5], rel=2e-3)


def test_lamb_in_bf16_corrects_from_its_first_step(found: Found) -> None:
    """DeepSpeed's own step of zero gradients is not among those that the correction counts."""
    for row in found["lamb_in_half"]:
        assert row["before"] == [None, None] and row["counted"] == [5, 5]
        assert row["zero 0"] == pytest.approx(row["ddp"], rel=5e-3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp16", "DeviceError: precision fp16 needs a GPU"),
        ("tf32", "DeviceError: precision tf32 needs an NVIDIA GPU"),
        ("lamb", "zero_stage: 1 is invalid for lamb"),
        ("compile", "zero_stage: 3 is invalid with compile"),
        ("file", "train_micro_batch_size_per_gpu: is 64 in this file, 2 by the sweep"),
    ],
)
def test_refused_before_the_window(found: Found, name: str, message: str) -> None:
    for row in found["refused"]:
        assert message in row[name]


def test_a_users_own_file_reaches_the_engine(found: Found) -> None:
    for row in found["users_own_file"]:
        assert row["bucket"] == 12345
        assert row["told"]["zero_optimization"]["reduce_bucket_size"] == 12345
        assert row["told"]["train_batch_size"] == 4
        assert row["losses"][1] < row["losses"][0]


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(("window", "iterations", "steps"), [("timed", 5, 3), ("again", 4, 2)])
def test_a_window(found: Found, window: str, iterations: int, steps: int, stage: int) -> None:
    """After a warm-up of 3 with accumulation 2, five iterations hold three optimizer steps."""
    for row in found["a_window"]:
        timed = row[f"zero {stage}"][window]
        assert timed["iterations"] == len(timed["step_times"]) == len(timed["losses"]) == iterations
        assert (timed["optimizer_steps"], timed["skipped_steps"]) == (steps, 0)
        assert timed["moved"] and timed["memory_mb"] > 100
        assert all(math.isfinite(loss) for loss in timed["losses"])
        assert 0 < sum(timed["step_times"]) <= timed["elapsed_s"]


def test_the_all_reduce_is_left_out_and_its_share_measured(found: Found) -> None:
    """Not under ZeRO, where there is no step without it."""
    communication_is_measured([row["zero 0"] for row in found["a_window"]])
    assert [row["zero 3"]["communication"] for row in found["a_window"]] == [None, None]


def test_facts(found: Found) -> None:
    for row in found["a_window"]:
        facts = row["zero 3"]["facts"]
        assert facts["deepspeed"] and facts["device"] == "cpu" and facts["threads"] == 1
        assert json.loads(facts["deepspeed_json"])["zero_optimization"] == {"stage": 3}


@pytest.mark.parametrize("stage", [0, 1])
def test_training_goes_on_from_a_checkpoint(found: Found, stage: int) -> None:
    """Parameters, optimizer and dropout: the new session gives what the first one gave."""
    for row in found["checkpoints"]:
        curves = row[f"zero {stage}"]
        assert curves["again"] == curves["on"]
        assert curves["again"] != curves["first"]


@pytest.mark.parametrize("stage", [0, 3])
def test_checkpointed_activations_change_no_number(found: Found, stage: int) -> None:
    for row in found["activation_checkpointing"]:
        assert row[f"zero {stage}, True"] == row[f"zero {stage}, False"]


@pytest.mark.parametrize("stage", [0, 2])
def test_compiled_trains_alike(found: Found, stage: int) -> None:
    for row, plain in zip(found["compiled"], found["plain"]):
        assert row[f"graphs {stage}"] >= 1
        assert row[f"zero {stage}"] == pytest.approx(plain["ddp"][:4], rel=1e-5)


def test_deepspeeds_own_lamb_is_the_reference(tmp_path: Path) -> None:
    found = run_checks("deepspeed", SUPPORT / "deepspeed_lamb_checks.py", tmp_path, ranks=1)
    for correction in (True, False):
        # It takes gradients and weights in single precision.
        assert apart(found[str(correction)], expected("lamb-deepspeed", correction)) < 2e-6
