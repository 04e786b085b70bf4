"""`dlperf archive`: one zip archive, and what is printed about it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from record_samples import a_run, a_sweep, ended_ok, paths

from dlperf_hpc.cli import report, status
from dlperf_hpc.cli.archive import main

RUNS = [a_run(repeat=1), a_run(repeat=2)]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of the local engine whose second run has not begun."""
    monkeypatch.chdir(tmp_path)
    a_sweep(tmp_path / "sample", RUNS)
    ended_ok(tmp_path / "sample", RUNS[0])
    return tmp_path / "sample"


def test_json_tells_the_archive_its_size_and_what_had_not_ended(sweep: Path, capsys: Any) -> None:
    assert main([str(sweep), "--anyway", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    archive = Path("sample.zip")
    assert facts == {
        "root": str(sweep),
        "archive": "sample.zip",
        "files": len(zipfile.ZipFile(archive).namelist()),
        "bytes": archive.stat().st_size,
        "unfinished": [RUNS[1].id],
        "left_out": {},
        "secrets": [],
    }


def test_a_sweep_that_has_not_ended_is_refused(sweep: Path, capsys: Any) -> None:
    assert main([str(sweep), "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and f"1 run has not ended ({RUNS[1].id}: pending)" in output.err
    assert list(Path().glob("*.zip")) == []


def test_a_finished_sweep_is_told_in_words(sweep: Path, capsys: Any) -> None:
    ended_ok(sweep, RUNS[1])
    assert main([str(sweep), "--out", "kept.zip"]) == 0
    assert capsys.readouterr().out.startswith("written: kept.zip (")


def test_what_a_killed_archive_left_is_removed_by_the_next(sweep: Path) -> None:
    ended_ok(sweep, RUNS[1])
    code = "from dlperf_hpc.records import archives; import os, signal; from pathlib import Path\n"
    code += "archives._Packing._copy = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
    code += f"archives.pack(Path({str(sweep)!r}), Path('sample.zip'))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    left = list(Path().glob(".sample.zip.*.tmp"))
    assert len(left) == 1
    living, other = Path(f".sample.zip.{'a' * 32}.tmp"), Path(f".other.zip.{'a' * 32}.tmp")
    other.touch()
    with open(living, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main([str(sweep)]) == 0
    assert living.exists() and other.exists() and not left[0].exists()


# linkat and link are answered with EPERM, as file systems without hard links answer (FAT)
NO_LINKS = """
import ctypes, os, struct, sys
numbers = {"x86_64": (86, 265), "aarch64": (37, 37)}[os.uname().machine]
rules = [(0x20, 0, 0, 0), (0x15, 1, 0, numbers[0]),
         (0x15, 0, 1, numbers[1]), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HP", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
from dlperf_hpc.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_hard_links_files_get_their_names_otherwise(sweep: Path) -> None:
    ended_ok(sweep, RUNS[1])
    done = subprocess.run(
        [sys.executable, "-c", NO_LINKS, "archive", str(sweep)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "has no hard links: instead, an empty file" in done.stderr
    assert status.main(["sample.zip"]) == 0
    again = subprocess.run(
        [sys.executable, "-c", NO_LINKS, "init", "."], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0 and again.stderr.count("hard links") == 1
    assert Path("slurm/template.toml").stat().st_size > 1000
    assert not list(Path().rglob("*.tmp"))


def test_what_is_wrong_in_an_archive_is_told_of_the_archive(sweep: Path, capsys: Any) -> None:
    """Not of the directory that it was unpacked into, which has gone by then."""
    ended_ok(sweep, RUNS[1])
    assert main([str(sweep), "--out", "kept.zip"]) == 0
    log = paths(sweep, RUNS[0]).log
    with zipfile.ZipFile("kept.zip") as whole, zipfile.ZipFile("odd.zip", "w") as odd:
        for name in whole.namelist():
            content = whole.read(name)
            if not name.endswith(f"{log.stem}.json"):
                odd.writestr(name, b"no log of ours\n" if name.endswith(log.name) else content)
    capsys.readouterr()
    told = f"odd.zip/{log.relative_to(sweep)}: no 'dlperf ... begin' line"
    status.main(["odd.zip", "--json"])
    assert json.loads(capsys.readouterr().out)["root"] == "odd.zip"
    report.main(["odd.zip", "--out", "report"])
    assert f"not read: {told}" in capsys.readouterr().err
    for name in ("runs.csv", "report.md", "report.json"):
        assert (
            f"{tempfile.gettempdir()}/dlperf-" not in (sweep.parent / "report" / name).read_text()
        )


def test_a_log_in_an_archive_is_as_old_as_it_was(sweep: Path, capsys: Any) -> None:
    """A run that was killed long ago is not told of as running, because its log has just been
    unpacked."""
    found = paths(sweep, RUNS[0])
    found.record.unlink()
    found.log.write_bytes(found.log.read_bytes().rpartition(b"dlperf ")[0])
    two_days_ago = time.time() - 2 * 86400
    os.utime(found.log, (two_days_ago, two_days_ago))
    assert main([str(sweep), "--anyway"]) == 0
    capsys.readouterr()
    told = []
    for place in (str(sweep), "sample.zip"):
        assert status.main([place, "--offline", "--json"]) == 1
        told.append([run["status"] for run in json.loads(capsys.readouterr().out)["runs"]])
    assert told == [["unknown", "pending"]] * 2
