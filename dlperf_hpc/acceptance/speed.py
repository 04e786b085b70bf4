"""Checks of speed: models beside others' of the same size, goals of MFU, the wrapper's own cost.

``benchmarks/models.py`` and ``benchmarks/wrapper_cost.py`` measure longer, and with more choices.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from dlperf_hpc.acceptance import numerics, training
from dlperf_hpc.acceptance.pack import FAIL, OK, SKIPPED, TOLD, Finding, judged, skipped
from dlperf_hpc.analysis import accelerators
from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.statistics import median_interval
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.measurement import no_garbage_collection
from dlperf_hpc.train.ranks import discover
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.torch.ddp import DdpSession

GOALS = {("bert-large", 512): 0.50, ("gpt2-small", 1024): 0.45, ("gpt2-medium", 1024): 0.50}
"""MFU in bf16 and mode ``tuned`` on H100 and H200 by model and tokens of a sample: reported, never
a FAIL."""
OURS, LONE = "dlperf_hpc", "dlperf_hpc-no-ddp"

_ON_CARD = (
    ("bert-base", 128, 256),
    ("bert-large", 512, 32),
    ("gpt2-small", 1024, 32),
    ("gpt2-medium", 1024, 16),
)
"""Model, tokens, batch size: the largest that are sure to fit 80 GB."""
_ON_CPU = (("bert-tiny", 64, 4),)
_LAST_TABLE_S = 150.0
"""No table of kernels is begun later: it compiles its model once more, within the check's limit."""
_PROFILED = 3  # iterations
_MOST_KERNELS = 8
_LONGEST = 60  # characters of a kernel's name: templates have hundreds


@dataclass
class Runner:
    """One code in a comparison: its session once it is open, the samples/s of its windows, or why
    there are none."""

    code: str
    case: Case
    workload: WorkloadDeclaration
    session: DdpSession | None = None
    rates: list[float] = field(default_factory=list)
    refused: str = ""

    @property
    def share_of_peak(self) -> float | None:
        """MFU; None where the device's peak is not known."""
        peak = accelerators.peak(training.device_name(self.case.device), self.case.precision)
        if peak is None or not self.rates:
            return None
        flops = float(self.workload.flops_per_sample(self.case))
        return statistics.median(self.rates) * flops / 1e12 / peak


class _Quiet(DdpSession):
    """DDP that broadcasts no buffers: ours have none, and on one rank it is for nothing."""

    def wrapped(self, module: Any) -> Any:
        model = super().wrapped(module)
        if isinstance(model, DistributedDataParallel):
            model.broadcast_buffers = False
        return model


def models(device: str) -> Iterator[Finding]:
    """bf16 on a card, eager and compiled; ours is at least 0.98 of transformers'."""
    card = device == "cuda"
    for size in _ON_CARD if card else _ON_CPU:
        for mode in ("eager", "compile") if card else ("eager",):
            case = _case(size, device, mode)
            others = {}
            if numerics.has_transformers():
                others["huggingface"] = numerics.huggingface(case.model)
            else:
                yield skipped(f"{case.model} {mode}, huggingface", "transformers is not installed")
            yield from _findings(_measured(case, others))


def _case(size: tuple[str, int, int], device: str, mode: str) -> Case:
    model, seq_len, batch_size = size
    precision = "bf16" if device == "cuda" else "fp32"
    more = {"seq_len": seq_len, "batch_size": batch_size, "mode": mode}
    return training.case(model, device, precision, **more)


