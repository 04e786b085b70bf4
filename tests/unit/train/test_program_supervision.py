"""The parts of a supervisor: its place, the program's lines, its processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import SUPPORT

from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.case import Case, Measure, Topology
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.failures import WINDOW, Signs, Verdict
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.supervision import Ending, Stop, judged, leave, silent
from dlperf_hpc.sweepfile.programs import UserProgram
from dlperf_hpc.sweepfile.readtable import ReadTable
from dlperf_hpc.train.program import child as watch
from dlperf_hpc.train.program.child import Child, descendants
from dlperf_hpc.train.program.launching import (
    RankInfo,
    discover,
    expanded,
    is_free,
    port_of,
    with_visible_rank,
)
from dlperf_hpc.train.program.stdout import LONGEST_LINE, End, ProgramOutput, Progress


def a_case(topology: str, launch: str) -> Case:
    found = Topology.parse(topology)
    each = found.gpus_per_node if launch == "rank" else 1
    return Case("mine", "toy", found, "fp32", 4, 0, processes_per_node=each, launch=launch)


def test_a_place_by_slurms_variables() -> None:
    env = {
        "SLURM_PROCID": "2",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "PMI_RANK": "9",
    }
    place = discover(a_case("2n2g", "rank"), env)
    assert (place.rank, place.local_rank, place.node_rank) == (2, 0, 1)
    assert (place.hosts, place.address) == (("n1", "n2"), "n1")
    with pytest.raises(WorldError, match="rank 2 of 4, and topology 4n2g needs 8 tasks"):
        discover(a_case("4n2g", "rank"), env)


def test_a_place_by_mpichs_variables() -> None:
    place = discover(a_case("1n2g", "rank"), {"PMI_RANK": "1", "PMI_SIZE": "2"})
    assert (place.rank, place.local_rank, place.address) == (1, 1, "127.0.0.1")


@pytest.mark.parametrize(
    ("local", "visible", "own"),
    [
        (3, {"CUDA_VISIBLE_DEVICES": "0"}, 0),  # --gpus-per-task: each sees its own as the first
        (3, {"CUDA_VISIBLE_DEVICES": "3"}, 0),
        (2, {"CUDA_VISIBLE_DEVICES": "2,3,0,1"}, 0),  # all of them, its own first
        (5, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 1),  # --gpu-bind=closest
        (1, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 1),
        (1, {"ROCR_VISIBLE_DEVICES": "1"}, 0),
        (1, {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0,1"}, 1),
        (3, {}, 3),
        (5, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, None),  # renumbered by the kernel's control group
        (2, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, None),
    ],
)
def test_a_local_rank_among_the_gpus_that_its_process_sees(
    local: int, visible: dict[str, str], own: int | None
) -> None:
    place = RankInfo(local, 8, local, 0, ("n1",))
    if own is None:
        with pytest.raises(WorldError, match="which of them is its own cannot be known"):
            with_visible_rank(place, visible)
        return
    assert with_visible_rank(place, visible) == RankInfo(local, 8, own, 0, ("n1",))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-2,07],gpu3", ["n1", "n2", "n07", "gpu3"]),
        ("a[09-11]-ib,b", ["a09-ib", "a10-ib", "a11-ib", "b"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert expanded(text) == names


@pytest.mark.parametrize("text", ["n[", "n[1-]", "[1-2]", ",", "n[0-999999999]", "n]" * 50_000])
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(WorldError):
        expanded(text)


def test_ports_are_the_tasks_own() -> None:
    ports = {port_of(f"4711_{index}.0") for index in range(50)}
    assert len(ports) > 45 and all(10_000 <= port < 65_536 for port in ports)
    assert port_of("4711_3.0") == port_of("4711_3.0") != port_of("4711_3.1")
    assert is_free(port_of(f"{os.getpid()}"))


def a_line(step: int, loss: str = "1.0E+00") -> str:
    return (
        f" iteration {step:8d}/     100 | elapsed time per iteration (ms): 9.0 |"
        f" learning rate: 1.000E-04 | global batch size:     8 | lm loss: {loss} |\n"
    )


def test_lines_are_stamped_and_read(tmp_path: Path) -> None:
    progress = Progress(ReadTable("megatron"))
    output = ProgramOutput(tmp_path / "out", 3, progress)
    output.take((a_line(1) + "half of").encode())
    output.take(b" a line\r\n\xff" + b"x" * (LONGEST_LINE + 5))
    output.take(("\n" + a_line(2, "nan") + "no end").encode())
    output.end()
    rows = (tmp_path / "out").read_bytes().split(b"\n")
    stamp = rb"[0-9T:-]{19}\.[0-9]{6}Z 3"
    marks = [re.match(stamp + rb"([|+]) ", row)[1] for row in rows[:-1]]  # type: ignore[index]
    assert b"".join(marks) == b"||+||+" and rows[-1] == b""
    assert rows[1].endswith(b"| half of a line") and rows[5].endswith(b"+ no end")
    assert progress.iteration == 2 and progress.best and progress.best.bad_loss == 2


def test_each_state_of_a_bar_is_a_line_of_its_own_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar is drawn behind a carriage return, and waits for the next one."""
    moments = iter(f"2026-11-22T12:00:0{second}.000000Z" for second in range(9))
    monkeypatch.setattr("dlperf_hpc.train.program.stdout.utc", lambda: next(moments))
    progress = Progress(ReadTable("epoch_bars"))
    output = ProgramOutput(tmp_path / "out", 0, progress)
    bar = "\rEpoch 0:  {0}0%|#   | {0}/10 [00:00<00:01, 5.0it/s]"
    for number in range(1, 4):
        output.take(bar.format(number).encode())
    output.take(b"\r      \rdone\r")
    assert progress.iteration == 3
    output.take(b"\n\nlast\n")
    rows = (tmp_path / "out").read_text().splitlines()
    assert [(row[17:19], row.split("| ", 1)[1][:8]) for row in rows] == [
        *((f"0{n}", "Epoch 0:") for n in range(3)),
        ("03", "done"),
        *(("04", text) for text in ("", "last")),
    ]


