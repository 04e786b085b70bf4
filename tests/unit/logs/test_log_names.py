"""What the path of somebody's log says about its run."""

from __future__ import annotations

import os
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlperf_hpc.logs.names import facts_of_path, variant_of_path
from dlperf_hpc.logs.scanned import FACTS
from dlperf_hpc.model.case import Case, Run, Topology, fitting, tag

REAL_LOGS = os.environ.get("DLPERF_REAL_LOGS")
SWEEPS = ("mxnet_rn50", "ngc_tf_bert", "ngc_tf_rn50", "nvidia_pyt_bert", "nvidia_pyt_rn50",
          "paddle", "tf2_resnet50")  # fmt: skip
SHORT = {
    "fw": "framework",
    "n": "nodes",
    "g": "gpus_per_node",
    "b": "batch_size",
    "p": "precision",
    "r": "repeat",
}


def told(path: str) -> dict[str, Any]:
    """The facts; a name that is there twice has a list."""
    values: dict[str, list[Any]] = {}
    for fact in facts_of_path(path):
        assert fact.line == 0
        assert type(fact.value) is FACTS[fact.name]
        values.setdefault(fact.name, []).append(fact.value)
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def facts(**given: Any) -> dict[str, Any]:
    return {SHORT.get(name, name): value for name, value in given.items()}