def _measured(case: Case, others: Mapping[str, WorkloadDeclaration]) -> list[Runner]:
    """Our model; ours without DDP, whose copies a lone rank pays for nothing; and others' by name:
    windows in turn."""
    ours, options = registry().workloads[case.model], dict(case.options)
    ddp = replace(case, options=tuple({**options, "one_rank": "ddp"}.items()))
    plain = replace(case, options=tuple({**options, "one_rank": "plain"}.items()))
    compared = [Runner(OURS, ddp, ours), Runner(LONE, plain, ours)]
    compared += [Runner(code, ddp, workload) for code, workload in others.items()]
    warmup, rounds, seconds = (10, 12, 14.0) if case.device == "cuda" else (2, 2, 5.0)
    seconds_each = sum(_open(runner, warmup) for runner in compared)
    running = [runner for runner in compared if runner.session is not None]
    iterations = max(1, min(50, int(seconds / rounds / max(seconds_each, 1e-9))))
    sides = [functools.partial(_rate, runner, iterations) for runner in running]
    for runner, rates in zip(running, training.in_turn(sides, rounds)):
        runner.rates, runner.session = rates, None
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()
    return compared


def _open(runner: Runner, warmup: int) -> float:
    """Open a session and warm it up; seconds of an iteration, 0 where it is refused."""
    try:
        session = _Quiet(runner.case, discover(), runner.workload)
        each = training.warm(session, warmup)
    except (DeviceError, torch.OutOfMemoryError) as error:
        runner.refused = str(error).split("\n")[0]
        return 0.0
    runner.session = session
    return each


def _rate(runner: Runner, iterations: int) -> float:
    """Samples/s of one window."""
    assert runner.session is not None
    with no_garbage_collection():
        return iterations * runner.case.batch_size / training.window(runner.session, iterations)


def _name(runner: Runner) -> str:
    case = runner.case
    return f"{case.model} {case.seq_len} {case.precision} {case.mode}, {runner.code}"


def _findings(compared: Sequence[Runner]) -> Iterator[Finding]:
    for runner in compared:
        ours = runner.code in (OURS, LONE)
        if not runner.rates:
            yield Finding(_name(runner), runner.refused, verdict=FAIL if ours else SKIPPED)
            continue
        share, value = runner.share_of_peak, f"{statistics.median(runner.rates):g} samples/s"
        if share is not None:
            value += f", {share:.1%} of the peak"
        if ours:
            goal = _goal(runner.case)
            yield Finding(_name(runner), value, f"goal {goal:.0%}" if goal else "", OK)
        else:
            yield _beside(_name(runner), value, compared[0], runner)


def _goal(case: Case) -> float | None:
    return GOALS.get((case.model, case.seq_len)) if case.mode == training.TUNED else None


def _beside(what: str, value: str, ours: Runner, other: Runner) -> Finding:
    ratios = training.ratios(ours.rates, other.rates)
    if not ratios:
        return skipped(what, f"{value}; ours was refused")
    highest = ratio = statistics.median(ratios)
    value += f"; ours {ratio:.3f} of it"
    interval = median_interval(ratios)
    if interval is not None:
        value += f" [{interval.low:.3f}, {interval.high:.3f}]"
        highest = interval.high
    return judged(what, value, ">= 0.98", highest >= 0.98 or ours.case.device == "cpu")


def tuned(device: str) -> Iterator[Finding]:
    """Our models in mode ``tuned``, beside the goals of MFU: bf16 on a card. Where a model falls
    short of its goal, a table of kernels says where its time goes."""
    started, short = time.monotonic(), list[Runner]()
    sizes = [size for size in _ON_CARD if size[:2] in GOALS] if device == "cuda" else _ON_CPU
    for size in sizes:
        compared = _measured(_case(size, device, training.TUNED), {})
        yield from _findings(compared)
        if compared[0].rates and is_short(compared[0].share_of_peak, compared[0].case):
            short.append(compared[0])
    for runner in short:
        what = f"{_name(runner)}: where its time goes"
        if time.monotonic() - started > _LAST_TABLE_S:
            yield skipped(what, "no time was left for its table of kernels")
            continue
        with training.session(runner.case) as session:
            training.warm(session, _PROFILED)
            events = training.profiled(session, _PROFILED)
        yield Finding(what, as_words(times_by_kernel(events, device == "cuda")))


def is_short(share: float | None, case: Case) -> bool:
    """Whether a share of the peak is below its goal; on a CPU, which has none, always."""
    goal = _goal(case)
    return case.device == "cpu" or (goal is not None and share is not None and share < goal)


