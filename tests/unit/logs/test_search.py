"""Many files: found in the order of their names, read in parallel, and not a second time."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest

from dlperf_hpc.logs.scan import search
from dlperf_hpc.logs.scan.needles import Needles
from dlperf_hpc.logs.scan.scanner import scanner
from dlperf_hpc.logs.scan.search import ScanCache, packed, scan_all, scan_source, unpacked
from dlperf_hpc.logs.scan.sources import BLOCK_BYTES, Source, find
from dlperf_hpc.logs.scanned import ScannedFile, Step


def log(number: int) -> str:
    """Of DeepSpeed's, with ``number`` + 1 lines of its timer."""
    return "".join(
        f"[2021-05-29 19:{n // 60:02d}:{n % 60:02d},000] [INFO] [timer.py:157:stop] 0/{n},"
        f" SamplesPerSec={100 + number}.5\n"
        for n in range(1, number + 2)
    )


def made(root: Path, files: int = 40) -> list[Source]:
    """Logs that were changed long ago."""
    for number in range(files):
        path = root / f"{number:03d}.log"
        path.write_text(log(number))
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return [each for each in find([root]) if isinstance(each, Source)]


def old(source: Source) -> Source:
    """As if its inode were as old as its content."""
    return Source(source.path, source.size, identity=(*source.identity[:4], 0))


def steps(file: ScannedFile) -> int:
    return sum(len(reading.steps) for reading in file.readings)


def test_files_come_in_order_whoever_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = made(tmp_path)
    alone = [scanned.file for scanned in scan_all(sources, ScanCache(None), workers=1)]
    assert [steps(file) for file in alone] == list(range(1, 41))
    monkeypatch.setattr(search, "_FEW_BYTES", 0)
    monkeypatch.setattr(search, "_AHEAD", 1)
    for task in (1, 5_000):
        monkeypatch.setattr(search, "_TASK_BYTES", task)
        seen: list[Source] = []
        many = list(scan_all(sources, ScanCache(None), seen.append, workers=3))
        assert [scanned.file for scanned in many] == alone
        assert seen == sources == [scanned.source for scanned in many]


def test_what_killed_workers_leave_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = made(tmp_path)
    alone = [scanned.file for scanned in scan_all(sources, ScanCache(None), workers=1)]
    monkeypatch.setattr(search, "_FEW_BYTES", 0)
    monkeypatch.setattr(search, "_AHEAD", 1)
    monkeypatch.setattr(search, "_TASK_BYTES", 1)
    killed: list[int] = []

    def kill(source: Source) -> None:
        if source is sources[1]:
            for child in active_children():
                killed.append(child.pid or 0)
                child.kill()
                child.join()

    found = [scanned.file for scanned in scan_all(sources, ScanCache(None), kill, workers=2)]
    assert found == alone
    assert len(killed) == 2 and not active_children()


READER = """
import sys, time
from multiprocessing import active_children
from pathlib import Path
from dlperf_hpc.logs.scan import search
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.logs.scan.sources import find

def stop(source):
    print(*(child.pid for child in active_children()), flush=True)
    time.sleep(100)

search._FEW_BYTES = 0
list(search.scan_all(list(find([Path(sys.argv[1])])), ScanCache(None), stop, workers=2))
"""


def test_workers_end_when_the_reader_is_killed(tmp_path: Path) -> None:
    made(tmp_path)
    argv = [sys.executable, "-c", READER, str(tmp_path)]
    reader = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert reader.stdout is not None
        workers = list(map(int, reader.stdout.readline().split()))
        assert len(workers) == 2 and all(map(runs, workers))
        reader.kill()
        limit = time.monotonic() + 30
        while any(map(runs, workers)) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not any(map(runs, workers))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(reader.pid, signal.SIGKILL)
        reader.communicate()


def runs(pid: int) -> bool:
    """Whether a process does, and is not only waiting to be asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_the_cache_cannot_read_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    sources = [old(source) for source in made(tmp_path / "logs", 4)]
    kept = tmp_path / "cache" / "scans.sqlite"
    first = list(scan_all(sources, ScanCache(kept)))
    assert not any(scanned.cached for scanned in first)
    again = list(scan_all(sources, ScanCache(kept)))
    assert all(scanned.cached for scanned in again)
    assert [scanned.file for scanned in again] == [scanned.file for scanned in first]
    with sqlite3.connect(kept) as database:
        (damaged,) = database.execute("SELECT MIN(file) FROM scans").fetchone()
        database.execute("UPDATE scans SET content = x'00' WHERE file = ?", (damaged,))
    for cached in ([False, True, True, True], [True] * 4):
        found = list(scan_all(sources, ScanCache(kept)))
        assert [scanned.cached for scanned in found] == cached
        assert [scanned.file for scanned in found] == [scanned.file for scanned in first]
    changed = [Source(sources[0].path, 1, identity=sources[0].identity[:2]), *sources[1:]]
    assert not next(scan_all(changed, ScanCache(kept))).cached


def test_a_cache_is_written_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlperf_hpc.logs.scan.search._MOST_HELD", 0)
    (source, _) = made(tmp_path, 2)
    kept = tmp_path / "scans.sqlite"
    ScanCache(kept).put(old(source), packed(scan_source(source)))
    assert ScanCache(kept).get(old(source)) == scan_source(source)
    ScanCache(kept).put(source, b"")  # its inode is a second old
    assert not ScanCache(kept).has(source)


def test_what_was_found_is_packed_and_unpacked_as_it_was(tmp_path: Path) -> None:
    read = scan_source(made(tmp_path, 3)[2])
    reading = read.readings[0]
    odd = (
        Step(1, 10**17, None, 1.5, None, 0.1, None, None),
        Step(2, 10**40, 3, None, None, -2.5e-9, None, 7.0),  # beyond a machine's number
    )
    for steps in (reading.steps, (), odd, odd[:1]):
        file = replace(read, readings=(replace(reading, steps=steps), reading))
        assert unpacked(packed(file)) == file
    content = packed(read)
    for damaged in (b"", content[:-4], zlib.compress(zlib.decompress(content)[:-8])):
        with pytest.raises((ValueError, zlib.error)):
            unpacked(damaged)


def test_needles_that_overlap_are_all_found_in_a_line() -> None:
    needles = Needles(["step: ", " loss", "loss = ", "loss", "ss = 1", "x"])
    line = b"no x\nstep: loss = 1\nx"
    hits = needles.find(line, 5, 20, needles.groups(range(6)))
    assert hits and needles.among(line, hits, line[5:20]) == needles.of(line[5:20]) == {
        0,
        1,
        2,
        3,
        4,
    }
    assert needles.find(line, 5, 20, needles.groups([5])) == []
    assert needles.find(line, 0, 21, needles.groups([5])) == [(4, 5), (21, 5)]


def test_settings_behind_the_first_mebibyte_are_those_of_formats_recognised() -> None:
    setting = b"train_batch_size ............. 64\n"
    figure = b"[2021-05-29 19:53:43,103] [INFO] [timer.py:157:stop] 0/50, SamplesPerSec=100.5\n"
    noise = b"nothing of interest in here at all\n" * 40_000
    for log, known in ((noise + setting + figure, []), (figure + noise + setting, [64])):
        blocks = [log[at : at + BLOCK_BYTES] for at in range(0, len(log), BLOCK_BYTES)]
        file = scanner().scan("a.log", len(log), blocks)
        assert [fact.value for fact in file.facts] == known
        assert len(file.readings[0].steps) == 1