@pytest.mark.parametrize(
    ("reads", "lines"),
    [
        ([b"a\r", b"\nb\n"], ["a", "b"]),  # the end of a line in two reads
        ([b"a\r", b"\n", b"\nb\n"], ["a", "", "b"]),
        ([b"a\r\n\r\nb\r\n"], ["a", "", "b"]),
        ([b"a\rb\r", b"c", b"\r", b"d\n"], ["a", "b", "c", "d"]),
        ([b"a\r \t", b" \r", b"\r\rb\n"], ["a", "b"]),  # blanks that wipe out a state
        ([b"a\n\n  \nb\n"], ["a", "", "  ", "b"]),  # lines that are blank
        ([b"a\n", b"\nb\n"], ["a", "", "b"]),
        ([b"[rank1]: \x1b[32ma\x1b[0m\rb\n"], ["[rank1]: \x1b[32ma\x1b[0m", "b"]),
        ([b"a\x0bb\xe2\x80\xa8\x85c\x1c\n"], ["a\x0bb\u2028\ufffdc\x1c"]),  # no line ends
    ],
)
def test_where_lines_end(tmp_path: Path, reads: list[bytes], lines: list[str]) -> None:
    output = ProgramOutput(tmp_path / "out", 0, Progress())
    for data in reads:
        output.take(data)
    assert (list(output.last), output.count) == (lines, len(lines))
    rows = (tmp_path / "out").read_bytes().decode(errors="replace").split("\n")
    assert [row[31:] for row in rows] == [*lines, ""]


def test_a_state_that_nothing_follows_may_be_part_of_one(tmp_path: Path) -> None:
    output = ProgramOutput(tmp_path / "out", 0, Progress())
    output.take(b"\rstate 1\rstate")
    output.end()
    rows = (tmp_path / "out").read_text().splitlines()
    assert [row[29:] for row in rows] == ["| state 1", "+ state"]
    assert output.words() == "state"


def test_formats_that_look_back_at_their_iterations() -> None:
    progress = Progress(ReadTable("mindspore"))
    for step in range(1, 4):
        progress.take(
            f"epoch: 1, current epoch percent: 0.1, step: {step}, outputs are (3.2, False)"
        )
        progress.take("epoch time: 100.5 ms, per step time: 100.5 ms")
    assert progress.iteration == 3


def test_a_total_alone_is_a_format_too() -> None:
    progress = Progress(ReadTable("hf_trainer"))
    progress.take("{'train_runtime': 101.9, 'train_samples_per_second': 19.6, 'epoch': 1.0}")
    assert (progress.iteration, progress.format) == (None, "hf_trainer")
    total = [Ending(0, "n1", 0, format=progress.format)]
    assert judged(total, Measure(), ReadTable("hf_trainer")) == Verdict(Status.OK)


