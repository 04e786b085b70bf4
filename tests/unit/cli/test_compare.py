"""``compare`` as a command: exit codes for gates, tables that fit, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from record_samples import a_sweep, ended, ended_ok, many
from report_samples import case, external, tokens

from dlperf_hpc import __main__
from dlperf_hpc.analysis import comparison
from dlperf_hpc.cli import compare
from dlperf_hpc.errors import printable
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import Status
from dlperf_hpc.published import FILTERS
from dlperf_hpc.reporting.comparison_tables import comparison_json, comparison_markdown

CASES = [case("1n1g"), case("1n2g")]
Done = subprocess.CompletedProcess[str]


def run(*arguments: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    argv = [str(argument) for argument in arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = compare.main(argv)
        except SystemExit as exit_:
            code = exit_.code  # type: ignore[assignment]
    return Done(argv, code, out.getvalue(), err.getvalue())


def sweep(root: Path, factor: float = 1.0, runs: int = 5, cases: list[Case] = CASES) -> Path:
    """A sweep of which every run ended ok; ``factor`` is on the time that it takes."""
    a_sweep(root, many(cases, runs))
    for i, each in enumerate(many(cases, runs)):
        ended_ok(root, each, seconds=0.05 * factor * (1 + 0.001 * (i % 5)))
    return root


def verdicts(done: Done) -> list[str]:
    return [each["verdict"] for each in json.loads(done.stdout)["cases"]]


def test_an_option_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    """The device's name is for figures that a comparison does not show."""
    done = run(tmp_path, tmp_path, "--accelerator", "V100")
    assert done.returncode == 2 and "there is no option --accelerator" in done.stderr
    assert "--accelerator" not in run("--help").stdout


@pytest.mark.parametrize(
    ("factor", "code", "verdict"),
    [(1.0001, 0, "same"), (1.1, 1, "slower"), (0.9, 0, "faster")],
)
def test_verdicts_and_exit_codes(tmp_path: Path, factor: float, code: int, verdict: str) -> None:
    done = run(sweep(tmp_path / "a"), sweep(tmp_path / "b", factor), "--json")
    assert done.returncode == code
    told = json.loads(done.stdout)
    assert told["schema"] == "dlperf-compare/1" and told["verdicts"][verdict] == 2
    first = told["cases"][0]
    assert first["ratio"] == pytest.approx(1 / factor)
    assert first["ratio_low"] <= first["ratio"] <= first["ratio_high"]
    assert first["error"] == pytest.approx(12 / 252)
    assert first["of_medians_coverage"] == 0.9375**2
    assert (first["a"]["runs_ok"], first["a"]["topology"]) == (5, "1n1g")
    assert first["a"]["published"] is None and first["a"]["samples_per_s_coverage"] == 0.9375


def test_one_measurement_is_not_compared_with_itself(tmp_path: Path) -> None:
    a, copy = sweep(tmp_path / "a"), sweep(tmp_path / "copy")
    for b in (a, copy):
        done = run(a, b)
        assert done.returncode == 2 and "A and B are one" in done.stdout
        assert "A and B are one" in run(a, b, "--json").stderr
    one = sweep(tmp_path / "one", runs=1, cases=CASES[:1])  # as fast by chance, for all we know
    assert run(one, one).returncode == 0


def test_a_small_difference_and_the_digits_that_decide(tmp_path: Path) -> None:
    a = sweep(tmp_path / "a", cases=CASES[:1])
    done = run(a, sweep(tmp_path / "b", 1.012, cases=CASES[:1]))
    assert done.returncode == 0 and "same: B/A from 0.98 to 1.02041 " in done.stdout
    (first,) = json.loads(run(a, tmp_path / "b", "--json").stdout)["cases"]
    ends = sorted(100 * (1 - first[f"ratio_{end}"]) for end in ("low", "high"))
    assert 0 < ends[0] < ends[1] < 2 and first["verdict"] == "same"
    small = f"slower by {ends[0]:.2g} to {ends[1]:.2g} %, within the tolerance"
    assert small in done.stdout and first["note"] == small
    near = sweep(tmp_path / "near", 1.0228, cases=CASES[:1])
    (case_,) = json.loads(run(a, near, "--json").stdout)["cases"]
    assert 0.9795 < case_["ratio_high"] < 0.98 and case_["verdict"] == "slower"
    assert f"-{case_['ratio_high']:.4f}" in run(a, near).stdout  # not 0.980