DLPERF = [  # suite by suite, as its scripts write them
    (
        "./logs/tensorflow/bert/bz32/4n8g/bert_b32_fp16_2.log",
        facts(fw="tensorflow", model="bert", p="fp16", n=4, g=8, b=32, r=2),
        (),
    ),
    (
        "../logs/tensorflow/resnet50/1n1g/rn50_b128_fp32_1.log",
        facts(fw="tensorflow", model="rn50", p="fp32", n=1, g=1, b=128, r=1),
        (),
    ),
    (
        "../logs-fp16/deepspeed/bert/bz64/2n8g/bert_b64_fp16_5.log",
        facts(fw="deepspeed", model="bert", p="fp16", n=2, g=8, b=64, r=5),
        (),
    ),
    (
        "logs/oct/deepspeed/gpt2-small/bz16/1n1g/gpt2-small_b16_fp16_4.log",
        facts(fw="deepspeed", model="gpt2-small", p="fp16", n=1, g=1, b=16, r=4),
        (),
    ),
    (
        "../logs//ngc/tensorflow/bert/bz48/1n8g/bert_b48_fp32_3.log",
        facts(fw="tensorflow", model="bert", p="fp32", n=1, g=8, b=48, r=3),
        ("ngc",),
    ),
    (
        "/workspace/scripts/fp32_ngc/pytorch/1n2g/r50_b128_fp32_1.log",
        facts(fw="pytorch", model="r50", p="fp32", n=1, g=2, b=128, r=1),
        ("ngc",),
    ),
    (  # automatic mixed precision is not a precision
        "/workspace/scripts/j5_amp_ngc/pytorch/4n8g/r50_b256_amp_3.log",
        facts(fw="pytorch", model="r50", n=4, g=8, b=256, r=3),
        ("amp", "ngc"),
    ),
    (
        "fp16_ngc_bert_b96/pytorch/4n8g/bert-base-adam-training_b96_fp16_1.log",
        facts(fw="pytorch", model="bert-base-adam-training", p="fp16", n=4, g=8, b=96, r=1),
        ("ngc",),
    ),
    (
        "logs/ngc/mxnet/resnet50/bz256/1n4g/r50_b256_fp16_1.log",
        facts(fw="mxnet", model="r50", p="fp16", n=1, g=4, b=256, r=1),
        ("ngc",),
    ),
    (
        "./logs/mxnet/bert/bz32/4n8g/bert_b32_fp32_7.log",
        facts(fw="mxnet", model="bert", p="fp32", n=4, g=8, b=32, r=7),
        (),
    ),
    (
        "./logs/paddle/bert/bz64/4n8g/bert_b64_fp32_6.log",
        facts(fw="paddle", model="bert", p="fp32", n=4, g=8, b=64, r=6),
        (),
    ),
    (
        "./logs/mindspore/resnet50/bz256/1n1g/rn50_b256_fp16_1.log",
        facts(fw="mindspore", model="rn50", p="fp16", n=1, g=1, b=256, r=1),
        (),
    ),
    (
        "logs/oneflow/1n8g/bert_base_b24_fp32_0.log",
        facts(fw="oneflow", model="bert_base", p="fp32", n=1, g=8, b=24, r=0),
        (),
    ),
    (
        "1208-test-10-oneflow-gpt2-small_fp16_2n8g_bz4_on.log",
        facts(fw="oneflow", model="gpt2-small", p="fp16", n=2, g=8, b=4),
        ("on",),
    ),
    (  # a micro-batch of a replica that has two devices is no device's
        "pretrain_gpt_4n8d_dp16_mp2_pp1_mbz8_gbz128_s2048_l24_h2304_nh24.log",
        facts(model="gpt", n=4, g=8, global_batch=128, seq_len=2048),
        ("mp2", "pp1", "mbs8", "l24", "h2304", "nh24"),
    ),
    (  # the last number is the node's rank
        "test_logs/megatron_lm_perf_2n8g_dp16_mp1_pp1_mbs2_gbs32_l16_hsz1536_ahs16_pretrain_1.log",
        facts(fw="megatron", n=2, g=8, b=2, global_batch=32),
        ("mp1", "pp1", "l16", "hsz1536", "ahs16"),
    ),
    (
        "./logs/20201209-test_zero_gpt2-small_1n8g_bz4_zero_stage2_off_checkpoint_activation.log",
        facts(model="gpt2-small", n=1, g=8, b=4),
        ("zero", "zero2", "off", "checkpoint", "activation"),
    ),
    (
        "r100_fp32_b115_oneflow_model_parallel_True_partial_fc_False/r100/1n1g/r100_b115_fp32_5.log",
        facts(fw="oneflow", model="r100", p="fp32", n=1, g=1, b=115, r=5),
        ("model", "parallel", "true", "partial", "fc", "false"),
    ),
    (
        "logs-20201216-ratio-1.0/mxnet/partial_fc/bz64/1n4g/r100_b64_fp32_3.log",
        facts(fw="mxnet", model="r100", p="fp32", n=1, g=4, b=64, r=3),
        ("partial-fc",),
    ),
]
OTHERS = [  # published beside DLPerf
    (
        "tf_bert_pretraining_lamb_base_fp16_bs96_gpu1.log",
        facts(fw="tensorflow", model="bert", p="fp16", devices=1, b=96),
        ("lamb", "base"),
    ),
    (
        "pytorch_gpu8_fp32_bs256.txt",
        facts(fw="pytorch", p="fp32", devices=8, b=256),
        (),
    ),
    (
        "PaddleClas_ResNet50_bs256_fp32_DP_N1C8_log",
        facts(fw="paddle", model="ResNet50", p="fp32", n=1, g=8, b=256),
        ("paddleclas", "dp"),
    ),
    (
        "PaddleNLP_bert_base_seqlen128_bs96_fp16_DP_N1C8_log",
        facts(fw="paddle", model="bert_base", p="fp16", n=1, g=8, b=96, seq_len=128),
        ("paddlenlp", "dp"),
    ),
    (
        "base_bs96_fp32_gpu32.log",
        facts(p="fp32", devices=32, b=96),
        ("base",),
    ),
    (
        "bert_base_lamb_pretraining.pyt_bert_pretraining_phase1_fp16_bs96_gpu8.log",
        facts(fw="pytorch", model="bert_base", p="fp16", devices=8, b=96),
        ("lamb", "phase1"),
    ),
    (
        "deepspeed/opt-1.3b-globalBatchSize128.log",
        facts(fw="deepspeed", model="opt-1.3b", global_batch=128),
        (),
    ),
    (  # the folder is named, the file is not
        "1n1g/LibAI_gpt2_nl24_hs1024_FP16_acfalse_mp1_pp1_mb6_gb12_1n1g_20220705_0712/output.log",
        facts(model="gpt2", p="fp16", n=1, g=1, b=6, global_batch=12),
        ("libai", "nl24", "hs1024", "acfalse", "mp1", "pp1"),
    ),
    (
        "efficientnet_b4_b32_fp32_1.log",
        facts(model="efficientnet-b4", p="fp32", b=32, r=1),
        (),
    ),
]


@pytest.mark.parametrize(("path", "expected", "variant"), DLPERF + OTHERS)
def test_every_known_pattern_is_read(
    path: str, expected: dict[str, Any], variant: tuple[str, ...]
) -> None:
    assert told(path) == expected
    assert variant_of_path(path) == variant
    assert facts_of_path(PurePosixPath(path)) == facts_of_path(path)
    for packed in (f"{path}.gz", f"{path}.zst", f"{path}.xz", f"all.zip!{path}"):
        assert facts_of_path(packed) == facts_of_path(path)


