"""Model FLOPs, peaks of cards, and what physics says of a throughput."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_samples import case, oks

import dlperf_hpc
from dlperf_hpc.analysis.flops import (
    accelerator_of,
    architecture,
    flops_of_case,
    flops_of_runs,
    flops_per_sample,
    mfu,
    of_physics,
    tflops_per_device,
)
from dlperf_hpc.analysis.machines import ACCELERATORS, CEILING, accelerator, peak
from dlperf_hpc.analysis.speedup import summarise
from dlperf_hpc.model.case import Case, ObservedCase, Topology
from dlperf_hpc.train.registry import registry

V100 = "Tesla V100-SXM2-16GB"


def observed(
    model: str, precision: str, seq_len: int | None = None, topology: str = "1n1g", **changes: Any
) -> ObservedCase:
    values = {"framework": "pytorch", **changes}
    return ObservedCase(
        model=model,
        topology=Topology.parse(topology),
        precision=precision,
        seq_len=seq_len,
        **values,
    )


@pytest.mark.parametrize(
    ("model", "seq_len", "scored", "gflop"),
    [
        ("bert-base", 128, None, "69.9"),
        ("bert-base", 128, 128, "85.5"),
        ("bert-base", 512, None, "301.4"),
        ("bert-large", 128, None, "240.6"),
        ("bert-large", 128, 128, "261.6"),
        ("bert-large", 512, None, "1020.5"),
        ("gpt2-small", 1024, None, "874.9"),
        ("gpt2-medium", 1024, None, "2480.9"),
        ("resnet50", None, None, "24.5"),
    ],
)
def test_flops_per_sample(model: str, seq_len: int | None, scored: int | None, gflop: str) -> None:
    flops = flops_per_sample(model, seq_len, scored)
    assert flops is not None
    assert f"{flops / 1e9:.1f}" == gflop


def test_gpt2_is_6n_and_attention_per_token() -> None:
    layers, heads, size, tokens = 12, 12, 64, 1024
    weights = layers * 12 * 768 * 768 + 50257 * 768
    per_token = 6 * weights + 12 * layers * heads * size * tokens
    assert flops_per_sample("gpt2", tokens) == tokens * per_token
    assert f"{per_token / 1e9:.3f}" == "0.854"
    assert f"{(flops_per_sample('gpt2-medium', 1024) or 0) / 1024e9:.3f}" == "2.423"


@pytest.mark.parametrize(("model", "stride_in_3x3"), [("resnet50", True), ("resnet50_v1", False)])
def test_resnet50_layer_by_layer(model: str, stride_in_3x3: bool) -> None:
    macs, side, channels = 112 * 112 * 64 * 3 * 7 * 7, 56, 64
    for stage, (blocks, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512))):
        for block in range(blocks):
            out = side // 2 if block == 0 and stage else side
            macs += (side if stride_in_3x3 else out) ** 2 * channels * width
            macs += out * out * width * (9 * width + 4 * width)
            macs += out * out * channels * 4 * width if block == 0 else 0
            side, channels = out, 4 * width
    assert flops_per_sample(model, None) == 6.0 * (macs + 2048 * 1000)


def test_every_workload_of_ours_counts_as_it_declares() -> None:
    declared = registry()
    for name, workload in declared.workloads.items():
        options = tuple((option.name, option.default) for option in workload.options)
        for seq_len in {workload.default_seq_len, workload.max_seq_len, 33}:
            of = Case("ddp", name, Topology(1, 1), "fp32", 4, seq_len, options=options)
            if architecture(name) is None:
                continue  # of a new model only the log tells
            assert flops_of_case(of) == workload.flops_per_sample(of), (name, seq_len)


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("bert", "bert-base"),
        ("BERT_base", "bert-base"),
        ("bert-base-adam-training", "bert-base"),
        ("bert-base-uncased", "bert-base"),
        ("google-bert/bert-large-uncased", "bert-large"),
        ("gpt-2", "gpt2-small"),
        ("GPT2_medium", "gpt2-medium"),
        ("rn50", "resnet50"),
        ("r50", "resnet50"),
        ("ResNet-50", "resnet50"),
        ("resnet50-v1.5", "resnet50"),
    ],
)
def test_other_names(name: str, same_as: str) -> None:
    assert architecture(name) is not None
    assert architecture(name) == architecture(same_as)


@pytest.mark.parametrize(
    "name",
    ["", "base", "large", "training", "gpt", "albert", "roberta-base", "bert-base-chinese",
     "resnet", "resnet101", "resnet50v2", "insightface-r50", "opt-1.3b", "gpt2-7b", "bert" * 10**5],
)  # fmt: skip
def test_unknown_models(name: str) -> None:
    assert flops_per_sample(name, 128) is None


@pytest.mark.parametrize("seq_len", [None, 0, -1, 10**400])
def test_no_flops_without_a_length(seq_len: int | None) -> None:
    assert flops_per_sample("bert-base", seq_len) is None
    assert flops_per_sample("gpt2", seq_len) is None


def test_head_on_every_position_where_the_framework_does_so() -> None:
    gathered, every = (
        flops_of_case(observed("bert-base", "fp16", 128, framework=framework))
        for framework in ("deepspeed", "transformers")
    )
    assert every == flops_per_sample("bert-base", 128, 128)
    assert gathered == flops_per_sample("bert-base", 128, 20)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM2e", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("A100-SXM-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("Tesla V100-SXM2-16GB", "V100 SXM"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe"),
        ("Tesla P100-PCIE-16GB", "P100 PCIe"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300A", "MI300A"),
        ("AMD Instinct MI355X", "MI355X"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA H800 PCIe", "H800 PCIe"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA L20", "L20"),
        ("NVIDIA A800-SXM4-80GB", "A800"),
        ("NVIDIA A800 80GB PCIe", "A800"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Workstation",
        ),
        ("v100", "V100 SXM"),
        ("H100", "H100 SXM"),
        ("V100 32g", "V100 SXM"),
    ],
)
def test_cards_by_name(name: str, known: str) -> None:
    found = accelerator(name)
    assert found is not None
    assert found.name == known


@pytest.mark.parametrize(
    "name",
    ["", "cpu", "NVIDIA", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA A100-SXM-64GB",
     "GRID A100-10C", "NVIDIA H100 SXM5 96GB", "Tesla V100-SXM3-32GB", "AMD Instinct MI250X",
     "AMD EPYC 7763", "NVIDIA GeForce RTX 3090", "H100 PCIe SXM", "A100 V100", "x" * 10**6,
     "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA RTX A5000", "RTX",
     "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA A800 40GB Active", "NVIDIA H20-3e",
     "Quadro RTX 6000", "NVIDIA RTX 6000"],
)  # fmt: skip
def test_unknown_cards(name: str) -> None:
    assert accelerator(name) is None
    assert peak(name, "fp32") is None


def test_peaks() -> None:
    assert peak(V100, "fp32") == 15.7
    assert peak(V100, "FP16") == peak(V100, "amp") == 125.0
    assert peak(V100, "tf32") is None
    assert peak(V100, "bf16") is None
    assert peak("NVIDIA A100-SXM4-80GB", "fp32") == 19.5
    assert peak("NVIDIA A100-SXM4-80GB", "tf32") == 156.0
    assert peak("NVIDIA H100 80GB HBM3", "bfloat16") == 989.0
    assert peak("NVIDIA RTX A6000", "bf16") == 154.8
    assert peak("NVIDIA H20", "fp8") == 2 * 148.0
    assert peak("AMD Instinct MI355X", "tf32") is None
    assert peak("NVIDIA H200", "") is None
    assert peak("NVIDIA H200", "int4") is None


def test_every_card_is_found_by_its_own_name_and_has_sane_peaks() -> None:
    for known in ACCELERATORS:
        assert accelerator(known.name) == known
        order = [known.tflops.get(name) for name in ("fp32", "tf32", "fp16", "fp8")]
        peaks = [value for value in order if value is not None]
        assert peaks == sorted(peaks)
        assert known.tflops.get("bf16", known.tflops["fp16"]) == known.tflops["fp16"]


def test_published_fp32_figure_that_no_v100_can_reach() -> None:
    # NVIDIA DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md: 19 sequences/s
    of = observed("bert-large", "fp32", 512)
    (found,) = of_physics(of, 19.0, V100)
    assert found.name == "over-peak"
    assert "19.39 TFLOPS per device" in found.note
    assert "1020.5 GFLOP per sequence of 512 tokens, padding included" in found.note
    assert "123.5 % of the dense fp32 peak of V100 SXM, 15.7: impossible" in found.note
    assert "mixed precision" in found.note
    assert "TF32" not in found.note
    # its twin in TensorFlow 2 is possible
    assert of_physics(of, 11.06, V100) == []
    assert mfu(of, 11.06, V100) == pytest.approx(0.719, abs=5e-4)


@pytest.mark.parametrize(
    ("of", "speed", "device", "tflops", "share"),
    [
        (observed("bert", "fp16", 128), 619.73, V100, 43.3, 0.347),
        (observed("bert-base", "fp32", 128), 152.32, "V100", 10.7, 0.68),
        (observed("bert-large", "tf32", 128), 317, "NVIDIA A100-SXM4-80GB", 76.3, 0.49),
        (observed("bert-large", "fp16", 512), 210, "A100", 214, 0.69),
        (observed("gpt2-small", "amp", 1024, "1n8g"), 239, V100, 26.1, 0.21),
    ],
)
def test_mfu_of_published_figures(
    of: ObservedCase, speed: float, device: str, tflops: float, share: float
) -> None:
    assert tflops_per_device(of, speed) == pytest.approx(tflops, rel=5e-3)
    assert mfu(of, speed, device) == pytest.approx(share, abs=6e-3)
    assert of_physics(of, speed, device) == []


def test_near_peak_lies_between_the_ceiling_and_the_peak() -> None:
    of, device = observed("bert-large", "bf16", 512, "2n8g"), "NVIDIA H100 80GB HBM3"
    whole = 16 * 989e12 / (flops_of_case(of) or 0)

    def flags(share: float) -> list[str]:
        return [flag.name for flag in of_physics(of, share * whole, device)]

    assert flags(CEILING - 1e-6) == []
    assert flags(CEILING + 1e-6) == ["near-peak"]
    assert flags(1 - 1e-9) == ["near-peak"]
    assert flags(1 + 1e-9) == ["over-peak"]


def test_fp32_over_the_peak_where_tf32_may_have_been_on() -> None:
    (found,) = of_physics(observed("bert-large", "fp32", 128), 317, "A100")
    assert "TF32 (it would be 48.9 % of that peak, 156)" in found.note
    ours = case(model="bert-large", seq_len=128)  # it checks its precision
    assert "TF32" not in of_physics(ours, 317, "A100")[0].note


def test_published_figures_against_the_peak() -> None:
    over, fp32_of_a100 = set(), []
    path = Path(dlperf_hpc.__file__).parent / "published" / "published.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "samples_per_s"]
    for row in rows:
        nodes, devices, speed = int(row["nodes"]), int(row["devices"]), float(row["value"])
        device = "A100" if "A100" in row["hardware"] else "V100"
        seq_len = 128 if row["model"] == "bert-base" else None
        of = observed(row["model"], row["precision"], seq_len, f"{nodes}n{devices // nodes}g")
        flags = [flag.name for flag in of_physics(of, speed, device)]
        if device == "A100" and row["precision"] == "fp32":
            fp32_of_a100.append((row["model"], bool(flags)))
        elif flags:
            over.add((row["repository"], row["path"], speed))
    # a digit too many: other versions of the two tables have 408.70 and 12061.6
    perf = "PaddlePaddle/Perf"
    assert over == {
        (perf, "ResNet50V1.5/OtherReports/TensorFlow/README.md", 4108.7),
        (perf, "Bert/OtherReports/PyTorch/README.md", 112061.6),
    }
    # columns headed FP32 that hold TF32 figures
    of_bert = [flagged for model, flagged in fp32_of_a100 if model == "bert-base"]
    assert of_bert
    assert all(of_bert)


def test_images_have_no_tokens() -> None:
    (found,) = of_physics(observed("rn50", "fp32"), 700, V100)
    assert "per image of 224 x 224" in found.note
    assert "Winograd" in found.note


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf"), 1e308])
def test_no_figures_from_no_speed(speed: float) -> None:
    of = observed("bert-large", "fp32", 512)
    assert tflops_per_device(of, speed) is None
    assert mfu(of, speed, V100) is None
    assert of_physics(of, speed, V100) == []


def test_no_finding_without_all_four() -> None:
    whole = observed("bert-large", "fp32", 512)
    assert of_physics(whole, 1e6, V100)
    for of in (
        replace(whole, model="mystery"),
        replace(whole, seq_len=None),
        replace(whole, precision=""),
    ):
        assert of_physics(of, 1e6, V100) == []
        assert mfu(of, 1e6, V100) is None
    assert of_physics(whole, 1e6, None) == []
    assert of_physics(whole, 1e6, "cpu") == []
    assert mfu(whole, 1e6, None) is None
    assert tflops_per_device(whole, 1e6) is not None  # which needs no card


def test_the_card_is_what_the_logs_name() -> None:
    first, second = oks(case("1n2g"), 100.0, 101.0)

    def on(*names: Any) -> list[Any]:
        facts = [{"world": {"device_name": name}, "ranks": []} for name in names]
        return [replace(first, facts=facts[0]), replace(second, facts=facts[-1])]

    assert accelerator_of([first, second]) is None
    assert accelerator_of([first, second], "V100") == "V100"
    assert accelerator_of(on("NVIDIA H200"), "V100") == "NVIDIA H200"
    assert (
        accelerator_of(on("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"))
        == "NVIDIA A100-SXM4-40GB"
    )
    assert accelerator_of(on("NVIDIA H100 PCIe", "NVIDIA H200"), "H200") is None
    assert accelerator_of(on("cpu")) == "cpu"
    assert accelerator_of(on(17), "V100") == "V100"


def test_ranks_on_different_cards_have_no_card() -> None:
    (run,) = oks(case("1n2g"), 100.0)
    ranks = [{"rank": 0, "device_name": "Tesla T4"}, {"rank": 1, "device_name": V100}]
    facts = {"world": {"device_name": "Tesla T4", "ranks_differ": True}, "ranks": ranks}
    assert accelerator_of([replace(run, facts=facts)]) is None
    assert accelerator_of([replace(run, facts={"world": None, "ranks": [None, 3]})]) is None


def test_what_a_workload_states_goes_before_its_name() -> None:
    """A model that nobody knows by name has FLOPs, TFLOPS and an over-peak flag all the same."""
    runs = oks(case(model="mystery"), 100.0, 101.0, 99.0)

    def stating(*told: Any) -> list[Any]:
        pairs = zip(runs, told)
        return [replace(r, facts={"flops_per_sample": t} if t else {}) for r, t in pairs]

    assert flops_of_runs(runs) is None and flops_of_runs([]) is None
    assert flops_of_runs(stating(2e9, 2e9, 2e9)) == 2e9
    assert flops_of_runs(stating(2_000_000_000, None, 2e9)) == 2e9  # one is of an earlier version
    assert flops_of_runs(stating(2e9, 3e9, 2e9)) is None
    for damaged in ("2e9", -1.0, float("inf"), float("nan"), 10**400, True, [2e9]):
        assert flops_of_runs(stating(damaged)) is None
    (summary,) = summarise(stating(2e12, 2e12, 2e12), accelerator="V100")
    assert summary.tflops_per_device == pytest.approx(200)
    assert summary.mfu == pytest.approx(200 / 15.7) and "over-peak" in summary.flags
    known = oks(case(model="bert-large"), 100.0)
    by_name = flops_of_case(known[0].run.case)
    assert by_name is not None and flops_of_runs(known) == by_name
    assert flops_of_runs([replace(known[0], facts={"flops_per_sample": 1e9})]) == 1e9