def times_by_kernel(events: Any, card: bool) -> dict[str, float]:
    """Milliseconds of an iteration by kernel, of events as ``key_averages`` gives them; on a CPU by
    operator. Ranges that somebody named (``Optimizer.step``) lie over kernels on a card and would
    count them twice."""
    found: dict[str, float] = {}
    for event in events:
        if not card:
            found[event.key] = event.self_cpu_time_total / 1e3 / _PROFILED
        elif event.device_type == DeviceType.CUDA and not _is_range(event):
            found[event.key] = event.self_device_time_total / 1e3 / _PROFILED
    return found


def _is_range(event: Any) -> bool:
    return bool(getattr(event, "is_user_annotation", False))


def as_words(times: dict[str, float]) -> str:
    """``12.3 ms an iteration: 41.0% aten::addmm, ...; 8 of 30, 92%``."""
    total = sum(times.values())
    if not total:
        return f"torch {torch.__version__}'s profiler saw no kernel"
    top = sorted(times.items(), key=lambda item: -item[1])[:_MOST_KERNELS]
    shares = ", ".join(f"{each / total:.1%} {_short(name)}" for name, each in top)
    share = sum(each for _, each in top) / total
    return f"{total:.3g} ms an iteration: {shares}; {len(top)} of {len(times)}, {share:.0%}"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def _bare_loop(session: DdpSession, iterations: int) -> float:
    """As PyTorch's own tutorial of DistributedDataParallel has it, with clipping, for the model of
    a session in fp32 or bf16; seconds."""
    model, optimizer, batch = session.model, session.optimizer, session.batch
    parameters, clip = session.module.parameters, session.case.optimizer.grad_clip
    start = time.perf_counter()
    for _ in range(iterations):
        with session.autocast():
            loss = model(**batch)
        loss.backward()
        clip_grad_norm_(parameters(), clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    del loss  # and its graph: the wrapper's last one is gone by now too
    session.synchronize()
    return time.perf_counter() - start


def wrapper(device: str) -> Iterator[Finding]:
    """The wrapper's timed loop beside one written by hand, in turn: on a card the median is within
    0.5 % of 1; a CPU rehearses with two rounds."""
    rounds = 60 if device == "cuda" else 2
    with training.session(training.case("bert-tiny", device)) as session:
        training.warm(session, 20)
        sides = [lambda: _bare_loop(session, 5), lambda: training.window(session, 5)]
        with no_garbage_collection():
            ratios = training.ratios(*training.in_turn(sides, rounds))
    median, interval = statistics.median(ratios), median_interval(ratios)
    value = f"{median:.4f} over {rounds} rounds"
    if interval is not None:
        value += f" [{interval.low:.4f}, {interval.high:.4f}]"
    yield _near_one("wrapper / bare", value, median, 0.005, device)


def exchange(device: str) -> Iterator[Finding]:
    """On one rank an iteration without all-reduce takes as long as one with it: blocks in turn."""

    def block(reduce: bool) -> float:
        session.set_all_reduce(reduce)
        session.iterate()  # the first after a change is another kind of iteration
        return training.window(session, 10)

    with training.session(training.case("bert-tiny", device)) as session:
        training.warm(session, 10)
        sides = [lambda: block(True), lambda: block(False)]
        ratios = training.ratios(*training.in_turn(sides, 10 if device == "cuda" else 2))
    median = statistics.median(ratios)
    what, value = "with all-reduce, one rank", f"{median:.3f} of the time without"
    yield _near_one(what, value, median, 0.02, device)


def _near_one(what: str, value: str, ratio: float, bound: float, device: str) -> Finding:
    """A CPU's noise is reported, not judged."""
    if device == "cpu":
        return Finding(what, value, verdict=TOLD)
    return judged(what, value, f"{1 - bound:g} to {1 + bound:g}", abs(ratio - 1) <= bound)
