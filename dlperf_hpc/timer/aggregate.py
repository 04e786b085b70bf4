"""From the processes' windows to one number, and into a log that ``dlperf report`` reads.

The log is that of a run of ours (docs/log-format.md). Where no sweep asked for the run its case is
an observed one, and its repeat the first number that no log has yet.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LedgerError, MeasurementError, WorldError
from dlperf_hpc.files import make_directories
from dlperf_hpc.model.case import Case, Measure, ObservedCase, ObservedRun, Run, Topology
from dlperf_hpc.model.result import Status, Window
from dlperf_hpc.records.layout import RunPaths, launch_id
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.store import AnyAttempt, begin_log, finish, log_event
from dlperf_hpc.timer.config import OF_WINDOW, Load, ProcessGroup, TimerConfig
from dlperf_hpc.train import joblog, measurement
from dlperf_hpc.train.measurement import IterationClock, RankTimes, Stops

SWEEP = "timer"
_MOST_REPEATS = 100_000
_turns = count()
_process = uuid.uuid4().hex[:12]


# --- the log


def open_log(config: TimerConfig, group: ProcessGroup) -> AnyAttempt:
    """Begin a log. WorldError where the processes are not the topology that the sweep asked for,
    LedgerError where the log cannot be written, or is there already."""
    if group.topology is None:
        raise WorldError(
            f"there are {group.size} processes, and {group.uneven}: no topology, as 2n4g, says"
            " that; start as many on each node (srun --ntasks-per-node, mpiexec -ppn)"
        )
    case = config.case_in(group.topology)
    _check_topology(case, group)
    launch = str(config.begin.get("launch", "")) or _launch()
    try:
        if config.log is not None:
            return _open_in_sweep(config, case, config.log, launch)
        for repeat in range(1, _MOST_REPEATS):
            attempt = _attempt(config, case, repeat, launch)
            paths = attempt.paths
            make_directories(paths.log.parent)
            if not (paths.log.exists() or paths.record.exists()) and begin_log(attempt):
                return attempt
    except OSError as error:
        where = config.log or config.logs
        raise LedgerError(
            f"{where}: the log cannot be written: {error.strerror}; name another directory:"
            ' Timer(logs="...") or the environment variable DLPERF_LOGS'
        ) from error
    raise LedgerError(f"{config.logs}: holds {_MOST_REPEATS} repeats; name another directory")


def _check_topology(case: Case | ObservedCase, group: ProcessGroup) -> None:
    nodes = group.topology.nodes if group.topology else 0
    if (group.size, nodes) != (case.ranks, case.topology.nodes):
        raise WorldError(
            f"{group.size} processes on {nodes} nodes, topology {case.topology} means {case.ranks}"
            f" on {case.topology.nodes}"
        )


def _run(case: Case | ObservedCase, repeat: int) -> Run | ObservedRun:
    if isinstance(case, Case):
        return Run(case, repeat)
    return ObservedRun(case, repeat, "")


def _open_in_sweep(
    config: TimerConfig, case: Case | ObservedCase, log: Path, launch: str
) -> AnyAttempt:
    begin = {"sweep": SWEEP, "repeat": 1, "attempt": 1, **config.begin}
    paths = RunPaths(log.absolute().parent, log.name.removesuffix(".log"))
    run = _run(case, begin["repeat"])
    attempt = AnyAttempt(str(begin["sweep"]), run, paths, begin["attempt"], launch)
    make_directories(log.parent)
    if not begin_log(attempt):
        raise LedgerError(f"{log}: is there already: one Timer writes the log of a sweep's run")
    return attempt


def _attempt(
    config: TimerConfig, case: Case | ObservedCase, repeat: int, launch: str
) -> AnyAttempt:
    run = _run(case, repeat)
    # Without a character that a shell would expand.
    path = "/".join(part or "unknown" for part in run.id.replace("?", "unknown").split("/"))
    sweep = str(config.begin.get("sweep", SWEEP))
    return AnyAttempt(sweep, run, RunPaths(config.logs.absolute(), path), 1, launch)


def _launch() -> str:
    """The launch of this Timer; of one process's Timers all have the first one's job."""
    job = f"{_process}_0.0"
    if "SLURM_JOB_ID" in os.environ:
        job = launch_id()
    turn = next(_turns)
    return f"{job}.{turn}" if turn else job


def log_start(
    attempt: AnyAttempt,
    config: TimerConfig,
    group: ProcessGroup,
    facts: Sequence[Mapping[str, Any]],
) -> None:
    """The requested window, and the world; ``facts`` are those of every process that was met."""
    # For the record, now: behind the window these tenths of a second would hold the program up.
    joblog.packages()
    log_event(attempt, "measure", {name: getattr(config.measure, name) for name in OF_WINDOW})
    flops = {"flops_per_sample": config.flops_per_sample}
    rows = [{**each, **flops} for each in facts]
    if group.world is not None:
        joblog.log_world(attempt, group.world, rows)
    else:
        log_event(attempt, "provenance", joblog.provenance())
        log_event(attempt, "world", {"ranks": group.size, "met": False, **rows[0]})
        note(attempt, group.remark)
    log_event(attempt, "phase", {"name": "warmup"})


def note(attempt: AnyAttempt, text: str) -> None:
    """A remark that becomes a warning of the run."""
    log_event(attempt, "note", {"text": text})


def log_window(
    attempt: AnyAttempt, measure: Measure, window: Window, windows: Sequence[RankWindow]
) -> None:
    """Iterations, summary, record and end."""
    losses = mean_losses(windows)
    joblog.log_iterations(attempt, windows, losses, measure.warmup)
    for remark in remarks(windows):
        note(attempt, remark)
    joblog.log_summary(attempt, window, nulls=True)
    detail = {
        "window": asdict(window),
        "detail": measurement.detail(windows, losses),
        "packages": joblog.packages(),
        "window_opened": utc(max(each.opened for each in windows)),
    }
    finish(attempt, Status.OK, detail=detail)


# --- the number


def remarks(windows: Sequence[RankWindow]) -> list[str]:
    """What is odd about the processes' windows, each thing once."""
    found = list(dict.fromkeys(remark for each in windows for remark in each.remarks))
    given = [sum(loss is not None for loss in each.losses) for each in windows]
    whole = len(windows[0].losses)
    partly = [number for number in given if 0 < number < whole]
    if partly:
        found.append(f"the loss was given in {partly[0]} of {whole} iterations: it is left out")
    elif 0 < sum(number == whole for number in given) < len(given):
        found.append(f"the loss is that of {given.count(whole)} of {len(given)} processes")
    return found


