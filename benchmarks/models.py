"""Our BERT and GPT-2 beside others' of the same size on one device: samples/s, share of peak.

``python benchmarks/models.py [--models M ...] [--batch-size B] [--precisions fp32 bf16] [--json]``.
All go through the wrapper's own session and timed loop (DDP on one rank, gradient clipping, fused
AdamW, autocast for bf16 and fp16), with the same synthetic data, eager and under torch.compile.
HuggingFace's models are as one gets them, with sdpa attention: its BERT's MLM head scores every
token, ours the masked ones only (as NVIDIA's and DeepSpeed's do). Each share of the peak is taken
with that model's own arithmetic, so the share compares how well the card is used and samples/s how
fast one trains.

Not run on a GPU yet. ``--device cpu --models bert-tiny --modes eager`` runs the same code anywhere.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch
import torch.distributed as dist
from other_models import others

from dlperf_hpc.analysis import accelerators
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.sweepfile.case import Case, Topology
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession
from dlperf_hpc.train.window import timed_loop, warm_up
from dlperf_hpc.train.workloads import bert

OURS = "dlperf_hpc"


@dataclass(frozen=True)
class Row:
    """One model in one precision and mode. ``refused`` says why there is no number."""

    model: str
    code: str
    precision: str
    mode: str
    samples_per_s: float | None = None
    slowest: float | None = None
    fastest: float | None = None
    gflop_per_sample: float | None = None
    tflops: float | None = None
    share_of_peak: float | None = None
    memory_mb: float | None = None
    loss: float | None = None
    refused: str = ""


def cases(arguments: argparse.Namespace) -> Iterator[tuple[Case, str, str]]:
    """(case, whose code, mode) of each row; those to be compared follow each other, ours first."""
    declared = registry()
    for model in arguments.models:
        for precision in arguments.precisions:
            for mode in arguments.modes:
                options = {o.name: o.default for o in declared.options("ddp", model)}
                options["compile"] = mode == "compile"
                case = Case(
                    framework="ddp",
                    model=model,
                    topology=Topology(1, 1),
                    precision=precision,
                    batch_size=arguments.batch_size,
                    seq_len=arguments.seq_len or declared.workloads[model].default_seq_len,
                    device=arguments.device,
                    options=tuple(sorted(options.items())),
                )
                for code in (OURS, *others(model)):
                    yield case, code, mode


def workload_of(case: Case, code: str) -> WorkloadDeclaration:
    """The declared workload, or the same with somebody else's model in it."""
    declared = registry().workloads[case.model]
    return declared if code == OURS else replace(declared, **others(case.model)[code])


def flops_of(case: Case, code: str) -> float:
    """Model FLOPs of one sample; HuggingFace's MLM head scores every position."""
    if code == OURS or not case.model.startswith("bert"):
        return float(registry().workloads[case.model].flops_per_sample(case))
    return bert.flops_per_sample(bert.config_of(case), case.seq_len, case.seq_len)


def windows(session: DdpSession, arguments: argparse.Namespace) -> list[float]:
    """Samples/s of each window, after the warm-up."""
    warm_up(session, arguments.warmup, lambda: None)
    rates = []
    for _ in range(arguments.windows):
        gc.collect()
        gc.disable()
        session.open_window(arguments.iterations)
        session.synchronize()
        elapsed = timed_loop(session, arguments.iterations, lambda: None) / 1e9
        gc.enable()
        rates.append(arguments.iterations * session.case.batch_size / elapsed)
    return rates


def measure(
    case: Case, code: str, mode: str, world: World, arguments: argparse.Namespace
) -> tuple[Row, str]:
    """One row, and the device's name."""
    row = Row(case.model, code, case.precision, mode)
    try:
        session = DdpSession(case, world, workload_of(case, code))
        rates = windows(session, arguments)
    except (DeviceError, torch.OutOfMemoryError) as error:
        return replace(row, refused=str(error).split("\n")[0]), ""
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    name = str(session.facts()["device_name"])
    flops = flops_of(case, code)
    rate, peak = statistics.median(rates), accelerators.peak(name, case.precision)
    tflops = rate * flops / 1e12
    row = replace(
        row,
        samples_per_s=round(rate, 2),
        slowest=round(min(rates), 2),
        fastest=round(max(rates), 2),
        gflop_per_sample=round(flops / 1e9, 2),
        tflops=round(tflops, 3),
        share_of_peak=round(tflops / peak, 4) if peak else None,
        memory_mb=round(session.memory_mb()),
        loss=round(session.losses()[-1], 3),
    )
    return row, name


def forget() -> None:
    """Give back what the last row held, and its compiled code."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def show(rows: list[Row], device_name: str, arguments: argparse.Namespace) -> None:
    """The table for people."""
    print(
        f"{device_name or 'no device'}, torch {torch.__version__}; batch {arguments.batch_size},"
        f" median [slowest, fastest] of {arguments.windows} windows of"
        f" {arguments.iterations} iterations after {arguments.warmup}\n"
    )
    print(
        f"{'model':11}{'code':12}{'dtype':6}{'mode':8}{'samples/s':>10}  {'':19}{'TFLOPS':>8}"
        f"{'of peak':>9}{'MiB':>8}  beside"
    )
    ours = rows[0]
    for row in rows:
        ours = row if row.code == OURS else ours
        head = f"{row.model:11}{row.code:12}{row.precision:6}{row.mode:8}"
        if row.samples_per_s is None:
            print(f"{head}{row.refused}")
            continue
        share = f"{row.share_of_peak:.1%}" if row.share_of_peak is not None else ""
        ratio = ""
        if row is not ours and ours.samples_per_s:
            ratio = f"ours x {ours.samples_per_s / row.samples_per_s:.2f}"
        print(
            f"{head}{row.samples_per_s:10.1f}  {f'[{row.slowest:.1f}, {row.fastest:.1f}]':19}"
            f"{row.tflops:8.2f}{share:>9}{row.memory_mb:8.0f}  {ratio}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", nargs="+", default=["bert-base", "gpt2-small"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument(
        "--modes", nargs="+", choices=("eager", "compile"), default=["eager", "compile"]
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=0, help="default: the model's own")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=50, help="in each window")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    world, rows, device_name = discover(), [], ""
    for case, code, mode in cases(arguments):
        row, name = measure(case, code, mode, world, arguments)
        rows.append(row)
        device_name = name or device_name
        forget()
    if arguments.json:
        head = {**vars(arguments), "device": device_name, "torch": torch.__version__}
        print(json.dumps({**head, "rows": [asdict(row) for row in rows]}))
    else:
        show(rows, device_name, arguments)


if __name__ == "__main__":
    main()
