"""Launcher prefixes: who wrote a file, lines freed of labels, tagged chunks put together."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlperf_hpc.logs.scan import demux
from dlperf_hpc.logs.scan.demux import Chunk, demultiplex
from dlperf_hpc.logs.scan.launchers import LinePrefixes, StrippedLine, detect_launcher

REAL_LOGS = os.environ.get("DLPERF_REAL_LOGS")
real_logs = pytest.mark.skipif(not REAL_LOGS, reason="DLPERF_REAL_LOGS is not set")
STAMP = b"Sun May 29 09:48:38 2022"


def _log(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _chunks(data: bytes) -> list[tuple[int | None, bytes]]:
    return [(chunk.rank, chunk.data) for chunk in demultiplex([data]) if chunk.whole]


# --- census


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("ompi", ["[1,0]<stdout>:a", "[1,1]<stderr>:b"]),
        ("ompi", ["Sun May  1 09:48:38 2022[1,0]<stdout>:a"]),
        ("ompi", ["[1,0]<stdout>: a", "[1,12]<stdout>: b"]),
        ("ompi", ["[Sun May 29 09:48:38 2022][prterun-vm-77@1,3]<stddiag>: a"]),
        ("ompi", ["[1,0][vm-1:4711]<stdout>: a", "[1,1][unknown:unknown]<stdout>: b"]),
        ("ompi", ["[0]<stdout>: a", "[1]<stdout>: b"]),
        (
            "horovodrun",
            ["[0]<stdout>:a", "[1]<stdout>: b", "Sun May 29 09:48:38 2022[1]<stdout>:c"],
        ),
        ("srun", ["0: a", "0: b", "0: c"]),
        ("srun", ["launch 1", " 0: a", "11: b", " 3: c", " 0: d", "srun: error: n1: task 3"]),
        ("srun", ["00: a", "11: b", "03: c", "00:"]),
        ("srun", ["P0 0: a", "P1 3: b", "P0 2: c", "P1 0: d"]),
        ("pdsh", ["vs003: a", "vs002: Warning: b", "untagged", "vs003: step: 3", "vs002: d"]),
        ("pdsh", ["worker-0: a", "worker-0: b", "worker-0: c"]),
        ("pdsh", ["vm-07-14: a", "vm-07-05: b", "vm-07-14: c", "vm-07-05:"]),
        ("pdsh", ["10.0.0.7: a", "10.0.0.8: b", "10.0.0.7: c", "10.0.0.8: d"]),
        ("pdsh", ["cmd = pdsh -f 1024 -w alpha,beta x", "alpha: a", "beta: b", *["alpha: c"] * 3]),
        ("pdsh", ["alpha: WORLD INFO DICT: {'alpha': [0, 1]}", "alpha: b", "alpha: c"]),
        ("torchrun", ["[rank0]: a", "[rank1]: b", "[rank0]: c"]),
        ("torchrun", ["[default0]:a", "[default7]:b", "[default0]:c"]),
        (
            "agent",
            ["2021-05-29 19:53:45 run6222: [INFO] a", *["2021-05-29 19:53:46 run6222: b"] * 2],
        ),
        ("agent", [f"2021-05-29 19:53:45 run6222: vs00{n % 2}: a" for n in range(6)]),
        ("ompi", ["2021-05-29 19:53:45 run6222: [1,0]<stdout>:a"] * 3),
        ("srun", [f"\x1b[32m{n % 2}: a\x1b[0m" for n in range(6)]),
    ],
)
def test_each_launcher_is_known_by_its_lines(name: str, lines: list[str]) -> None:
    launcher = detect_launcher(_log(*lines))
    assert (launcher.name, launcher.tagged) == (name, name in ("ompi", "horovodrun"))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [""] * 9,
        ["0: a"],
        [f"step: {n}, total_loss: 9.725, throughput: 54.982 1598056519.88" for n in range(50)],
        [f"epoch: 1, progress: 1/1, step: {n}, loss: 10.4" for n in range(50)],
        [f"Epoch: [0][{n}/53]  Time  0.970 ( 6.512)" for n in range(50)],
        [f"iteration: {n} loss: 1.0" for n in range(50)],
        [f"Training Epoch: 0 Training Iteration: {n}  step_loss : 1" for n in range(50)],
        ["INFO: a", "WARNING: b"] * 20,
        ["Warning: a"] * 20,
        [f"epoch{n // 10}: step {n}" for n in range(50)],
        [f"rank0: iteration {n}" for n in range(50)],
        [f"resnet50.py: step {n}" for n in range(50)],
        [f"layer{n}.0.conv1.weight: torch.Size([64])" for n in range(50)],
        [f"{n}: loss 3.5" for n in range(100)],
        [f"{n:3d}: loss 3.5" for n in range(100)],
        [f"{1598056519 + n // 2}: loss 3.5" for n in range(100)],
        ["12:30:45: a", "12:30:46: b"] * 9,
        ["2021-05-29 19:53:45 INFO: [a]"] * 9,
        ["0.5: a"] * 9,
        [*["vs003: a"] * 10, *["free text"] * 10],
        [*["0: a"] * 10, *["free text"] * 10],
        ["the tag [1,0]<stdout>: is Open MPI's", *["free text"] * 30],
    ],
)
def test_ordinary_lines_have_no_prefix(lines: list[str]) -> None:
    assert detect_launcher(_log(*lines)) == LinePrefixes("none", False, ())


def test_the_head_is_64_kib_and_may_be_anything() -> None:
    assert detect_launcher(b"x" * (1 << 16) + b"\n0: a" * 100).name == "none"
    noise = random.Random(7)
    for size in (0, 1, 99, 5000):
        detect_launcher(noise.randbytes(size))
        detect_launcher(bytes(noise.choice(b"\n\r 0:[],<>stdout\x1b") for _ in range(size)))
    for line in (b"[", b" ", b"\x1b[1", b"0", b"a1", b"[1,", b"pdsh -w "):
        detect_launcher(line * (1 << 16))


# --- strip

PDSH = detect_launcher(_log(*["vs003: a", "vs002: b"] * 3))
SRUN = detect_launcher(_log(*[" 0: a", "11: b"] * 3))


@pytest.mark.parametrize(
    ("launcher", "text", "expected"),
    [
        (LinePrefixes(), "vs003: 0: INFO: a", (None, None, "vs003: 0: INFO: a")),
        (LinePrefixes(), "", (None, None, "")),
        (LinePrefixes(), "\x1b[32m[INFO]\x1b[0m - a\x1b[K", (None, None, "[INFO] - a")),
        (LinePrefixes(), "[1,12]<stdout>:a", (12, None, "a")),
        (LinePrefixes(), "Sun May 29 09:48:38 2022[1,0]<stderr>:a", (0, None, "a")),
        (LinePrefixes(), "[Sun May  1 09:48:38 2022][x@1,3][vm-1:77]<stdout>: a", (3, "vm-1", "a")),
        (LinePrefixes(), "[rank3]: Traceback", (3, None, "Traceback")),
        (LinePrefixes(), "[2020-02-06] [INFO] a", (None, None, "[2020-02-06] [INFO] a")),
        (PDSH, "vs003: [default3]:  a: b", (3, "vs003", " a: b")),
        (PDSH, "vs017: Warning: a", (None, "vs017", "Warning: a")),
        (PDSH, "pdsh@vs001: vs003: ssh exited", (None, "vs003", "ssh exited")),
        (PDSH, "step: 3", (None, None, "step: 3")),
        (PDSH, "vs003:", (None, "vs003", "")),
        (SRUN, " 3: 11: a", (3, None, "11: a")),
        (SRUN, "3: a", (None, None, "3: a")),
        (SRUN, "\x1b[1m11: [rank11]: a", (11, None, "a")),
        (SRUN, " 1: [default3]:a", (3, "1", "a")),
        (SRUN, "srun: error: n1: task 3", (None, None, "srun: error: n1: task 3")),
        (detect_launcher(_log(*["P0 0: a", "P1 0: b"] * 3)), "P1 0: a", (0, "P1", "a")),
    ],
)
def test_strip_takes_off_what_the_census_found(
    launcher: LinePrefixes, text: str, expected: tuple[int | None, str | None, str]
) -> None:
    assert launcher.strip(text) == StrippedLine(*expected)


def test_prefixes_within_prefixes() -> None:
    launcher = detect_launcher(
        _log(*[f"2021-05-29 19:53:4{n} run6222: vs00{n % 2}: [default{n}]:a" for n in range(8)])
    )
    assert [form.name for form in launcher.forms] == ["agent", "pdsh", "torchrun"]
    line = "2021-05-29 20:53:45 run6222: vs009: [default7]:[INFO 2020-02-06] a"
    assert launcher.strip(line) == StrippedLine(7, "vs009", "[INFO 2020-02-06] a")


# --- demultiplex


def test_chunks_of_two_ranks_become_lines() -> None:
    data = (
        b"[1,1]<stdout>:hello[1,1]<stdout>:\n"
        b"[1,1]<stdout>:\rfifty[1,0]<stdout>:rank 0\n"
        b"[1,0]<stdout>:part A [1,1]<stdout>:\rhundred\n"
        b"\n"
        b"mpirun's own\n"
        b"[1,1]<stdout>:part C [1,0]<stdout>:part B\n"
        b"[1,1]<stderr>:err\n"
        b"[1,1]<stdout>:part D\n"
    )
    assert list(demultiplex([data])) == [
        Chunk(1, 1, b"hello"),
        Chunk(2, 0, b"rank 0"),
        Chunk(2, 1, b"fifty"),
        Chunk(3, 1, b"hundred"),
        Chunk(5, None, b"mpirun's own"),
        Chunk(3, 0, b"part A part B"),
        Chunk(7, 1, b"err"),
        Chunk(6, 1, b"part C part D"),
    ]


def test_a_line_without_its_end_is_not_whole() -> None:
    data = b"[1,0]<stdout>:a[1,1]<stdout>:speed: 12\n[1,2]<stdout>:b\n[1,2]<stdout>:c"
    assert list(demultiplex([data])) == [
        Chunk(1, 1, b"speed: 12"),
        Chunk(2, 2, b"b"),
        Chunk(1, 0, b"a", whole=False),
        Chunk(3, 2, b"c", whole=False),
    ]
    assert list(demultiplex([b"[1,0]<stdout>:a\nno end"]))[-1] == Chunk(
        2, None, b"no end", None, False
    )


def test_the_tags_time_stamp_is_no_text_of_any_rank() -> None:
    data = (
        STAMP + b"[1,0]<stdout>:loss 1." + STAMP + b"[1,1]<stdout>:b\n"
        + STAMP + b"[1,0]<stdout>:5\n[Sun May  1 09:48:38 2022][1,0]<stdout>:c\n"
    )  # fmt: skip
    assert _chunks(data) == [(1, b"b"), (0, b"loss 1.5"), (0, b"c")]


def test_a_blank_is_the_tags_only_if_all_tags_have_one() -> None:
    prrte = b"[1,0]<stdout>: loss 1.[1,0]<stdout>: 5\n[1,1][vm-1:7]<stdout>:  indented\n"
    assert list(demultiplex([prrte])) == [
        Chunk(1, 0, b"loss 1.5"),
        Chunk(2, 1, b" indented", "vm-1"),
    ]
    # Else two numbers would become one that nobody printed.
    assert _chunks(b"[1,0]<stdout>:loss 1.5[1,0]<stdout>: 2\n") == [(0, b"loss 1.5 2")]


def test_another_programs_prefix_before_tags_is_dropped() -> None:
    data = (
        b"19:53 run1: [1,0]<stdout>:a[1,1]<stdout>:b\n19:53 run1: [1,0]<stdout>:\n19:54 run1: c\n"
    )
    assert _chunks(data) == [(1, b"b"), (0, b"a"), (None, b"19:54 run1: c")]


def test_carriage_returns_before_newlines_end_one_line() -> None:
    assert _chunks(b"[0]<stdout>:a\r\n[0]<stdout>:50%\r[1]<stdout>:b\n[0]<stdout>:60%\r") == [
        (0, b"a"), (0, b"50%"), (1, b"b"), (0, b"60%"),
    ]  # fmt: skip


def test_a_line_too_long_is_cut_after_a_word_and_its_rest_dropped() -> None:
    words = b"speed: 12345 " * 10_000
    for data in (
        words + b"\n",
        words[:100] + b"[1,1]<stdout>:b\n[1,0]<stdout>:" + words[100:] + b"\r",
    ):
        (line,) = (line for rank, line in _chunks(b"[1,0]<stdout>:" + data) if rank == 0)
        assert demux.LONGEST_LINE - 13 < len(line) <= demux.LONGEST_LINE
        assert line.endswith((b"speed:", b"12345"))
    exact = b"x" * demux.LONGEST_LINE
    assert _chunks(b"[1,0]<stdout>:" + exact + b"\n[1,0]<stdout>:b\n") == [(0, exact), (0, b"b")]


def test_memory_is_bounded_whatever_the_tags_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demux, "MOST_STREAMS", 2)
    lines = b"".join(b"[1,%d]<stdout>:a\n" % rank for rank in range(4))
    assert _chunks(b"[1,0]<stdout>:" + lines) == [(0, b"a"), (1, b"a")]
    monkeypatch.setattr(demux, "MOST_HELD", 100)
    held = b"[1,0]<stdout>:" + b"x" * 60 + b"[1,1]<stdout>:" + b"y" * 60
    ends = b"[1,0]<stdout>:speed: 3\n[1,0]<stdout>:b\n"
    assert list(demultiplex([held + ends])) == [
        Chunk(2, 0, b"b"),
        Chunk(1, 1, b"", whole=False),
    ]


TEXTS = st.text("ab 1.[]<>,:\r", max_size=12).map(str.encode)
WRITES = st.lists(st.tuples(st.integers(0, 3), TEXTS, st.booleans()), max_size=30)


@given(WRITES, st.sampled_from([b"", STAMP]), st.sampled_from([b"", b" "]), st.randoms())
def test_every_rank_gets_its_own_lines_back(
    writes: list[tuple[int, bytes, bool]], stamp: bytes, blank: bytes, cuts: random.Random
) -> None:
    written: defaultdict[int, bytes] = defaultdict(bytes)
    data = stamp + b"[1,9]<stdout>:" + blank + b"begin\n"
    for rank, text, ends in writes:
        text += b"\n" if ends else b""
        written[rank] += text
        data += stamp + b"[1,%d]<stdout>:" % rank + blank + text
    blocks = []
    at = 0
    while at < len(data):
        step = cuts.choice([1, 3, 40, 1000])
        blocks.append(data[at : at + step])
        at += step
    chunks = list(demultiplex(blocks))
    assert chunks == list(demultiplex([data]))
    for rank, text in written.items():
        mine = [chunk for chunk in chunks if chunk.rank == rank]
        lines = text.replace(b"\r", b"\n").split(b"\n")
        assert [chunk.data for chunk in mine if chunk.whole] == [
            line for line in lines[:-1] if line
        ]
        assert [chunk.data for chunk in mine if not chunk.whole] == [
            line for line in lines[-1:] if line
        ]


def test_a_tag_may_be_cut_anywhere_in_a_line_without_end() -> None:
    data = b"[1,0]<stdout>:" + b"x " * 5000 + STAMP + b"[1,1][host-1:77]<stdout>:" + b"y\n"
    whole = list(demultiplex([data]))
    assert [chunk.rank for chunk in whole] == [1, 0]
    for cut in range(len(data) - 700, len(data)):
        assert list(demultiplex([data[:cut], data[cut:]])) == whole
    noise = random.Random(3)
    for _ in range(20):
        junk = bytes(noise.choice(b"\n\r[1,0]<stdout>: SunMay\0\xff") for _ in range(3000))
        pieces = [junk[at : at + 17] for at in range(0, len(junk), 17)]
        assert list(demultiplex(pieces)) == list(demultiplex([junk]))


# --- real logs

LAUNCHERS = {
    "excerpts/openmpi414_tag_output_local.log": "ompi",
    "excerpts/aws_tf2_albert_mpirun_tag_issue45.log": "ompi",
    "excerpts/horovod_tf2_synthetic_issue2739.log": "ompi",
    "mxnet_rn50/mxnet_gpu1_fp32_bs128.txt": "ompi",
    "mxnet_rn50/mxnet_gpu8_fp32_bs128.txt": "ompi",
    "ngc_tf_bert/tf_bert_pretraining_lamb_base_fp32_bs96_gpu32.log": "ompi",
    "ngc_tf_rn50/tf_gpu32_fp32_bs256.txt": "ompi",
    "excerpts/seed000_pdsh_traceback.log": "pdsh",
    "excerpts/deepspeed_cifar10_tutorial_2020.log": "pdsh",
    "excerpts/deepspeed_issue1107_gas8.log": "agent",
}


def _real(name: str) -> bytes:
    return (Path(REAL_LOGS or "") / name).read_bytes()


@real_logs
def test_the_launcher_of_every_real_log() -> None:
    root = Path(REAL_LOGS or "")
    found = {
        path.relative_to(root).as_posix(): detect_launcher(path.read_bytes()[:65536]).name
        for path in root.rglob("*")
        if path.is_file()
    }
    assert {name: launcher for name, launcher in found.items() if launcher != "none"} == LAUNCHERS
    assert len(found) > 40


@real_logs
@pytest.mark.parametrize("name", [name for name, what in LAUNCHERS.items() if what == "ompi"])
def test_no_tag_is_left_in_real_logs(name: str) -> None:
    data = _real(name)
    chunks = list(demultiplex([data]))
    assert not any(b"<std" in chunk.data or STAMP[:8] in chunk.data[:8] for chunk in chunks)
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    assert list(demultiplex(pieces)) == chunks
    assert [c.number for c in chunks if not c.whole] == (
        [] if data.endswith(b"\n") else [data.count(b"\n") + 1]
    )


@real_logs
def test_scattered_lines_of_a_real_log_come_out_whole() -> None:
    data = _real("mxnet_rn50/mxnet_gpu8_fp32_bs128.txt")
    line = b"../src/storage/storage.cc:196: Using Pooled (Naive) StorageManager for CPU"
    assert data.count(line) == 2
    chunks = list(demultiplex([data]))
    assert sorted(chunk.rank or 0 for chunk in chunks if chunk.data.endswith(line)) == list(
        range(8)
    )
    assert {chunk.rank for chunk in chunks if chunk.data.startswith(b"DLL ")} == {0}
    assert next(chunk.data for chunk in chunks if chunk.rank is None) == b"train.ips"


@real_logs
def test_local_open_mpi_output_line_by_line() -> None:
    chunks = _chunks(_real("excerpts/openmpi414_tag_output_local.log"))
    for rank in (0, 1):
        mine = [data.decode() for owner, data in chunks if owner == rank]
        assert sorted(mine) == sorted(
            [f"rank {rank} hello", f"rank {rank} cr1", f"rank {rank} cr2", "part A part B", "err"]
        )


@real_logs
def test_real_pdsh_and_agent_lines() -> None:
    pdsh = detect_launcher(_real("excerpts/deepspeed_cifar10_tutorial_2020.log"))
    text = "[INFO 2020-02-06 19:53:56] 0/50, SamplesPerSec=1"
    assert pdsh.strip(f"worker-0: {text}") == StrippedLine(None, "worker-0", text)
    text = "[1,  2000] loss: 2.170"
    assert pdsh.strip(text) == StrippedLine(None, None, text)
    agent = detect_launcher(_real("excerpts/deepspeed_issue1107_gas8.log"))
    line = "2021-05-29 19:53:27 run6222: Time to load"
    assert agent.strip(line) == StrippedLine(None, "run6222", "Time to load")
