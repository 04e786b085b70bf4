"""Each optimizer of the PyTorch back ends against formulas written out in NumPy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import optimizer_references as reference
import pytest
import torch
from optimizer_references import Trajectory, apart, expected, plain

from dlperf_hpc.errors import RunError
from dlperf_hpc.model.case import OPTIMIZERS, Case, Optimizer, Schedule, Topology
from dlperf_hpc.train.torch import optimizers
from dlperf_hpc.train.torch.optimizers import (
    Lamb,
    build_optimizer,
    forget_steps,
    pass_scaling_on,
    set_lr,
)

LAMBS = [name for name in reference.NAMES if name.startswith("lamb")]


class Model(torch.nn.Module):
    """The samples as parameters; reversed, so that nothing rests on their order."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        for i, weight in reversed(list(enumerate(reference.weights()))):
            self.register_parameter(f"w{i}", torch.nn.Parameter(torch.tensor(weight, dtype=kind)))

    def ordered(self) -> list[torch.nn.Parameter]:
        return [self.get_parameter(f"w{i}") for i in range(len(reference.weights()))]

    def hold(self, gradients: list[Any]) -> None:
        for parameter, gradient in zip(self.ordered(), gradients, strict=True):
            parameter.grad = torch.as_tensor(gradient, dtype=parameter.dtype).clone()

    def values(self) -> list[list[float]]:
        return plain([p.detach().numpy() for p in self.ordered()])


def torch_trajectory(name: str, correction: bool, kind: torch.dtype) -> Trajectory:
    model = Model(kind)
    optimizer = build_optimizer(Optimizer(**reference.settings(name, correction)), model)
    seen = []
    for raw, rate in zip(reference.gradients(), reference.RATES):
        model.hold(raw)
        torch.nn.utils.clip_grad_norm_(model.parameters(), reference.CLIP, foreach=True)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        seen.append(model.values())
    return seen


def test_all_names_have_a_reference() -> None:
    assert set(reference.NAMES) == set(OPTIMIZERS)


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("name", reference.NAMES)
@pytest.mark.parametrize(("kind", "bound"), [(torch.float64, 5e-6), (torch.float32, 2e-5)])
def test_pytorch_follows_the_reference(
    name: str, correction: bool, kind: torch.dtype, bound: float
) -> None:
    """clip_grad_norm_ adds 1e-6 to the norm; all else in double precision is exact, see below."""
    found = torch_trajectory(name, correction, kind)
    assert apart(found, expected(name, correction)) < bound


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("name", reference.NAMES)
def test_pytorch_is_the_reference_in_double_precision(name: str, correction: bool) -> None:
    model = Model(torch.float64)
    optimizer = build_optimizer(Optimizer(**reference.settings(name, correction)), model)
    seen = []
    for raw, rate in zip(reference.gradients(), reference.RATES):
        model.hold(reference.clipped(raw))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        seen.append(model.values())
    assert apart(seen, expected(name, correction)) < 1e-12


def test_the_samples_tell_the_variants_apart() -> None:
    """A test that would pass for another variant, or without bounds, is none."""
    trajectories = {(name, on): expected(name, on) for name in LAMBS for on in (True, False)}
    keys = list(trajectories)
    for i, one in enumerate(keys):
        for other in keys[i + 1 :]:
            assert apart(trajectories[one], trajectories[other]) > 1e-3, (one, other)


@pytest.mark.parametrize("name", reference.NAMES)
def test_an_overflow_leaves_everything_as_it_was(name: str) -> None:
    """Through GradScaler, as the fp16 sessions do it: parameters, moments, step count."""

    def train(overflows: list[bool]) -> tuple[list[list[float]], list[int]]:
        model = Model(torch.float32)
        optimizer = build_optimizer(Optimizer(**reference.settings(name)), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, backoff_factor=1.0 - 2.0**-20)
        good, skipped = iter(reference.gradients()), []
        for overflow in overflows:
            scale = float(scaler.scale(torch.ones(())))
            raw = reference.gradients()[0] if overflow else next(good)
            model.hold([g * scale for g in raw])
            if overflow:
                for parameter, bad in zip(model.ordered(), (math.inf, -math.inf, math.nan)):
                    parameter.grad.view(-1)[0] = bad  # type: ignore[union-attr]
            scaler.step(optimizer)
            skipped.append(int(sum(scaler._found_inf_per_device(optimizer).values())))
            scaler.update()
        return model.values(), skipped

    whole, skipped = train([True, False, False, True, False])
    assert skipped == [1, 0, 0, 1, 0]
    assert apart([whole], [train([False, False, False])[0]]) < 1e-6


def test_lamb_never_asks_the_scaler_on_the_host() -> None:
    """GradScaler reads found_inf back, which waits, for optimizers that do not say this."""
    assert Lamb([torch.nn.Parameter(torch.ones(2))])._step_supports_amp_scaling


