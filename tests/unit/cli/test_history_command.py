"""``history`` as a command: what changed and when, gates, files for others, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from record_samples import a_sweep, ended_ok, many
from report_samples import case

from dlperf_hpc.cli import archive, history

CASES = [case("1n1g"), case("1n2g")]
Done = subprocess.CompletedProcess[str]


def run(*arguments: object, verb: object = history) -> Done:
    out, err = io.StringIO(), io.StringIO()
    argv = [str(argument) for argument in arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = verb.main(argv)  # type: ignore[attr-defined]
        except SystemExit as exit_:
            code = exit_.code
    return Done(argv, code, out.getvalue(), err.getvalue())


def on_day(root: Path, day: str, factor: float, cpu: str) -> None:
    """A sweep of three runs a case as it would have been measured on another day."""
    runs = many(CASES, 3)
    a_sweep(root, runs)
    for i, each in enumerate(runs):
        ended_ok(root, each, seconds=0.05 * factor * (1 + 0.001 * i))
    for path in root.rglob("*.log"):
        lines = path.read_text().splitlines(keepends=True)
        lines[0] = lines[0].replace(lines[0].split()[1], f"{day}T10:00:00.000000Z")
        path.write_text("".join(lines).replace('cpu="an \\"odd\\" name"', f'cpu="{cpu}"'))
        path.with_suffix(".json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight weeks; from the fifth on another CPU, and 6 % slower."""
    root = tmp_path_factory.mktemp("logs")
    for week in range(8):
        later = week >= 4
        day = f"2026-05-{3 * week + 1:02d}"
        on_day(root / f"week{week}", day, 1.06 if later else 1.0, "new" if later else "old")
    return root


def test_since_when_and_what_else_changed(logs: Path) -> None:
    done = run(logs)
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert text.count("slower") == 2 and "████▁▁▁▁" in text
    assert "1n2g: -5.7 % (-5.7 % to -5.7 %, covers 94.3 %) from 2026-05-13 (" in text
    assert "changed since 2026-05-10 (" in text and "CPU old -> new; nodes: the same" in text
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_gates(logs: Path) -> None:
    assert run(logs, "--fail-on", "changed").returncode == 1
    assert run(logs, "--fail-on", "faster,spike,suspected").returncode == 0
    assert run(logs, "--fail-on", "slower", "--since", "2026-05-14").returncode == 0
    assert run(logs, "--fail-on", "slower", "--since", "2026-05-13").returncode == 1
    assert run(logs, "--fail-on", "slower", "--tolerance", "10%").returncode == 0


def test_what_scripts_and_ci_servers_get(logs: Path, tmp_path: Path) -> None:
    junit, markdown, html = (tmp_path / f"a.{ending}" for ending in ("xml", "md", "html"))
    files = ("--junit", junit, "--markdown", markdown, "--html", html)
    told = json.loads(run(logs, "--json", "--fail-on", "slower", *files).stdout)
    assert told["schema"] == "dlperf-history/1" and len(told["cases"]) == 2
    (change,) = told["cases"][0]["changes"]
    assert change["at"] == 4 and not change["suspected"] and change["error"] <= 0.025
    assert change["changed"] == [{"what": "CPU", "before": ["old"], "after": ["new"]}]
    assert told["cases"][0]["measurements"][4]["began"].startswith("2026-05-13T10:00")
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    failure = suite.find("testcase/failure")
    assert failure is not None and "CPU old -> new" in failure.attrib["message"]
    assert "| 1n1g | 8 | 2026-05-01 | 2026-05-22 |" in markdown.read_text()
    page = html.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.count("CPU old -&gt; new") == 4


def test_an_archive_is_a_measurement_once(logs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "week7.zip"
    assert run(logs / "week7", "--out", packed, verb=archive).returncode == 0
    done = run(*(logs / f"week{week}" for week in range(7)), packed, "--json")
    assert len(json.loads(done.stdout)["cases"][0]["measurements"]) == 8
    both = json.loads(run(logs, packed, "--json").stdout)
    assert len(both["cases"][0]["measurements"]) == 8
    assert any("counted once" in line for line in both["remarks"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--since", "May"], "'May' is no day (write it as 2026-05-14)"),
        (["--fail-on", "worse"], "there is no worse (there are changed, slower,"),
        (["--tolerance", "2 per cent"], "is not a fraction"),
        (["--risk", "60%"], "not between 0 and 50%"),
    ],
)
def test_what_is_refused(logs: Path, arguments: list[str], told: str) -> None:
    done = run(logs, *arguments)
    assert done.returncode == 2 and told in done.stderr and done.stdout == ""


def test_a_damaged_sweep_among_others_is_told_and_left_out(tmp_path: Path) -> None:
    for week in (1, 2, 3):
        on_day(tmp_path / "logs" / f"week{week}", f"2026-05-0{week}", 1.0, "old")
    manifest = tmp_path / "logs" / "week2" / "manifest.json"
    manifest.write_text(manifest.read_text()[:-40])
    done = run(tmp_path / "logs", "--json")
    assert done.returncode == 0 and "not read: " in done.stderr and "week2" in done.stderr
    measured = json.loads(done.stdout)["cases"][0]["measurements"]
    assert [each["began"][:10] for each in measured] == ["2026-05-01", "2026-05-03"]
    assert run(manifest.parent).returncode == 2


def test_a_sweep_without_a_number_and_no_sweep_at_all(tmp_path: Path) -> None:
    a_sweep(tmp_path / "empty", many(CASES, 1))
    done = run(tmp_path / "empty")
    assert done.returncode == 2 and "there is no measurement" in done.stderr
    gone = run(tmp_path / "gone")
    assert gone.returncode == 2 and "no such file or directory" in gone.stderr