def mean_losses(windows: Sequence[RankWindow]) -> list[float | None]:
    """Per iteration the mean over the processes that gave the loss of every iteration; None where
    none did."""
    given = [[loss for loss in each.losses if loss is not None] for each in windows]
    whole = [losses for losses in given if len(losses) == len(windows[0].losses)]
    if not whole:
        return [None] * len(windows[0].losses)
    return [sum(values) / len(values) for values in zip(*whole)]


def over_all(windows: Sequence[RankWindow], load: Load, measure: Measure, size: int) -> Window:
    """The window over all processes. MeasurementError where its number would mean nothing: a loss
    that is not finite, or an unknown number of samples."""
    losses = mean_losses(windows)
    for number, loss in enumerate(losses, 1):
        if loss is not None and not math.isfinite(loss):
            raise MeasurementError(
                f"the loss is {loss} from iteration {number} of the window on: a run that does not"
                " train has no throughput"
            )
    marked, warmup, iterations = windows[0].optimizer_steps, measure.warmup, len(losses)
    accumulation = load.accumulation or _accumulation(marked)
    samples, global_batch = _samples(windows, load, accumulation, size)
    steps = sum(number > warmup for number in marked)
    if not marked:
        each = accumulation or 1
        steps = (warmup + iterations) // each - warmup // each
    return Window(
        warmup=warmup,
        iterations=iterations,
        optimizer_steps=steps,
        skipped_steps=None,
        accumulation=accumulation,
        global_batch=global_batch,
        ranks=size,
        samples=samples,
        elapsed_min_s=min(e.elapsed_s for e in windows) if len(windows) == size else None,
        **measurement.figures(windows, losses),
    )


