"""Our models beside others' of the same size on one device, in turn: samples/s and ratios.

``python benchmarks/models.py [--models M ...] [--batch-size B] [--precisions fp32 bf16] [--json]``.
All go through the wrapper's own session and timed loop (DDP on one rank, gradient clipping, fused
AdamW, autocast for bf16 and fp16), with the same synthetic data, eager and under torch.compile.
What is compared lies in one process, and its windows follow each other in turn, each round in
another order: measured one after the other, the same pair of codes differs by a tenth and more from
one quarter of an hour to the next. A ratio is the median over the rounds, with the interval of that
median. ``--seconds`` bounds each comparison, without what comes before a code's second iteration
(building, compilation): windows get shorter, then fewer. With fewer than 6 windows of 5 iterations
a row has no ratio, and says so. In mode ``tuned`` only ours is run.

HuggingFace's models are as one gets them, with sdpa attention: its BERT's MLM head scores every
token, ours the masked ones only (as NVIDIA's and DeepSpeed's do); DDP does not broadcast their
buffers. ``dlperf_hpc-no-ddp`` is our model without DDP, whose copies a lone rank pays for nothing.
nanoGPT trains GPT-2 without dropout: ``--dropouts 0`` is its own way, and Llama's only one. Each
share of the peak is taken with that model's own arithmetic, so the share compares how well the card
is used and samples/s how fast one trains.

``--device cpu --models bert-tiny --modes eager`` runs the same code anywhere. On a GPU only the
acceptance pack's shorter form of it has run (docs/gpu.md).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from other_models import others
from torch.nn.parallel import DistributedDataParallel

from dlperf_hpc.analysis import machines
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import MODES, Case, Topology
from dlperf_hpc.model.statistics import median_interval
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.measurement import no_garbage_collection, timed_loop, warm_up
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession

OURS, LONE = "dlperf_hpc", "dlperf_hpc-no-ddp"
_WARM_UP_SHARE = 0.25  # of the time for a comparison
_WINDOWS, _ITERATIONS = 6, 5  # that a ratio needs


@dataclass(frozen=True)
class Row:
    """One model in one precision, dropout and mode. ``ratio`` is ours over it, median of
    ``windows`` rounds, ``ratio_low`` and ``ratio_high`` that median's interval. ``refused`` says
    why there is no number, ``too_few`` why there is no ratio."""

    model: str
    code: str
    precision: str
    dropout: float
    mode: str
    samples_per_s: float | None = None
    slowest: float | None = None
    fastest: float | None = None
    windows: int = 0
    iterations: int = 0
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_coverage: float | None = None
    gflop_per_sample: float | None = None
    tflops: float | None = None
    share_of_peak: float | None = None
    loss: float | None = None
    refused: str = ""
    too_few: str = ""


class Quiet(DdpSession):
    """DDP that broadcasts no buffers: ours have none, and on one rank it is for nothing."""

    def wrapped(self, module: Any) -> Any:
        model = super().wrapped(module)
        if isinstance(model, DistributedDataParallel):
            model.broadcast_buffers = False
        return model


@dataclass
class Runner:
    """One code in a comparison: its session once it is open, and the samples/s of its windows."""

    row: Row
    session: DdpSession | None = None
    rates: list[float] = field(default_factory=list)
    built_s: float = 0.0  # until the end of its first iteration, which compiles


def cases(arguments: argparse.Namespace) -> Iterator[tuple[Case, float, str]]:
    """(case, dropout, mode) of each comparison."""
    declared = registry()
    for model in arguments.models:
        for precision in arguments.precisions:
            for dropout in arguments.dropouts:
                for mode in arguments.modes:
                    declarations = declared.options("ddp", model)
                    options = {o.name: o.default_in(mode) for o in declarations}
                    options.update(dropout=dropout)
                    case = Case(
                        framework="ddp",
                        model=model,
                        topology=Topology(1, 1),
                        precision=precision,
                        batch_size=arguments.batch_size,
                        seq_len=arguments.seq_len or declared.workloads[model].default_seq_len,
                        device=arguments.device,
                        mode=mode,
                        options=tuple(sorted(options.items())),
                    )
                    check = declared.workloads[model].check
                    refused = dict(check(case)) if check else {}
                    for key, why in refused.items():
                        print(f"{model} is left out: {key} {why}", file=sys.stderr)
                    if not refused:
                        yield case, dropout, mode


def workload_of(case: Case, code: str) -> WorkloadDeclaration:
    """The declared workload, or the same with somebody else's model in it."""
    if code in (OURS, LONE):
        return registry().workloads[case.model]
    return others(case.model)[code]


