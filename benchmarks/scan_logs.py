"""How fast are logs read? The scanner beside ``grep``, a naive reader, and one that knows.

``python benchmarks/scan_logs.py [--size 2e9] [--files 2000] [--noise 150] [--rounds N] [--keep DIR]
[--json]``. Made-up logs of twelve formats (``made_logs.py``): sparse, and a tenth as much of each
of dense ones (every line a figure), of ones with a figure in six lines, as real logs have it on
average, and of sparse ones with Open MPI's tags. Each reader is a process of its own, timed from
start to end with the logs in the page cache; what it counts must be what was written.

- grep: ``LC_ALL=C grep -rcF`` of one format's fixed string, output to a file;
- naive: every format's pattern on every line, decoded and stripped (of some files, scaled);
- one format: a substring test on every line, then a pattern; it is given the format of each file;
- ours: every format looked for; with one process, with one per core, and the second time.

Targets: where every line has a figure, one process takes at most twice the one format's CPU time;
on sparse logs a tenth of the naive reader's time, and less than the one format's; 300 MB of memory
at most, over all processes; the second time 0.3 s a GB. CPU times (of user and system, of all
processes) are compared, since other people's programs disturb these less than the clock.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from made_logs import Tree, make_tree

GREPPED = "deepspeed", "SamplesPerSec="
NOISE = 150  # lines before each figure of a sparse log, on average
PART = 0.05  # of the files: what the naive reader is given
TREES = ("sparse", "dense", "sixth", "tagged")
LINES_BEFORE = {"dense": 0, "sixth": 5}  # each figure; in the other trees ``--noise``
READERS = ("grep", "naive", "one format", "ours, 1 process", "ours", "ours again")

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
    "nanogpt": ("ms, mfu ", r"iter (\d+): loss [\d.]+, time ([\d.]+)ms, mfu"),
    "nanochat": (" | tok/sec: ", r"step +(\d+) \| loss: .* tok/sec: ([\d.]+)"),
    "llm_c": (" tok/s", r"step +(\d+)/\d+ \| loss .*\| ([\d.]+) ms \| .* tok/s"),
    "maxtext": ("completed step: ", r"completed step: (\d+), .*Tokens/s/device: ([\d.]+)"),
    "nemo": ("train_step_timing in s: ", r"iteration (\d+)/.*train_step_timing in s: ([\d.]+)"),
}
"""What the made-up logs are read by without us: a fixed string, and a pattern behind it."""

OTHERS = (
    r"bing_bert_progress: step=(\d+), loss=([\d.]+), lr=",
    r"DLLL \{.*\"step\": \[\d+, (\d+)\].*\"data\": ",
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
    r"'loss': ([\d.]+), .*'epoch': ([\d.]+)",
    r"\"current_steps\": (\d+), .*\"throughput\": ([\d.]+)",
    r"Epoch \d+: .*\| (\d+)/\d+ \[.*, ([\d.]+)it/s, v_num=",
    r"(\d+)/\d+ .*- \d+s (\d+)ms/step",
    r"step:(\d+)/\d+ .*train_time:(\d+)ms",
    r"step: +(\d+) +loss: .*tps: ([\d,]+)",
    r"Step (\d+) \| loss:.*tokens_per_second_per_gpu:([\d.]+)",
    r"iter (\d+) step \d+.*iter time: ([\d.]+) ms",
    r"iteration: (\d+) / \d+ \| .*tokens_per_sec: ([\d.]+)",
    r"global_step=(\d+).*train_step_timing in s=([\d.]+)",
    r"(?:Epoch|Iter)\(train\) +.*\[ *(\d+)/\d+\].* time: ([\d.]+)",
    r"Train: \d+ \[ *(\d+)/\d+ .*, +([\d.]+)/s",
    r"Epoch: \[\d+\] +\[ *(\d+)/\d+\] +eta: .*time: ([\d.]+)",
    r"iter: (\d+) +total_loss: .*time: ([\d.]+)",
    r":::MLLOG .*\"time_ms\": (\d+).*\"samples_count\": (\d+)",
)
"""Patterns of the formats that are not among the made-up logs: the naive reader tries them too."""


@dataclass(frozen=True)
class Run:
    """One reader, once: times in s (``cpu`` of all its processes), ``memory`` in MB: the sum of
    its processes' peaks, what they share counted in each; how many figures it counted where."""

    wall: float
    cpu: float
    memory: float
    counted: dict[str, int]


