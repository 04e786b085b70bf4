"""Many files: found in the order of their names, read in parallel, and not a second time."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.gather import Gathered, gather
from dlperf_hpc.logs.interpret.rules import WindowRule, rule
from dlperf_hpc.logs.scan import search
from dlperf_hpc.logs.scan.literals import Literals
from dlperf_hpc.logs.scan.scanner import SHARED, Scanner, scanner
from dlperf_hpc.logs.scan.search import ScanCache, packed, scan_all, scan_source, unpacked
from dlperf_hpc.logs.scan.sources import BLOCK_BYTES, Source, find
from dlperf_hpc.logs.scanned import LogStep, LogSteps, ScannedFile
from dlperf_hpc.records.failures import Where, patterns


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


@pytest.mark.processes
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
        many = list(scan_all(sources, ScanCache(None), workers=3))
        assert [scanned.file for scanned in many] == alone
        assert sources == [scanned.source for scanned in many]


@pytest.mark.processes
def test_what_killed_workers_leave_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = made(tmp_path)
    alone = [scanned.file for scanned in scan_all(sources, ScanCache(None), workers=1)]
    monkeypatch.setattr(search, "_FEW_BYTES", 0)
    monkeypatch.setattr(search, "_AHEAD", 1)
    monkeypatch.setattr(search, "_TASK_BYTES", 1)
    killed: list[int] = []

    found = []
    for scanned in scan_all(sources, ScanCache(None), workers=2):
        found.append(scanned.file)
        if scanned.source is sources[1]:
            for child in active_children():
                killed.append(child.pid or 0)
                child.kill()
                child.join()
    assert found == alone
    assert len(killed) == 2 and not active_children()


READER = """
import sys, time
from multiprocessing import active_children
from pathlib import Path
from dlperf_hpc.logs.scan import search
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.logs.scan.sources import find

search._FEW_BYTES = 0
for _ in search.scan_all(list(find([Path(sys.argv[1])])), ScanCache(None), workers=2):
    print(*(child.pid for child in active_children()), flush=True)
    time.sleep(100)
"""


@pytest.mark.processes
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


def _sealed(text: bytes) -> bytes:
    """What :func:`packed` makes of its JSON."""
    content = zstandard.compress(text)
    return content + zlib.crc32(content).to_bytes(8, "little")


def _nested(deep: int) -> bytes:
    return _sealed(b"[" * deep + b"]" * deep)


def _changed(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """What :func:`packed` made, with its JSON changed."""
    stated = json.loads(zstandard.decompress(content[:-8]))
    change(stated)
    return _sealed(json.dumps(stated).encode())


def _columns(file: dict[str, Any]) -> list[str | None]:
    columns: list[str | None] = file["readings"][0]["steps"]
    return columns


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "no list": lambda file: file.update(readings=7),
    "no reading": lambda file: file.update(readings=["text"]),
    "no steps": lambda file: file["readings"][0].update(steps=7),
    "no file": lambda file: file.clear(),
    "a line that is text": lambda file: file.update(end_line="9"),
    "a truth that is text": lambda file: file.update(cut="yes"),
    "an unknown fact": lambda file: file.update(facts=[[1, "no_such", 1]]),
    "a fact of another type": lambda file: file.update(facts=[[1, "nodes", "2"]]),
    "a fact without a name": lambda file: file.update(facts=[[1, [], "2"]]),
    "a note that is none": lambda file: file.update(notes=[["text", 1]]),
    "a scale that is text": lambda file: file["readings"][0]["printed"].update(scale="1"),
    "a total without a unit": lambda file: file["readings"][0].update(totals=[[1, "a", 2.0]]),
    "an unknown unit": lambda file: file["readings"][0]["printed"].update(unit="apples"),
    "fewer columns": lambda file: _columns(file).pop(),
    "no iterations": lambda file: _columns(file).__setitem__(1, None),
    "one column more": lambda file: _columns(file).append(None),
    "a shorter column": lambda file: _columns(file).__setitem__(9, "00" * 8 * 7),
    "columns that are text": lambda file: _columns(file).__setitem__(1, "x" * 16),
    "half a number": lambda file: _columns(file).__setitem__(1, "00" * 7),
    "a line below 0": lambda file: _columns(file).__setitem__(0, "ff" * 8),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_a_cache_with_other_values_than_it_wrote_is_not_believed(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    content = packed(scan_source(made(tmp_path, 3)[2]))
    assert unpacked(_changed(content, lambda file: None)) == unpacked(content)
    with pytest.raises((KeyError, TypeError, ValueError)):
        unpacked(_changed(content, change))


@pytest.mark.parametrize("content", [_nested(100_000), _sealed(bytes(1 << 20)), None, 7, "x"])
def test_a_damaged_row_of_the_cache_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    """Nesting, more bytes than are allowed, and no bytes at all."""
    monkeypatch.setattr(search, "_MOST_UNPACKED", 1 << 19)
    (tmp_path / "logs").mkdir()
    (source,) = [old(source) for source in made(tmp_path / "logs", 1)]
    kept = tmp_path / "scans.sqlite"
    list(scan_all([source], ScanCache(kept)))
    with sqlite3.connect(kept) as database:
        database.execute("UPDATE scans SET content = ?", (content,))
    assert ScanCache(kept).get(source) is None
    (found,) = scan_all([source], ScanCache(kept))
    assert not found.cached and steps(found.file) == 1


def test_a_cache_that_others_may_have_written_is_not_opened(tmp_path: Path) -> None:
    """Its directory can be written by others, or it is a link, a pipe, or (as root) another's."""
    folder = tmp_path / "cache"
    kept = folder / "scans.sqlite"
    source = old(made(tmp_path, 1)[0])
    list(scan_all([source], ScanCache(kept)))
    assert ScanCache(kept).has(source)
    folder.chmod(0o777)
    assert not ScanCache(kept).has(source)
    folder.chmod(0o700)
    assert ScanCache(kept).has(source)
    if os.geteuid() == 0:
        os.chown(kept, 65534, 65534)
        assert not ScanCache(kept).has(source)
        os.chown(kept, 0, 0)
    kept.rename(folder / "other")
    kept.symlink_to(folder / "other")
    assert not ScanCache(kept).has(source)
    kept.unlink()
    os.mkfifo(kept)
    assert not ScanCache(kept).has(source)


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
    odd = LogSteps(
        [
            LogStep(1, 10**17, None, 1.5, None, 0.1, None, None),
            LogStep(2, 10**18, 3, None, None, -2.5e-9, None, 7.0),
        ]
    )
    for steps in (reading.steps, LogSteps(), odd, odd[:1]):
        file = replace(read, readings=(replace(reading, steps=steps), reading))
        assert unpacked(packed(file)) == file
    content = packed(read)
    flipped = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in (0, 20, -9)]
    for damaged in (b"", content[:-4], content[:-9] + content[-8:], *flipped):
        with pytest.raises(ValueError):
            unpacked(damaged)


