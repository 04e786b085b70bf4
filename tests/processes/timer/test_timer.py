"""A Timer around loops of plain Python: what it counts, and what the log says of it."""

from __future__ import annotations

import csv
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from record_samples import a_run

from dlperf_hpc import Timer
from dlperf_hpc.cli import report
from dlperf_hpc.errors import LogError, RunError, SpecError
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.lines import write_line
from dlperf_hpc.records.logfile import read_log, result_of_log
from dlperf_hpc.records.record import read_record
from dlperf_hpc.train import joblog

SMALL: dict[str, Any] = {"warmup": 2, "iterations": 6, "model": "toy"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to run in, and no launcher's or sweep's variables."""
    for name in list(os.environ):
        if re.match("DLPERF_|SLURM_|PMI|OMPI_|MPI_|(LOCAL_)?(RANK|WORLD_SIZE)$", name):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loop(timer: Timer, batches: Iterable[Any] = range(99), seconds: float = 0.001) -> int:
    """Iterations that the loop went through."""
    done = 0
    for _ in timer(batches):
        time.sleep(seconds)
        timer.loss(2.0 - 0.1 * done)
        done += 1
    return done


def logs(place: Path) -> list[Path]:
    return sorted(place.rglob("*.log"))


def result(place: Path) -> RunResult:
    (log,) = logs(place)
    return result_of_log(log)


def test_a_loop_ends_after_the_window_and_reads_as_a_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timer = Timer(batch_size=4, precision="fp32", seq_len=8, accumulation=2, **SMALL)
    assert loop(timer) == 8
    told, window = result(place), result(place).window
    assert window is not None and told.status is Status.OK and told.contradictions == ()
    assert told.samples_per_s == timer.samples_per_s == 24 / window.elapsed_s
    assert window.elapsed_s > 0.006 and told.warnings == ()
    assert (window.warmup, window.iterations, window.samples, window.ranks) == (2, 6, 24, 1)
    assert (window.optimizer_steps, window.accumulation, window.global_batch) == (3, 2, 8)
    assert window.loss_first == pytest.approx(1.8) and window.loss_last == pytest.approx(1.3)
    assert window.skipped_steps is None and window.exposed_comm is None
    case = told.run.case
    assert (case.framework, case.model, str(case.topology)) == ("timer", "toy", "1n1g")
    assert (case.precision, case.seq_len, case.global_batch) == ("fp32", 8, 8)
    record = read_record(logs(place)[0].with_suffix(".json"))
    assert record is not None and len(record["detail"]["rank_step_ms"][0]) == 6
    line = capsys.readouterr().err
    assert f"{timer.samples_per_s:.2f} samples/s (1 process, 1n1g)" in line
    assert str(logs(place)[0]) in line and line == timer.told


def test_runs_of_one_case_are_repeats_and_are_reported(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = []
    for _ in range(3):
        timer = Timer(batch_size=1, quiet=True, **SMALL)
        loop(timer)
        rates.append(timer.samples_per_s or 0.0)
    assert report.main([str(place / "logs" / "timer")]) == 0
    (path,) = place.rglob("speedup.csv")
    (row,) = csv.DictReader(path.read_text().splitlines())
    assert (row["framework"], row["model"], row["runs_ok"]) == ("timer", "toy", "3")
    assert float(row["samples_per_s"]) == pytest.approx(sorted(rates)[1], rel=1e-6)
    assert row["skipped_steps"] == row["seq_len"] == "" and row["global_batch"] == "1"
    assert "3 runs (3 ok), 0 in no known format" in capsys.readouterr().out


def test_a_loop_without_an_iterable(place: Path) -> None:
    timer = Timer(batch_size=2, **SMALL)
    done = 0
    while not timer.step(loss=1.0):
        done += 1
        time.sleep(0.001)
    window = result(place).window
    assert done == 7 and window is not None and window.samples == 12
    assert window.data_wait_s is None and timer.step() is True


def test_batches_that_differ_are_counted_one_by_one(place: Path) -> None:
    timer = Timer(**SMALL)
    for number in timer(range(1, 99)):
        timer.step(1.0, samples=number)
    told, window = result(place), result(place).window
    assert window is not None and window.samples == sum(range(3, 9))
    assert window.global_batch is None and told.run.case.batch_size is None
    assert told.samples_per_s == timer.samples_per_s and told.contradictions == ()


class Sized:
    """What a tensor shows of its size."""

    def __init__(self, size: int) -> None:
        self.shape = (size, 7)


def test_epochs_go_on_and_their_last_batch_counts_as_it_is(place: Path) -> None:
    timer, done = Timer(batch_size=4, **SMALL), 0
    epoch = [{"x": Sized(4)}, {"x": Sized(4)}, {"x": Sized(3)}]
    for _ in range(5):
        done += loop(timer, epoch)
    told, window = result(place), result(place).window
    assert done == 8 and window is not None
    assert window.samples == 3 + 4 + 4 + 3 + 4 + 4 and window.global_batch is None
    again, odd = told.warnings
    assert "begun again within the window (2 times)" in again
    assert odd == "2 iterations of another size than 4 samples: counted as it is"


def test_marked_steps_tell_the_accumulation(place: Path) -> None:
    timer = Timer(batch_size=1, **SMALL)
    for number in timer(range(1, 99)):
        if number % 3 == 0:
            timer.optimizer_step()
    window = result(place).window
    assert window is not None
    assert (window.optimizer_steps, window.accumulation, window.global_batch) == (2, 3, 3)


def test_a_global_batch_in_place_of_a_batch(place: Path) -> None:
    timer = Timer(global_batch=10, accumulation=2, **SMALL)
    loop(timer)
    told, window = result(place), result(place).window
    assert window is not None and (window.samples, window.global_batch) == (30, 10)
    assert told.run.case.global_batch == 10 and told.run.case.batch_size is None


def test_the_window_has_the_seconds_that_were_asked_for(place: Path) -> None:
    timer = Timer(batch_size=1, warmup=4, iterations=1, min_seconds=0.2)
    loop(timer, range(9999), 0.004)
    window = result(place).window
    # As many as the warm-up promised, in which none was quicker than 4 ms.
    assert window is not None and 2 <= window.iterations <= 50


def test_what_is_installed_is_read_before_the_window(place: Path) -> None:
    """It takes tenths of a second, which behind the window would pass before the program's next
    line: its arrival would tell of a slower program than the Timer does."""
    joblog.packages.cache_clear()
    timer = Timer(batch_size=2, **SMALL)
    seen = [joblog.packages.cache_info().currsize for _ in timer(range(99)) if timer.open]
    assert seen and set(seen) == {1}


def test_with_stop_false_the_loop_goes_on(place: Path) -> None:
    timer = Timer(batch_size=1, stop=False, **SMALL)
    assert loop(timer, range(20)) == 20 and loop(timer, range(5)) == 5
    window = result(place).window
    assert window is not None and window.iterations == 6


# --- no number


def test_a_loop_that_ends_early_is_partial(place: Path) -> None:
    with Timer(batch_size=1, **SMALL) as timer:
        assert loop(timer, range(5)) == 5
    told = result(place)
    assert told.status is Status.PARTIAL and told.samples_per_s is timer.samples_per_s is None
    assert told.reason == "the loop ended after 5 iterations, of 2 untimed and 6 timed ones"


def test_an_exception_passes_and_the_log_says_failed(place: Path) -> None:
    with pytest.raises(ZeroDivisionError), Timer(batch_size=1, **SMALL) as timer:
        for number in timer(range(9)):
            1 / (3 - number)
    told = result(place)
    assert told.status is Status.FAILED
    assert told.reason == "ZeroDivisionError: division by zero, after 3 iterations"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_leaves_no_number(place: Path, bad: float) -> None:
    timer = Timer(batch_size=1, **SMALL)
    for number in timer(range(99)):
        timer.loss(bad if number == 5 else 1.0)
    told = result(place)
    assert told.status is Status.FAILED and timer.samples_per_s is None
    assert told.reason.startswith(f"the loss is {bad} from iteration 4 of the window on")


def test_samples_that_nobody_told_leave_no_number(place: Path) -> None:
    timer = Timer(**SMALL)
    loop(timer)
    assert "how many samples an iteration has was not told" in result(place).reason
    assert re.search(r"an iteration took \d+\.\d\d ms", timer.told)


def test_a_loss_that_is_no_number_is_left_out(place: Path) -> None:
    timer = Timer(batch_size=1, **SMALL)
    for _ in timer(range(99)):
        timer.loss("low")
    told = result(place)
    assert told.status is Status.OK and told.window is not None
    assert told.window.loss_first is None and "is no number" in told.warnings[0]


def test_a_program_that_ends_is_seen(place: Path) -> None:
    """At the end of the process: the loop that was left, and the exception that ended it."""
    program = """
import sys
from dlperf_hpc import Timer
timer = Timer(batch_size=1, model=sys.argv[1], warmup=2, iterations=6)
for number in timer(range(9)):
    if number == 3:
        {}
"""
    for name, line in (("left", "break"), ("raised", "raise MemoryError('all gone')")):
        argv = [sys.executable, "-c", program.format(line), name]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode == 0) is (line == "break")
    left, raised = map(result_of_log, logs(place))
    assert left.status is Status.PARTIAL and raised.status is Status.OUT_OF_MEMORY
    assert raised.reason == "MemoryError: all gone, after 3 iterations"


# --- one Timer among others


def test_a_loop_within_its_own_loop_is_refused() -> None:
    timer = Timer(batch_size=1, **SMALL)
    with pytest.raises(RunError, match="in a loop that has not ended"):
        for _ in timer(range(9)):
            loop(timer)
    timer.close()


def test_two_timers_do_not_mix(place: Path) -> None:
    outer, inner = Timer(batch_size=1, **SMALL), Timer(batch_size=1, **{**SMALL, "model": "inner"})
    for _ in outer(range(99)):
        loop(inner, range(1))
    assert [path.parent.parent.parent.name for path in logs(place)] == ["inner", "toy"]
    assert all(result_of_log(path).status is Status.OK for path in logs(place))


def test_a_forked_child_times_nothing(place: Path) -> None:
    timer = Timer(batch_size=1, **SMALL)
    for number in timer(range(99)):
        if number == 4:
            child = os.fork()
            if not child:
                timer.step()
                timer.close()
                os._exit(0)
            os.waitpid(child, 0)
    window = result(place).window
    assert window is not None and window.iterations == 6
    assert (len(read_log(logs(place)[0]).iterations), len(logs(place))) == (6, 1)


# --- in a sweep


def test_a_sweep_decides_on_window_case_and_log(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run()
    case = {**run.case.to_dict(), "topology": "1n1g"}
    monkeypatch.setenv("DLPERF_CASE", write_line("case", case).partition(" case ")[2])
    monkeypatch.setenv("DLPERF_MEASURE", "warmup=1 iterations=3")
    monkeypatch.setenv("DLPERF_BEGIN", "sweep=mine repeat=2 attempt=3 launch=4711_0.0")
    monkeypatch.setenv("DLPERF_LOG", str(place / "sweep" / "b32.1.log"))
    timer = Timer(model="of-the-program", warmup=9)
    assert loop(timer) == 4
    told = result(place)
    assert told.window is not None and told.window.samples == 3 * run.case.batch_size
    assert (told.run.repeat, told.attempt, told.launch) == (2, 3, "4711_0.0")
    assert told.run.case.model == run.case.model and told.log.endswith("sweep/b32.1.log")
    second = Timer()
    assert loop(second) == 4 and "is there already: one Timer writes the log" in second.told
    assert second.samples_per_s and result(place).samples_per_s == told.samples_per_s


def test_another_topology_than_the_sweep_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DLPERF_CASE", 'topology="2n4g" model=x')
    timer = Timer(batch_size=1, warmup=2, iterations=3)
    assert loop(timer) == 5 and timer.samples_per_s is None
    assert "no number: 1 processes on 1 nodes, topology 2n4g means 8 on 2" in timer.told


def test_processes_that_do_not_meet_are_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    loop(Timer(batch_size=2, min_seconds=0.001, **SMALL))
    told, window = result(place), result(place).window
    assert window is not None and str(told.run.case.topology) == "2n2g"
    assert (window.samples, window.ranks, window.elapsed_min_s) == (48, 4, None)
    assert told.contradictions == () and window.rank_spread is None
    assert "4 processes, which did not meet" in told.warnings[0]
    assert told.warnings[1].startswith("min_seconds was left out")
    monkeypatch.setenv("RANK", "3")
    loop(Timer(batch_size=2, **SMALL))
    assert len(logs(place)) == 1


def test_threads_that_share_a_timer_are_counted_together(place: Path) -> None:
    timer = Timer(batch_size=1, warmup=3, iterations=30)
    every = threading.Barrier(3)

    def work() -> None:
        timer.step(1.0)
        every.wait()
        while not timer.step(1.0):
            time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    window = result(place).window
    assert window is not None and window.samples == 30
    assert result(place).warnings == ("3 threads share this Timer: iterations are those of all",)


# --- what cannot be


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0 is not a whole number from 1 on"),
        ({"batch_size": 4, "global_batch": 8}, "leave one of them out"),
        ({"batch_size": True}, "batch_size: True is not"),
        ({"model": "a/b"}, "model: 'a/b' is no name"),
        ({"warmup": 1, "min_seconds": 5.0}, "warmup is 1 at least (2 with min_seconds)"),
        ({"min_seconds": -1.0}, "measure.min_seconds is -1.0"),
        ({"flops_per_sample": math.nan}, "flops_per_sample: nan is not a positive number"),
    ],
)
def test_arguments_that_cannot_be_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        Timer(**words)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("DLPERF_CASE", "model", "is not key=value"),
        ("DLPERF_CASE", "topology=big", "this is no case: 'big' is not a topology"),
        ("DLPERF_CASE", "batch_size=x", "DLPERF_CASE: batch_size: 'x' is not a whole number"),
        ("DLPERF_MEASURE", "warmup=0", "warmup is 1 at least"),
        ("DLPERF_BEGIN", "repeat=x", "DLPERF_BEGIN: repeat: 'x' is not"),
        ("DLPERF_CASE", "a=1 a.b=2", "a is a value already"),
    ],
)
def test_variables_that_cannot_be_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SpecError, match=re.escape(message)):
        Timer(batch_size=1)


def test_a_log_that_cannot_be_written_costs_no_number(place: Path) -> None:
    (place / "full").write_text("")
    timer = Timer(batch_size=1, logs=place / "full", **SMALL)
    assert loop(timer) == 8 and timer.samples_per_s
    assert re.search(r"no log of its own: .*the log cannot be written: .*DLPERF_LOGS", timer.told)
    with pytest.raises(RunError, match=re.escape("samples=1.5 is not a whole number")):
        Timer().step(samples=1.5)  # type: ignore[arg-type]


def test_a_log_that_is_lost_meanwhile_costs_no_number(place: Path) -> None:
    timer = Timer(batch_size=1, **SMALL)
    for number in timer(range(99)):
        if number == 1:
            (log,) = logs(place)
            log.unlink()
            log.mkdir()
    assert timer.samples_per_s and "samples/s" in timer.told
    assert "dlperf_hpc: the log is not whole: Is a directory\n" in timer.told


def test_a_device_for_which_nobody_waits_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    waits: list[int] = []
    for sync in (None, lambda: waits.append(len(waits))):
        loop(Timer(batch_size=1, sync=sync, **SMALL))
    first, second = map(result_of_log, logs(place))
    assert "jax is loaded, and nothing waits for its device" in first.warnings[0]
    assert second.warnings == () and len(waits) == 2
    assert second.window is not None and second.window.memory_mb is None
    assert second.launch.startswith(first.launch.rpartition(".")[0])


@pytest.mark.parametrize(
    "word", ['topology="9"', "tags=1", "tags=[[1]]", "batch_size=x", "model=[1]", "observed=1"]
)
def test_an_observed_case_that_was_damaged_is_told(place: Path, word: str) -> None:
    loop(Timer(batch_size=1, **SMALL))
    (log,) = logs(place)
    text, key = log.read_text(), word.partition("=")[0]
    log.write_text(re.sub(rf" {key}=\S+", lambda _: f" {word}", text, count=1))
    with pytest.raises(LogError, match=re.escape(str(log))):
        result_of_log(log)