def median_ms(windows: Sequence[RankWindow]) -> float:
    """Median of the iterations' times over all processes, ms."""
    return 1e3 * measurement.percentile(measurement.iteration_times(windows), 0.5)


def _accumulation(marked: Sequence[int]) -> int | None:
    """Iterations for each optimizer step, as the program marked them; 1 if it marked none, None if
    they differ."""
    gaps = {after - before for before, after in zip((0, *marked), marked)} or {1}
    return gaps.pop() if len(gaps) == 1 else None


def _samples(
    windows: Sequence[RankWindow], load: Load, accumulation: int | None, size: int
) -> tuple[int, int | None]:
    """Samples of the window over all processes, and of an optimizer step where all have as many."""
    if load.global_batch is not None and accumulation is not None:
        return _samples_of_steps(load.global_batch, accumulation, len(windows[0].samples))
    known = [each.known_samples(load) for each in windows]
    if any(len(row) < len(windows[0].samples) for row in known):
        raise MeasurementError(
            "how many samples an iteration has was not told, so that there are no samples/s: tell"
            " batch_size, global_batch, or the samples of each step"
        )
    total = sum(map(sum, known)) * size // len(windows)
    per_iteration = {sum(numbers) * size // len(windows) for numbers in zip(*known)}
    if accumulation is None or len(per_iteration) > 1:
        return total, None
    return total, per_iteration.pop() * accumulation


def _samples_of_steps(global_batch: int, accumulation: int, iterations: int) -> tuple[int, int]:
    samples, rest = divmod(global_batch * iterations, accumulation)
    if rest:
        raise MeasurementError(
            f"a global batch of {global_batch} in {accumulation} iterations gives no whole"
            f" number of samples in {iterations}"
        )
    return samples, global_batch


def sentence(window: Window, topology: Topology | None) -> str:
    """The line that a program prints."""
    where = f"{window.ranks} process{'es' * (window.ranks > 1)}"
    if topology is not None:
        where += f", {topology}"
    return (
        f"{window.samples_per_s:.2f} samples/s ({where}): {window.samples} samples in"
        f" {window.elapsed_s:.2f} s, {window.iterations} iterations after {window.warmup},"
        f" {window.step_ms_p50:.2f} ms each (median)"
    )


# --- one process's own clock


def cuda() -> Any:
    """``torch.cuda`` if the program has loaded torch and initialised CUDA, else None."""
    torch = sys.modules.get("torch")
    found = getattr(torch, "cuda", None)
    return found if found is not None and found.is_initialized() else None


def device_facts() -> dict[str, Any]:
    """The device and its library's versions and settings; empty where they are not known."""
    torch, gpu = sys.modules.get("torch"), cuda()
    if torch is None or (gpu is None and sys.modules.keys() & {"jax", "tensorflow"}):
        return {}
    from dlperf_hpc.train.torch import device

    place = torch.device("cuda", gpu.current_device()) if gpu else torch.device("cpu")
    facts = {"framework_name": "PyTorch", "framework_version": torch.__version__}
    try:
        return {**facts, **device.device_facts(place)}
    except RuntimeError:  # settings of TF32 in two ways at once: torch then does not tell them
        return {**facts, "device": str(place)}


@dataclass(frozen=True)
class RankWindow(RankTimes):
    """One process's window. ``losses`` has None where no loss was given; ``samples`` of each
    iteration, None where its number is not known; ``data_wait_s`` is None for a loop that has its
    data from elsewhere than the Timer."""

    losses: list[float | None]
    samples: list[int | None]
    optimizer_steps: tuple[int, ...]
    remarks: tuple[str, ...] = ()
    interrupted_s: float = 0.0

    def known_samples(self, load: Load) -> list[int]:
        """Samples of the iterations of which they are known."""
        return [number for number in map(load.samples, self.samples) if number is not None]


class WindowClock:
    """Stamps of a window that is open; room is made before the clock starts."""

    def __init__(self, iterations: int, sync: Callable[[], object] | None) -> None:
        self._sync = sync
        self._cuda = cuda()
        self._clock = IterationClock(iterations, self._cuda if sync is None else None)
        self.samples: list[int | None] = []

    def synchronize(self) -> None:
        """Wait until the device is done."""
        synchronize(self._sync)

    def start(self) -> None:
        """Start the clock; after a sync, and after the processes have met."""
        self.opened = time.time()
        self.stops = Stops()
        self._started = time.perf_counter_ns()
        self._clock.mark(None)

    def iteration(self, loss: Any, samples: int | None, last: bool) -> None:
        """An iteration has ended. Waits for the device after the last one alone."""
        self.samples.append(samples)
        if last:
            self.synchronize()
        self._clock.mark(loss)
        if last:
            self.elapsed_s = (time.perf_counter_ns() - self._started) / 1e9
            self.stops.end()

    def step_times(self) -> list[float]:
        """Seconds of each iteration. Waits for the device."""
        if self._cuda is not None:
            self._cuda.synchronize()
        return self._clock.step_times()

    def losses(self) -> tuple[list[float | None], tuple[str, ...]]:
        """The losses as numbers, and a remark on one that is none. Waits for the device."""
        found: list[float | None] = []
        losses = self._clock.losses[1:]
        for number, loss in enumerate(losses, 1):
            try:
                found.append(None if loss is None else float(loss))
            except Exception as error:  # noqa: BLE001 - what a foreign object raises is not known
                why = f"the loss of iteration {number} of the window is no number: {error}"
                return [None] * len(losses), (why,)
        return found, ()

    def memory_mb(self) -> float | None:
        """Peak of the CUDA allocator, or of the process's resident set; MiB. None for another
        device."""
        if self._cuda is not None:
            return float(self._cuda.max_memory_allocated()) / 2**20
        if self._sync is not None:
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def synchronize(sync: Callable[[], object] | None) -> None:
    """Wait for the CUDA device if torch has one, and by ``sync``."""
    gpu = cuda()
    if gpu is not None:
        gpu.synchronize()
    if sync is not None:
        sync()


def unwaited(sync: Callable[[], object] | None) -> list[str]:
    """A remark on a library that may compute on a device for which nobody waits."""
    if sync is not None or cuda() is not None:
        return []
    found = sorted(sys.modules.keys() & {"jax", "tensorflow"})
    xpu = getattr(sys.modules.get("torch"), "xpu", None)
    if xpu is not None and xpu.is_initialized():
        found.append("torch.xpu")
    return [
        f"{name} is loaded, and nothing waits for its device as the window begins and ends: tell"
        " sync="
        for name in found
    ]


def kept(loss: Any) -> Any:
    """A loss to be read later: a tensor without its graph, and a copy, since a program may add to
    it in place or, in a CUDA graph, write every iteration's into the same memory."""
    if isinstance(loss, (int, float)) or not hasattr(loss, "detach"):
        return loss
    return loss.detach().clone()


class Sizes:
    """Sizes of batches, where the first batch shows that the first dimension of what it holds is
    its size: the ``usual`` one."""

    def __init__(self, usual: int | None) -> None:
        self._usual, self._first = usual, True

    def odd(self, batch: Any) -> int | None:
        """The size of a batch if it is not the usual one, else None."""
        size = None if self._usual is None else _size(batch)
        if self._first and size != self._usual:
            self._usual = size = None  # it is not to be seen
        self._first = False
        return None if size == self._usual else size


def _size(batch: Any) -> int | None:
    for _ in range(3):
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, (list, tuple)):
            batch = batch[0] if batch else None
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape else None
