"""One rank of one run, from launch to record: ``python -u -m dlperf_hpc.train <directory>
<array>``, once per rank by srun or mpiexec. The array index in the environment and the manifest
name the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import AttemptError, DeviceError
from dlperf_hpc.model.case import NO_FP16
from dlperf_hpc.model.result import Checkpoint
from dlperf_hpc.records import layout, lines
from dlperf_hpc.records.layout import job_seconds, launch_id, repeat_in_job, task_index, task_name
from dlperf_hpc.records.ledger import bound_array
from dlperf_hpc.records.manifest import Manifest
from dlperf_hpc.records.store import Attempt, log_event, open_attempt, take_log
from dlperf_hpc.train import joblog, measurement, ranks
from dlperf_hpc.train.checkpoints import measure_checkpoint, remove
from dlperf_hpc.train.drills import drill
from dlperf_hpc.train.joblog import Measured
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.registry import registry
from dlperf_hpc.train.session import Session
from dlperf_hpc.train.telemetry import GpuWatch, find_device, gpu_state
from dlperf_hpc.train.watchdog import Watchdog


def main(root: Path, array_name: str) -> None:
    """Run this rank; leaves by ``os._exit`` if it fails."""
    watchdog = Watchdog(ranks.launcher_rank(), time_limit_s=float("inf"))
    watchdog.watch()
    try:
        _run(root, array_name, watchdog)
    except BaseException as error:  # noqa: BLE001 - the process's edge: whatever it is, it is recorded
        watchdog.fail(error)


def _run(root: Path, array_name: str, watchdog: Watchdog) -> None:
    manifest, array = bound_array(root, array_name)
    run = array.run_of(task_index(), repeat_in_job())
    # Earlier repeats within the job may have used up more than their own share of its time.
    watchdog.time_limit_s = min(array.time_limit_s, array.job_limit_s - job_seconds())
    watchdog.phase("startup", manifest.limits.startup_s)
    # Known before MPI is: ranks that never find each other must still say which run they are.
    watchdog.attempt = open_attempt(manifest.sweep, run, root, launch_id())
    if watchdog.attempt is None:
        print(f"{run.id}: already ok, nothing to do")
        return
    output = root / layout.JOBS / f"{task_name()}.out"
    with watchdog.in_native_code(manifest.limits.startup_s, output):
        world = ranks.discover()
    ranks.check(world, run.case)
    attempt: Attempt = world.broadcast(watchdog.attempt)
    search: dict[str, Any] = {}
    if run.case.sought:
        from dlperf_hpc.train import largest

        watchdog.phase("search", manifest.limits.startup_s)
        found, search = largest.find(attempt, world, watchdog.beat)
        attempt = replace(attempt, run=replace(run, case=found))
        watchdog.phase("startup", manifest.limits.startup_s)
    busy = world.broadcast(take_log(attempt, watchdog.time_limit_s) if world.rank == 0 else "")
    # A failure of this process would be written as the other attempt's.
    watchdog.attempt = None if busy else attempt
    if busy:
        raise AttemptError(busy)
    if search and world.rank == 0:
        log_event(attempt, "search", search)
    _Rank(manifest, attempt, world, watchdog).measure()


@dataclass(frozen=True)
class _Rank:
    """One rank of an attempt, whose log it has taken together with the others."""

    manifest: Manifest
    attempt: Attempt
    world: World
    watchdog: Watchdog

    def measure(self) -> None:
        """From the model to the record."""
        attempt, world, watchdog = self.attempt, self.world, self.watchdog
        limits, measure = self.manifest.limits, self.manifest.measure
        accumulation = attempt.run.case.accumulation
        if world.rank == 0:
            log_event(attempt, "measure", asdict(measure))
        self._enter("build", limits.startup_s)
        session, declared_facts, all_facts = self._build()
        self._enter("warmup", limits.startup_s)
        drill(world.rank, attempt.run.case)
        estimates = world.gather(measurement.warm_up(session, measure.warmup, watchdog.beat))
        joblog.flush_nccl()
        iterations = measurement.window_length(measure, accumulation, max(estimates))
        self._enter("measure", limits.iteration_s)
        gpu = find_device(all_facts[world.rank].get("device_uuid"))
        before, watch = gpu_state(gpu), GpuWatch(gpu)
        window = measurement.measure_window(session, world, iterations, watchdog.beat)
        # What the framework's allocator says of the window; a back end need not have one to ask.
        during = {**watch.summary(), **getattr(session, "memory_account", dict)()}
        states = world.gather({"before": before, "window": during, "after": gpu_state(gpu)})
        windows = world.gather(window)
        measurement.check(windows)
        self._enter("communication", limits.iteration_s)
        found = measurement.measure_communication(
            session, world, measure, accumulation, window, watchdog.beat, watchdog.left_s()
        )
        measured = Measured(measure, windows, found, declared_facts)
        if world.rank == 0:
            joblog.log_gpus(attempt, states)
            joblog.log_window(attempt, measured)
        if measure.allreduce_probe and world.size > 1:
            measured = self._probe(session, measured)
        self._end(session, measured)

    def _end(self, session: Session, measured: Measured) -> None:
        """What follows the window once it is in the log, up to the record."""
        attempt, world, measure = self.attempt, self.world, self.manifest.measure
        output = attempt.paths.root / layout.JOBS / f"{task_name()}.out"
        ways, checkpoint = joblog.nccl_transports(world, output), None
        if not measure.checkpoint:
            self._enter("shutdown", self.manifest.limits.shutdown_s)
        if ways and world.rank == 0:
            log_event(attempt, "nccl", ways)
        if measure.checkpoint:
            checkpoint = self._checkpoint(session, measured)
        if world.rank == 0:
            joblog.end_ok(attempt, measured, checkpoint)
        world.barrier()  # all ranks end together: srun's --wait must not see one of them linger
        session.close()

    def _build(self) -> tuple[Session, dict[str, Any], list[dict[str, Any]]]:
        """The session, what the record has of it, and all ranks' facts, which are in the log."""
        declared, case, world = registry(), self.attempt.run.case, self.world
        workload, backend = declared.workloads[case.model], declared.backends[case.framework]
        self.watchdog.modules = (backend.library, *backend.modules)
        session = backend.open_session(case, world, workload)
        declared_facts = {
            **joblog.framework_facts(backend),
            "flops_per_sample": float(workload.flops_per_sample(case)),
        }
        facts = {**joblog.rank_facts(world), **session.facts(), **declared_facts}
        all_facts = world.gather(facts)
        if case.precision == "fp16" and "cpu" in [facts["device_name"] for facts in all_facts]:
            raise DeviceError(f"precision {NO_FP16}")
        if world.rank == 0:
            joblog.log_world(self.attempt, world, all_facts)
        return session, declared_facts, all_facts

    def _probe(self, session: Session, measured: Measured) -> Measured:
        """Time all-reduces of the gradient's sizes, by which nothing measured can be lost."""

        def write(reason: str) -> None:
            joblog.log_all_reduces(self.attempt, None, reason)
            if measured.measure.checkpoint:
                joblog.log_checkpoint(self.attempt, None, f"not tried after the probe: {reason}")
            joblog.end_ok(self.attempt, measured)

        with self._behind_window(lines.PROBE, self.manifest.limits.iteration_s, write):
            window = measured.windows[self.world.rank]
            found, reason = measurement.probe_all_reduces(
                session, self.world, window, self.watchdog.left_s()
            )
        if self.world.rank == 0:
            joblog.log_all_reduces(self.attempt, found, reason)
        return replace(measured, allreduces=found)

    def _checkpoint(self, session: Session, measured: Measured) -> Checkpoint | None:
        """Time a checkpoint, by which nothing measured can be lost."""
        attempt, world, watchdog = self.attempt, self.world, self.watchdog
        directory = attempt.paths.checkpoint(attempt.number)
        keep = measured.measure.keep_checkpoint

        def write(reason: str) -> None:
            joblog.log_checkpoint(attempt, None, reason)
            joblog.end_ok(attempt, measured)

        def settle(reason: str) -> None:
            try:
                write(reason)
            except OSError:  # the disk may be full of what was saved so far
                remove(directory, keep)
                write(reason)
            remove(directory, keep)

        with self._behind_window("checkpoint", self.manifest.limits.startup_s, settle):
            accumulation, left_s = attempt.run.case.accumulation, watchdog.left_s()
            checkpoint, reason = measure_checkpoint(
                session, world, directory, accumulation, left_s, watchdog.beat, keep
            )
        self._enter("shutdown", self.manifest.limits.shutdown_s)
        if world.rank == 0:
            joblog.log_checkpoint(attempt, checkpoint, reason)
        return checkpoint

    @contextmanager
    def _behind_window(
        self, phase: str, limit_s: float, settle: Callable[[str], None]
    ) -> Iterator[None]:
        """A phase in which a rank that fails or hangs ends the run ok, by ``settle``: the window is
        in the log, and in a framework's own collectives it could not tell the others."""
        self._enter(phase, limit_s)
        self.world.barrier()  # rank 0 has written the window down
        self.watchdog.settle = settle
        yield  # not in a try: after an error the run still has to be settled
        self.watchdog.settle = None

    def _enter(self, phase: str, limit_s: float) -> None:
        self.watchdog.phase(phase, limit_s)
        if self.world.rank == 0:
            log_event(self.attempt, "phase", {"name": phase})