def one_format(root: Path, paths: list[str]) -> Iterator[tuple[str, int]]:
    """As a script does that was written for a format: each file's is in its path."""
    for path in paths:
        literal, pattern = KNOWN[path.split("/")[0]]
        search, count = re.compile(pattern).search, 0
        with open(root / path, encoding="utf-8", errors="replace") as file:
            for line in file:
                match = search(line) if literal in line else None
                if match:
                    count += math.isfinite(float(match[1]))
        yield path, count


def naive(root: Path, paths: list[str]) -> Iterator[tuple[str, int]]:
    """Every pattern on every line."""
    patterns = [*(pattern for _, pattern in KNOWN.values()), *OTHERS]
    searches = [re.compile(pattern).search for pattern in patterns]
    for path in paths:
        count = 0
        with open(root / path, "rb") as file:
            for raw in file:
                line = raw.decode("utf-8", errors="replace").strip()
                for search in searches:
                    match = search(line)
                    if match:
                        count += math.isfinite(float(match[1]))
        yield path, count


def ours(root: Path, workers: int | None, cache: Path | None) -> Iterator[tuple[str, int]]:
    """The scanner, as the report has it."""
    from dlperf_hpc.logs.scan.search import ScanCache, scan_all
    from dlperf_hpc.logs.scan.sources import Source, find

    sources = [source for source in find([root]) if isinstance(source, Source)]
    for scanned in scan_all(sources, ScanCache(cache), workers=workers):
        steps = sum(len(reading.steps) for reading in scanned.file.readings)
        yield os.path.relpath(scanned.source.path, root), steps


def read_once(reader: str, root: Path, cache: Path) -> None:
    """A reader's own process: prints what it counted, and the memory of its processes."""
    workers = 1 if "1" in reader else min(8, len(os.sched_getaffinity(0)))
    if reader.startswith("ours"):
        counted = dict(ours(root, workers, cache))
    else:
        read = {"one format": one_format, "naive": naive}[reader]
        counted = dict(read(root, json.load(sys.stdin)))
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"counted": counted, "memory": (mine + workers * worker) * 1024 / 1e6}))


def timed(argv: list[str], stdin: str = "", **env: str) -> tuple[float, float, float, str]:
    """(wall s, CPU s, peak MB of its greatest process, output) of a process."""
    # Where bytecode may not be kept, every start compiles this package anew: not a user's case.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as words, tempfile.TemporaryFile("w+") as output:
        words.write(stdin)
        words.seek(0)
        start = time.perf_counter()
        process = subprocess.Popen(argv, stdin=words, stdout=output, env={**kept, **env})
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(argv[:4])}: exit code {process.returncode}")
        output.seek(0)
        return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, output.read()


def grep(tree: Tree) -> Run:
    """One fixed string, counted in every file."""
    argv = ["grep", "-rcF", GREPPED[1], str(tree.root)]
    wall, cpu, memory, text = timed(argv, LC_ALL="C")
    found = (line.rpartition(":") for line in text.splitlines())
    counted = {os.path.relpath(path, tree.root): int(count) for path, _, count in found}
    return Run(wall, cpu, memory, counted)


def python(tree: Tree, reader: str, cache: Path) -> Run:
    """One of the readers in this file."""
    argv = [sys.executable, __file__, "--reader", reader, str(tree.root), str(cache)]
    paths = sample(tree) if reader == "naive" else list(tree.holds)
    wall, cpu, _, text = timed(argv, json.dumps(paths))
    part = sum(os.path.getsize(tree.root / path) for path in paths) / tree.size
    found = json.loads(text)
    return Run(wall / part, cpu / part, found["memory"], found["counted"])


def sample(tree: Tree) -> list[str]:
    """A part of the files, each format among them."""
    return list(tree.holds)[: max(len(KNOWN), round(PART * len(tree.holds)))]


def check(tree: Tree, reader: str, run: Run) -> None:
    """That the reader counted what was written: or else its time means nothing."""
    paths = sample(tree) if reader == "naive" else list(tree.holds)
    written = {path: tree.holds[path] for path in paths}
    for path, (name, count) in written.items():
        if reader == "grep" and name != GREPPED[0]:
            count = 0
        if run.counted.get(path) != count:
            raise SystemExit(f"{reader}: {run.counted.get(path)} figures in {path}, not {count}")