@pytest.mark.parametrize("name", reference.NAMES)
@pytest.mark.parametrize("correction", [True, False])
def test_a_saved_optimizer_goes_on_where_it_was(name: str, correction: bool) -> None:
    def stepped(model: Model, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for raw in reference.gradients()[first:last]:
            model.hold(raw)
            optimizer.step()

    settings = Optimizer(**reference.settings(name, correction))
    whole, parts = Model(torch.float64), Model(torch.float64)
    stepped(whole, build_optimizer(settings, whole), 0, 5)
    before = build_optimizer(settings, parts)
    stepped(parts, before, 0, 3)
    after = build_optimizer(settings, parts)
    after.load_state_dict(before.state_dict())
    stepped(parts, after, 3, 5)
    assert parts.values() == whole.values()


def test_a_saved_counter_of_lamb_goes_to_where_the_parameters_are() -> None:
    """A checkpoint is read into host memory, and torch moves an optimizer's states alone."""
    saved = Lamb([torch.nn.Parameter(torch.ones(2))])
    saved.param_groups[0]["params"][0].grad = torch.ones(2)
    saved.step()
    elsewhere = torch.ones(2, device="meta")  # any device but the CPU will do
    after = Lamb([torch.nn.Parameter(elsewhere)])
    after.load_state_dict(saved.state_dict())
    (group,) = after.param_groups
    assert group["steps"].device.type == "cpu"
    steps = optimizers._counter(group, elsewhere)
    assert steps is group["steps"] and steps.device.type == "meta"
    assert optimizers._counter(saved.param_groups[0], torch.ones(2)).item() == 1


@pytest.mark.parametrize("name", reference.NAMES)
def test_an_optimizer_that_forgets_begins_anew(name: str) -> None:
    settings = Optimizer(**reference.settings(name, True))
    used, fresh = Model(torch.float64), Model(torch.float64)
    again, new = build_optimizer(settings, used), build_optimizer(settings, fresh)
    used.hold([torch.zeros_like(p).numpy() for p in used.ordered()])
    for group in again.param_groups:
        group.update(lr=0.0)
    again.step()  # as DeepSpeed's of zero gradients, in bf16 and fp16
    forget_steps(again)
    for mine, theirs in zip(again.param_groups, new.param_groups):
        mine.update(lr=theirs["lr"])
    for raw in reference.gradients():
        for model, optimizer in ((used, again), (fresh, new)):
            model.hold(raw)
            optimizer.step()
    assert used.values() == fresh.values()


@pytest.mark.parametrize("name", reference.NAMES)
def test_one_that_a_library_makes_anew_still_takes_the_scaler_s_tensors(name: str) -> None:
    """torch's fused optimizers are marked when they are made, which Horovod's own are not."""
    settings = Optimizer(**reference.settings(name, True))
    own = build_optimizer(settings, Model(torch.float32))
    remade = type(own)(own.param_groups)  # type: ignore[call-arg]
    pass_scaling_on(own, remade)
    assert own._step_supports_amp_scaling and remade._step_supports_amp_scaling  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["adamw", "lamb-deepspeed"])
def test_settings_survive_in_the_groups_alone(name: str) -> None:
    """Horovod makes an optimizer of its own class from nothing but ``param_groups``."""
    settings = Optimizer(**reference.settings(name, False))
    first, second = Model(torch.float64), Model(torch.float64)
    optimizer, other = build_optimizer(settings, first), build_optimizer(settings, second)
    again = type(other)(other.param_groups)  # type: ignore[call-arg]
    for raw in reference.gradients():
        for model, each in ((first, optimizer), (second, again)):
            model.hold(raw)
            each.step()
    assert first.values() == second.values()


def test_the_learning_rate_follows_the_schedule() -> None:
    schedule = Schedule(name="polynomial", warmup=2, total=10, power=1.0, offset=0.5)
    case = Case(
        *("ddp", "bert-tiny", Topology(1, 1), "fp32", 1, 8),
        optimizer=Optimizer(lr=2.0),
        schedule=schedule,
    )
    optimizer = build_optimizer(case.optimizer, Model(torch.float32))
    for step, rate in enumerate([0.5, 1.5, 2.1, 1.9]):
        set_lr(optimizer, case, step)
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(rate) and isinstance(group["lr"], float)


def test_a_beta_that_hides_no_bias_correction_is_refused() -> None:
    settings = Optimizer(beta2=0.999999, bias_correction=False)
    with pytest.raises(RunError, match=r"betas below 0\.999995 in PyTorch, not 0\.999999"):
        build_optimizer(settings, Model(torch.float32))
    build_optimizer(replace(settings, beta2=0.99999), Model(torch.float32))
