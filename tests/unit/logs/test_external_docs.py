"""The pages about other programs' logs say what the code does, and their example runs."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
from places import ROOT

from dlperf_hpc.cli.compare import main as compare
from dlperf_hpc.cli.extract import main as extract
from dlperf_hpc.cli.report import main as report
from dlperf_hpc.logs import names
from dlperf_hpc.logs.format import MAX_STEPS, Format
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.interpret.rules import RULES, rule
from dlperf_hpc.logs.interpret.runs import MIN_FOR_STEADY, interpret
from dlperf_hpc.logs.interpret.segments import APART, MOST
from dlperf_hpc.logs.names import facts_of_path
from dlperf_hpc.logs.scan import demux, needles, scanner, sources, troubles
from dlperf_hpc.logs.scan.scanner import Scanner
from dlperf_hpc.logs.scanned import FACTS, Evidence
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.reference import NO_SPEED, SCRIPTS, formats_table, rules_table

DOCS = ROOT / "docs"
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


FOREIGN, RULES_PAGE, ADDING = page("foreign-logs"), page("window-rules"), page("adding-a-format")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def example() -> tuple[str, str, str]:
    """Log, module and test of the worked example."""
    (log,) = blocks(ADDING, "text")
    module, test = blocks(ADDING, "python")
    return log.removesuffix("\n"), module, test


def made(name: str, source: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
    return module


# --- tables made from the code


@pytest.mark.parametrize(
    ("text", "name", "table"),
    [(FOREIGN, "formats", formats_table()), (RULES_PAGE, "rules", rules_table())],
    ids=["formats", "rules"],
)
def test_tables_are_those_of_the_code(text: str, name: str, table: str) -> None:
    begin = f"<!-- {name}: python -m dlperf_hpc.reporting.reference -->\n"
    shown = text.partition(begin)[2].partition("<!-- end -->")[0]
    assert shown == table, "docs: paste what `python -m dlperf_hpc.reporting.reference` prints"


def test_every_format_and_every_rule_is_told_of() -> None:
    for each in formats():
        assert f"\n| `{each.name}` | {each.title} | {each.evidence.value} |" in FOREIGN
    for evidence in Evidence:
        assert f"*{evidence.value}*" in " ".join(FOREIGN.split())
    for name in set(RULES) - {"default"}:  # which has a section
        assert f"\n| `{name}` | " in RULES_PAGE, name
    assert set(SCRIPTS) == {name for name in RULES if "[" not in name} - {"default", "total"}


def test_formats_said_to_print_no_speed_print_none() -> None:
    silent = set()
    for each in formats():
        module = importlib.import_module(f"dlperf_hpc.logs.formats.{each.name}")
        rates = getattr(getattr(module, "PROGRAM", None), "rates", ())
        if "printed=" not in Path(str(module.__file__)).read_text() and not rates:
            silent.add(each.name)
    assert silent - {"dllogger_json"} == set(NO_SPEED)  # that one is what it finds


def test_rules_written_in_the_page_are_rules() -> None:
    for text in re.findall(r"--rule '?([a-z0-9-]+(?:\[[0-9:]+\])?)", FOREIGN + RULES_PAGE):
        assert rule(text).name
    assert [each.name for each in rule().tries] == ["clock[20:120]", "printed[20:120]", "total"]


# --- what the page says of statuses, names and limits


def test_statuses_options_and_facts_are_named() -> None:
    kinds = {status.value for _, _, status in troubles._SIGNS} | {"ok", "partial"}
    section = FOREIGN.partition("## What became of it")[2].partition("\n## ")[0]
    first = "".join(re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first)) == kinds <= {status.value for status in Status}
    for fact in set(FACTS) - {"repeat", "xla"}:
        assert f"--{fact.replace('_', '-')}" in FOREIGN, fact


def test_options_shown_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, text in ((report, FOREIGN), (extract, RULES_PAGE)):
        with pytest.raises(SystemExit):
            verb(["--help"])
        known = set(re.findall(r"--[a-z_-]+", capsys.readouterr().out))
        lines = re.findall(rf"dlperf {verb.__module__.rpartition('.')[2]} (.*)", text)
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
    section = FOREIGN.partition("## Limits")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE))
    assert rows["iterations kept of one file"].startswith(f"{MAX_STEPS:,}".replace(",", " "))
    assert rows["runs told apart in one file"] == str(MOST)
    assert rows["length of a line"] == f"{scanner.LONGEST_LINE >> 10} KiB"
    assert rows["lines that say that something broke"] == f"{troubles.MOST} of one file"
    assert rows["folders above a file that are looked at for its settings"] == str(names._FOLDERS)
    assert (scanner.SETTINGS_BYTES, scanner.LATE_SETTINGS_BYTES) == (256 << 10, 1 << 20)
    assert sources.BLOCK_BYTES == 256 << 10  # "256 KiB at a time"
    assert (demux.MOST_STREAMS, demux.MOST_HELD) == (65_536, 64 << 20)
    assert f"up to {APART} of\n  the printed iterations" in FOREIGN and needles._GROUP == 64
    for ending in re.findall(r"`(\.\w+)`", FOREIGN.partition("Passed over")[2].partition(")")[0]):
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
            log.write_text(deepspeed_log(320 + repeat))
    section = README.partition("## Logs that you already have")[2].partition("\n## ")[0]
    ran = []
    for verb, rest in re.findall(r"\$ dlperf (\w+) (.*)", section):
        run = {"report": report, "extract": extract, "compare": compare}[verb]
        ran.append((verb, run(shlex.split(rest, comments=True))))
    assert ran == [("report", 0), ("extract", 0), ("compare", 0), ("compare", 0)]
    assert "A: published, Oneflow-Inc/DLPerf" in capsys.readouterr().out
    assert f"{len(formats())} [log formats]" in README


# --- the worked example


def test_the_example_gives_the_number_it_tells() -> None:
    log, source, _ = example()
    new: Format = made("nimble", source).FORMAT
    file = Scanner([*formats(), new]).scan("nimble.log", len(log), [log.encode()])
    assert [reading.format for reading in file.readings] == ["nimble"]
    assert file.cut and [note.line for note in file.notes] == [5]
    (run,) = interpret(file, (), (), {}, rule()).results
    assert str(run.run.case.topology) == "1n4g" and run.run.case.batch_size == 32
    assert run.status is Status.OK and run.samples_per_s == pytest.approx(1280, abs=1e-9)
    assert run.external is not None and run.external.check_samples_per_s == pytest.approx(
        float(re.findall(r"printed figures give ([0-9.]+),", ADDING)[0]), abs=0.005
    )
    assert "**1280 samples/s**" in ADDING and MIN_FOR_STEADY > 2  # too few lines to judge drift


def test_the_examples_own_tests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    _, source, tests = example()
    name = "dlperf_hpc.logs.formats.nimble"
    monkeypatch.setitem(sys.modules, name, made(name, source))
    found = [
        test for each, test in vars(made("test_nimble", tests)).items() if each.startswith("test_")
    ]
    assert len(found) == 3
    for test in found:
        test()


def test_the_example_takes_no_other_formats_lines() -> None:
    log, source, _ = example()
    new: Format = made("nimble", source).FORMAT
    needles = {needle for each in formats() for needle in (*each.needles, *each.facts_needles)}
    assert not [needle for needle in needles if needle in log]
    assert all(len(needle) >= 5 for needle in new.needles)