def test_the_tolerance_is_the_users(tmp_path: Path) -> None:
    a, b = sweep(tmp_path / "a"), sweep(tmp_path / "b", 1.1)
    assert run(a, b, "--tolerance", "15%").returncode == 0
    assert run(a, b, "--tolerance", "0.05").returncode == 1
    assert run(b, a, "--tolerance", "5 %").returncode == 0  # faster


def test_what_makes_a_gate_fail(tmp_path: Path) -> None:
    a, few = sweep(tmp_path / "a"), sweep(tmp_path / "few", 1.5, runs=2)
    assert run(a, few).returncode == 1  # of 5 and 2 runs 1 order in 21 is as clear
    assert run(a, few, "--risk", "1%").returncode == 0
    assert run(a, few, "--risk", "1%", "--fail-on", "slower,too-few").returncode == 1
    assert run(a, few, "--fail-on", "nothing").returncode == 0
    one = sweep(tmp_path / "one", cases=CASES[:1])
    assert verdicts(run(a, one, "--json")) == ["same", "missing in B"]
    assert run(a, one).returncode == 0
    assert run(a, one, "--fail-on", "missing").returncode == 1
    assert run(one, a, "--fail-on", "missing").returncode == 0


def test_a_case_that_failed_says_so(tmp_path: Path) -> None:
    a = sweep(tmp_path / "a")
    b = tmp_path / "b"
    a_sweep(b, many(CASES, 5))
    for each in many(CASES, 5):
        if each.case.topology.devices == 1:
            ended_ok(b, each)
        else:
            ended(b, each, Status.OUT_OF_MEMORY, "rank 0: CUDA out of memory")
    done = run(a, b, "--fail-on", "missing")
    assert done.returncode == 1
    assert "1n2g: 0 of 5 runs of B count (out_of_memory 5)" in done.stdout


def test_parts_of_directories_and_several_of_them(tmp_path: Path) -> None:
    a, b = sweep(tmp_path / "a", runs=3), sweep(tmp_path / "b", 1.1, runs=3)
    done = run(f"{a}:topology=1n2g", f"{b}:framework=torch,topology=1n2g,topology=4n8g", "--json")
    told = json.loads(done.stdout)
    assert [each["a"]["topology"] for each in told["cases"]] == ["1n2g"]
    assert told["sides"]["A"] == [f"{a}:topology=1n2g"]
    done = run(a, a, "--also-b", b, "--json")
    assert [each["b"]["runs_ok"] for each in json.loads(done.stdout)["cases"]] == [6, 6]
    (tmp_path / "odd:x=1").mkdir()
    done = run(sweep(tmp_path / "odd:x=1" / "c"), sweep(tmp_path / "d", 1.0001))
    assert done.returncode == 0


def test_across_a_key(tmp_path: Path) -> None:
    both = sweep(tmp_path / "a", cases=[case(), case(precision="fp16")])
    done = run(both, both, "--across", "precision", "--json")
    told = [
        (each["a"]["precision"], each["b"]["precision"])
        for each in json.loads(done.stdout)["cases"]
    ]
    assert told == [("fp32", "fp16"), ("fp16", "fp32")]


def test_against_published_figures(tmp_path: Path) -> None:
    name = {"framework": "deepspeed", "model": "bert-base"}
    ours = sweep(tmp_path / "a", cases=[case("1n1g", **name), case("1n3g", **name)])
    done = run(ours, "published:framework=DeepSpeed", "--json")
    told = json.loads(done.stdout)
    first, second = told["cases"]
    assert first["b"]["samples_per_s"] == 147.81 and first["b"]["runs"] is None
    assert first["b"]["published"].startswith("Oneflow-Inc/DLPerf DeepSpeed/bert/README.md:")
    assert "V100" in first["b"]["hardware"]
    assert first["error"] == 1 / 32 and first["ratio_coverage"] == 0.9375
    assert second["verdict"] == "missing in B"
    assert told["unmatched_published"] == 76  # of deepspeed's 77
    screen = run("published:framework=deepspeed", ours).stdout
    assert "A: published, Oneflow-Inc/DLPerf DeepSpeed/bert/README.md" in screen
    assert "pub/5 runs: the CI covers 93.75 %" in screen


