"""The pages about external logs say what the code does, and their example runs."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_tables import COMMAND, SCRIPTS, TABLES, with_table
from external_corpus import corpus
from places import ROOT

from dlperf_hpc.cli.compare import main as compare
from dlperf_hpc.cli.extract import main as extract
from dlperf_hpc.cli.report import main as report
from dlperf_hpc.logs import names
from dlperf_hpc.logs.format import MAX_STEPS
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.interpret.rules import RULES, rule
from dlperf_hpc.logs.interpret.segments import APART, MOST
from dlperf_hpc.logs.names import facts_of_path
from dlperf_hpc.logs.scan import demux, literals, scanner, sources, state
from dlperf_hpc.logs.scanned import FACTS, Evidence
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.failures import Where, patterns

DOCS = ROOT / "docs"
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


EXTERNAL, RULES_PAGE, ADDING = page("external-logs"), page("window-rules"), page("adding-a-format")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


# --- tables made from the code


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_code(name: str) -> None:
    file, _ = TABLES[name]
    text = (DOCS / file).read_text(encoding="utf-8")
    assert with_table(text, name) == text, f"docs/{file} is outdated: run `{COMMAND}`"


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="formats"):
        with_table("# A page\n", "formats")


def test_every_format_and_every_rule_is_on_its_page() -> None:
    for each in formats():
        assert f"\n| `{each.name}` | {each.title} | {each.evidence.value} |" in EXTERNAL
    for evidence in Evidence:
        assert f"*{evidence.value}*" in " ".join(EXTERNAL.split())
    for name in set(RULES) - {"default"}:  # which has a section
        assert f"\n| `{name}` | " in RULES_PAGE, name
    assert set(SCRIPTS) == {name for name in RULES if "[" not in name} - {"default", "total"}


def test_formats_without_a_speed_say_what_is_there_instead() -> None:
    for made in corpus():
        scanned = scanner.scanner().scan(made.name, len(made.text), [made.text.encode()])
        reading = next(each for each in scanned.readings if each.format == made.format)
        (declared,) = (each for each in formats() if each.name == made.format)
        printed = any(step.printed is not None for step in reading.steps)
        assert printed is not bool(declared.instead), made.name


def test_rules_written_in_the_page_are_rules() -> None:
    for text in re.findall(r"--rule '?([a-z0-9-]+(?:\[[0-9:]+\])?)", EXTERNAL + RULES_PAGE):
        assert rule(text).name
    assert [each.name for each in rule().tries[:3]] == [
        "clock[20:120]",
        "printed[20:120]",
        "total",
    ]


# --- what the page says of statuses, names and limits


def test_statuses_options_and_facts_are_named() -> None:
    kinds = {row.status.value for row in patterns(Where.LOG)} | {"ok", "partial"}
    section = EXTERNAL.partition("## The status of a run")[2].partition("\n## ")[0]
    first = "".join(re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first)) == kinds <= {status.value for status in Status}
    for fact in set(FACTS) - {"repeat", "xla", "replicas", "global_tokens"}:
        assert f"--{fact.replace('_', '-')}" in EXTERNAL, fact


def test_options_shown_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    for name, verb, text in (("report", report, EXTERNAL), ("extract", extract, RULES_PAGE)):
        with pytest.raises(SystemExit):
            verb(["--help"])
        known = set(re.findall(r"--[a-z_-]+", capsys.readouterr().out))
        lines = re.findall(rf"dlperf {name} (.*)", text)
        used = {option for line in lines for option in re.findall(r"--[a-z_-]+", line)}
        assert used and used <= known


def test_words_of_names_mean_what_the_page_says() -> None:
    told = {fact.name: fact.value for fact in facts_of_path("bz32/4n8g/bert_b32_fp32_1.log")}
    assert told == {
        **{"model": "bert", "precision": "fp32", "batch_size": 32, "repeat": 1},
        **{"nodes": 4, "gpus_per_node": 8},
    }
    words = "bert_bs96_gbs512_gpu32_bf16_seq512_acc4_xla.log"
    told = {fact.name: fact.value for fact in facts_of_path(words)}
    assert told == {
        **{"model": "bert", "precision": "bf16", "xla": True, "batch_size": 96, "devices": 32},
        **{"global_batch": 512, "seq_len": 512, "accumulation": 4},
    }


def test_limits_are_those_of_the_code() -> None:
    section = EXTERNAL.partition("## Limits")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE))
    assert rows["iterations kept of one file"].startswith(f"{MAX_STEPS:,}".replace(",", " "))
    assert rows["runs separated in one file"] == str(MOST)
    assert rows["length of a line"] == f"{state.LONGEST_LINE >> 10} KiB"
    assert rows["lines by which something broke"] == f"{scanner.MOST_TROUBLES} of one file"
    assert rows["folders above a file that are looked at for its settings"] == str(names._FOLDERS)
    assert (scanner.SETTINGS_BYTES, scanner.LATE_SETTINGS_BYTES) == (256 << 10, 1 << 20)
    assert sources.BLOCK_BYTES == 256 << 10  # "256 KiB at a time"
    assert (demux.MOST_STREAMS, demux.MOST_HELD) == (65_536, 64 << 20)
    assert (
        f"up to {APART} of the printed iterations" in " ".join(EXTERNAL.split())
        and literals._MOST == 64
    )
    for ending in re.findall(r"`(\.\w+)`", EXTERNAL.partition("Passed over")[2].partition(")")[0]):
        assert ending in sources._PASSED_OVER


# --- the commands of the README


def deepspeed_log(samples_per_s: float) -> str:
    """A line every 10 micro-steps of 32 samples."""
    return "".join(
        f"[2021-05-29 19:{10 + n // 60}:{n % 60:02d},000] [INFO] [timer.py:157:stop] "
        f"0/{10 * n}, SamplesPerSec={samples_per_s:.2f}\n"
        for n in range(1, 14)
    )


def test_the_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for root in ("some/logs", "logs/old", "logs/new", "logs/deepspeed/bert/bz32"):
        for repeat in (1, 2, 3):
            log = tmp_path / root / "1n1g" / f"bert_b32_fp32_{repeat}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(deepspeed_log(320 + repeat + root.count("new")))
    section = README.partition("## Logs that you already have")[2].partition("\n## ")[0]
    ran = []
    for verb, rest in re.findall(r"\$ dlperf (\w+) (.*)", section):
        run = {"report": report, "extract": extract, "compare": compare}[verb]
        ran.append((verb, run(shlex.split(rest, comments=True))))
    assert ran == [("report", 0), ("extract", 0), ("compare", 0), ("compare", 0)]
    assert "A: published, Oneflow-Inc/DLPerf" in capsys.readouterr().out


# --- the worked example


def example() -> dict[str, str]:
    """The files of the worked example by their paths: a file's path stands before its content."""
    (log,) = blocks(ADDING, "text")
    (row,) = blocks(ADDING, "json")
    module, test = blocks(ADDING, "python")
    files = {"tests/unit/logs/formats/nimble.log": log.removesuffix("\n")}
    table = "dlperf_hpc/logs/formats.json"
    rows = json.loads((ROOT / table).read_text(encoding="utf-8"))
    files[table] = json.dumps({**rows, **json.loads(row)})
    files["dlperf_hpc/logs/formats/nimble.py"] = module
    files["tests/unit/logs/formats/test_nimble.py"] = test
    assert all(f"`{path}`" in ADDING for path in files)
    return files


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, as far as the example needs it, with the example's files in it."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("dlperf_hpc", "docs", "benchmarks", "tests/support", "tests/unit/logs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, root / name)
    for path, content in example().items():
        (root / path).write_text(content, encoding="utf-8")
    return root