@pytest.mark.parametrize("labels", [("",), ("0: ", "1: ")])
@pytest.mark.parametrize("epochs", [1, 3])
def test_what_comes_out_of_the_cache_gives_the_same_figures(
    tmp_path: Path, labels: Sequence[str], epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running averages of some epochs, of one rank and of two, several parts of a column long."""
    lines = [
        f"{label}Epoch: [{epoch}][{n:4d}/3000]\tTime  0.{300 + n % 9} ( 0.{340 + n % 7})"
        f"\tData  0.002 ( 0.001)\tLoss 6.{n:04d}e+00 (6.9000e+00)\tAcc@1   1.56 (  1.17)\n"
        for epoch in range(epochs)
        for n in range(3000)
        for label in labels
    ]
    log = tmp_path / "1n2g" / "rn50_b32_fp32_1.log"
    log.parent.mkdir()
    log.write_text("".join(lines))
    fresh, again = read_twice(log, rule("default"), monkeypatch)
    assert fresh.results[0].samples_per_s and repr(fresh.results) == repr(again.results)


def read_twice(log: Path, by: WindowRule, monkeypatch: pytest.MonkeyPatch) -> list[Gathered]:
    """A log just written, and out of the cache as if a minute had passed."""
    now = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: now)
    cache = ScanCache(log.parent.parent / "cache")
    given = {"batch_size": 32, "nodes": 1, "gpus_per_node": 2}
    found = [gather([log], by, given, each) for each in (ScanCache(None), cache, cache)]
    source = next(each for each in find([log]) if isinstance(each, Source))
    assert cache.has(source)
    return found[::2]


def test_a_column_with_gaps_gives_the_same_out_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron's first lines do not state the batch that the others do."""
    lines = [
        f" iteration {n:8d}/     400 | consumed samples: {64 * n:12d} |"
        f" elapsed time per iteration (ms): {400 + n % 3:.1f} | learning rate: 1.500E-04 |"
        + (" global batch size:    64 |" if n > 60 else "")
        + " lm loss: 6.900000E+00 | loss scale: 65536.0 |\n"
        for n in range(1, 400)
    ]
    log = tmp_path / "1n2g" / "gpt2_b32_fp32_1.log"
    log.parent.mkdir()
    log.write_text("".join(lines))
    fresh, again = read_twice(log, rule("printed[50:150]"), monkeypatch)
    assert fresh.results[0].samples_per_s and repr(fresh.results) == repr(again.results)


def test_literals_that_overlap_are_all_found_in_a_line() -> None:
    literals = Literals(["step: ", " loss", "loss = ", "loss", "ss = 1", "x"])
    line = b"no x\nstep: loss = 1\nx"
    search = literals.search(range(6))
    assert search.find(line, 5, 20)
    assert search.of(line[5:20]) == {0, 1, 2, 3, 4}
    assert literals.search([1, 5]).of(line) == {1, 5}
    assert literals.search([5]).find(line, 5, 20) == []
    assert literals.search([5]).find(line, 0, 21) == [4, 21]


def _in_each_line(literals: Literals, sought: list[int], block: bytes) -> list[frozenset[int]]:
    """The literals in each line of a block in which one is found."""
    search = literals.search(sought)
    ends, found, begin = search.find(block, 0, len(block)), [], 0
    for line in block.split(b"\n"):
        end = begin + len(line)
        hit = any(begin < each <= end for each in ends)
        found.append(search.of(line) if hit else frozenset())
        begin = end + 1
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_string_that_stands_for_several_literals_loses_none_of_them(seed: int) -> None:
    random = Random(seed)
    texts = list(dict.fromkeys(n for f in formats() for n in (*f.literals, *f.facts_literals)))
    plain, shared = Literals(texts), Literals(texts, SHARED)

    def line() -> str:
        text = ""
        for piece in random.choices([*texts, *SHARED, "x", "12.5", "s: "], k=random.randrange(6)):
            ends = [n for n in range(1, len(piece)) if text.endswith(piece[:n])]
            overlap = random.choice([0, max(ends, default=0)])
            text += piece[overlap : random.choice([len(piece), len(piece), -1])]
        return text

    block = "\n".join(line() for _ in range(300)).encode()
    for count in (5, 60, len(texts)):
        sought = sorted(random.sample(range(len(texts)), count))
        found = _in_each_line(shared, sought, block)
        assert found == _in_each_line(plain, sought, block)
        assert found == [
            {number for number in sought if texts[number].encode() in line}
            for line in block.split(b"\n")
        ]
        assert any(found)


def test_a_pass_finds_the_figures_of_all_formats_and_another_one_what_broke() -> None:
    """64 strings are searched for fast; with more, a pass takes 5 times as long as two."""
    figures = dict.fromkeys(n for each in formats() for n in each.literals)
    failing = dict.fromkeys(text for row in patterns(Where.LOG) for text in row.literals)
    for texts in ([text for text in figures if any(map(str.isalnum, text))], list(failing)):
        assert len(Literals(texts, SHARED).search(range(len(texts))).passes) == 1


def test_settings_behind_the_first_mebibyte_are_those_of_formats_recognised() -> None:
    setting = b"train_batch_size ............. 64\n"
    figure = b"[2021-05-29 19:53:43,103] [INFO] [timer.py:157:stop] 0/50, SamplesPerSec=100.5\n"
    noise = b"nothing of interest in here at all\n" * 40_000
    for log, known in ((noise + setting + figure, []), (figure + noise + setting, [64])):
        blocks = [log[at : at + BLOCK_BYTES] for at in range(0, len(log), BLOCK_BYTES)]
        file = scanner().scan("a.log", len(log), blocks)
        assert [fact.value for fact in file.facts] == known
        assert len(file.readings[0].steps) == 1


def test_formats_are_loaded_whose_literals_a_log_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(f"{formats.__module__}.")]:
        monkeypatch.delitem(sys.modules, name)
    known = formats.__wrapped__()
    text = (
        b"batch_size = 8\niter 1: loss 9.5, time 100.25ms, mfu 12.30%\nstep: 3 loss: 9.5 tps: 7\n"
    )
    found = Scanner(known).scan("a.log", len(text), [text])
    assert [each.format for each in found.readings] == ["nanogpt"]
    held = {
        each.name
        for each in known
        if any(literal.encode() in text for literal in (*each.literals, *each.facts_literals))
    }
    assert {each.name for each in known if "lines" in vars(each)} == held
    modules = {each.module for each in known if each.name in held and each.module}
    assert {name for name in sys.modules if name.startswith(f"{formats.__module__}.")} == modules


@pytest.mark.parametrize(("end", "steps"), [("54.982", 4), ("54.98", 3), ("54", 3), ("4.1", 3)])
def test_a_last_number_is_whole_with_as_many_decimals_as_two_before(end: str, steps: int) -> None:
    line = "step: {}, total_loss: 9.725, mlm_loss: 8.960, nsp_loss: 0.766, throughput: {}"
    lines = [line.format(n, f"{n}.125") for n in (19, 39, 59)]
    text = "\n".join([*lines, line.format(79, end)]).encode()
    found = scanner().scan("a.log", len(text), [text])
    assert len(found.readings[0].steps) == steps
