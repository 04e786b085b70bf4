"""How a run was launched, as its log shows it: command lines that a script prints.

``torchrun --nnodes 16 --nproc_per_node 4 train.py``, ``srun --nodes=2 --ntasks=2 python ..``,
``horovodrun -np 8 -H a:4,b:4 ..``, ``mpirun -np 8 -H a:4,b:4 python ..``,
``deepspeed --num_nodes 2 --num_gpus 8 ..``, ``accelerate launch --num_machines 2 ..``, and the
``min_nodes        : 2`` of torchrun's own log. They belong to no program: the settings count only in a
file in which a format is recognised. A value that is a shell's variable is none, and what was not
written is not taken for a default, but for torchrun's one node.
"""  # noqa: E501 - a line of a log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Format, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.scanned import Evidence

NAME = "launch line"

_VALUE = r"[= ]{1,2}['\"]?"
_PER_NODE = re.compile(rf"--nproc[-_]per[-_]node{_VALUE}([0-9]{{1,4}})\b")
_NNODES = re.compile(rf"--nnodes{_VALUE}([0-9]{{1,5}})(?::([0-9]{{1,5}}))?(?![0-9:])")
_TORCHRUN = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|-?-standalone)\b")
_SRUN = re.compile("srun ")
_SRUN_NODES = re.compile(rf"(?:--nodes{_VALUE}|\s-N ?)([0-9]{{1,5}})(?![-0-9,])")
_PROCESSES = re.compile(r"\s(?:-np|-n|--num-proc|--np)[= ]([0-9]{1,6})\b")
_HOSTS = re.compile(
    r"\s(?:-H|--hosts?)[= ]((?:[\w.-]{1,255}:[0-9]{1,4},){0,4096}[\w.-]{1,255}:[0-9]{1,4})(?=\s)"
)
_NUM_NODES = re.compile(rf"--num_nodes{_VALUE}([0-9]{{1,5}})\b")
_NUM_GPUS = re.compile(rf"--num_gpus{_VALUE}([0-9]{{1,4}})\b")
_MACHINES = re.compile(rf"--num_machines{_VALUE}([0-9]{{1,5}})\b")
_NUM_PROCESSES = re.compile(rf"--num_processes{_VALUE}([0-9]{{1,6}})\b")
_BATCH = re.compile(rf"--per_device_train_batch_size{_VALUE}([0-9]{{1,7}})\b")
_ELASTIC = re.compile(r"^\s*(min_nodes|nproc_per_node)\s*: ([0-9]{1,5})\s*$")
_ELASTIC_FACTS = {"min_nodes": "nodes", "nproc_per_node": "gpus_per_node"}
_PROGRAM = re.compile(r"\.py\b|\bpython|\btorchrun\b")


# What shows the launcher, and the settings that it is given.
_LAUNCHERS = (
    (_PER_NODE, {"gpus_per_node": _PER_NODE}),  # torchrun
    (_NUM_GPUS, {"gpus_per_node": _NUM_GPUS, "nodes": _NUM_NODES}),  # deepspeed
    (_MACHINES, {"nodes": _MACHINES, "devices": _NUM_PROCESSES}),  # accelerate
    (_SRUN, {"nodes": _SRUN_NODES}),
)


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """The nodes and devices of a command line, and the batch that it gives to its program."""
    text = line.text
    if match := _ELASTIC.search(text):
        builder.fact(line, _ELASTIC_FACTS[match[1]], match[2])
        return
    if match := _BATCH.search(text):
        builder.fact(line, "batch_size", match[1])
    if _PROGRAM.search(text):
        _read_launcher(line, builder)


def _read_launcher(line: Line, builder: ReadingBuilder) -> None:
    for sign, settings in _LAUNCHERS:
        if sign.search(line.text):
            found = {name: pattern.search(line.text) for name, pattern in settings.items()}
            for name, match in found.items():
                if match is not None:
                    builder.fact(line, name, match[1])
            if sign is _PER_NODE:
                _read_nnodes(line, builder)
            return
    if "mpirun " in line.text or "horovodrun " in line.text:
        _read_hosts(line, builder)


def _read_nnodes(line: Line, builder: ReadingBuilder) -> None:
    nodes = _NNODES.search(line.text)
    if nodes is not None:
        if nodes[2] in (None, nodes[1]):
            builder.fact(line, "nodes", nodes[1])
    elif "--nnodes" not in line.text and _TORCHRUN.search(line.text) and "srun " not in line.text:
        builder.fact(line, "nodes", 1)


def _read_hosts(line: Line, builder: ReadingBuilder) -> None:
    """Hosts and their slots, if the processes fill them."""
    hosts, processes = _HOSTS.search(line.text), _PROCESSES.search(line.text)
    if hosts is None:
        return
    slots = {host.rsplit(":", 1)[1] for host in hosts[1].split(",")}
    count = hosts[1].count(",") + 1
    if len(slots) == 1 and (processes is None or int(processes[1]) == count * int(*slots)):
        builder.fact(line, "nodes", count)
        builder.fact(line, "gpus_per_node", slots.pop())


LAUNCH = Format(
    name=NAME,
    title="launch lines",
    evidence=Evidence.SOURCE,
    source="the launchers' documents",
    literals=(),
    own=(LinePattern(take=read),),
    facts_literals=(
        "nproc",
        "min_nodes ",
        "srun ",
        "mpirun ",
        "horovodrun ",
        "--num_gpus",
        "--num_machines",
        "--per_device_train_batch_size",
    ),
)