def test_nothing_in_common_is_no_success(tmp_path: Path) -> None:
    ours = sweep(tmp_path / "a", cases=[case("1n1g", model="bert-base")])
    done = run(ours, "published:model=bert-base,precision=fp32,framework=deepspeed")
    assert done.returncode == 2
    assert "nothing was compared: no case of A matches a case of B" in done.stdout
    assert "with --across framework 1 of 1 cases would match" in done.stdout
    done = run(ours, "published:framework=deepspeed", "--json")
    assert done.returncode == 2 and verdicts(done) == ["missing in B"]
    assert "with --across framework 1 of 1 cases would match" in done.stderr
    failed = a_sweep(tmp_path / "b", many([case(model="bert-base")], 1))
    done = run(ours, tmp_path / "b")
    assert failed.runs and done.returncode == 2
    assert "no case has runs that count on both sides" in done.stdout


def test_the_unit_is_told_where_it_is_not_samples() -> None:
    a = tokens("1n1g", 1000, 1010, 1020) + external("1n8g", *({"samples/s": 50.0},) * 3)
    b = tokens("1n1g", 2000, 2020, 2040) + tokens("1n8g", 7000, 7000, 7000)
    made = comparison.compare(comparison.subjects(a), comparison.subjects(b))
    one, eight = comparison_json(made, {})["cases"]
    assert (one["verdict"], one["unit"], one["ratio"]) == ("faster", "tokens/s", 2.0)
    assert (one["a"]["samples_per_s"], one["a"]["tokens_per_s"]) == (None, 1010)
    assert (one["b"]["tokens_per_s_low"], one["b"]["tokens_per_s_high"]) == (2000, 2040)
    assert (eight["verdict"], eight["unit"], eight["ratio"]) == ("other unit", None, None)
    text = comparison_markdown(made, {})
    assert "| 1n1g | 1010.00 | 2020.00 | 2.000 |" in text
    assert "- 1n1g: A and B in tokens/s" in text
    assert "| 1n8g | 50.00 samples/s | 7000.00 tokens/s |  |  | 3/3 | other unit |" in text
    assert "other unit 1" in text


def test_figures_of_a_programs_own(tmp_path: Path) -> None:
    for name, speed in (("a", 100), ("b", 150)):
        (tmp_path / name).mkdir()
        for n in range(1, 4):
            (tmp_path / name / f"hpl_1n4g_{n}.log").write_text(f"done: {speed + n} GFLOP/s\n")
    file = tmp_path / "hpl.toml"
    file.write_text("total = 'done: (.*) GFLOP/s'\nunit = 'GFLOP/s'\n")
    argv = [tmp_path / "a", tmp_path / "b", "--format-file", file, "--nodes=1",
            "--gpus-per-node=4", "--no-cache", "--json"]  # fmt: skip
    done = run(*argv, "--risk=30%")
    (found,) = json.loads(done.stdout)["cases"]
    assert (found["verdict"], found["unit"]) == ("faster", "GFLOP/s"), done.stderr
    assert (found["a"]["figure"], found["a"]["figure_unit"]) == (102, "GFLOP/s")
    assert found["ratio"] == pytest.approx(152 / 102) and found["a"]["samples_per_s"] is None
    made = comparison.compare(
        comparison.subjects(external("1n1g", *({"GFLOP/s": 50.0},) * 3)),
        comparison.subjects(external("1n1g", *({"TFLOP/s": 0.05},) * 3)),
    )
    (other,) = comparison_json(made, {})["cases"]
    assert (other["verdict"], other["ratio"]) == ("other unit", None)
    assert other["note"].endswith("A has GFLOP/s, B TFLOP/s: one is not divided by the other")


def with_facts(root: Path, old: str, new: str) -> Path:
    """Let the logs of a sweep say something else of their machine."""
    for log in root.rglob("*.log"):
        text = log.read_text()
        assert old in text
        log.write_text(text.replace(old, new))
    return root


def test_other_hardware_hosts_and_versions_stand_beside_the_outcome(tmp_path: Path) -> None:
    a, b = sweep(tmp_path / "a"), sweep(tmp_path / "b", 1.1)
    with_facts(b, 'hosts=["n1"]', 'hosts=["n2"] device_name="Tesla V100-SXM2-16GB" torch="2.13.0"')
    with_facts(b, "host=n1", "host=n2")
    with_facts(b, 'tool="0.1.0"', 'tool="0.2.0"')
    with_facts(a, 'hosts=["n1"]', 'hosts=["n1"] device_name=cpu torch="2.12.0"')
    done = run(a, b, "--json")
    assert done.returncode == 1
    for case_ in json.loads(done.stdout)["cases"]:
        told = {each["what"]: (each["a"], each["b"]) for each in case_["differences"]}
        assert told == {
            "hardware": (["cpu"], ["Tesla V100-SXM2-16GB"]),
            "hosts": (["n1"], ["n2"]),
            "torch": (["2.12.0"], ["2.13.0"]),
            "dlperf_hpc": (["0.1.0"], ["0.2.0"]),
        }
    text = run(a, b, "--markdown", tmp_path / "c.md").stdout
    assert text.startswith("different hardware: A cpu, B Tesla V100-SXM2-16GB; no outcome is that")
    for line in ("other hardware: A cpu, B Tesla V100-SXM2-16GB", "other hosts: A n1, B n2",
                 "other torch: A 2.12.0, B 2.13.0"):  # fmt: skip
        assert line in text and text.count(line) == 1
        assert f"- {line}" in (tmp_path / "c.md").read_text()
    alike = "A and B were not measured alike: hardware, hosts, torch, dlperf_hpc differ"
    assert alike in " ".join(text.split())
    assert "other" not in run(a, a).stdout and "alike" not in run(a, a).stdout