def typed(copy: Path, *argv: str) -> str:
    """What a command prints in the copy, whose package is the one that runs."""
    env = {**os.environ, "PYTHONPATH": f"{copy}:{copy}/docs", "XDG_CACHE_HOME": str(copy / "cache")}
    env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", *argv]
    done = subprocess.run(command, cwd=copy, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_gives_the_number_on_the_page(copy: Path) -> None:
    typed(copy, "dlperf_hpc", "report", "tests/unit/logs/formats/nimble.log", "--out", "out")
    with open(copy / "out" / "runs.csv", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["format"], row["framework"], row["status"]) == ("nimble", "nimble", "ok")
    assert row["topology"] == "1n4g"
    assert (row["batch_size"], row["precision"]) == ("32", "fp16")
    assert "**1280 samples/s**" in ADDING
    assert float(row["samples_per_s"]) == pytest.approx(1280, abs=1e-9)
    (printed,) = re.findall(r"printed figures give ([0-9.]+),", " ".join(ADDING.split()))
    assert float(row["check_samples_per_s"]) == pytest.approx(float(printed), abs=0.005)


def test_the_examples_own_tests_pass_and_its_sample_is_tested_with_all_others(copy: Path) -> None:
    output = typed(
        copy, "pytest", "-p", "no:cacheprovider", "-vv", "-k", "nimble", "tests/unit/logs"
    )
    assert output.count("test_nimble.py::test_") == 3
    for name in ("recognised_as_the_format", "cut_log", "bytes_that_are_no_text", "on_disk"):
        assert re.search(rf"::test_\w*{name}\w*\[.*nimble.* PASSED", output), name


def test_the_examples_row_is_written_into_the_table(copy: Path) -> None:
    typed(copy, "doc_tables")
    written = (copy / "docs" / "external-logs.md").read_text(encoding="utf-8")
    assert "\n| `nimble` | Nimble | source only | samples/s, one device |" in written
    assert f"\n{len(formats()) + 1} formats:" in written
    assert "nimble" not in EXTERNAL


def test_the_example_takes_no_other_formats_lines() -> None:
    log = example()["tests/unit/logs/formats/nimble.log"]
    literals = {literal for each in formats() for literal in (*each.literals, *each.facts_literals)}
    assert not [literal for literal in literals if literal in log]