READ = ReadTable(line="step (?P<iteration>[0-9]+)", fail=("watchdog",), must=("done", "saved"))
WINDOW_END = Measure().warmup + Measure().iterations
STOPPED = "2026-11-22T12:00:10.000000Z"
LATE, EARLY = "2026-11-22T12:00:11.000000Z", "2026-11-22T12:00:09.000000Z"


def ending(rank: int = 0, **told: Any) -> Ending:
    return Ending(rank, f"n{rank}", 0, **{"iteration": WINDOW_END, "format": "read:mine", **told})


def by_us(**facts: Any) -> Ending:
    """Of rank 0, whose lines tell a window of 100 s."""
    window = {"by": "window", "stopped": STOPPED, "met": "0 1", "opened": 0.0, "reached": 100.0}
    return ending(**{**window, "alive": 101.0, "stride": 1, **facts})


def silent_rank(**facts: Any) -> Ending:
    """Of rank 1, which prints no iterations."""
    return ending(1, **{"iteration": None, "format": "", "by": "window", **facts})


@pytest.mark.parametrize(
    ("rank", "seen"),
    [
        ({"alive": 101.0}, ""),
        ({"alive": 51.0}, ""),  # processor time in the second half
        ({"alive": 49.0}, "no sign of life in the last 51 s of the window"),
        ({"alive": 49.0, "iteration": 119, "stride": 1}, "no sign of life in the last 51 s"),
        ({"alive": 101.0, "iteration": 118, "stride": 1}, "iteration 118 is the last that it"),
        ({"alive": 101.0, "iteration": 110, "stride": 10}, ""),  # the next one is the last
        ({"alive": 101.0, "iteration": 5, "stride": 1}, ""),  # it printed the first ones alone
        ({"alive": 49.0, "iteration": 120, "stride": 1}, ""),
    ],
)
def test_a_rank_whose_last_sign_of_life_lies_before_the_windows_end(
    rank: dict[str, Any], seen: str
) -> None:
    found = silent([by_us(), silent_rank(**rank)], Measure())
    assert list(found) == [1] * bool(seen) and found.get(1, "").startswith(seen)


@pytest.mark.parametrize(
    ("endings", "status", "reason"),
    [
        ([ending(met="0"), ending(1, met="1")], Status.OK, ""),
        ([ending(by="window", stopped=STOPPED)], Status.OK, ""),
        ([ending(), ending(1, met="0")], Status.FAILED, "no line is as read.must says: 'saved'"),
        ([ending(failed="a watchdog", failed_at=EARLY, bad_loss=3)], Status.FAILED,
         "a line of read.fail: rank 0 on n0 printed 'a watchdog'"),
        ([ending(1, by="window", stopped=STOPPED), ending(failed="x", failed_at=LATE)],
         Status.OK, ""),
        ([ending(bad_loss=3)], Status.FAILED, "rank 0 on n0: the loss is not finite from"),
        ([ending(iteration=50, met="0 1")], Status.PARTIAL, "the program ended with exit code 0 "
         "after iteration 50, and the window lies between 20 and 120"),
        ([ending(iteration=50, met="0 1", broken="CUDA out of memory.")], Status.OUT_OF_MEMORY,
         "rank 0 on n0 printed 'CUDA out of memory.', and the window is not whole"),
        ([ending(met="0 1", broken="CUDA out of memory.")], Status.OK, ""),
        ([ending(met="0 1", iteration=None, format="")], Status.OK, ""),
        ([ending(met="0 1", iteration=None, format="", broken="Segmentation fault")],
         Status.FAILED, "rank 0 on n0 printed 'Segmentation fault', and the window is not"),
        ([by_us(), silent_rank(by="itself", alive=60.0)], Status.PARTIAL,
         "rank 1 on n1 ended with exit code 0 40 s before the window's end"),
        ([by_us(), ending(1, alive=60.0)], Status.OK, ""),  # it had done its iterations
        ([by_us(), silent_rank(by="itself", alive=101.0)], Status.OK, ""),
        ([by_us(by="itself"), silent_rank(by="itself", alive=99.0)], Status.OK, ""),
        ([by_us(), silent_rank(alive=1.0)], Status.OK, ""),  # with a warning
        ([by_us(), silent_rank(broken="CUDA out of memory.", signs=60)], Status.OUT_OF_MEMORY,
         "rank 1 on n1 printed 60 lines that tell of a fault, as 'CUDA out of memory.'"),
        ([by_us(), silent_rank(broken="CUDA out of memory.", signs=59)], Status.OK, ""),
        ([by_us(), silent_rank(broken="CUDA out of memory.", signs=60, broken_at=LATE)],
         Status.OK, ""),
    ],
)  # fmt: skip
def test_what_decides_how_a_run_ended(endings: list[Ending], status: Status, reason: str) -> None:
    found = judged(endings, Measure(), READ)
    assert found.status is status and found.reason.startswith(reason)
    assert bool(found.reason) == bool(reason)