def test_a_cpus_tiny_model_is_never_held_against_a_v100s(tmp_path: Path) -> None:
    ours = sweep(tmp_path / "a", cases=[case("1n1g", model="bert-tiny")])
    with_facts(ours, 'hosts=["n1"]', 'hosts=["n1"] device_name=cpu')
    done = run(ours, "published:framework=deepspeed,model=bert-base")
    assert done.returncode == 2 and "with --across" not in done.stdout
    told = " ".join(done.stdout.split())
    assert (
        "no --across makes them comparable: A has bert-tiny on cpu, B has bert-base on 8x V100"
        in (told)
    )


def test_all_that_is_printed_fits_and_is_safe(tmp_path: Path) -> None:
    long = [case(t, model="bert-base", tags=("compile", "acc4")) for t in ("1n1g", "1n2g")]
    a, b = sweep(tmp_path / "a", cases=long), sweep(tmp_path / "b", 1.1, cases=long)
    done = run(a, b, "--markdown", tmp_path / "new" / "c.md")
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = (tmp_path / "new" / "c.md").read_text(encoding="utf-8")
    assert "## torch/bert-base/bz32/fp32-compile-acc4\n" in text
    assert "| case | A | B | B/A | CI | runs | outcome |" in text
    assert text.count("| slower |") == 2
    assert all(line == printable(line) for line in text.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--tolerance", "2 percent"],
            "--tolerance: '2 percent' is not a fraction (write it as 2% or 0.02)",
        ),
        (["--tolerance", "100%"], "--tolerance"),
        (["--tolerance", "nan"], "--tolerance"),
        (["--tolerance", "2%x"], "--tolerance"),
        (["--risk", "0"], "--risk: '0' is not between 0 and 50% (write it as 5%)"),
        (["--risk", "60%"], "--risk"),
        (["--across", "frame"], "--across: there is no frame"),
        (["--fail-on", "slow"], "--fail-on: there is no slow"),
    ],
)
def test_usage_errors(arguments: list[str], message: str) -> None:
    done = run("published", "published", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            "published:colour=red",
            "'colour=red' selects nothing (write KEY=VALUE with one of the keys framework,",
        ),
        ("published:framework", "'framework' selects nothing"),
        ("published:framework=caffe", "there are framework: deepspeed, hugectr,"),
        ("nowhere", "error: nowhere"),
        ("nowhere:framework=x", "error: nowhere"),
    ],
)
def test_places_that_are_none(place: str, message: str) -> None:
    done = run("published", place)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.processes
def test_as_a_user_starts_it() -> None:
    assert "compare" in __main__.verbs()
    argv = [sys.executable, "-m", "dlperf_hpc", "compare", "--help"]
    done: Any = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert max(map(len, done.stdout.splitlines())) <= 100
    for key in FILTERS:
        assert key in done.stdout


def test_a_ci_server_sees_a_test_for_each_case(tmp_path: Path) -> None:
    a, b = sweep(tmp_path / "a"), sweep(tmp_path / "b", 1.1, cases=CASES[:1])
    file = tmp_path / "junit.xml"
    assert run(a, b, "--junit", file).returncode == 1
    suite = ElementTree.parse(file).getroot()
    told = {each.get("name"): [child.tag for child in each] for each in suite}
    assert told == {"1n1g": ["failure", "system-out"], "1n2g": ["skipped", "system-out"]}
    assert run(a, b, "--junit", file, "--fail-on", "missing").returncode == 1
    failed = ElementTree.parse(file).getroot().findall("testcase[failure]")
    assert [each.get("name") for each in failed] == ["1n2g"]
