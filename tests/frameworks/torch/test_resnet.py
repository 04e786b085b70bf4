"""The ResNet workload: its arithmetic, its data, and its model against transformers'."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from frameworks import run_checks
from PIL import Image
from places import ROOT, SUPPORT
from resnet_checks import SGD, STEPS, make_case

from dlperf_hpc.analysis.flops import architecture, flops_of_case
from dlperf_hpc.train import make_weights
from dlperf_hpc.train.workloads import resnet50
from dlperf_hpc.train.workloads.resnet50 import SIZES, ResNetConfig, flops_per_sample

if TYPE_CHECKING:
    from torch import Tensor, nn

# Every kind of block: projecting with stride and without, and none of both.
SMALL = ResNetConfig(depths=(2, 1, 2, 1), width=8, classes=50)
SIZE = 64
PLACES = {"convolution": "0", "normalization": "1"}
PARTS = ("reduce", "spatial", "expand")


def theirs_of(config: ResNetConfig, stride_in_first: bool = False) -> nn.Module:
    """transformers' model of this size."""
    import torch
    import transformers

    torch.manual_seed(1)
    settings = transformers.ResNetConfig(
        embedding_size=config.width,
        hidden_sizes=[4 * config.width * 2**stage for stage in range(len(config.depths))],
        depths=list(config.depths),
        layer_type="bottleneck",
        downsample_in_bottleneck=stride_in_first,
        num_labels=config.classes,
    )
    model: nn.Module = transformers.ResNetForImageClassification(settings)
    return model


def our_name(config: ResNetConfig, name: str) -> str:
    """Ours for one of transformers' weights and statistics."""
    name = name.replace("resnet.embedder.embedder", "stem").replace("classifier.1", "classifier")
    found = re.fullmatch(r"resnet\.encoder\.stages\.(\d+)\.layers\.(\d+)\.(.*)", name)
    if found:
        place = sum(config.depths[: int(found[1])]) + int(found[2])
        name = re.sub(r"layer\.(\d)", lambda each: PARTS[int(each[1])], found[3])
        name = f"layers.{place}.{name}"
    return re.sub("|".join(PLACES), lambda each: PLACES[each[0]], name)


def renamed(config: ResNetConfig, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {our_name(config, name): tensor.detach() for name, tensor in named.items()}


def pair(config: ResNetConfig, kind: str = "float32") -> tuple[Any, Any]:
    """Ours with the weights and statistics of transformers', which lie away from 0 and 1."""
    import torch

    from dlperf_hpc.train.torch.resnet import ResNet

    theirs = theirs_of(config)
    with torch.no_grad():
        for name, tensor in theirs.state_dict().items():
            if "normalization" in name and tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor), alpha=0.5)
    ours = ResNet(config)
    ours.load_state_dict(renamed(config, theirs.state_dict()))
    if config.channels_last:
        ours = ours.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    dtype = getattr(torch, kind)
    return ours.to(dtype), theirs.to(dtype)


def images(config: ResNetConfig, size: int = SIZE, number: int = 4) -> tuple[Any, Any, Any]:
    """Images as ours takes them and as theirs does, and labels."""
    import torch

    generator = torch.Generator().manual_seed(3)
    first = torch.randn(number, 3, size, size, generator=generator)
    labels = torch.randint(0, config.classes, (number,), generator=generator)
    return first.permute(0, 2, 3, 1).contiguous() if config.channels_last else first, first, labels