def _nothing() -> None:
    """In place of a watchdog's beat."""


def opened(case: Case, runner: Runner, world: World, warm: int, seconds: float) -> float:
    """Open a runner's session and warm it up, for at most about so many seconds behind the first
    iteration; seconds of an iteration, 0 where it is refused."""
    try:
        one_rank = "plain" if runner.row.code == LONE else "ddp"
        asked = replace(case, options=tuple({**dict(case.options), "one_rank": one_rank}.items()))
        begun = time.monotonic()
        session = Quiet(asked, world, workload_of(case, runner.row.code))
        warm_up(session, 1, _nothing)
        runner.built_s = time.monotonic() - begun
        count = max(1, min(warm, int(seconds / max(warm_up(session, 1, _nothing), 1e-9))))
        each = warm_up(session, count, _nothing)
    except (DeviceError, torch.OutOfMemoryError) as error:
        runner.row = replace(runner.row, refused=str(error).split("\n")[0])
        return 0.0
    runner.session = session
    return each


def rate(session: DdpSession, iterations: int) -> float:
    """Samples/s of one window."""
    with no_garbage_collection():
        session.open_window(iterations)
        session.synchronize()
        elapsed = timed_loop(session, iterations, _nothing) / 1e9
    return iterations * session.case.batch_size / elapsed


def compare(
    case: Case, dropout: float, mode: str, world: World, arguments: argparse.Namespace
) -> tuple[list[Row], str]:
    """The rows of one comparison, ours first, and the device's name."""
    end = time.monotonic() + arguments.seconds
    # What ``tuned`` changes is ours alone: beside it nobody runs in an equal mode.
    codes = (OURS, LONE, *([] if mode == MODES[2] else others(case.model)))
    runners = [Runner(Row(case.model, code, case.precision, dropout, mode)) for code in codes]
    share = arguments.seconds * _WARM_UP_SHARE / len(runners)
    each = [opened(case, runner, world, arguments.warmup, share) for runner in runners]
    end += sum(runner.built_s for runner in runners)
    running = [runner for runner in runners if runner.session is not None]
    # All rounds shall fit; a window that would not even hold one iteration takes the time it takes.
    room = max(0.0, end - time.monotonic()) / arguments.windows
    iterations = max(1, min(arguments.iterations, int(room / max(sum(each), 1e-9))))
    for number in range(arguments.windows):
        if number > 1 and time.monotonic() > end:
            break
        turn = number % len(running) if running else 0
        for runner in (*running[turn:], *running[:turn]):
            assert runner.session is not None
            runner.rates.append(rate(runner.session, iterations))
    names = [str(r.session.facts()["device_name"]) for r in running if r.session is not None]
    rows = [told(case, runner, runners[0], iterations) for runner in runners]
    return rows, names[0] if names else ""


