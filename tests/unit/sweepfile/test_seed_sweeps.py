"""The sweeps of published tables: each plans exactly the rows of its table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

SWEEPS = ROOT / "sweeps"


def cases(name: str, **overrides: object) -> list[Case]:
    return list(load_sweep(SWEEPS / f"{name}.toml", registry(), overrides).cases)


def rows(name: str) -> Counter[str]:
    """How many cases a sweep has on each topology."""
    return Counter(str(case.topology) for case in cases(name))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert_fp32", {"1n1g": 2, "1n4g": 2, "1n8g": 2, "2n8g": 2, "4n8g": 2}),
        ("bert_fp16", {"1n1g": 3, "1n4g": 3, "1n8g": 3, "2n8g": 3, "4n8g": 3}),
        ("tf2_bert", dict.fromkeys(("1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g"), 11)),
        ("gpt2_optimizer_placement", {"1n8g": 4, "2n8g": 2, "4n8g": 2}),
        ("bert_large_lamb_16k", dict.fromkeys(("1n1g", "1n16g", "2n16g", "4n16g"), 4)),
        ("ngc_tf_bert_lamb", dict.fromkeys(("1n1g", "1n8g", "4n8g"), 4)),
    ],
)
def test_a_sweep_plans_the_rows_of_its_table(name: str, expected: dict[str, int]) -> None:
    assert rows(name) == expected


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_sweep_says_what_it_is_and_holds(path: Path) -> None:
    sweep = load_sweep(path, registry())
    assert path.read_text().startswith("# ") and not sweep.notes
    series = {case.series for case in sweep.cases}
    for name in series:  # one curve with its base, and no case split off by a tag
        topologies = [str(case.topology) for case in sweep.cases if case.series == name]
        assert (sweep.base in topologies and len(topologies) > 1) or "b1_" in name or "bz1/" in name


def test_the_seed_of_2020_as_run_has_its_accumulation() -> None:
    """1024 / GPUs micro-steps for each update, against 120 of them in all."""
    for name in ("bert_fp32_as_run", "bert_fp16_as_run"):
        found = {(case.topology.devices, case.accumulation) for case in cases(name)}
        assert found == {(1, 1024), (4, 256), (8, 128), (16, 64), (32, 32)}
        assert {case.accumulation for case in cases(name.removesuffix("_as_run"))} == {1}


def test_accumulation_follows_from_the_global_batch() -> None:
    for case in cases("ngc_tf_bert_lamb"):
        assert case.accumulation == 65536 // case.batch_size // case.topology.devices
    for case in cases("bert_large_lamb_16k"):
        adam = case.optimizer.name == "adamw"
        assert case.global_batch == (4096 if adam else 16384)
        assert adam or (case.optimizer.min_coeff, case.optimizer.max_coeff) == (0.08, 0.5)
    rates = {c.seq_len: c.optimizer.lr for c in cases("bert_large_lamb_16k") if c.schedule.warmup}
    assert rates == {128: 4e-3, 512: 1e-3}


def test_cases_that_the_command_line_made_equal_are_one() -> None:
    sweep = load_sweep(SWEEPS / "tf2_bert.toml", registry(), {"batch_size": 8})
    assert len(sweep.cases) == 2 * 2 * 6  # precision, xla, topologies
    assert "--set made 48 cases equal to others: 24 are left" in sweep.notes