def test_lines_by_which_a_run_has_failed_and_those_it_must_have(tmp_path: Path) -> None:
    signs = Signs(READ.fail, READ.must)
    output = ProgramOutput(tmp_path / "out", 0, Progress(READ, "mine"), signs=signs)
    output.take(b"[rank1]: saved\nstep 3\n\x1b[31mthe watchdog\x1b[0m  barks\nwatchdog again\n")
    assert (signs.failed, signs.met) == ("the watchdog barks", {1})
    assert re.fullmatch(r"[0-9T:.-]{26}Z", signs.failed_at) and signs.broken == ""
    output.take(b"RuntimeError: CUDA out of memory. Tried\ndone\n")
    assert signs.broken.startswith("RuntimeError: CUDA out of") and signs.met == {0, 1}


def test_a_pattern_tells_how_far_the_program_is() -> None:
    progress = Progress(ReadTable(line="it (?P<iteration>[0-9]+) (?P<loss>.*)", first=0), "mine")
    assert [progress.take(line) for line in ("it 7 nan", "nothing")] == [True, False]
    assert (progress.iteration, progress.format) == (8, "read:mine")
    assert progress.best is not None and progress.best.bad_loss == 8
    each = Progress(ReadTable(line="loss (?P<loss>.*)", each=10), "mine")
    for line in ("[default0]: loss 3", "[default1]: loss 3", "[default0]: loss 2"):
        each.take(line)
    assert each.iteration == 20  # each rank's lines are counted by themselves
    total = Progress(ReadTable(total="([0-9.]+) GFLOP/s", unit="GFLOP/s"), "hpl")
    total.take("7.5 GFLOP/s")
    assert (total.iteration, total.format) == (None, "read:hpl")


def test_what_a_first_try_printed_is_forgotten(tmp_path: Path) -> None:
    output = ProgramOutput(tmp_path / "out", 0, Progress(ReadTable()), signs=Signs(fail=["taken"]))
    output.take(b"OSError: port 7 is taken\n")
    assert output.signs.failed and output.words() == "OSError: port 7 is taken"
    output.forget(Signs(fail=["taken"]))
    output.take(b"step 1\n")
    assert (output.signs.failed, output.text()) == ("", "step 1")


def test_a_program_that_begins_behind_the_window() -> None:
    table, measure = ReadTable("megatron"), Measure(warmup=20, iterations=100)
    progress = Progress(table)
    for step in (120, 121, 122):
        progress.take(a_line(step).rstrip())
    assert progress.best and (progress.best.first, progress.iteration) == (120, 122)
    ending = Ending(0, "n1", 0, iteration=122, first=120, format="megatron")
    found = judged([ending], measure, table)
    assert (found.status, found.decided_by) == (Status.PARTIAL, WINDOW)
    early = Ending(0, "n1", 0, iteration=122, first=119, format="megatron")
    assert judged([early], measure, table) == Verdict(Status.OK)


def test_why_a_program_ended_is_its_first_error(tmp_path: Path) -> None:
    output = ProgramOutput(tmp_path / "out", 0, Progress())
    output.take(b"[rank1]: ValueError: no such layer\ntorch.x.ChildFailedError: \n=====\n")
    assert output.words() == "ValueError: no such layer"
    assert Progress().take("nothing that is known") is False


LEAVES = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "99"], start_new_session=True)
subprocess.Popen(["sh", "-c", "sleep 99 & sleep 99"])
signal.pause()
"""
CLEARS = """
import os, signal, sys, time
from dlperf_hpc.train.program.child import Child, descendants
child = Child([sys.executable, "-c", sys.argv[1]], os.environ, "/")
while len(descendants(os.getpid())) < 5:
    time.sleep(0.05)