def measure(tree: Tree, rounds: int, place: Path) -> dict[str, list[Run]]:
    """Every reader in turn, so that a drift of the machine meets all alike."""
    runs: dict[str, list[Run]] = {reader: [] for reader in READERS}
    for _ in range(rounds):
        for reader in READERS:
            for path in tree.holds:  # into the page cache
                (tree.root / path).read_bytes()
            cache = place / ("one.sqlite" if "1" in reader else "all.sqlite")
            if reader != "ours again":
                cache.unlink(missing_ok=True)
            run = grep(tree) if reader == "grep" else python(tree, reader, cache)
            check(tree, reader, run)
            runs[reader].append(run)
    return runs


def summary(tree: Tree, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Medians, and what they say of the targets."""
    rows = {}
    for reader, each in runs.items():
        walls = [run.wall for run in each]
        wall = statistics.median(walls)
        rows[reader] = {
            "wall_s": round(wall, 3),
            "fastest_s": round(min(walls), 3),
            "slowest_s": round(max(walls), 3),
            "cpu_s": round(statistics.median(run.cpu for run in each), 3),
            "mb_per_s": round(tree.size / 1e6 / wall, 1),
            "memory_mb": round(max(run.memory for run in each), 1),
            "files": len(each[0].counted),
            "figures": sum(each[0].counted.values()),
        }
    return {
        "megabytes": round(tree.size / 1e6, 1),
        "files": len(tree.holds),
        "figures": tree.figures(),
        "readers": rows,
    }


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """How often one's CPU time goes into another's."""
    cpu = {reader: row["cpu_s"] for reader, row in found["readers"].items()}
    pairs = (
        *(("ours", "grep"), ("naive", "ours"), ("naive", "ours, 1 process")),
        *(("one format", "ours"), ("one format", "ours, 1 process"), ("ours", "ours again")),
    )
    return {f"{one} / {other}": round(cpu[one] / cpu[other], 3) for one, other in pairs}


TARGETS = {
    "sparse": {"naive / ours": "at least 10", "one format / ours": "more than 1"},
    "dense": {"one format / ours, 1 process": "at least 0.5"},
}


def show(trees: dict[str, dict[str, Any]], rounds: int, say: Callable[[str], None]) -> None:
    """The summary for people."""
    for name, found in trees.items():
        say(
            f"{name}: {found['megabytes']:.0f} MB in {found['files']} files, {found['figures']}"
            f" figures; median of {rounds} rounds, {len(os.sched_getaffinity(0))} cores"
        )
        say(f"{'':18} {'s':>8} {'min':>8} {'max':>8} {'CPU s':>8} {'MB/s':>7} {'MB used':>8}")
        for reader, row in found["readers"].items():
            times = (row[key] for key in ("wall_s", "fastest_s", "slowest_s", "cpu_s"))
            cells = " ".join(f"{value:8.2f}" for value in times)
            part = "" if row["files"] == found["files"] else f"  scaled from {row['files']} files"
            say(f"{reader:18} {cells} {row['mb_per_s']:7.0f} {row['memory_mb']:8.0f}{part}")
        for ratio, value in found["ratios"].items():
            target = TARGETS.get(name, {}).get(ratio, "")
            say(f"    {ratio:30} {value:8.2f}  {target}".rstrip())
        say("")


def made(place: Path, size: int, files: int, sparse: int) -> dict[str, Tree]:
    """Every tree; but for the first a tenth of the size."""
    trees = {}
    for name in TREES:
        share = 1 if name == TREES[0] else 10
        number, noise = max(len(KNOWN), files // share), LINES_BEFORE.get(name, sparse)
        trees[name] = make_tree(place / name, size // share, number, noise, name == "tagged")
    return trees


def main() -> None:
    if sys.argv[1:2] == ["--reader"]:
        read_once(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--size", type=float, default=2e9, help="bytes of the sparse logs")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--noise", type=int, default=NOISE, help="lines before each figure")
    parser.add_argument("--keep", type=Path, help="where to make the logs, and leave them")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {}
    kept = arguments.keep and nullcontext(str(arguments.keep))
    with kept or tempfile.TemporaryDirectory() as logs, tempfile.TemporaryDirectory() as place:
        trees = made(Path(logs), int(arguments.size), arguments.files, arguments.noise)
        time.sleep(2.5)  # what is younger is not kept in the cache
        for name, tree in trees.items():
            found[name] = summary(tree, measure(tree, arguments.rounds, Path(place)))
            found[name]["ratios"] = ratios(found[name])
    print(json.dumps(found)) if arguments.json else show(found, arguments.rounds, print)


if __name__ == "__main__":
    main()