def told(case: Case, runner: Runner, ours: Runner, iterations: int) -> Row:
    """A runner's row, once its windows are measured."""
    if runner.session is None:
        return runner.row
    name, flops = (
        runner.session.facts()["device_name"],
        float(workload_of(case, runner.row.code).flops_per_sample(case)),
    )
    middle, peak = statistics.median(runner.rates), machines.peak(name, case.precision)
    tflops = middle * flops / 1e12
    row = replace(
        runner.row,
        samples_per_s=round(middle, 3),
        slowest=round(min(runner.rates), 3),
        fastest=round(max(runner.rates), 3),
        windows=len(runner.rates),
        iterations=iterations,
        gflop_per_sample=round(flops / 1e9, 2),
        tflops=round(tflops, 3),
        share_of_peak=round(tflops / peak, 4) if peak else None,
        loss=round(runner.session.losses()[-1], 3),
    )
    if runner is ours:
        return row
    if row.windows < _WINDOWS or iterations < _ITERATIONS:
        needed = f"too few for a ratio, which needs {_WINDOWS} x {_ITERATIONS}"
        return replace(row, too_few=needed)
    return replace(row, **ratios(ours.rates, runner.rates))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Ours over theirs of each round: the median, its interval, and what that covers."""
    if not ours:
        return {}
    each = [a / b for a, b in zip(ours, theirs)]
    found: dict[str, Any] = {"ratio": round(statistics.median(each), 4)}
    interval = median_interval(each)
    if interval is None:
        return found
    ends = {"ratio_low": round(interval.low, 4), "ratio_high": round(interval.high, 4)}
    return {**found, **ends, "ratio_coverage": round(interval.coverage, 4)}


def forget() -> None:
    """Give back what the last comparison held, and its compiled code."""
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def show(rows: list[Row], device_name: str, arguments: argparse.Namespace) -> None:
    """The table for people."""
    print(
        f"{device_name or 'no device'}, torch {torch.__version__}; batch {arguments.batch_size};"
        f" medians over rounds of windows in turn, at most {arguments.seconds:g} s for a"
        " comparison; [slowest, fastest]; the interval of the median ratio\n"
    )
    print(
        f"{'model':12}{'code':19}{'dtype':6}{'drop':>5} {'mode':8}{'samples/s':>10}  {'':19}"
        f"{'TFLOPS':>8}{'of peak':>9}{'windows':>9}{'iterations':>12}  beside"
    )
    for row in rows:
        head = f"{row.model:12}{row.code:19}{row.precision:6}{row.dropout:5g} {row.mode:8}"
        if row.samples_per_s is None:
            print(f"{head}{row.refused}")
            continue
        share = f"{row.share_of_peak:.1%}" if row.share_of_peak is not None else ""
        ratio = row.too_few
        if row.ratio is not None and row.ratio_low is not None:
            ratio = f"ours x {row.ratio:.3f} [{row.ratio_low:.3f}, {row.ratio_high:.3f}]"
        print(
            f"{head}{row.samples_per_s:10.1f}  {f'[{row.slowest:.1f}, {row.fastest:.1f}]':19}"
            f"{row.tflops:8.2f}{share:>9}{row.windows:9}{row.iterations:12}  {ratio}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", nargs="+", default=["bert-base", "gpt2-small"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager", "compile"])
    parser.add_argument("--dropouts", nargs="+", type=float, default=[0.1])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=0, help="default: the model's own")
    parser.add_argument("--warmup", type=int, default=20, help="iterations at most")
    parser.add_argument("--windows", type=int, default=12, help="rounds at most")
    parser.add_argument("--iterations", type=int, default=50, help="in each window at most")
    parser.add_argument("--seconds", type=float, default=60, help="for one comparison")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    world, rows, device_name = discover(), [], ""
    for case, dropout, mode in cases(arguments):
        compared, name = compare(case, dropout, mode, world, arguments)
        rows += compared
        device_name = name or device_name
        forget()
    if arguments.json:
        head = {**vars(arguments), "device": device_name, "torch": torch.__version__}
        print(json.dumps({**head, "rows": [asdict(row) for row in rows]}))
    else:
        show(rows, device_name, arguments)


if __name__ == "__main__":
    main()
