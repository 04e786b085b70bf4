"""Damage around the text: endless lines, halves of archives, files that are none. Bounded time and
memory whatever comes."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import os
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import zstandard
from damage import (
    RULES,
    STATED,
    check_figures,
    check_results,
    interpreted,
    part_of,
    scan,
    with_bytes,
    with_nuls,
    with_numbers,
)
from external_corpus import log, names

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.interpretation import Interpretation
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.lineparts import in_order
from dlperf_hpc.logs.scan.search import ScanCache, packed, scan_all, scan_source, unpacked
from dlperf_hpc.logs.scan.sources import Source, Unread, find
from dlperf_hpc.logs.scan.state import LONGEST_LINE
from dlperf_hpc.logs.scanned import ScannedFile

MIB = 1 << 20
LITERALS = {each.name: (*each.literals, *each.facts_literals) for each in formats()}


def figures(file: ScannedFile) -> list[list[tuple[object, ...]]]:
    """All that the steps say but for where they stand."""
    return [[tuple(step[1:]) for step in reading.steps] for reading in file.readings]


# --- endless lines


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed:2022", "dllogger_json"])
def test_a_line_of_10_mb_is_passed_over(name: str) -> None:
    text = log(name).text.encode()
    lines = text.splitlines(keepends=True)
    literal = LITERALS[log(name).format][0].encode()
    record = next(line for line in lines if literal in line).rstrip(b"\n")
    before, after = b"".join(lines[: len(lines) // 2]), b"".join(lines[len(lines) // 2 :])
    whole = scan(text)
    for filler in (b"x", record, literal, b"\xff"):
        scanned = scan(before + filler * (10 * MIB // len(filler)) + b"\n" + after, MIB)
        assert figures(scanned) == figures(whole)
        assert scanned.end_line == whole.end_line + 1
        told = [(note.line, note.text) for note in scanned.notes]
        assert told == [(before.count(b"\n") + 1, f"longer than {LONGEST_LINE} bytes: not read")]


def test_an_endless_line_of_one_rank_leaves_the_others_alone() -> None:
    """It is cut, and what begins it is a record again: no other rank's, and none that was not."""
    text = log("tf_cnn_benchmarks").text.encode()
    lines = text.splitlines(keepends=True)
    record = next(line for line in lines if b"[1,3]<stdout>:20\t" in line)
    (whole,) = scan(text).readings
    for filler in (b"x", b"[1,3]<stdout>:", record.rstrip(b"\n")):
        endless = b"[1,3]<stdout>:" + filler * (2 * MIB // len(filler)) + b"\n"
        (reading,) = scan(b"".join([*lines[:60], endless, *lines[60:]]), MIB).readings
        for rank in range(8):
            mine = [step for step in reading.steps if step.rank == rank]
            known = [step for step in whole.steps if step.rank == rank]
            assert len(mine) == len(known) or rank == 3
            assert all(any(part_of(step, other) for other in known) for step in mine)


def test_a_record_that_has_become_part_of_an_endless_line_is_not_read() -> None:
    text = log("deepspeed").text.encode()
    at = text.index(b" 0/60, SamplesPerSec=")
    (before,) = scan(text).readings
    for size in (LONGEST_LINE, MIB // 2, 10 * MIB):
        scanned = scan(text[:at] + b"y" * size + text[at:], MIB)
        (after,) = scanned.readings
        assert [s.iteration for s in before.steps if s not in after.steps] == [60]
        assert [(note.line, note.text) for note in scanned.notes] == [
            (text[:at].count(b"\n") + 1, f"longer than {LONGEST_LINE} bytes: not read")
        ]


_PEAK = """
import re, sys
from pathlib import Path
from dlperf_hpc.logs.scan.search import scan_source
from dlperf_hpc.logs.scan.sources import Source, find
for path in sys.argv[1:]:
    for source in find([Path(path)]):
        found = scan_source(source)
        assert sum(len(reading.steps) for reading in found.readings) <= 26, found
print(re.search("VmHWM:\\\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.processes
def test_memory_is_flat_for_a_line_of_64_mb(tmp_path: Path) -> None:
    text = log("deepspeed").text.encode()
    record = next(line for line in text.split(b"\n") if b"SamplesPerSec" in line)
    tag = b"[1,0]<stdout>:begin\n" * 30
    contents = {
        "plain.log": [text, b"x" * 64 * MIB],
        "literals.log": [text, record * (64 * MIB // len(record))],
        "tagged.log": [tag, b"[1,0]<stdout>:", record * (64 * MIB // len(record)), b"\n"],
        "returns.log": [text, b"\r" * 64 * MIB],
    }
    for name, parts in contents.items():
        (tmp_path / name).write_bytes(b"".join(parts))
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * MIB).replace(b"\0", b"x"))
    (tmp_path / "bomb.zst").write_bytes(bomb)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"x" * 64 * MIB, 1))
    command = [sys.executable, "-c", _PEAK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) / 1024 < 128  # numpy among it


# --- time


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """CPU time that it takes at least."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def within(work: Callable[[], object], bound: float) -> bool:
    """Whether it takes less CPU time than that; what else runs here may disturb it once."""
    return any(seconds(work, 1) < bound for _ in range(3))


def long_lines(line: str, literal: str) -> Iterator[Callable[[int], str]]:
    """Lines of a given length that begin as a format's do, made to be hard to match."""
    at = line.index(literal)
    head, tail, after = line[:at], line[at:], line[at + len(literal) :]
    yield lambda n: (line * n)[:n]
    yield lambda n: ((line[: len(line) // 2] + " ") * n)[:n]
    yield lambda n: (literal * n)[:n]
    yield lambda n: head + " " * n + tail
    yield lambda n: head + literal + "1" * n + after
    yield lambda n: head + literal + "a.b=1, " * (n // 7) + after


@pytest.mark.parametrize("name", names())
def test_a_line_costs_what_its_length_is(name: str) -> None:
    """16 times as long may take 16 times as long; a quadratic pattern would take 256 times."""
    made = log(name)
    for literal in LITERALS[made.format]:
        line = next((line for line in made.text.split("\n") if literal in line), None)
        for longer in long_lines(line, literal) if line else ():
            short, far = longer(4000).encode() + b"\n", longer(63500).encode() + b"\n"
            least = max(seconds(functools.partial(scan, short), 2), 2e-4)
            assert within(functools.partial(scan, far), 80 * least), literal


SAMPLES = Path(__file__).parent / "formats"


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.log")))
def test_a_line_of_many_beginnings_costs_what_its_length_is(name: str) -> None:
    """It takes seconds if the rest of the line is read for each of them."""
    for line in (SAMPLES / f"{name}.log").read_text(encoding="utf-8").splitlines():
        if any(literal in line for literal in LITERALS[name]):
            break
    for part in (4, 2, 1):
        beginning = line[: len(line) // part] + " "
        data = (beginning * 63500)[:63500].encode() + b"\n"
        assert within(functools.partial(scan, data), 1.5), part


def test_cells_that_come_again_are_tried_once() -> None:
    keys = [rf"{name}: (?P<{name}>[0-9]+) \|" for name in "abcde"]
    cells = "".join(f" {name}: {number} |" for number in range(500) for name in "abcd")
    assert seconds(lambda: re.search("^begin" + in_order(keys), "begin" + cells), 1) < 1
    found = re.search(in_order(keys), f"begin |{cells[:56]} e: 7 |")
    assert found and found.groups() == ("0", "0", "0", "0", "7")


def deepspeed_lines(iterations: list[int]) -> bytes:
    return "".join(
        f"[2021-05-{1 + i // 86400:02d} {i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d},103] "
        f"[INFO] [timer.py:157:stop] 0/{n}, SamplesPerSec={500 + n % 7}.25\n"
        for i, n in enumerate(iterations)
    ).encode()


@pytest.mark.parametrize(
    "order",
    [
        lambda n: list(range(3, n + 3)),
        lambda n: list(range(n + 3, 3, -1)),
        lambda n: [3 + i % 20 for i in range(n)],
        lambda n: [Random(n).randrange(n) if i else 5 for i in range(n)],
        lambda n: [3] * n,
    ],
    ids=["rising", "falling", "starting again", "random", "the same"],
)
def test_a_file_costs_what_its_length_is(order: Callable[[int], list[int]]) -> None:
    def work(data: bytes) -> None:
        scanned = scan(data)
        for basis in RULES:
            interpreted(scanned, basis)

    short, far = (deepspeed_lines(order(count)) for count in (400, 4000))
    assert within(lambda: work(far), 50 * seconds(lambda: work(short)))


# --- compressed


def compressed(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)
    if kind == "xz":
        return lzma.compress(data, preset=0)
    return gzip.compress(data, 1) if kind == "gz" else bz2.compress(data)


def one(path: Path) -> ScannedFile:
    (source,) = find([path])
    assert isinstance(source, Source)
    return scan_source(source)


def filled(text: bytes) -> bytes:
    """A log with much that cannot be compressed behind it, so that a half has the log in it."""
    random = Random(4)
    return text + b"".join(b"NCCL %x\n" % random.getrandbits(256) for _ in range(32_000))


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2", "zst"])
def test_half_of_a_compressed_log_is_read_and_told(kind: str, tmp_path: Path) -> None:
    text = log("paddlenlp").text.encode()
    path = tmp_path / "some.log"  # the name does not say that it is compressed
    data = compressed(kind, filled(text))
    path.write_bytes(data)
    whole = one(path)
    assert figures(whole) == figures(scan(text)) and not whole.notes
    path.write_bytes(data[: len(data) // 2])
    half = one(path)
    assert figures(half) == figures(whole)
    (note,) = half.notes
    assert note.line == 0 and f"{path}: cannot be read to its end: " in note.text


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_a_small_log_that_is_cut_gives_what_came_before(kind: str, tmp_path: Path) -> None:
    data = compressed(kind, log("paddlenlp").text.encode())
    (tmp_path / "a.log").write_bytes(data[: len(data) * 9 // 10])
    file = one(tmp_path / "a.log")
    assert 0 < len(file.readings[0].steps) < 13 and file.notes


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2", "zst"])
def test_bytes_that_are_changed_or_added_raise_nothing(kind: str, tmp_path: Path) -> None:
    random = Random(kind)
    text = log("paddleclas").text.encode()
    data, path = compressed(kind, text), tmp_path / "a.log"
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(random.randint(1, 4)):
            broken[random.randrange(len(broken))] = random.randrange(256)
        path.write_bytes(bytes(broken))
        check_figures(one(path))
    path.write_bytes(data + b"no more of it" * 9)
    assert figures(one(path)) == figures(scan(text))


def archive(text: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for i, kind in enumerate((0, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)):
            file.writestr(f"logs/{i}.log", text, compress_type=kind)
    return packed.getvalue()


def test_a_bad_member_of_an_archive_leaves_the_others_alone(tmp_path: Path) -> None:
    text = log("oneflow_bert").text.encode()
    data, path = bytearray(archive(text)), tmp_path / "a.zip"
    data[data.index(b"total_loss: ") + 1] ^= 1
    path.write_bytes(data)
    files = [scan_source(each) for each in find([path]) if isinstance(each, Source)]
    assert [len(each.readings) for each in files] == [0, 1, 1, 1]
    assert "Bad CRC-32" in files[0].notes[0].text and f"{path}!logs/0.log" in files[0].notes[0].text
    assert not any(each.notes for each in files[1:])


def test_a_broken_archive_is_told(tmp_path: Path) -> None:
    data, path = archive(b"nothing"), tmp_path / "a.zip"
    path.write_bytes(data[:-30])
    (found,) = find([path])
    assert isinstance(found, Unread) and "no zip archive that can be read" in found.why
    random = Random(8)
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(random.randint(1, 4)):
            near_end = random.random() < 0.6  # where the list of members is
            at = random.randrange(len(data) // 2 if near_end else 0, len(data))
            broken[at] = random.choice((0, 255, random.randrange(256)))
        path.write_bytes(bytes(broken))
        for each in find([path]):
            if isinstance(each, Source):
                check_figures(scan_source(each))


def test_a_locked_archive_is_told(tmp_path: Path) -> None:
    data = bytearray(archive(log("oneflow_bert").text.encode()))
    for head, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(head)
        while at >= 0:
            data[at + flags] |= 1  # says that it is encrypted
            at = data.find(head, at + 1)
    (tmp_path / "a.zip").write_bytes(data)
    files = [scan_source(each) for each in find([tmp_path]) if isinstance(each, Source)]
    assert len(files) == 4 and not any(each.readings for each in files)
    assert all("password" in each.notes[0].text for each in files)


# --- other encodings


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le", "utf-32"])
def test_wide_characters_without_a_mark_of_two_bytes_are_no_log(
    encoding: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(log("deepspeed").text.encode(encoding))
    assert not one(path).readings


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le"])
def test_utf_16_is_read_by_its_mark(encoding: str, tmp_path: Path) -> None:
    """As PowerShell's `>` writes it; a file may end within a character."""
    path, text = tmp_path / "a.log", log("deepspeed").text
    path.write_text(text, encoding="utf-8")
    expected = one(path)
    for text_end in ("", "\u8a13"):
        data = ("\ufeff" + text + text_end).encode(encoding)
        path.write_bytes(data[: len(data) - len(text_end)])
        assert one(path).readings == expected.readings and expected.readings[0].steps


def test_half_a_log_in_another_encoding_is_passed_over() -> None:
    text = log("deepspeed").text
    half = len(text) // 2
    for encoding in ("utf-16-le", "utf-16-be", "utf-16", "cp037"):
        scanned = scan(text[:half].encode() + text[half:].encode(encoding))
        check_figures(scanned)
        steps = scan(text.encode()).readings[0].steps
        mine = scanned.readings[0].steps
        assert 0 < len(mine) < len(steps)
        assert all(part_of(step, other) for step, other in zip(mine, steps))


# --- what is no file


def test_trees_with_loops_pipes_and_nothing_end(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    (folder / "deep.log" / "a.zip").mkdir(parents=True)
    text = log("oneflow_bert").text
    (folder / "deep.log" / "a.zip" / "run.log").write_text(text)
    os.symlink(folder, folder / "deep.log" / "up")
    os.symlink("self", folder / "self")
    os.symlink("nowhere", folder / "dangling.log")
    os.symlink(folder / "deep.log" / "a.zip" / "run.log", folder / "again.log")
    os.mkfifo(folder / "pipe.log")
    (folder / "empty.log").write_text("")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s.log"))
        found = list(find([folder, folder]))
    read = [each for each in found if isinstance(each, Source)]
    assert {Path(each.path).name for each in read} == {"again.log", "empty.log"}
    why = {Path(each.path).name: each.why for each in found if isinstance(each, Unread)}
    assert set(why) == {"self", "dangling.log", "pipe.log", "s.log"}
    assert "No such file" in why["dangling.log"]
    assert why["pipe.log"] == "cannot be read: is a named pipe, not a file"
    assert why["s.log"] == "cannot be read: is a socket, not a file"
    scanned = list(scan_all(read, ScanCache(None)))
    assert sorted(len(each.file.readings) for each in scanned) == [0, 1]


def test_a_file_that_cannot_be_read_or_is_gone_is_told(tmp_path: Path) -> None:
    memory = Source("/proc/self/mem", 0)  # opens, and fails as it is read
    assert "cannot be read to its end: " in scan_source(memory).notes[0].text
    for path, why in ((tmp_path / "gone.log", "No such file"), (tmp_path, "directory")):
        (note,) = scan_source(Source(str(path), 7)).notes
        assert why in note.text
    (found,) = find([tmp_path / ("long" * 2000)])
    assert isinstance(found, Unread)


def test_names_that_are_no_text_are_read_and_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = os.fsencode(folder) + b"/run\xff\n.log"
    with open(path, "wb") as file:
        file.write(log("oneflow_bert").text.encode())
    os.utime(path, (1e9, 1e9))
    (source,) = find([folder])
    assert isinstance(source, Source)
    for _ in range(2):
        cache = ScanCache(tmp_path / "cache.sqlite")
        ((scanned),) = scan_all([source], cache)
        assert scanned.file.readings[0].format == "oneflow_bert"


@pytest.mark.parametrize("name", names())
def test_what_was_found_can_be_remembered(name: str) -> None:
    file = scan(log(name).text.encode())
    assert unpacked(packed(file)) == file


def test_results_hold_for_every_rule_and_nothing_said() -> None:
    for name in names():
        for basis in RULES:
            check_results(interpreted(scan(log(name).text.encode()), basis, {}))


def test_a_tree_of_damaged_logs_is_gathered(tmp_path: Path) -> None:
    """From paths to results: whatever is in the files, there is a result or a word about it."""
    random = Random(3)
    folder = tmp_path / "oneflow" / "bert" / "2n4g"
    folder.mkdir(parents=True)
    for name in names():
        text = log(name).text.encode()
        label = name.replace(":", "_")
        (folder / f"{label}_b32_fp32_1.log").write_bytes(text)
        (folder / f"{label}_b32_fp32_2.log").write_bytes(text[: random.randrange(len(text))])
        (folder / f"{label}_b32_fp32_3.log").write_bytes(with_nuls(text, random))
        (folder / f"{label}_b32_fp32_4.log").write_bytes(with_bytes(text, random))
        (folder / f"{label}_b32_fp32_5.log").write_bytes(with_numbers(text, random))
        (folder / f"{label}_b32_fp32_6.log.gz").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(LedgerError, match="no such file"):
        gather([tmp_path / "gone"], rule("default"), {}, ScanCache(None))
    gathered = gather([tmp_path], rule("default"), STATED, ScanCache(None))
    assert gathered.files == 6 * len(names())
    check_results(Interpretation(gathered.results))
    assert {result.run.case.topology.devices for result in gathered.results} == {8}
    assert all("\0" not in line for line in gathered.unread)
