"""``Timer``: the samples/s of a training loop of one's own, in the log of a run of ours.

Warm-up; device sync; meeting the other processes; clock; N iterations with nothing added between
them but a stamp; device sync; clock. It is the window of our own runs (docs/measuring.md), around a
loop that is somebody else's. What goes wrong in here costs the number, and does not end that loop.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from dlperf_hpc.errors import MeasurementError, RunError, SpecError, WorldError, number_of
from dlperf_hpc.model.result import Status, Window, interruption
from dlperf_hpc.records.failures import ENDED_BY, WINDOW, Verdict, of_error
from dlperf_hpc.records.lines import SUPERVISED, TimerReport, timed_line
from dlperf_hpc.records.store import AnyAttempt, describe, finish, format_trace, log_event
from dlperf_hpc.timer import aggregate, config
from dlperf_hpc.timer.aggregate import (
    RankWindow,
    Sizes,
    WindowClock,
    device_facts,
    kept,
    synchronize,
    unwaited,
)
from dlperf_hpc.timer.config import DEFAULTS, error_words, fault, timer_config
from dlperf_hpc.train import joblog
from dlperf_hpc.train.measurement import window_length

Batch = TypeVar("Batch")
Value = TypeVar("Value")
_living: weakref.WeakSet[Timer] = weakref.WeakSet()


class Timer:
    """Times the iterations of a training loop: ``warmup`` untimed ones, then a window.

    An iteration is one micro-batch forward and backward. Every process of the program has a Timer
    and goes through the same iterations; samples/s count all of them. The arguments:

    ``batch_size``: samples of one process in one iteration; or ``global_batch``: samples of all
    processes in one optimizer step (for tensor and pipeline parallelism, where several processes
    work on one sample); or neither, and ``step(samples=...)`` tells each iteration's.
    ``accumulation``: iterations for each optimizer step (default: as :meth:`optimizer_step` marks
    them, else 1). ``model``, ``precision``, ``seq_len`` (tokens), ``framework``: labels of the run.
    ``flops_per_sample``: model FLOPs of one sample, forward and backward, for the report's MFU.
    ``warmup`` (20) and ``iterations`` (100): of the window; ``min_seconds`` (0): it has as many
    more as this takes. ``stop``: whether the loop ends after the window. ``sync``: called to wait
    for a device that is not torch's CUDA device. ``logs``: the directory for logs
    (``logs/timer``). ``quiet``: nothing is printed.

    A sweep's environment variables decide on the window, the case and the log (docs/timer.md).
    SpecError for arguments and variables that cannot be. Within the loop nothing is raised but
    RunError, for calls that cannot be: where something fails there is no number, and
    ``stop`` ends the loop where the window would have.
    """

    def __init__(
        self,
        batch_size: int | None = None,
        *,
        global_batch: int | None = None,
        accumulation: int | None = None,
        model: str | None = None,
        precision: str | None = None,
        seq_len: int | None = None,
        framework: str = "timer",
        flops_per_sample: float | None = None,
        warmup: int | None = None,
        iterations: int | None = None,
        min_seconds: float | None = None,
        stop: bool = True,
        sync: Callable[[], object] | None = None,
        logs: str | os.PathLike[str] | None = None,
        quiet: bool = False,
    ) -> None:
        arguments = {
            "batch_size": batch_size,
            "global_batch": global_batch,
            "accumulation": accumulation,
            "model": model,
            "precision": precision,
            "seq_len": seq_len,
            "framework": framework,
            "flops_per_sample": flops_per_sample,
            "warmup": warmup,
            "iterations": iterations,
            "min_seconds": min_seconds,
            "logs": logs,
        }
        self._refusal = ""
        self._config = self._try(partial(timer_config, arguments)) or DEFAULTS
        self._stop, self._sync, self._quiet = stop, sync, quiet
        self._lock, self._threads = threading.RLock(), set[int]()
        self._group: config.ProcessGroup | None = None
        self._attempt: AnyAttempt | None = None
        self._clock: WindowClock | None = None
        self._done = 0
        self._last = 0  # the window's last iteration, once it is open
        self._until = 0  # no loop ends before this iteration because something has failed
        self._loss: Any = None
        self._samples: int | None = None
        self._steps: list[int] = []
        self._waited_ns: int | None = None
        self._remarks: list[str] = []
        self._again = 0  # how often the loop was begun again within the window
        self._looping = False
        self._ended = False
        self._message = ""
        self._window: Window | None = None
        _living.add(self)

    # --- what a program calls

    def __call__(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, timed: each is an iteration, which ends as the next one is asked for.

        Ends after the window, unless ``stop`` is false. A loop may be begun again (the next epoch),
        and goes on counting. RunError inside another loop of the same Timer. A batch (a tensor, or
        a dict or list of them) of another size than ``batch_size`` is counted as it is (the last of
        an epoch), if the first one shows that its first dimension is that size."""
        return self._timed(batches)

    def step(self, loss: Any = None, samples: int | None = None) -> bool:
        """An iteration has ended; True once the window is over. For loops without an iterable:
        ``if timer.step(loss): break``. Inside ``for batch in timer(...)`` it only notes what it is
        given. ``samples`` are those of this process in this iteration."""
        if loss is not None:
            self.loss(loss)
        if samples is not None:
            if type(samples) is not int or samples < 0:
                raise RunError(f"samples={samples!r} is not a whole number of samples")
            self._samples = samples
        if self._looping:
            return self._done + 1 >= self._last > 0
        if not self._over:
            self._advance()
        return self._over

    def loss(self, loss: Any) -> None:
        """The loss of this iteration: a number, or a tensor of one, which is not read before the
        window is over."""
        if self.open:
            self._loss = self._try(partial(kept, loss))

    def optimizer_step(self) -> None:
        """An optimizer step was taken in this iteration."""
        self._steps.append(self._done + 1)

    def refuse(self, reason: str) -> None:
        """There will be no number, for this reason; for callbacks that know more of the loop."""
        self._refusal = reason

    def note(self, remark: str) -> None:
        """A remark on what is timed: it is printed, and becomes a warning of the run."""
        self._remarks.append(remark)

    @property
    def open(self) -> bool:
        """Whether the window is open: it has begun and is not over."""
        return self._clock is not None and not self._ended

    def close(self, error: BaseException | None = None, why: str = "") -> None:
        """End the run here: without a number if the window is not over (``why``: more than that),
        failed if there is an error. Called as the program ends, and by ``with Timer(...) as
        timer:``."""
        if not self._ended:
            self._harmless(partial(self._close, error, why))

    @property
    def rank(self) -> int:
        """This process's number among those of the loop: as they met, else as the launcher says."""
        return config.launched().rank if self._group is None else self._group.rank

    @property
    def told(self) -> str:
        """The lines that say what has come of it; '' before the end. Rank 0 prints them."""
        return self._message

    @property
    def samples_per_s(self) -> float | None:
        """Samples/s over all processes; None before the window is over, and where there is no
        number."""
        return None if self._window is None else self._window.samples_per_s

    def __enter__(self) -> Timer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    # --- the loop

    @property
    def _over(self) -> bool:
        return self._ended and self._done >= self._until

    def _try(self, call: Callable[[], Value]) -> Value | None:
        """What a call gives; None, and no number, if it raises: the others are met all the same."""
        try:
            return call()
        except SpecError:
            raise
        except Exception as error:  # noqa: BLE001 - the program is not ours to end
            self._refusal = self._refusal or fault(error)
            return None

    def _harmless(self, call: Callable[[], object]) -> None:
        """If a call raises, end without a number: this process meets no other one any more."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the program is not ours to end
            measure = self._config.measure
            self._until = max(self._last, measure.warmup + measure.iterations)
            self._end(Verdict(Status.FAILED, self._refusal or fault(error), WINDOW))

    def _timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        if self._over and self._stop:
            return
        if self._looping:
            raise RunError(
                "this Timer is in a loop that has not ended: close that one, or take another Timer"
            )
        self._looping = True
        self._again += self._clock is not None
        try:
            if not self._ended:
                self._harmless(self._begin)
            yield from self._iterations(iter(batches))
        finally:
            self._looping = False

    def _iterations(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        sizes = Sizes(self._config.load.batch_size)
        while not self._over:
            before = time.perf_counter_ns()
            try:
                batch = next(batches)
            except StopIteration:
                return
            waited = time.perf_counter_ns() - before
            if self._waited_ns is not None:
                self._waited_ns += waited
            odd = self._try(partial(sizes.odd, batch))
            yield batch
            self._samples = odd if self._samples is None else self._samples
            self._advance()
        if not self._stop:
            yield from batches

    def _advance(self) -> None:
        with self._lock:
            self._threads.add(threading.get_ident())
            if not self._ended:
                self._harmless(self._begin)
            self._done += 1
            if not self._ended:
                self._harmless(self._iteration)

    def _iteration(self) -> None:
        loss, samples, self._loss, self._samples = self._loss, self._samples, None, None
        warmup, last = self._config.measure.warmup, self._done == self._last
        if self._clock is not None:
            self._try(partial(self._clock.iteration, loss, samples, last))
        if last:
            self._close_window()
        elif self._done == warmup:
            self._open_window()
        elif self._done == warmup // 2 and self._config.measure.min_seconds:
            self._try(partial(synchronize, self._sync))
            self._half_at = time.perf_counter()

    def _begin(self) -> None:
        """Find the processes and begin the log, in the first iteration: by then the program has
        formed its process group."""
        if self._group is not None:
            return
        self._group = found = config.find()
        atexit.register(self._at_exit)
        opened, why = self._open_log(found)
        if found.world is not None:
            opened, why = found.world.broadcast((opened, why))
        self._attempt = opened
        if why:
            self._refusal = why
            raise WorldError(why)
        facts = [self._try(device_facts) or {}]
        if found.world is not None:
            own = self._try(partial(joblog.rank_facts, found.world)) or {"rank": found.rank}
            facts = found.world.gather({**own, **facts[0]})
        self._log(lambda attempt: aggregate.log_start(attempt, self._config, found, facts))

    def _log(self, write: Callable[[AnyAttempt], object]) -> None:
        """On rank 0 write into the log. A disk that is full now does not end the program."""
        if self._attempt is None or self.rank != 0:
            return
        try:
            write(self._attempt)
        except Exception as error:  # noqa: BLE001 - the number is there without it
            self._remarks.append(f"the log is not whole: {error_words(error)}")

    def _open_log(self, found: config.ProcessGroup) -> tuple[AnyAttempt | None, str]:
        """On rank 0 a log, or None with a remark; and why there can be no number."""
        if found.rank != 0:
            return None, ""
        try:
            return aggregate.open_log(self._config, found), ""
        except WorldError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 - the number is there without it
            self._remarks.append(f"the Timer has no log of its own: {error_words(error)}")
        return None, ""

    def _length(self, found: config.ProcessGroup) -> int:
        """Iterations of the window, the same for all processes."""
        measure, load = self._config.measure, self._config.load
        estimate = float("inf")
        if measure.min_seconds:
            self._try(partial(synchronize, self._sync))
            estimate = (time.perf_counter() - self._half_at) / (self._done - self._done // 2)
            if found.world is None:  # each process would come to another length
                self._remarks.append("min_seconds was left out: the processes did not meet")
                estimate = float("inf")
            else:
                estimate = max(found.world.gather(estimate))
        return window_length(measure, load.accumulation or 1, estimate)

    def _open_window(self) -> None:
        assert self._group is not None
        iterations = self._length(self._group)
        self._last = self._done + iterations
        self._log(lambda attempt: log_event(attempt, "phase", {"name": "measure"}))
        clock = self._try(partial(WindowClock, iterations, self._sync))
        if clock is not None:
            self._try(clock.synchronize)
        if self._group.world is not None:
            self._group.world.barrier()
        self._waited_ns = 0 if self._looping else None
        if clock is not None:
            self._try(clock.start)
        self._clock = clock

    def _mine(self) -> RankWindow:
        clock = self._clock
        assert clock is not None
        losses, odd = clock.losses()
        threads = len(self._threads)
        if threads > 1:
            self._remarks.append(f"{threads} threads share this Timer: iterations are those of all")
        return RankWindow(
            opened=clock.opened,
            elapsed_s=clock.elapsed_s,
            step_times=clock.step_times(),
            losses=losses,
            samples=clock.samples,
            data_wait_s=None if self._waited_ns is None else self._waited_ns / 1e9,
            memory_mb=clock.memory_mb(),
            optimizer_steps=tuple(self._steps),
            interrupted_s=clock.stops.seconds,
            remarks=(*odd, *self._remarks, *unwaited(self._sync), *self._odd_loops(clock)),
        )

    def _close_window(self) -> None:
        found = self._group
        assert found is not None
        mine = self._try(self._mine)
        row = (mine, self._refusal)
        rows = [row] if found.world is None else found.world.gather(row)
        windows = [window for window, _ in rows if window is not None]
        measure = self._config.measure
        try:
            for why in filter(None, (why for _, why in rows)):
                raise MeasurementError(why)
            window = aggregate.over_all(windows, self._config.load, measure, found.size)
            status, why = Status.PARTIAL, interruption(window.interrupted_s)
        except MeasurementError as error:
            status, why = Status.FAILED, str(error)
        if why:
            if windows:
                median = aggregate.median_ms(windows)
                why += f" (an iteration took {median:.2f} ms, median)"
            self._end(Verdict(status, why, WINDOW))
            return
        self._ended, self._window = True, window
        self._log(lambda attempt: aggregate.log_window(attempt, measure, window, windows))
        remarks = [found.remark, *aggregate.remarks(windows), *self._remarks]
        notes = list(filter(None, dict.fromkeys(remarks)))
        opened = max(each.opened for each in windows)
        self._report(TimerReport(Status.OK, window, notes=tuple(notes), opened=opened))
        self._print(aggregate.sentence(window, found.topology), notes)

    def _odd_loops(self, clock: WindowClock) -> Iterator[str]:
        if self._again:
            again = number_of(self._again, "time")
            yield (
                f"the loop was begun again within the window ({again}): what lies between"
                " (validation, a checkpoint, another iterator) is in its time"
            )
        usual = self._config.load.batch_size
        odd = sum(number not in (None, usual) for number in clock.samples)
        if usual and odd:
            these = number_of(odd, "iteration")
            yield f"{these} of another size than {usual} samples: counted as it is"

    # --- the end

    def _close(self, error: BaseException | None, why: str) -> None:
        if error is None:
            measure = self._config.measure
            reason = (
                f"the loop ended after {self._done} iterations, of {measure.warmup} untimed and"
            )
            reason += f" {measure.iterations} timed ones"
            reason = ": ".join(filter(None, (reason, why or self._refusal)))
            self._end(Verdict(Status.PARTIAL, reason, WINDOW))
            return
        reason = f"{describe(error)}, after {self._done} iterations"
        verdict = replace(of_error(error), reason=reason)
        if isinstance(error, KeyboardInterrupt):
            verdict = Verdict(Status.CANCELLED, reason, ENDED_BY)
        self._end(verdict, format_trace(error))

    def _at_exit(self) -> None:
        # In an interactive session it is the last one of anything.
        self.close(None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))

    def _end(self, verdict: Verdict, trace: str = "") -> None:
        """No number: say why, and write it into the log. The first process to come here does."""
        self._ended = True
        if self._group is None:  # no iteration was seen
            self._group = found = self._try(partial(config.find, meet=False))
            if found is not None:
                self._attempt, _ = self._open_log(found)
        status, reason = verdict.status, verdict.reason
        if self._attempt is not None:
            if self._group and self._group.size > 1 and status is not Status.PARTIAL:
                reason = f"rank {self._group.rank}: {reason}"
            try:
                finish(self._attempt, status, reason, trace, verdict.codes())
            except Exception as error:  # noqa: BLE001 - the reason is printed
                self._remarks.append(f"the log is not whole: {error_words(error)}")
        self._report(TimerReport(status, reason=reason))
        self._print(f"{status.value}, no number: {reason}", self._remarks)

    def _report(self, report: TimerReport) -> None:
        """Rank 0 reports to a supervisor of ours, also where nothing is printed for people; on a
        line of its own, behind a progress bar that has not ended its line."""
        if SUPERVISED in os.environ:
            self._write(lambda: f"\n{timed_line(report)}\n")

    def _print(self, sentence: str, remarks: Sequence[str]) -> None:
        """Rank 0 prints what has come of it, on standard error."""
        if self._attempt is not None:
            sentence += f"; log: {self._attempt.paths.log}"
        self._message = "".join(f"dlperf_hpc: {line}\n" for line in (sentence, *remarks))
        if not self._quiet:
            self._write(lambda: self._message)

    def _write(self, text: Callable[[], str]) -> None:
        with contextlib.suppress(Exception):  # nobody may be reading any more, or it is closed
            if self.rank == 0:
                sys.stderr.write(text())
                sys.stderr.flush()


def _forget() -> None:
    """In a forked child (a data loader's): the loop and its log are the parent's."""
    for timer in list(_living):
        timer._ended, timer._attempt, timer._quiet = True, None, True


os.register_at_fork(after_in_child=_forget)
