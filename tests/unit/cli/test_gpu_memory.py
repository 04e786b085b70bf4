"""What a dry run says of memory, and what a sweep refuses for it, before anything is submitted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from dlperf_hpc.__main__ import main
from dlperf_hpc.model.case import Case, Optimizer, Topology
from dlperf_hpc.sweepfile.declarations import Memory
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

LLAMA_1B, LLAMA_8B = 1_235_814_400, 8_030_261_248  # parameters
GIB = 2**30
H100 = 81_559  # MiB, as nvidia-smi prints it
SWEEP = """\
topologies = ["1n1g", "1n4g", "2n4g"]
base = "1n1g"
repeats = 1
[case]
framework = "ddp"
model = "llama3-8b"
batch_size = 1
precision = "bf16"
checkpoint_activations = true
"""


def need(framework: str, nodes: int = 1, gpus: int = 4, **changes: Any) -> Memory:
    model = changes.pop("model", "llama3-8b")
    options = {each.name: each.default for each in registry().options(framework, model)}
    options.update(changes.pop("options", {}))
    values = {"precision": "bf16", "batch_size": 1, "seq_len": 8192, **changes}
    pairs = tuple(options.items())
    found = registry().memory(
        Case(framework, model, Topology(nodes, gpus), options=pairs, **values)
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("framework", "changes", "each"),
    [
        ("ddp", {}, 16),  # fp32: parameters 4, gradients 4, two moments of Adam 8
        ("ddp", {"precision": "fp32"}, 16),
        ("ddp", {"precision": "fp16"}, 16),
        ("ddp", {"optimizer": Optimizer("sgd")}, 12),
        ("ddp", {"optimizer": Optimizer("sgd", beta1=0.0)}, 8),
        ("ddp", {"options": {"optimizer_placement": True}}, 10),  # 8 on four ranks
        ("horovod-torch", {}, 16),
        ("fsdp", {}, 4),  # 16 on four ranks
        ("fsdp", {"nodes": 2}, 2),
        ("fsdp", {"nodes": 2, "options": {"shard": "node"}}, 4),
        ("fsdp", {"accumulation": 8}, 7),  # 4 whole gradients, 12 on four ranks
        ("deepspeed", {"precision": "fp32"}, 16),
        ("deepspeed", {}, 20),  # bf16 2 + 2, copies and their gradients 4 + 4, moments 8
        ("deepspeed", {"options": {"zero_stage": 1}}, 6),  # 2 whole, 16 on four ranks
        ("deepspeed", {"options": {"zero_stage": 1}, "accumulation": 2}, 7),  # 2 + 2 whole, 12
        ("deepspeed", {"options": {"zero_stage": 2}, "accumulation": 2}, 6),
    ],
)
def test_bytes_for_each_parameter_of_llama_8b(
    framework: str, changes: dict[str, Any], each: int
) -> None:
    found = need(framework, **changes)
    assert found.certain == each * LLAMA_8B
    assert found.about >= found.certain


def test_stage_3_holds_its_bucket_besides() -> None:
    found = need("deepspeed", options={"zero_stage": 3})
    assert found.certain == 5 * LLAMA_8B + 2 * 500_000_000  # 20 on four ranks; 5e8 numbers in bf16


def test_an_estimate_by_hand() -> None:
    """Llama 3.2 1B, DDP, bf16, two sequences of 8192 tokens on one GPU: a layer keeps for a token
    two inputs of norms in fp32, and in bf16 inputs of h, h, h and f, q k v, q k turned, and 3 f."""
    h, keys, f, tokens, vocab = 2048, 512, 8192, 16_384, 128_256
    layer = 4 * 2 * h + 2 * (3 * h + f + (h + 2 * keys) + (h + keys) + 3 * f)
    kept = tokens * (16 * layer + (4 + 2) * h + 2 * vocab) + 2**28
    found = need("ddp", 1, 1, model="llama3-1b", batch_size=2)
    assert found.about == 18 * LLAMA_1B + kept  # copies of the weights in bf16: 2
    assert found.about / GIB == pytest.approx(50.8, abs=0.05)
    again = need(
        "ddp", 1, 1, model="llama3-1b", batch_size=2, options={"checkpoint_activations": 1}
    )
    assert found.about - again.about == tokens * (15 * layer - 16 * 4 * h)


def test_what_has_no_formula_has_no_number() -> None:
    options = {each.name: each.default for each in registry().options("tensorflow", "bert-base")}
    values: dict[str, Any] = {"precision": "fp32", "batch_size": 8, "seq_len": 128}
    case = Case("tensorflow", "bert-base", Topology(1, 1), options=tuple(options.items()), **values)
    assert registry().memory(case) is None
    options = {each.name: each.default for each in registry().options("deepspeed", "bert-base")}
    options["deepspeed_config"] = "/shared/ds.json"  # it may offload
    case = Case("deepspeed", "bert-base", Topology(1, 1), options=tuple(options.items()), **values)
    assert registry().memory(case) is None


@pytest.fixture
def dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Runs a dry run with a GPU of so many MiB; its exit code and what it printed."""
    monkeypatch.delenv("DLPERF_SITE", raising=False)
    (tmp_path / "mine.toml").write_text(SWEEP, encoding="utf-8")

    def run(mib: int | None, *words: str, site: str = "") -> tuple[int, str, str]:
        text = site or (f"gpu_memory_mib = {mib}\n" if mib else "")
        (tmp_path / "site.toml").write_text(text, encoding="utf-8")
        given = [str(tmp_path / name) for name in ("mine.toml", "site.toml", "logs")]
        argv = ["sweep", given[0], "--site", given[1], "--logs", given[2], "--cluster", "local"]
        code = main([*argv, *words])
        printed = capsys.readouterr()
        assert not (tmp_path / "logs").exists()
        return code, printed.out, printed.err

    return run


