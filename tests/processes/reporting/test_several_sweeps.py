"""``dlperf report A B C``: sweeps side by side, each with its own base, and in what they differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from several_sweeps import CPUS, RUNS, SECONDS, TOPOLOGIES, TORCH, a_sweep_of, three_sweeps

from dlperf_hpc.cli import archive as archive_verb
from dlperf_hpc.cli import compare as compare_verb
from dlperf_hpc.cli import report as report_verb
from dlperf_hpc.model.result import Status


def reported(*paths: Path, out: Path, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """``report.json`` of these paths."""
    argv = [*map(str, paths), "--out", str(out), "--no-cache", *options]
    report_verb.main([*argv, "--write", "csv,json,md"])
    made: dict[str, Any] = json.loads((out / "report.json").read_text())
    return made


def test_each_sweep_has_its_own_series_and_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweeps = three_sweeps(tmp_path)
    made = reported(*sweeps, out=tmp_path / "out")
    assert made["sweep"] == "may + june + july" and not made["unread"]
    assert {(each["sweep"], each["topology"]) for each in made["cases"]} == {
        (name, topology) for name in SECONDS for topology in TOPOLOGIES
    }
    for each in made["cases"]:
        ranks = int(each["topology"][2])  # an iteration takes as long on any number of them
        expected = 32 * ranks / (1.1 * SECONDS[each["sweep"]] / 3)
        assert each["samples_per_s"] == pytest.approx(expected)
        assert each["speedup"] == pytest.approx(ranks) and each["runs"] == each["runs_ok"] == 3
    text = capsys.readouterr().out
    assert max(map(len, text.partition("node-hours")[0].splitlines())) <= 80
    head, _, tables = text.partition("all series")
    assert "different CPU: may EPYC 7742, june and july EPYC 9654" in head
    assert "other torch: may and june 2.12.0, july 2.13.0" in head
    rows = [line.split()[:2] for line in tables.splitlines() if line.startswith("1n")]
    assert rows == [[topology, name] for topology in TOPOLOGIES for name in sorted(SECONDS)]


def test_parts_of_one_series_are_one_curve(tmp_path: Path) -> None:
    """One sweep measured one GPU, another two and four: the second has no base of its own."""
    small = a_sweep_of(tmp_path / "small", "small", topologies=("1n1g",))
    large = a_sweep_of(tmp_path / "large", "large", topologies=("1n2g", "1n4g"))
    made = reported(small, large, out=tmp_path / "out")
    assert [each["speedup"] for each in made["cases"]] == pytest.approx([1, 2, 4])
    assert made["sweeps"] is None and not any(each["sweep"] for each in made["cases"])


def test_in_what_they_differ(tmp_path: Path) -> None:
    made = reported(*three_sweeps(tmp_path), out=tmp_path / "out")["sweeps"]
    assert [(each["sweep"], each["runs_ok"]) for each in made["read"]] == [
        (name, len(RUNS)) for name in SECONDS
    ]
    assert {each["what"]: each["values"] for each in made["differ"]} == {
        "CPU": {name: [cpu] for name, cpu in CPUS.items()},
        "torch": {name: [version] for name, version in TORCH.items()},
    }
    assert made["differ"][0]["what"] == "CPU"  # hardware first
    assert made["common"]["dlperf_hpc"] == ["0.1.0"] and made["common"]["engine"] == ["local"]
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| CPU | EPYC 7742 | EPYC 9654 | EPYC 9654 |" in text
    assert text.index("different CPU") < text.index("| 1n1g |")
    assert reported(tmp_path / "may", out=tmp_path / "alone")["sweeps"] is None


def test_sweeps_with_bases_of_their_own(tmp_path: Path) -> None:
    sweeps = [a_sweep_of(tmp_path / base, f"on{base}", base=base) for base in ("1n1g", "1n2g")]
    for option, expected in (((), {"1n1g", "1n2g"}), (("--base", "1n4g"), {"1n4g"})):
        made = reported(*sweeps, out=tmp_path / "out", options=option)["cases"]
        assert {each["base"] for each in made} == expected
        for each in made:
            assert each["speedup"] == pytest.approx(int(each["topology"][2]) / int(each["base"][2]))
            assert each["sweep"] == f"on{each['base']}" or option


def test_a_case_of_one_sweep_alone_is_of_that_sweep(tmp_path: Path) -> None:
    """What one sweep measured is no point, and no base, of another's curve."""
    small, large = three_sweeps(tmp_path, ("may", "july"))
    for root, gone in ((small, "1n4g"), (large, "1n1g")):
        for folder in root.rglob(gone):
            shutil.rmtree(folder)
    cases = reported(small, large, out=tmp_path / "out")["cases"]
    speedups = {(each["sweep"], each["topology"]): each["speedup"] for each in cases}
    assert speedups["may", "1n2g"] == pytest.approx(2) and speedups["may", "1n4g"] is None
    assert speedups["july", "1n4g"] is None


