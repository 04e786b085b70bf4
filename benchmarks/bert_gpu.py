"""BERT pre-training on one GPU, beside HuggingFace's on the same card: samples/s, share of peak.

``python benchmarks/bert_gpu.py [--large] [--batch-size B] [--precisions fp32 tf32 bf16] [--json]``.
Both models go through the wrapper's own session and timed loop (DDP on one rank, gradient clipping,
fused AdamW, autocast for bf16 and fp16), with the same batch of synthetic data, eager and under
torch.compile. HuggingFace's model is as one gets it, with sdpa attention: its MLM head scores every
token, ours the masked ones only (as NVIDIA's and DeepSpeed's do). Each share of the peak is taken
with that model's own arithmetic, so the share compares how well the card is used and samples/s how
fast one trains.

Not run on a GPU yet. ``--device cpu --model bert-tiny --modes eager`` runs the same code anywhere.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from dlperf_hpc.analysis import cards
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.spec.case import Case, Topology
from dlperf_hpc.spec.declarations import WorkloadDeclaration
from dlperf_hpc.train.backends.ddp_torch import DdpSession
from dlperf_hpc.train.ranks import World, discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.window import timed_loop, warm_up
from dlperf_hpc.train.workloads.bert import build as build_ours
from dlperf_hpc.train.workloads.bert import config_of, flops_per_sample, predictions_per_sequence


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


class HuggingFace(torch.nn.Module):
    """transformers' BertForPreTraining; ``forward`` gives its loss, as a workload's model does."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        import transformers

        config = config_of(case)
        self.bert = transformers.BertForPreTraining(
            transformers.BertConfig(
                vocab_size=config.vocab,
                hidden_size=config.hidden,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                intermediate_size=config.ffn,
                max_position_embeddings=config.max_positions,
                hidden_dropout_prob=config.dropout,
                attention_probs_dropout_prob=config.dropout,
                attn_implementation="sdpa",
            )
        ).train()

    def forward(self, **batch: torch.Tensor) -> Any:
        return self.bert(**batch).loss


def build_huggingface(library: str, case: Case, rank: int) -> tuple[Any, dict[str, Any]]:
    """HuggingFace's model, and our batch in its form: one label per token, most of them -100."""
    import numpy as np

    _, ours = build_ours(library, case, rank)
    labels = np.full_like(ours["input_ids"], -100)
    np.put_along_axis(labels, ours["masked_lm_positions"], ours["masked_lm_ids"], axis=1)
    return HuggingFace(case), {
        "input_ids": ours["input_ids"],
        "token_type_ids": ours["segment_ids"],
        "labels": labels,
        "next_sentence_label": ours["next_sentence_labels"],
    }


def cases(arguments: argparse.Namespace) -> Iterator[tuple[Case, str, str]]:
    """(case, whose code, mode) of each row; the two to be compared stand next to each other."""
    declared = registry()
    for model in [arguments.model] + (["bert-large"] if arguments.large else []):
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
                    seq_len=arguments.seq_len,
                    device=arguments.device,
                    options=tuple(sorted(options.items())),
                )
                yield case, "dlperf_hpc", mode
                yield case, "huggingface", mode


def workload_of(case: Case, code: str) -> WorkloadDeclaration:
    """The declared workload, or the same with HuggingFace's model in it."""
    declared = registry().workloads[case.model]
    return declared if code == "dlperf_hpc" else replace(declared, build=build_huggingface)


def predictions_of(case: Case, code: str) -> int:
    """Positions per sequence that the MLM head scores."""
    return predictions_per_sequence(case.seq_len) if code == "dlperf_hpc" else case.seq_len


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
    flops = flops_per_sample(config_of(case), case.seq_len, predictions_of(case, code))
    rate, peak = statistics.median(rates), cards.peak(name, case.precision)
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
        f"{device_name or 'no device'}, torch {torch.__version__}; batch {arguments.batch_size} x"
        f" {arguments.seq_len} tokens, median [slowest, fastest] of {arguments.windows} windows of"
        f" {arguments.iterations} iterations after {arguments.warmup}\n"
    )
    print(
        f"{'model':11}{'code':12}{'dtype':6}{'mode':8}{'samples/s':>10}  {'':19}{'TFLOPS':>8}"
        f"{'of peak':>9}{'MiB':>8}  beside"
    )
    for ours, theirs in zip(rows[::2], rows[1::2]):
        for row in (ours, theirs):
            head = f"{row.model:11}{row.code:12}{row.precision:6}{row.mode:8}"
            if row.samples_per_s is None:
                print(f"{head}{row.refused}")
                continue
            share = f"{row.share_of_peak:.1%}" if row.share_of_peak is not None else ""
            ratio = ""
            if row is ours and theirs.samples_per_s:
                ratio = f"x {row.samples_per_s / theirs.samples_per_s:.2f}"
            print(
                f"{head}{row.samples_per_s:10.1f}  {f'[{row.slowest:.1f}, {row.fastest:.1f}]':19}"
                f"{row.tflops:8.2f}{share:>9}{row.memory_mb:8.0f}  {ratio}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--large", action="store_true", help="bert-large too")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument(
        "--modes", nargs="+", choices=("eager", "compile"), default=["eager", "compile"]
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=128)
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
