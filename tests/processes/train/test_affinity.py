"""Where a rank's GPU is, told by a small sysfs made for it; and what ``bind`` makes of that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.train import telemetry
from dlperf_hpc.train.telemetry import gpu_place, memory_nodes, nodes_of, numbers, pci_address

ADDRESS = "0000:65:00.0"


def a_machine(root: Path, nodes: dict[int, str], gpu_cpus: str = "", gpu_numa: str = "") -> Path:
    """A sysfs with these CPUs at these NUMA nodes, and one GPU."""
    for node, cpus in nodes.items():
        folder = root / "devices" / "system" / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    gpu = root / "bus" / "pci" / "devices" / ADDRESS
    gpu.mkdir(parents=True)
    for name, text in (("local_cpulist", gpu_cpus), ("numa_node", gpu_numa)):
        if text:
            (gpu / name).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("00000000:65:00.0", ADDRESS),  # as NVML writes it
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00010001:00:1f.7", "10001:00:1f.7"),
        *(("", None), ("65:00.0", None), ("../../etc", None)),
    ],
)
def test_addresses_as_sysfs_writes_them(text: str, found: str | None) -> None:
    assert pci_address(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("0-2,8", [0, 1, 2, 8]), ("5", [5]), ("", []), ("0-", []), ("a", []), ("0-9999999", [])],
)
def test_lists_of_cpus(text: str, found: list[int]) -> None:
    assert numbers(text) == found
    assert telemetry.ranges(found) == (text if found else "")


def test_where_a_gpu_is(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, {0: "0-3", 1: "4-7"}, "4-7", "1")
    assert gpu_place(ADDRESS, machine) == {"gpu_pci": ADDRESS, "gpu_cpus": "4-7", "gpu_numa": 1}
    assert nodes_of({2, 5}, machine) == [0, 1] and nodes_of({5}, machine) == [1]
    assert gpu_place(None, machine) == {}


def test_what_a_machine_does_not_tell_is_left_out(tmp_path: Path) -> None:
    """A virtual machine: no list of CPUs, and -1 for the node."""
    machine = a_machine(tmp_path, {}, "", "-1")
    assert gpu_place(ADDRESS, machine) == {"gpu_pci": ADDRESS}
    assert nodes_of({0}, tmp_path / "none") == []
    assert memory_nodes(tmp_path) == []
    (tmp_path / "status").write_text("Name:\tpython\nMems_allowed_list:\t0-1\n")
    assert memory_nodes(tmp_path) == [0, 1]


def case(bind: str) -> Case:
    options = (("bind", bind),)
    return Case("ddp", "bert-tiny", Topology(1, 1), "fp32", 2, 16, options=options)


def refusal(bind: str, uuid: str | None, sys_: Path) -> str:
    with pytest.raises(DeviceError) as caught:
        telemetry.take_place(case(bind), uuid, sys_)
    return str(caught.value)


def test_a_hidden_topology_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "computes on CPUs" in refusal("gpu", None, tmp_path)
    assert "NVML does not tell its PCI address" in refusal("gpu", "1", tmp_path)
    monkeypatch.setattr(telemetry, "address_of", lambda uuid: ADDRESS)
    hidden = refusal("gpu", "1", tmp_path)
    assert ADDRESS in hidden and "says nothing of its CPUs" in hidden and "--cpu-bind" in hidden
    far = a_machine(tmp_path, {0: "0-3"}, "9998-9999", "0")
    assert "may use only" in refusal("gpu", "1", far)
    assert telemetry.take_place(case("none"), "1", far)["gpu_cpus"] == "9998-9999"


def test_a_rank_is_narrowed_down_with_all_its_threads(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    machine = a_machine(tmp_path, {0: telemetry.ranges(mine)}, str(mine[0]), "0")
    code = (
        "import json, os, sys, threading\n"
        "from pathlib import Path\n"
        "from dlperf_hpc.model.case import Case, Topology\n"
        "from dlperf_hpc.train import telemetry\n"
        "over = threading.Event()\n"
        "threading.Thread(target=over.wait, daemon=True).start()\n"
        f"telemetry.address_of = lambda uuid: {ADDRESS!r}\n"
        "case = Case('ddp', 'bert-tiny', Topology(1, 1), 'fp32', 2, 16,"
        " options=(('bind', 'gpu'),))\n"
        "facts = telemetry.take_place(case, '1', Path(sys.argv[1]))\n"
        "tasks = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir('/proc/self/task')]\n"
        "print(json.dumps([facts, tasks]))\n"
    )
    argv = [sys.executable, "-c", code, str(machine)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    facts, tasks = json.loads(done.stdout)
    assert facts["bound"] == str(mine[0]) and facts["cpus_numa"] == "0"
    assert len(tasks) >= 2 and all(cpus == [mine[0]] for cpus in tasks)