child.tell(signal.SIGTERM)
time.sleep(0.2)
print(child.poll(), child.clear(), child.poll(), descendants(os.getpid()))
"""


@pytest.mark.processes
def test_nothing_of_a_program_is_left() -> None:
    """Not what it began in a session of its own, nor what ignores SIGTERM."""
    argv = [sys.executable, "-c", CLEARS, LEAVES]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=60)
    assert done.stdout == "None 5 -9 {}\n", done.stdout + done.stderr


def followed(
    place: Path, what: str, table: ReadTable, measure: Measure, **limits: float
) -> tuple[watch.ProgramWatch, End]:
    """A program of the tests that is watched until its end."""
    env = {**os.environ, "PYTHONPATH": str(SUPPORT.parents[1]), "DLPERF_SUPERVISED": "1"}
    env.update(DLPERF_MEASURE=f"warmup={measure.warmup} iterations={measure.iterations}")
    env.update(DLPERF_LOGS=str(place / "of-timer"))
    ms = "50" if what == "bar" else "10"
    words = [sys.executable, str(SUPPORT / "programs" / "steps.py"), "9999", ms, "8", what]
    child = Child(words, env, "")
    program, progress = UserProgram("mine", "rank", ("steps.py",), read=table), Progress(table)
    manifest: Any = SimpleNamespace(measure=measure, limits=SimpleNamespace(**limits))
    follower = watch.ProgramWatch(
        child, True, [], time.monotonic(), manifest, program, place,
        ProgramOutput(place / "out", 0, progress), 60.0, "1_0.0", 1, True,
    )  # fmt: skip
    try:
        return follower, follower.until_end()
    finally:
        child.clear()


@pytest.mark.processes
@pytest.mark.parametrize("what", ["deaf", "nested", "timer"])
def test_a_program_is_ended_behind_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One that does not heed SIGTERM is killed, with its children in sessions of their own, and all
    that it printed is kept; of one with a Timer no line tells an iteration."""
    monkeypatch.setattr(watch, "_GRACE_S", 0.3)
    monkeypatch.setattr(watch, "_SECONDS_BEHIND", 0.1)
    table = ReadTable() if what == "timer" else ReadTable("megatron")
    measure = Measure(warmup=2, iterations=4)
    follower, end = followed(tmp_path, what, table, measure, startup_s=30.0, iteration_s=10.0)
    progress = follower.output.progress
    assert (end.why, end.status, end.code) == ("window", None, -15 if what == "timer" else -9)
    kept = re.findall(r"iteration +([0-9]+)/", (tmp_path / "out").read_text())
    assert list(map(int, kept)) == list(range(1, len(kept) + 1))
    # A last line that the kill cut is kept, and counts no iteration.
    assert len(kept) - (progress.iteration or 0) in (0, 1)
    assert what == "timer" or len(kept) >= 6
    assert not descendants(os.getpid())
    assert progress.timed == (what == "timer") and (progress.iteration is None) == progress.timed


@pytest.mark.processes
@pytest.mark.parametrize("code", [0, 3])
def test_an_end_that_came_before_our_signal_is_the_programs_own(tmp_path: Path, code: int) -> None:
    """Also where the wish to end all comes before its supervisor has looked again."""
    child = Child([sys.executable, "-c", f"raise SystemExit({code})"], os.environ, "")
    manifest: Any = SimpleNamespace(measure=Measure(), limits=SimpleNamespace())
    output = ProgramOutput(tmp_path / "out", 1, Progress(READ))
    follower = watch.ProgramWatch(
        child, False, [], time.monotonic(), manifest, UserProgram("mine", "rank", ("x",)),
        tmp_path, output, 60.0, "1_0.0", 1, True,
    )  # fmt: skip
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    leave(tmp_path, Stop("window", 0, utc(time.time() + 60)))
    follower._obey()
    end = follower.until_end()
    assert (end.code, end.why, end.status) == (code, "", Status.FAILED if code else None)


@pytest.mark.processes
def test_a_bar_without_a_newline_is_life_and_progress(tmp_path: Path) -> None:
    """Its epoch lasts longer than both limits, and its window is over before a line's end comes."""
    measure, limit_s = Measure(warmup=5, iterations=95), 3.0
    limits = {"startup_s": limit_s, "iteration_s": limit_s}
    follower, end = followed(tmp_path, "bar", ReadTable("epoch_bars"), measure, **limits)
    assert (end.why, end.status) == ("window", None), end.reason
    assert time.monotonic() - follower.started > limit_s
    assert (
        follower.output.progress.iteration is not None and follower.output.progress.iteration >= 100
    )
    rows = (tmp_path / "out").read_text().splitlines()
    moments = [row.split(" ", 1)[0] for row in rows]
    assert moments == sorted(moments) and len(set(moments)) > 90  # each state has its own