def test_a_case_that_cannot_fit_is_refused_with_where_it_would(dry: Any) -> None:
    """16 bytes x 8 030 261 248 are 119.7 GiB; fsdp's share on four GPUs is a quarter of that."""
    for words in (["--dry-run"], []):
        code, out, err = dry(H100, *words)
        assert code == 2 and out == "" and err.count("cases: ") == 1
        assert "ddp/llama3-8b/bz1/bf16-checkpointactivations on 1n1g, 1n4g, 2n4g needs 119.7" in err
        assert "gpu_memory_mib of the site profile says 79.65 (spread them over more GPUs" in err
    code, out, err = dry(H100, "--dry-run", "--set", "framework=fsdp")
    assert code == 2 and "on 1n1g needs 119.7 GiB" in err and "1n4g" not in err
    code, out, err = dry(H100, "--dry-run", "--set", "framework=fsdp", "--only", "1n4g,2n4g")
    assert code == 0 and re.search(r" 1n4g +29\.9 +about 34\.1 of 79\.65\n", out)
    assert re.search(r" 2n4g +15 +about 22\.9 of 79\.65\n", out) and "warning" not in out


def test_an_estimate_above_the_memory_is_a_warning(dry: Any) -> None:
    words = ("--dry-run", "--set", "framework=fsdp", "--only", "1n4g", "--set", "batch_size=16")
    code, out, _ = dry(H100, *words)
    assert code == 0 and "warning: 1 case may run out of memory by this estimate" in out
    code, out, _ = dry(None, *words)
    assert code == 0 and "warning" not in out and re.search(r" 29\.9 +about \d+\.?\d*\n", out)


def test_without_a_known_memory_nothing_is_refused(dry: Any) -> None:
    code, out, _ = dry(None, "--dry-run")
    assert code == 0 and re.search(r"1n1g, 1n4g, 2n4g +120 +about \d+\n", out)
    code, out, _ = dry(H100, "--dry-run", "--set", "device=cpu")
    assert code == 0 and "memory of a GPU" not in out


def test_what_has_no_formula_has_a_dash(dry: Any) -> None:
    code, out, err = dry(None, "--dry-run", "--set", "deepspeed_config=/x.json", "--set",
                         "framework=deepspeed")  # fmt: skip
    assert code == 0 and re.search(r"1n1g, 1n4g, 2n4g +- +-\n", out), err


def test_scripts_get_bytes(dry: Any) -> None:
    code, out, _ = dry(None, "--dry-run", "--json", "--only", "1n4g", "--set", "framework=fsdp")
    (row,) = json.loads(out)["memory"]
    found = need("fsdp", options={"checkpoint_activations": True})
    assert code == 0 and row == {
        "case": "fsdp/llama3-8b/bz1/1n4g/llama3-8b_b1_bf16-checkpointactivations",
        "certain_bytes": found.certain,
        "about_bytes": found.about,
    }


@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"80G"', "true", "10000000"])
def test_a_memory_that_is_none_is_refused(dry: Any, value: str) -> None:
    code, _, err = dry(None, "--dry-run", site=f"gpu_memory_mib = {value}\n")
    assert code == 2 and "gpu_memory_mib: " in err


@pytest.mark.parametrize(("name", "mib"), [("h100_llama", 81_559), ("h200_llama", 143_771)])
def test_our_sweeps_of_llama_fit_by_the_estimate(name: str, mib: int) -> None:
    """On the cards that they are named for."""
    for case in load_sweep(ROOT / "sweeps" / f"{name}.toml", registry()).cases:
        found = registry().memory(case)
        assert found is not None and found.about < mib * 2**20, case.id


def test_the_page_compares_the_estimate_with_what_was_measured() -> None:
    """bert-tiny, fp32, 64 tokens, one rank of DDP on an H200: peaks of docs/gpu.md."""
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d\.\d\d) \|$", page, re.MULTILINE)
    gpu = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    seen = re.search(r"(\d+), (\d+), (\d+) MiB predict \d+; found (\d+)", gpu)
    assert seen and [row[1] for row in rows] == list(seen.groups())
    for batch, measured, predicted, ratio in rows:
        found = need("ddp", 1, 1, model="bert-tiny", precision="fp32", seq_len=64,
                     batch_size=int(batch))  # fmt: skip
        assert int(predicted) == round(found.about / 2**20)
        assert float(ratio) == round(int(measured) / (found.about / 2**20), 2)


BAD = {
    "shard": ('shard = "three"', "case.shard: \"three\" is invalid: write 'all' or 'node'"),
    "degree": ("shard = 3", "case.shard: 3 is invalid: write 'all' or 'node'"),
    "ranks": ("processes_per_node = 3", "fsdp runs one process per GPU, 4 on each node"),
    "zero": ("zero_stage = 3", "zero_stage: is no option of fsdp or llama3-8b"),
    "heads": ("key_heads = 64", "case.key_heads: unknown key 'key_heads'"),
}


@pytest.mark.parametrize("key", BAD)
def test_what_fsdp_and_llama_lack_is_a_sentence(dry: Any, tmp_path: Path, key: str) -> None:
    line, sentence = BAD[key]
    text = SWEEP.replace('"ddp"', '"fsdp"') + line + "\n"
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    code, out, err = dry(None)
    assert code == 2 and out == "" and sentence in err