def test_two_of_one_name_are_called_by_their_directories(tmp_path: Path) -> None:
    roots = [tmp_path / "a" / "bert", tmp_path / "b" / "bert", tmp_path / "gpt"]
    sweeps = [a_sweep_of(root, root.name) for root in roots]
    made = reported(*sweeps, out=tmp_path / "out")
    assert [each["sweep"] for each in made["sweeps"]["read"]] == ["a/bert", "b/bert", "gpt"]


def test_a_directory_and_its_archive_are_one(tmp_path: Path) -> None:
    may, june = three_sweeps(tmp_path, ("may", "june"))
    packed = tmp_path / "may.zip"
    assert archive_verb.main([str(may), "--out", str(packed)]) == 0
    made = reported(may, packed, june, out=tmp_path / "out")
    assert made["unread"] == [f"{packed}: is a copy of {may}, whose runs are the same"]
    assert [each["runs"] for each in made["cases"]] == [3] * 6
    assert "duplicate-run" not in made["flags"]
    made = reported(packed, june, out=tmp_path / "out")  # mixed
    assert [each["path"] for each in made["sweeps"]["read"]] == [str(packed), str(june)]
    # The copy has what the directory lost, each run once.
    lost = next(may.rglob("*.log"))
    lost.with_suffix(".json").unlink()
    lost.unlink()
    made = reported(may, packed, june, out=tmp_path / "out")
    assert [each["runs_ok"] for each in made["cases"]] == [3] * 6


def test_what_cannot_be_put_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    may, june = three_sweeps(tmp_path, ("may", "june"))
    failed = a_sweep_of(tmp_path / "failed", "failed", status=Status.FAILED)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "link").symlink_to(may)
    paths = [may, june, may, tmp_path / "link", tmp_path / "nothing", failed]
    made = reported(*paths, out=tmp_path / "out")
    assert made["unread"] == [
        f"{may}: is given twice; it is read once",
        f"{tmp_path}/link: is given twice; it is read once",
        f"{tmp_path}/nothing: holds neither a sweep nor a log; give a sweep's directory or archive",
    ]
    done = capsys.readouterr()
    assert "sweep failed: no run of 9 counts: it has no figure" in " ".join(done.out.split())
    assert "is given twice" in done.err and "holds neither a sweep nor a log" in done.err
    assert report_verb.main([str(may), str(tmp_path / "gone"), "--out", str(tmp_path / "o")]) == 2
    assert "no such file or directory" in capsys.readouterr().err


def test_compare_says_other_machines_before_any_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    may, june = three_sweeps(tmp_path, ("may", "june"))
    for root, memory, way in ((may, "40960", "NET/Socket"), (june, "81559", "NET/IB")):
        for log in root.rglob("*.log"):
            text = log.read_text().replace(" torch=", f" device_memory_mb={memory} torch=", 1)
            stamp = text.partition(" ")[2].partition(" ")[0]
            end = text.index(f"dlperf {stamp[:4]}", text.index(" phase name=shutdown") - 60)
            log.write_text(f'{text[:end]}dlperf {stamp} nccl between=["{way}"]\n{text[end:]}')
    page = tmp_path / "c.html"
    compare_verb.main([str(may), str(june), "--html", str(page)])
    lines = [
        "different device memory, MiB: A 40960, B 81559; no outcome is that of the software alone",
        "different CPU: A EPYC 7742, B EPYC 9654",
        "different NCCL between nodes: A NET/Socket, B NET/IB",
    ]
    text = " ".join(capsys.readouterr().out.split())
    made = page.read_text()
    for line in lines:
        assert text.index(line) < text.index("B/A")
        assert made.index(line[1:]) < made.index('id="figure"')
    assert "A and B differ in CPU" not in made