@pytest.mark.parametrize(("folder", "n", "g"), [("16n8g", 16, 8), ("1n16g", 1, 16)])
def test_topologies_of_more_than_one_digit(folder: str, n: int, g: int) -> None:
    found = told(f"logs/bz32/{folder}/bert_b32_fp32_1.log")
    assert (found["nodes"], found["gpus_per_node"]) == (n, g)


def test_variants_that_dlperf_would_take_for_one_run() -> None:
    names = (
        "bert_b32_fp32_1", "bert_b32_fp16_1", "bert_b32_fp32_xla_1", "bert_b32_amp_1",
        "bert_b32_fp32_lamb_1", "bert_b32_fp32_noxla_1", "bert_b32_fp32_zero_stage1_1",
        "bert_b32_fp32_zero_stage2_1", "bert_b32_fp32_foo_1", "bert_b32_fp32_foo_224_1",
    )  # fmt: skip
    paths = [f"bz32/1n1g/{name}.log" for name in names]
    seen = {(facts_of_path(path), variant_of_path(path)) for path in paths}
    assert len(seen) == len(names)
    assert all(told(path)["repeat"] == 1 for path in paths)


def test_xla_on_and_off() -> None:
    for words, tags in (("xla", ("xla",)), ("xla_true", ("xla", "true")), ("use_xla", ("xla",))):
        assert told(f"bert_b32_fp32_{words}_1.log")["xla"] is True
        assert variant_of_path(f"bert_b32_fp32_{words}_1.log") == tags
    for words in ("noxla", "no_xla", "xla_false"):
        assert told(f"bert_b32_fp32_{words}_1.log")["xla"] is False
        assert variant_of_path(f"bert_b32_fp32_{words}_1.log") == ()


def test_a_contradiction_is_told_with_the_files_word_first() -> None:
    found = told("logs-fp16/tensorflow/bert/bz32/1n8g/rn50_b64_fp32_1.log")
    assert found["batch_size"] == [64, 32]
    assert found["precision"] == ["fp32", "fp16"]
    assert found["model"] == ["rn50", "bert"]
    assert told("2n8g/bert_b32_fp16_1n8g_1.log")["nodes"] == [1, 2]


def test_two_names_of_one_model_are_no_contradiction() -> None:
    assert told("mxnet/resnet50/bz64/1n1g/r50_b64_fp32_1.log")["model"] == "r50"
    assert told("paddle/bert/bz64/1n1g/bert_base_b64_fp32_1.log")["model"] == "bert_base"
    assert told("paddle/bert-large/bz64/1n1g/bert-base_b64_fp32_1.log")["model"] == [
        "bert-base",
        "bert-large",
    ]


def test_frameworks_on_one_another_are_no_contradiction() -> None:
    path = "pytorch/1n8g/megatron_deepspeed_gpt_bs4_fp16.log"
    assert told(path)["framework"] == "megatron"
    assert variant_of_path(path) == ("deepspeed",)
    assert told("horovod_tf2_bert_b32_fp32_1.log")["framework"] == "tensorflow"
    assert told("horovod_bert_b32_fp32_1.log")["framework"] == "horovod"


@pytest.mark.parametrize(
    "path",
    [
        "/home/bert/train.log",
        "/scratch/tensorflow/stdout.txt",
        "/home/b32user/slurm-123456_1.out",
        "b32b_fp32x_11n1gg.log",
        "/data/deepspeed/adam/server.log",
        "",
        "/",
        "..",
        ".gz",
        "zip!",
    ],
)
def test_other_peoples_words_are_no_facts(path: str) -> None:
    assert told(path) == {}
    assert variant_of_path(path) == ()


def test_folders_are_read_only_as_far_as_they_are_a_layout() -> None:
    assert told("/home/b32user/1n1g/out.log") == facts(n=1, g=1)
    assert told("/home/megatron/1n1g/out.log") == facts(n=1, g=1)
    assert told("/tensorflow/my/own/1n1g/out.log") == facts(n=1, g=1)
    assert told("/bz8/a/b/c/d/e/f/1n1g/out.log") == facts(n=1, g=1)
    assert told("logs/mxnet/my-net/bz8/1n2g/out.log") == facts(
        fw="mxnet", model="my-net", n=1, g=2, b=8
    )


