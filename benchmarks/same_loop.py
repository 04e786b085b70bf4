"""The same training loop as the back end ``ddp`` and as a user's program under ``Timer``.

``python benchmarks/same_loop.py [--rounds N] [--iterations N] [--json]``. Both sides train the same
model on two processes of this machine, each in sweeps of its own: a run of one side, one of the
other, and in the next round the other way round (ABBA). A round's ratio is that of two runs which
follow each other, so that a drift of the machine meets both alike.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from dlperf_hpc.analysis.statistics import median_interval
from programs import ROOT, figures, own_clock

RANKS, BATCH, SEQ = 2, 4, 32
WARMUP = 10
SWEEP = """
topologies = ["1n{ranks}g"]
base = "1n{ranks}g"
repeats = 1
time_limit = "00:10:00"
[measure]
warmup = {warmup}
iterations = {iterations}
[case]
model = "bert-tiny"
device = "cpu"
batch_size = {batch}
seq_len = {seq}
[matrix]
framework = {frameworks}
[program.same]
launch = "rank"
workdir = "{root}/benchmarks"
run = ["same_loop.py", "loop"]
stop = "never"
[program.same.env]
DLPERF_LOGS = "{{outdir}}"
DLPERF_MEASURE = "warmup={{warmup}} iterations={{iterations}}"
PYTHONPATH = "{root}"
"""


def loop() -> None:
    """The program: the back end's own session in a loop of one's own."""
    from dlperf_hpc import Timer
    from dlperf_hpc.sweepfile.case import Case, Topology
    from dlperf_hpc.train.ranks import discover
    from dlperf_hpc.train.registry import registry

    declared = registry()
    options = {each.name: each.default for each in declared.options("ddp", "bert-tiny")}
    case = Case(
        framework="ddp",
        model="bert-tiny",
        topology=Topology(1, RANKS),
        precision="fp32",
        batch_size=BATCH,
        seq_len=SEQ,
        device="cpu",
        options=tuple(sorted(options.items())),
    )
    workload = declared.workloads[case.model]
    faulthandler.dump_traceback_later(180, exit=True)  # a program that hangs says where
    world = discover()
    session = declared.backends["ddp"].open_session(case, world, workload)
    timer = Timer(batch_size=BATCH, model=case.model, seq_len=SEQ, precision=case.precision)
    for _ in timer(itertools.repeat(None)):
        session.iterate()
        timer.loss(session._loss)
    world.barrier()
    session.close()
    faulthandler.cancel_dump_traceback_later()


def one_round(place: Path, number: int, iterations: int) -> float:
    """Samples/s under the Timer over those of the back end, of two runs one after the other."""
    frameworks = ["ddp", "same"] if number % 2 else ["same", "ddp"]
    text = SWEEP.format(
        ranks=RANKS, warmup=WARMUP, iterations=iterations, batch=BATCH, seq=SEQ, root=ROOT,
        frameworks=json.dumps(frameworks),
    )  # fmt: skip
    (place / f"round{number}.toml").write_text(text)
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", f"round{number}.toml"]
    done = subprocess.run(
        [*argv, "--cluster", "local"], cwd=place, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    root = place / "logs" / f"round{number}"
    timed = own_clock(root, "same", "1")
    if timed is None:
        raise RuntimeError(f"{root}: the Timer has left no number")
    return timed / figures(root, "default", root / "again")["ddp", "1"][0]


def main() -> int:
    """Print the ratio of each round, their median and its interval."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        ratios = [one_round(Path(place), n, given.iterations) for n in range(1, given.rounds + 1)]
    found = median_interval(ratios)
    if given.json:
        print(json.dumps({"ratios": ratios, "interval": found and vars(found)}))
        return 0
    print(f"Timer / ddp by round: {', '.join(f'{each:.3f}' for each in ratios)}")
    if found is not None:
        print(
            f"median {sorted(ratios)[len(ratios) // 2]:.3f}, {found.coverage:.1%} interval"
            f" [{found.low:.3f}, {found.high:.3f}]"
        )
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["loop"]:
        loop()
    else:
        sys.exit(main())