def smoothed(scores: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy with the smoothed target written out (arXiv:1512.00567, section 7)."""
    import torch

    target = torch.full_like(scores, smoothing / scores.shape[1])
    target.scatter_(1, labels[:, None], 1 - smoothing + smoothing / scores.shape[1])
    return -(target * scores.log_softmax(dim=1)).sum(dim=1).mean()


# --- sizes and arithmetic -----------------------------------------------------------------------


def test_the_size_is_the_published_one() -> None:
    """On the meta device: every tensor of transformers' ResNet-50 has its twin here."""
    import torch

    from dlperf_hpc.train.torch.resnet import ResNet

    config = SIZES["resnet50"]
    with torch.device("meta"):
        ours, theirs = ResNet(config), theirs_of(config)
    assert sum(p.numel() for p in ours.parameters()) == 25_557_032
    shapes = {name: each.shape for name, each in renamed(config, theirs.state_dict()).items()}
    assert {name: each.shape for name, each in ours.state_dict().items()} == shapes
    layers: list[Any] = list(ours.layers)
    strides = [each.spatial[0].stride for each in layers if each.spatial[0].stride != (1, 1)]
    assert strides == 3 * [(2, 2)]


@pytest.mark.parametrize(("name", "size"), [("resnet50", 224), ("resnet-tiny", 96)])
def test_flops_are_those_that_torch_counts(name: str, size: int) -> None:
    """On the meta device: shapes alone. Torch computes no gradient of the image."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from dlperf_hpc.train.torch.resnet import ResNet

    config = SIZES[name]
    with torch.device("meta"):
        model = ResNet(config)
        given = torch.zeros(2, size, size, 3), torch.zeros(2, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(*given).backward()
    first = 2 * 7 * 7 * 3 * config.width * (size // 2) ** 2
    assert counter.get_total_flops() == 2 * (flops_per_sample(config, size) - first)


def test_flops_are_those_that_others_logs_are_judged_by() -> None:
    known = architecture("resnet50")
    assert known is not None and flops_per_sample(SIZES["resnet50"], 224) == known.flops(0)
    stated = registered("resnet50").flops_per_sample
    case = replace(make_case("ddp", 1), model="resnet50", options=())
    whole = replace(case, options=(("image_size", 224), *defaults("resnet50")))
    assert stated(whole) == flops_of_case(case) == pytest.approx(24.535e9, rel=1e-4)


def registered(name: str) -> Any:
    from dlperf_hpc.train.registry import registry

    return registry().workloads[name]


def defaults(name: str) -> tuple[tuple[str, Any], ...]:
    options = registered(name).options
    return tuple((each.name, each.default) for each in options if each.name != "image_size")


# --- the model against transformers -------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "channels_last", "kind", "within"),
    [(SIZES["resnet50"], False, "float32", 1e-5), (SMALL, True, "float64", 1e-9)],
)
def test_scores_loss_and_statistics_equal_transformers(
    sizes: ResNetConfig, channels_last: bool, kind: str, within: float
) -> None:
    """ResNet-50 itself, in training and then in evaluation, which reads the statistics. In another
    order of memory sums are rounded otherwise, and normalisations over few numbers magnify that:
    double precision shows that nothing else differs."""
    import torch

    config = replace(sizes, channels_last=channels_last)
    ours, theirs = pair(config, kind)
    for training in (True, False):
        ours.train(training), theirs.train(training)
        mine, other, labels = images(config)
        mine, other = (each.to(getattr(torch, kind)) for each in (mine, other))
        with torch.no_grad():
            found, wanted = ours.scores(ours.features(mine)), theirs(pixel_values=other).logits
            loss = ours.loss_of(ours.features(mine), labels) if not training else None
        assert (found - wanted).abs().max() <= within * wanted.abs().max()
        if loss is not None:
            assert loss.item() == pytest.approx(smoothed(wanted, labels, 0.1).item(), rel=1e-5)
    statistics = renamed(config, theirs.state_dict())
    for name, tensor in ours.named_buffers():
        torch.testing.assert_close(tensor, statistics[name], rtol=within, atol=0.1 * within)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("channels_last", [True, False])
def test_every_gradient_and_two_updates_equal_transformers(
    channels_last: bool, smoothing: float
) -> None:
    """In double precision, with momentum written out; norms and biases without decay."""
    import torch

    from dlperf_hpc.train.torch.optimizers import build_optimizer

    config = replace(SMALL, channels_last=channels_last, label_smoothing=smoothing)
    ours, theirs = pair(config, "float64")
    mine, other, labels = images(config)
    optimizer = build_optimizer(SGD, ours)
    momentum = {name: torch.zeros_like(p) for name, p in theirs.named_parameters()}
    for _ in range(2):
        optimizer.zero_grad(), theirs.zero_grad()
        loss = ours.loss_of(ours.features(mine.double()), labels)
        wanted = smoothed(theirs(pixel_values=other.double()).logits, labels, smoothing)
        # The loss is float32 always, whatever the model is.
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
        loss.backward(), wanted.backward()
        gradients = renamed(config, {n: p.grad for n, p in theirs.named_parameters()})
        for name, parameter in ours.named_parameters():
            scale = gradients[name].abs().max()
            assert (parameter.grad - gradients[name]).abs().max() <= 1e-5 * scale, name
        optimizer.step()
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                decay = 0.0 if "normalization" in name or name.endswith("bias") else 0.1
                momentum[name].mul_(0.9).add_(parameter.grad + decay * parameter)
                parameter.sub_(0.01 * momentum[name])
        for name, tensor in renamed(config, dict(theirs.named_parameters())).items():
            own = ours.get_parameter(name)
            assert (own - tensor).abs().max() <= 1e-5 * tensor.abs().max(), name


def test_a_stride_in_the_first_convolution_is_another_model() -> None:
    """So that the comparison above can tell v1.5 from v1."""
    import torch

    ours, theirs = pair(SMALL)
    other = theirs_of(SMALL, stride_in_first=True)
    other.load_state_dict(theirs.state_dict())
    mine, plain, _ = images(SMALL)
    with torch.no_grad():
        found = ours.eval().scores(ours.features(mine))
        wanted = other.eval()(pixel_values=plain).logits
    assert (found - wanted).abs().max() > 0.01 * wanted.abs().max()


def test_compiled_block_by_block() -> None:
    """As DDP on two ranks would wrap it, by autograd's own compiler; and a gradient."""
    import torch
    from gpt2_session_checks import quick_compiler

    from dlperf_hpc.train.torch.ddp import compiled

    case = make_case("ddp", 2, mode="tuned")
    batch = {name: torch.as_tensor(array) for name, array in resnet50.batch(case, 0).items()}
    found = []
    for plain in (True, False):
        torch.manual_seed(0)
        model = resnet50.WORKLOADS[-1].build("torch", case)
        with quick_compiler():
            loss = (model if plain else compiled(model, case, 2))(**batch)
            loss.backward()
        found.append((loss.detach(), model.stem[0].weight.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_weights_lie_as_the_library_takes_them() -> None:
    import torch

    for framework, options, last in (
        ("ddp", {}, True),
        ("ddp", {"channels_last": False}, False),
        ("ddp", {"optimizer_placement": True}, False),
        ("horovod-torch", {}, False),
    ):
        model = resnet50.WORKLOADS[-1].build("torch", make_case(framework, 1, options=options))
        weight = model.layers[0].spatial[0].weight
        assert weight.is_contiguous(memory_format=torch.channels_last) == last
        assert weight.is_contiguous() != last


# --- trained by DDP -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    script, place = SUPPORT / "resnet_checks.py", tmp_path_factory.mktemp("two")
    generator = np.random.RandomState(5)
    for name, number in (("cat", 7), ("dog", 6)):
        (place / "train" / name).mkdir(parents=True)
        for i in range(number):
            coarse = Image.fromarray(generator.randint(0, 256, (5, 7, 3), dtype=np.uint8))
            coarse.resize((80, 70)).save(place / "train" / name / f"{i}.jpg")
    arguments = ("variants", "window", "folder", str(place / "train"))
    return run_checks("torch", script, place, arguments=arguments)


def by_hand() -> list[list[float]]:
    """Losses of each of two ranks: each normalises its own images, gradients are averaged, and both
    take the same update. Plain PyTorch, with its own SGD."""
    import torch

    cases = make_case("ddp", 2)
    torch.manual_seed(cases.seed)
    models = [resnet50.WORKLOADS[-1].build("torch", cases)]
    models.append(resnet50.WORKLOADS[-1].build("torch", cases))
    models[1].load_state_dict(models[0].state_dict())
    batches = [
        {name: torch.as_tensor(array) for name, array in resnet50.batch(cases, rank).items()}
        for rank in range(2)
    ]
    parameters = [list(model.parameters()) for model in models]
    decayed = [
        [{"params": [p], "weight_decay": 0.1 * (p.ndim > 1)} for p in each] for each in parameters
    ]
    updates = [torch.optim.SGD(groups, lr=0.01, momentum=0.9) for groups in decayed]
    losses: list[list[float]] = [[], []]
    for _ in range(STEPS):
        for rank, model in enumerate(models):
            model.zero_grad()
            loss = model(**batches[rank])
            loss.backward()
            losses[rank].append(loss.item())
        for mine, other in zip(*parameters, strict=True):
            assert mine.grad is not None and other.grad is not None
            mean = (mine.grad + other.grad) / 2
            mine.grad, other.grad = mean, mean.clone()
        for update in updates:
            update.step()
    return losses


def test_two_ranks_train_as_by_hand(two_ranks: Any) -> None:
    wanted = by_hand()
    found = [each["fp32"] for each in two_ranks["variants"]]
    assert wanted[0] != wanted[1]
    for mine, plain in zip(found, wanted, strict=True):
        assert mine == pytest.approx(plain, rel=1e-5)
    assert found[0][0] == pytest.approx(np.log(1000), abs=0.5) and found[0][-1] < found[0][0] - 0.1


def test_ddp_trains_it_alike_in_each_precision_and_order(two_ranks: Any) -> None:
    found = two_ranks["variants"][0]
    for name in ("placed", "colours first"):
        assert found[name] == pytest.approx(found["fp32"], rel=1e-4), name
    assert found["bf16"] == pytest.approx(found["fp32"], rel=2e-2)
    assert found["bf16"] != found["fp32"]
    # The second of two micro-batches is the first again; then comes the step.
    accumulated = found["accumulation"]
    assert accumulated[1] == pytest.approx(accumulated[0]) and accumulated[2] < accumulated[1]


def test_what_a_window_tells_of_it(two_ranks: Any) -> None:
    first, second = two_ranks["window"]
    assert first["weights"] == second["weights"] and first["channels_last"]
    assert first["parameters"] == 1_019_384 == parameters_by_hand()
    size = 4 * first["parameters"]
    wanted = {"attention": None, "parameter_bytes": size, "gradient_bytes": size}
    told = {key: value for key, value in first["execution"].items() if key != "memory_growth_mb"}
    assert told == {**wanted, "optimizer_bytes": size}  # momentum


def test_two_ranks_train_on_a_folder_of_jpegs(two_ranks: Any) -> None:
    first, second = two_ranks["folder"]
    for rank in (first, second):
        inside, outside = rank["inside"], rank["outside"]
        assert inside["losses"] == pytest.approx(outside["losses"], rel=1e-6)
        # 13 images are 6 for each of two ranks.
        facts = {"data_sharing": "samples of each file", "data_samples_per_rank": 6}
        for decode, row in rank.items():
            told = {key: value for key, value in row.items() if key != "losses"}
            facts["data_decoding"] = f"{decode} the window"
            assert told == {**facts, "data_masked": False}
    assert first["inside"]["losses"] != second["inside"]["losses"]


def parameters_by_hand() -> int:
    """Of resnet-tiny: four projecting blocks of 16 to 128 channels within, 64 to 512 behind."""
    total, inputs = 7 * 7 * 3 * 16 + 2 * 16, 16
    for inner in (16, 32, 64, 128):
        outputs = 4 * inner
        total += inputs * inner + 9 * inner**2 + inner * outputs + inputs * outputs
        total += 2 * (inner + inner + outputs + outputs)
        inputs = outputs
    return total + 512 * 1000 + 1000


# --- data, and what is refused ------------------------------------------------------------------


def test_ranks_have_images_of_their_own() -> None:
    case = make_case("ddp", 2, batch_size=64, options={"image_size": 32})
    first, again, other = (resnet50.batch(case, rank) for rank in (0, 0, 1))
    pixels, labels = first["images"], first["labels"]
    assert pixels.shape == (64, 32, 32, 3) and pixels.dtype == np.float32
    assert labels.shape == (64,) and labels.dtype == np.int64
    assert labels.min() >= 0 and 900 < labels.max() < 1000
    assert abs(pixels.mean()) < 0.02 and abs(pixels.std() - 1) < 0.02
    np.testing.assert_array_equal(pixels, again["images"])
    assert np.abs(np.corrcoef(pixels.ravel(), other["images"].ravel())[0, 1]) < 0.02
    case = make_case("ddp", 2, batch_size=64, options={"image_size": 32, "channels_last": False})
    colours_first = resnet50.batch(case, 0)["images"]
    assert colours_first.shape == (64, 3, 32, 32) and colours_first.flags.c_contiguous
    np.testing.assert_array_equal(colours_first[:, 2, 5, 7], pixels[:, 5, 7, 2])


def test_no_file_of_weights_that_nothing_could_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.npz"
    assert make_weights.main(["resnet50", str(path)]) == 2
    assert "resnet50 has no option initial_weights" in capsys.readouterr().err
    assert not path.exists()


def test_declaration_imports_neither_framework_nor_numpy() -> None:
    code = "import sys, dlperf_hpc.train.workloads.resnet50\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"torch", "numpy", "tensorflow"} & set(done.stdout.split())
