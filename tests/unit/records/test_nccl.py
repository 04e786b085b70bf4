"""Which way NCCL's ranks talk, by its own lines. The lines are made, in the forms of NCCL's source
and of its issues 226, 707, 952 and 1189."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from record_samples import a_run

from dlperf_hpc.analysis.flags import of_transport
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.nccl import Connections, channels, in_words
from dlperf_hpc.train.joblog import nccl_transports, own_debug_file
from dlperf_hpc.train.ranks import World, alone


def words(*lines: str) -> str:
    read = Connections()
    read.read("\n".join(lines))
    return in_words({"nccl": read.facts()})


def says(way: str, ends: str = "0[0] -> 1[1]", host: str = "n1", channel: str = "00/0") -> str:
    return f"{host}:81:93 [0] NCCL INFO Channel {channel} : {ends} {way}"


TWO_NODES = [
    says("via P2P/CUMEM/read"),
    says("via P2P/CUMEM/read", channel="01/0"),
    says("[send] via NET/IB/3/GDRDMA", "1[1] -> 2[0]"),
    says("[receive] via NET/IB/1(0)/GDRDMA(PCI)/Shared", "1[1] -> 2[0]", "n2"),
]


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("via P2P/IPC/read", "P2P/IPC"),
        ("via P2P/direct pointer", "P2P/direct pointer"),
        ("via P2P/indirect/4[4]/read", "P2P/indirect"),
        ("via P2P/CUMEM/CE", "P2P/CUMEM"),
        ("via P2P/of-tomorrow", "P2P"),
        ("via SHM/direct/direct", "SHM/direct/direct"),
        ("via direct shared memory", "SHM"),
    ],
)
def test_ways_within_a_node_are_told_as_nccl_spells_them(way: str, told: str) -> None:
    assert words(says(way)) == f"{told} within nodes"


def test_hosts_in_front_of_lines_tell_where_a_network_was_used() -> None:
    assert words(*TWO_NODES) == "P2P/CUMEM within nodes, NET/IB/GDRDMA between nodes"
    there, back = (says(f"[{way}] via NET/AWS Libfabric/0") for way in ("send", "receive"))
    assert words(there, back) == "NET/AWS Libfabric within nodes"
    assert words(there) == "NET/AWS Libfabric between ranks"  # nothing tells where rank 1 is
    old = [f"n{n}:7:9 [0] NCCL INFO Ring 00 : 0 -> 1 [{way}] via NET/Socket/0"
           for n, way in enumerate(("send", "receive"))]  # fmt: skip
    assert words(*old) == "NET/Socket between nodes"


def test_several_ways_and_channels_are_counted() -> None:
    read = Connections()
    read.read("\n".join([*TWO_NODES, says("via SHM/direct/direct", "2[0] -> 3[1]", "n2", "12/0")]))
    facts = {"nccl": read.facts()}
    both = "P2P/CUMEM and SHM/direct/direct within nodes, NET/IB/GDRDMA between nodes"
    assert (in_words(facts), channels(facts)) == (both, 3)


@pytest.mark.parametrize(
    "line",
    [
        "n1:81:93 [0] NCCL INFO Channel 00/08 : 0 1 2 3",
        says("via NET/\x1b[31mIB/0"),
        says("via NET/IB"),  # cut
        says("via NVL/\u202e"),
        says("via P2P/CUMEM").replace("NCCL INFO", "I say that"),
        says("via P2P/CUMEM" + " " * 5000),
        says("via P2P/CUMEM", "99999999[0] -> 1[1]"),
    ],
)
def test_no_word_is_made_up(line: str) -> None:
    assert words(line) == ""


def test_what_is_kept_is_bounded() -> None:
    read = Connections()
    for n in range(70_000):
        read.read(says(f"via NET/n{n % 40}/0", f"{n}[0] -> {n}[0]", f"h{n}"))
    assert len(read.found) == 1 << 16
    assert len(in_words({"nccl": read.facts()})) < 100


def test_a_long_word_is_looked_at_once() -> None:
    """Work that grows with the square of a line's length would be 4 s for a MiB of such lines; a
    host's name is looked for only where one may begin."""
    line = says("via P2P/CUMEM").removeprefix("n1")
    began = time.process_time()
    Connections().read(f"{'a' * 4000}{line}\n" * 256)
    many = time.process_time() - began
    began = time.process_time()
    Connections().read(f"{line}{' ' * 4000}\n" * 256)
    assert many < 20 * max(time.process_time() - began, 1e-3)


@pytest.mark.parametrize("table", [3, {"within": "P2P"}, {"within": [1, None]}, {"channels": -1}])
def test_a_damaged_log_tells_nothing(table: object) -> None:
    facts = {"nccl": table}
    assert (in_words(facts), channels(facts)) == ("", None)


def test_a_rank_reads_the_jobs_output_or_its_own_debug_file(tmp_path: Path) -> None:
    world, output = World(0, ("n1",), alone()), tmp_path / "1_0.out"
    earlier = says("via SHM/direct/direct")
    launch = "dlperf_hpc: launch no-job_0.0"
    output.write_text("\n".join([earlier, launch, f"0: {says('via P2P/CUMEM')}", "0: cut ] via "]))
    asked = {"NCCL_DEBUG": "info"}
    assert nccl_transports(world, output, asked)["within"] == ["P2P/CUMEM"]
    assert nccl_transports(world, output, {}) == {}
    host = socket.gethostname().partition(".")[0]
    pattern = str(tmp_path / "100%%.%h.%p.%x")
    assert own_debug_file(pattern) == str(tmp_path / f"100%.{host}.{os.getpid()}.%x")
    Path(own_debug_file(pattern)).write_text(f"{says('via P2P/IPC')}\n")
    assert nccl_transports(world, output, {**asked, "NCCL_DEBUG_FILE": pattern})["within"] == [
        "P2P/IPC"
    ]
    missing = {**asked, "NCCL_DEBUG_FILE": str(tmp_path / "missing")}
    assert nccl_transports(world, output, missing) == {}


def test_flags_of_a_slow_way() -> None:
    def flags(**table: object) -> list[str]:
        result = RunResult(a_run(), Status.OK, facts={"nccl": table})
        return [flag.name for flag in of_transport([result])]

    assert flags(between=["NET/Socket"], ports=["mlx5_0/1"]) == ["nccl-socket"]
    assert flags(between=["NET/Socket"]) == []  # nothing tells of a port
    assert flags(between=["NET/IB/GDRDMA"], ports=["mlx5_0/1"]) == []
    assert flags(within=["P2P/CUMEM", "NET/IB"]) == ["nccl-net-in-node"]
