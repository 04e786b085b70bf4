"""The acceptance pack keeps its table whatever its checks do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from places import ROOT
from sweeping import wait_until

from dlperf_hpc.acceptance import pack
from dlperf_hpc.acceptance.pack import (
    CHECKS,
    FIRST,
    Check,
    Finding,
    failed,
    run_pack,
    table,
)

SAYS = (
    "from dlperf_hpc.acceptance.pack import judged, line\n"
    "print(line(judged('one', '1', '1', {})))\n"
)
PROGRAMS = {
    "well": SAYS.format(True),
    "badly": SAYS.format(False),
    "crashes": SAYS.format(True) + "print('words'); raise SystemExit('the last words')",
    "hangs": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    + SAYS.format(True)
    + "import sys; sys.stdout.flush(); time.sleep(60)",
    "silent": "pass",
    "sweeps": "import pathlib\npathlib.Path('sweep-1').mkdir()\n"
    + "pathlib.Path('sweep-1/run.log').write_text('what it did')\n"
    + SAYS.format(False),
    "leaves": SAYS.format(True)
    + "import subprocess, sys\n"
    + "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)",
}


Packed = Callable[..., list[Finding]]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Packed:
    """Runs a pack of checks that are the given programs, by name."""

    monkeypatch.setenv("DLPERF_MPI", "none")  # it is tried in a test of its own

    def run(budget_s: float = 60.0, limit_s: float = 20.0, **programs: str) -> list[Finding]:
        checks = [Check(name, name, name, limit_s) for name in programs]
        monkeypatch.setattr(pack, "CHECKS", checks)
        monkeypatch.setattr(
            pack, "command_of", lambda check, _: [sys.executable, "-c", programs[check.name]]
        )
        return run_pack(tmp_path, "cpu", budget_s, show=lambda _line: None)

    return run


def chosen(*names: str) -> dict[str, str]:
    return {name: PROGRAMS[name] for name in names}


def found(rows: list[Finding]) -> list[tuple[str, str, str]]:
    return [(row.check, row.what, row.verdict) for row in rows]


def test_the_table_has_a_row_for_each_finding_and_for_a_check_that_ended_badly(
    packed: Packed, tmp_path: Path
) -> None:
    rows = packed(**chosen("well", "badly", "crashes", "silent"))
    assert found(rows) == [
        ("well", "one", "ok"),
        ("badly", "one", "FAIL"),
        ("crashes", "one", "ok"),
        ("crashes", "ends", "FAIL"),
        ("silent", "ends", "FAIL"),
    ]
    assert rows[3].value == "exit code 1: words | the last words"
    assert "| crashes | one | 1 | 1 | ok |" in (tmp_path / "acceptance.md").read_text()
    with zipfile.ZipFile(tmp_path / "acceptance.zip") as kept:
        assert kept.namelist() == ["badly.log", "crashes.log", "silent.log"]
        assert kept.read("crashes.log").decode().endswith("words\nthe last words\n")
    written = json.loads((tmp_path / "acceptance.json").read_text())
    assert not written["ok"] and [row["verdict"] for row in written["rows"]].count("FAIL") == 3


def test_a_check_that_hangs_is_cut_and_its_findings_stay(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "_LEAST_S", 0.1)
    monkeypatch.setattr(pack, "_GRACE_S", 0.2)
    rows = packed(**chosen("hangs", "well"), limit_s=2.0)
    assert found(rows) == [
        ("hangs", "one", "ok"),
        ("hangs", "ends", "cut"),
        ("well", "one", "ok"),
    ]
    assert not failed(rows)


def test_the_directory_of_a_sweep_that_failed_is_kept(packed: Packed, tmp_path: Path) -> None:
    packed(**chosen("well", "sweeps"))
    with zipfile.ZipFile(tmp_path / "acceptance.zip") as kept:
        assert kept.namelist() == ["sweeps.log", "sweeps/sweep-1/run.log"]
        assert kept.read("sweeps/sweep-1/run.log") == b"what it did"
    packed(**chosen("well"))
    assert not (tmp_path / "acceptance.zip").exists()


def test_a_check_finds_the_package_wherever_it_runs(packed: Packed, tmp_path: Path) -> None:
    where = "import dlperf_hpc, os; print(os.getcwd(), os.environ['PYTHONPATH'])\n"
    rows = packed(elsewhere=where + SAYS.format(False))
    assert found(rows) == [("elsewhere", "one", "FAIL")]
    with zipfile.ZipFile(tmp_path / "acceptance.zip") as kept:
        here, places = kept.read("elsewhere.log").decode().splitlines()[0].split()
    assert not Path(here).exists()
    assert {str(ROOT), str(ROOT / "benchmarks")} <= set(places.split(os.pathsep))


def test_each_call_has_its_own_limits() -> None:
    calls = [pack.chosen([number]) for number in CHECKS[0].calls]
    assert all(sum(check.limit_s for check in call) <= 530 for call in calls)
    assert {check for call in calls for check in call} == set(CHECKS)
    assert pack.chosen([]) == list(CHECKS)
    assert pack.chosen(["sweep"]) == [check for check in CHECKS if check.name == "sweep"]


def test_what_a_check_started_ends_with_it() -> None:
    command = [sys.executable, "-c", PROGRAMS["leaves"]]
    code, printed = pack._run(command, 20.0, dict(os.environ))
    assert code == 0
    left = printed.split()
    pid = next(int(word) for word in left if word.isdigit() and int(word) > 1)
    for _ in range(100):
        if not _runs(pid):
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} still runs")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def test_what_the_budget_does_not_reach_is_no_failure(packed: Packed) -> None:
    rows = packed(**chosen("well"), budget_s=1.0)
    assert found(rows) == [("well", "not reached", "skipped")]
    assert not failed(rows)


@pytest.mark.parametrize(("what", "goes_on"), [("card", False), ("all-reduce", True)])
def test_without_a_card_nothing_else_is_begun(packed: Packed, what: str, goes_on: bool) -> None:
    first = PROGRAMS["badly"].replace("'one'", f"'{what}'")
    rows = packed(**{FIRST: first, "well": PROGRAMS["well"]})
    second = ("well", "one", "ok") if goes_on else ("well", "not begun", "skipped")
    assert found(rows) == [(FIRST, what, "FAIL"), second]


def test_without_mpi_the_checks_run_with_one_process_and_a_row_says_so(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DLPERF_MPI")
    monkeypatch.setattr(pack, "_MPI", "raise SystemExit('cannot load MPI library')")
    says = "import os; assert os.environ['DLPERF_MPI'] == 'none'\n" + PROGRAMS["well"]
    rows = packed(well=says)
    assert found(rows) == [(FIRST, "MPI", "told"), ("well", "one", "ok")]
    assert "cannot load MPI library" in rows[0].value


def test_a_cell_cannot_break_the_table() -> None:
    row = Finding("a|b", "two\nlines", "x", pack.OK, "c", 1.0)
    assert "| c | a\\|b | two lines | x | ok |" in table([row], "cpu")


def test_each_check_is_a_function_of_its_module() -> None:
    folder = Path(pack.__file__).parent
    for check in CHECKS:
        assert f"\ndef {check.name}(device" in (folder / f"{check.module}.py").read_text()


def test_without_torch_a_check_says_which_python_lacks_it() -> None:
    blocked = "import sys; sys.modules['torch'] = None;"
    command = f"{blocked} from dlperf_hpc.acceptance.pack import run_check; "
    command += "run_check('training', 'clock', 'cuda')"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("\n") == 1
    found = Finding(*json.loads(done.stdout.partition(" ")[2]))
    assert found.verdict == pack.FAIL
    assert sys.executable in found.value and "torch" in found.value


def test_the_page_says_where_each_check_was_seen() -> None:
    """A check that has nothing to do on a CPU was not seen on one."""
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    rows: dict[str, tuple[str, str, str]] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[1].startswith("`"):
            name = cells[1].partition(":")[0].strip("`")
            rows[name] = (cells[0].replace("1-4", "1234"), cells[2], cells[3])
    assert {check.name: check.calls for check in CHECKS} == {n: row[0] for n, row in rows.items()}
    for check in CHECKS:
        _, cpu, fake = rows[check.name]
        assert bool(cpu) is not bool(check.no_card) and fake, check.name


KILLED = """
import sys
from dlperf_hpc.acceptance import pack
pack.CHECKS = [pack.Check("slow", "slow", "slow", 60)]
program = sys.argv.pop()
pack.command_of = lambda *_: [sys.executable, "-c", program]
sys.exit(pack.main())
"""


def test_a_pack_that_is_killed_keeps_its_rows_and_ends_its_check(tmp_path: Path) -> None:
    check = "import os, time\nfrom dlperf_hpc.acceptance.pack import judged, line\n"
    check += "print(line(judged('pid', str(os.getpid()), '', True)), flush=True); time.sleep(60)"
    env = {**os.environ, "DLPERF_MPI": "none"}
    command = [sys.executable, "-c", KILLED, "--out", str(tmp_path), "--only", "1", check]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    rows = tmp_path / "acceptance.json"
    try:
        wait_until(rows.exists, 30, "a row")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        process.kill()
    (row,) = json.loads(rows.read_text())["rows"]
    assert (row["what"], row["verdict"]) == ("pid", "ok")
    wait_until(lambda: not _runs(int(row["value"])), 10, "the end of the check")
