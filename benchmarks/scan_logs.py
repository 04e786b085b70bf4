"""How fast are logs read? The scanner beside ``grep``, a naive reader, and one that knows.

``python benchmarks/scan_logs.py [--size 2e9] [--files 2000] [--rounds N] [--keep DIR] [--json]``.
Made-up logs of twelve formats (``made_logs.py``), all in the page cache, each reader a process of
its own, timed from its start to its end; figures counted by each are held against those written:

- grep: ``grep -rcF`` of one format's fixed string, in the C locale, output to a file;
- naive: every format's pattern on every line, decoded and stripped (on a part, and scaled);
- one format: a substring test on every line, then a pattern, told which format each file has;
- ours: every format looked for, with one process and with all; then twice with a cache.

Targets on sparse logs: 3 x grep's time at most, a tenth of the naive reader's, less than the one
format's; under 300 MB of memory; the second time nearly nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from made_logs import Tree

TARGETS = "3 x grep, naive / 10, below one format, 300 MB, cached nearly free"
GREPPED = "deepspeed", "SamplesPerSec="
SPARSE, DENSE = 150, 0  # lines of noise before each figure
_PART = 0.05  # of the files: what the naive reader is given

KNOWN: dict[str, tuple[str, str]] = {
    "deepspeed": ("SamplesPerSec=", r"(\d+)/(\d+), SamplesPerSec=([\d.]+)"),
    "megatron": (
        "elapsed time per iteration",
        r"iteration +(\d+)/ *\d+ \| consumed samples.*elapsed time per iteration \(ms\): ([\d.]+)",
    ),
    "tf2_bert": ("Train Step: ", r"Train Step: (\d+)/\d+  / loss = ([\d.]+)(?!.* / time)"),
    "tf2_resnet": ("TimeHistory: ", r"TimeHistory: .*, ([\d.]+) examples/second between steps"),
    "ngc_tf1_bert": (" throughput_train : ", r"Iteration: (\d+) .*throughput_train : ([\d.]+) seq"),
    "dllogger_pytorch_bert": ("Training Iteration: ", r"Training Iteration: (\d+) .*step_loss : "),
    "oneflow_bert": (", nsp_loss: ", r"step: (\d+), total_loss: .*, throughput: ([\d.]+)"),
    "pytorch_imagenet": ("Epoch: [", r"Epoch: \[\d+\]\[ *(\d+)/\d+\]\s+Time +([\d.]+) \("),
    "mxnet_gluon_bert": ("K tks/s", r"\[step (\d+)\].*throughput=([\d.]+)K tks/s"),
    "mindspore": (", outputs are ", r"epoch: \d+, step: (\d+), outputs are \S+"),
    "paddlenlp": (" sequences/sec", r"(?:tobal|total|global) step: (\d+),.* ips: ([\d.]+) seq"),
    "paddleclas": (", ips: ", r"epoch:\d+ +train step:(\d+) .*, ips: ([\d.]+) samples/sec"),
}
"""What the made-up logs are read by without us: a fixed string, and a pattern behind it."""

OTHERS = (
    r"bing_bert_progress: step=(\d+), loss=([\d.]+), lr=",
    r"DLLL \{.*\"step\": .*\"data\": ",
    r"Training Epoch: \d+ .*train\.ips : ([\d.]+) ",
    r"Epoch: \d+ Iteration: (\d+) .*train\.total_ips : ([\d.]+) ",
    r"dlperf \S+ iteration n=(\d+)",
    r"'train_samples_per_second': ([\d.]+)",
    r"Iter #(\d+): ([\d.]+) img/sec per ",
    r"Iter: (\d+) Time\(\d+ iters\): ([\d.]+)",
    r"Epoch\[\d+\] Batch \[(\d+)\]\s+Speed: ([\d.]+) samples/sec",
    r"Epoch\[\d+\] Batch \[\d+-(\d+)\]\s+Speed: ([\d.]+) samples/sec",
    r"Iter:(\d+) Rank:.* it/sec Total:([\d.]+) it/sec",
    r"iteration +(\d+)/ *\d+ \| elapsed time per iteration \(ms\): ([\d.]+) \| learning rate \d",
    r"\(0, (\d+)\) (?:total_ips|imgs_per_sec) : ([\d.]+)",
    r"Train Step: (\d+)/\d+  / loss = [\d.]+ / time = ([\d.]+) sec",
    r"train: epoch (\d+), iter (\d+),.* samples/s: ([\d.]+)",
    r"\| (\d+) +\| \d+ +\| \d+ +\| ([\d.]+) +\|",
    r"step: (\d+), loss: [\d.]+, throughput: ([\d.]+)",
    r"train: iter (\d+), loss [\d.]+, throughput: ([\d.]+)",
    r"step: (\d+), .*, speed: ([\d.]+) steps/s, file: ",
    r"\[Pass (\d+), train batch (\d+)\].* elapse ([\d.]+) sec",
    r"(\d+)\s+images/sec: ([\d.]+) \+/- ",
)
"""Patterns of the formats that are not among the made-up logs: the naive reader tries them too."""


class Run(NamedTuple):
    """One reader, once: times in s, ``memory`` in MB of all its processes at their peaks, and how
    many figures it counted in which files."""

    wall: float
    cpu: float
    memory: float
    counted: dict[str, int]


def one_format(root: Path, paths: list[str]) -> Iterator[tuple[str, int]]:
    """As a script does that was written for a format: each file's is in its path."""
    for path in paths:
        needle, pattern = KNOWN[path.split("/")[0]]
        search, count = re.compile(pattern).search, 0
        with open(root / path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if needle in line and search(line):
                    count += 1
        yield path, count


def naive(root: Path, paths: list[str]) -> Iterator[tuple[str, int]]:
    """Every pattern on every line."""
    searches = [re.compile(pattern).search for _, pattern in KNOWN.values()]
    searches += [re.compile(pattern).search for pattern in OTHERS]
    for path in paths:
        count = 0
        with open(root / path, "rb") as file:
            for raw in file:
                line = raw.decode("utf-8", errors="replace").strip()
                for search in searches:
                    if search(line):
                        count += 1
        yield path, count


def ours(root: Path, workers: int, kept: Path | None) -> Iterator[tuple[str, int]]:
    """The scanner as the report uses it."""
    from dlperf_hpc.parsers.cache import ScanCache
    from dlperf_hpc.parsers.search import scan_all
    from dlperf_hpc.parsers.sources import Source, find

    sources = [source for source in find([root]) if isinstance(source, Source)]
    for scanned in scan_all(sources, ScanCache(kept), workers=workers):
        steps = sum(len(reading.steps) for reading in scanned.file.readings)
        yield os.path.relpath(scanned.source.path, root), steps


def read_once(root: Path, reader: str, workers: int, kept: Path | None) -> None:
    """A reader's own process: prints what it counted and its processes' memory."""
    if reader == "ours":
        counted = dict(ours(root, workers, kept))
    else:
        paths = json.load(sys.stdin)
        counted = dict((one_format if reader == "one format" else naive)(root, paths))
    kilobytes = (resource.getrusage(who).ru_maxrss for who in (SELF, CHILDREN))
    peak, worker = kilobytes
    memory = (peak + workers * worker) * 1024 / 1e6
    print(json.dumps({"counted": counted, "memory": memory}))


SELF, CHILDREN = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN


def timed(argv: list[str], told: str = "", env: dict[str, str] | None = None) -> tuple[Any, ...]:
    """(wall s, CPU s with all descendants', peak MB, output) of a process."""
    with tempfile.TemporaryFile("w+") as words, tempfile.TemporaryFile("w+") as output:
        words.write(told)
        words.seek(0)
        start = time.perf_counter()
        process = subprocess.Popen(argv, stdin=words, stdout=output, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(argv[:4])}: exit code {process.returncode}")
        output.seek(0)
        cpu = usage.ru_utime + usage.ru_stime
        return wall, cpu, usage.ru_maxrss * 1024 / 1e6, output.read()


def grep(tree: Tree) -> Run:
    """One fixed string, counted in every file; memory is grep's own."""
    argv = ["grep", "-rcF", GREPPED[1], str(tree.root)]
    wall, cpu, memory, text = timed(argv, env={**os.environ, "LC_ALL": "C"})
    found = (line.rpartition(":") for line in text.splitlines())
    return Run(wall, cpu, memory, {os.path.relpath(p, tree.root): int(n) for p, _, n in found})


def python(tree: Tree, reader: str, workers: int = 0, kept: Path | None = None) -> Run:
    """One of the readers in this file."""
    argv = [sys.executable, __file__, "--reader", reader, "--keep", str(tree.root)]
    argv += ["--workers", str(workers), *(["--cache", str(kept)] if kept else [])]
    paths = list(tree.holds)
    if reader == "naive":
        paths = paths[: max(1, round(_PART * len(paths)))]
    wall, cpu, _, text = timed(argv, json.dumps(paths))
    found = json.loads(text)
    part = sum(os.path.getsize(tree.root / path) for path in paths) / tree.size
    return Run(wall / part, cpu / part, found["memory"], found["counted"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reader")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    read_once(arguments.keep, arguments.reader, arguments.workers, arguments.cache)


if __name__ == "__main__":
    main()