def test_numbers_that_count_nothing() -> None:
    for path in ("0n0g/bert_b999999999999_fp32.log", "00n8g/bert_b0_fp32.log"):
        assert told(path) == facts(model="bert", p="fp32")
    assert told("bert_b32_fp32_" + "9" * 5000 + ".log").get("repeat") is None
    assert "nodes" not in told(f"{'9' * 3000}n8g/x.log")


def test_data_parallel_size_is_no_variant() -> None:
    """The data parallel size follows from the devices and the other sizes."""
    name = "megatron_lm_perf_{}_mp2_pp2_mbs2_gbs32.log".format
    for nodes, size in ((2, 4), (4, 8)):
        assert variant_of_path(name(f"{nodes}n8g_dp{size}")) == ("mp2", "pp2", "mbs2")


def test_our_own_names_say_what_the_case_was() -> None:
    tags = [
        tag("acc", 4), tag("compile", True), tag("env", "Torch_2/a"), tag("lr", 1e-5),
        tag("beta1", 0.95), tag("seq", 64), tag("", "adam"),
    ]  # fmt: skip
    case = Case("ddp", "my_net.v2", Topology(12, 16), "bf16", 4, 64, 4, tags=fitting(tags))
    path = f"out/bert-fp16/{Run(case, 103).id}"
    expected = facts(
        fw="ddp", model="my_net.v2", p="bf16", n=12, g=16, b=4, accumulation=4, seq_len=64, r=103
    )
    variant = tuple(each for each in tags if each not in ("acc4", "seq64"))
    assert told(f"{path}.log") == expected
    assert variant_of_path(f"{path}.log") == variant
    earlier = PurePosixPath(path).parent / "attempts" / f"{PurePosixPath(path).name}.attempt1.log"
    assert told(str(earlier)) == expected
    assert variant_of_path(earlier) == variant


@given(st.lists(st.sampled_from(
    ["b32", "fp32", "_", "-", "/", ".", "!", ".zip!", "bert", "1n8g", "xla", "zero", "9" * 20, "mp",
     "mbs2", "pp", "gpt", "opt", "٣", "²", "é", "\n", "\x00", "\udcff", "on", "stage1", "vit", "gz"]
), max_size=30).map("".join) | st.text(max_size=60))  # fmt: skip
@example("bert_b²_fp32_٣.log")
@example("_b32_fp32_1.log")
def test_no_name_is_too_odd(path: str) -> None:
    told(path)
    variant = variant_of_path(path)
    assert len(set(variant)) == len(variant)
    assert all(each and each.isprintable() for each in variant)


@pytest.mark.parametrize(
    "unit", ["b1_", "bert_b1_", "a_1_", "mbs2_pp2_", "zero_", "b32_fp32_", "_"]
)
def test_long_names_take_no_time(unit: str) -> None:
    name = unit * (100_000 // len(unit))
    start = time.process_time()
    facts_of_path(name)
    variant_of_path(f"{name}.log")
    assert time.process_time() - start < 2


@pytest.mark.skipif(not REAL_LOGS, reason="DLPERF_REAL_LOGS is not set")
def test_names_of_real_logs() -> None:
    root = Path(str(REAL_LOGS))
    found = {
        path.relative_to(root).as_posix(): told(str(path))
        for path in root.rglob("*")
        if path.is_file()
    }
    assert found["mxnet_rn50/mxnet_gpu8_fp32_bs128.txt"] == facts(
        fw="mxnet", model="rn50", p="fp32", devices=8, b=128
    )
    assert found["paddle/base_bs96_fp32_gpu32.log"] == facts(
        fw="paddle", p="fp32", devices=32, b=96
    )
    for path, said in found.items():
        folder = path.split("/")[0]
        if folder in SWEEPS and not path.endswith(".json"):
            assert {"framework", "precision", "batch_size"} <= said.keys(), path
            assert ("devices" in said) != ("nodes" in said), path
        assert not any(isinstance(value, list) for value in said.values()), path
    for nodes, gpus in ((1, 1), (2, 8)):
        for repeat in range(1, 6):
            path = f"tf2_resnet50/{nodes}n{gpus}g/rn50_b128_fp32_{repeat}.log"
            assert found[path] == facts(
                fw="tensorflow", model="rn50", p="fp32", n=nodes, g=gpus, b=128, r=repeat
            )
