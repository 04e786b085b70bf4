"""``dlperf status DIR --why RUN``: what was looked at, and what decided how a run ended."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from record_samples import a_run, a_sweep, begun, ended, ended_ok, manifest, opened, paths

from dlperf_hpc.cli import archive
from dlperf_hpc.cli.status import main
from dlperf_hpc.model.case import Case, Measure, Run, Topology
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.lines import write_line
from dlperf_hpc.records.manifest import (
    FinalState,
    Submission,
    add_final_states,
    add_submission,
    write_manifest,
)
from dlperf_hpc.records.store import Failure, begin_log, finish, leave_failure
from dlperf_hpc.reporting.run_states import Why, text_of
from dlperf_hpc.sweepfile.programs import UserProgram
from dlperf_hpc.sweepfile.readtable import ReadTable

RUNS = [a_run(repeat=1), a_run(repeat=2), a_run("1n1g")]


def why(root: Path, run: str, capsys: Any) -> dict[str, Any]:
    """The JSON, with what was seen by what was looked at; text on one screen tells the same."""
    code = main([str(root), "--why", run, "--offline", "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (1 if Status(told["status"]).bad or told["status"] == "unknown" else 0)
    assert main([str(root), "--why", run, "--offline"]) == code
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 24 and told["run"] in text
    decided = [each["what"] for each in told["looked_at"] if each["decided"]]
    assert decided == [told["decided"]] and f"\n> {told['decided']} " in text
    return {**told, **{each["what"]: "; ".join(each["seen"]) for each in told["looked_at"]}}


def everything(root: Path) -> dict[str, tuple[int, int]]:
    found = [path for path in root.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in (root, *found)}


def test_a_run_of_ours_that_failed_twice(tmp_path: Path, capsys: Any) -> None:
    a_sweep(tmp_path, RUNS)
    ended(tmp_path, RUNS[0], Status.TIMEOUT, "over its 600 s", launch="100_0.0")
    attempt = begun(tmp_path, RUNS[0], launch="101_0.0")
    first = Failure(1, "n2", Status.FAILED, "rank 1 on n2: ValueError: x", "2026-11-22T12:00:00Z")
    leave_failure(attempt, replace(first, rank=0, host="n1", reason="peer", consequence=True))
    leave_failure(attempt, first)
    finish(attempt, Status.FAILED, "rank 1 on n2: ValueError: x")
    before = everything(tmp_path)
    told = why(tmp_path, "1", capsys)
    assert everything(tmp_path) == before
    assert (told["status"], told["decided"], told["number"]) == ("failed", "exit codes", 1)
    assert told["attempts"] == "attempt 2, the last one; 1: timeout over its 600 s"
    assert told["exit codes"].endswith("2 ranks left word, 1 of them in consequence")
    assert "first rank 1 on n2" in told["exit codes"] and told["nodes"] == "n1"
    assert "no iteration was told" in told["window"] and told["log"].endswith("_1.log")


def test_a_run_of_ours_that_is_ok(tmp_path: Path, capsys: Any) -> None:
    a_sweep(tmp_path, RUNS)
    result = ended_ok(tmp_path, RUNS[1])
    told = why(tmp_path, RUNS[1].id, capsys)
    assert (told["decided"], told["reason"], told["number"]) == ("reading", "", 2)
    assert f"{result.samples_per_s:.6g} samples/s" in told["reading"]
    assert told["window"].endswith("6 to 11, 6 inside: complete")
    assert told["loss"].startswith("0 of 6 are not finite")
    assert "global_batch 64, as asked" in told["settings"]


def test_a_run_that_only_the_scheduler_knows_of(tmp_path: Path, capsys: Any) -> None:
    made = a_sweep(tmp_path, RUNS, engine="slurm")
    add_submission(tmp_path, Submission(made.arrays[0].name, made.arrays[0].token, "4711"))
    reason = "Slurm: NODE_FAIL on n7"
    words = FinalState(RUNS[0].id, Status.NODE_FAILED, reason, job="4711_0")
    add_final_states(tmp_path, [words])
    told = why(tmp_path, "4711_0", capsys)
    assert (told["run"], told["decided"]) == (RUNS[0].id, "scheduler")
    assert told["scheduler"] == f"job 4711_0: said finally: node_failed: {reason}"
    assert told["attempts"] == "none was begun" and told["log"].endswith("is not there")
    told = why(tmp_path, "3", capsys)
    assert (told["status"], told["scheduler"]) == ("pending", "no job stands for this run")


def test_a_run_that_is_still_measured(tmp_path: Path, capsys: Any) -> None:
    a_sweep(tmp_path, RUNS)
    begin_log(opened(tmp_path, RUNS[2]))
    told = why(tmp_path, "1n1g", capsys)
    assert told["status"] == "unknown" and told["decided"] == "log"


def test_runs_that_are_named_badly(tmp_path: Path, capsys: Any) -> None:
    a_sweep(tmp_path, RUNS)
    for name, words in (("1n2g", "2 runs have '1n2g'"), ("9", "no run's id has '9'")):
        assert main([str(tmp_path), "--why", name]) == 2
        message = capsys.readouterr().err
        assert words in message and RUNS[0].id in message
    assert main([str(tmp_path), "--why", "1", "--watch"]) == 2
    assert "leave out --watch" in capsys.readouterr().err


def test_a_run_in_an_archive(tmp_path: Path, capsys: Any) -> None:
    root = tmp_path / "sweep"
    a_sweep(root, RUNS)
    ended(root, RUNS[0], Status.FAILED, "ValueError: x")
    ended_ok(root, RUNS[1])
    ended_ok(root, RUNS[2])
    assert archive.main([str(root), "--out", str(tmp_path / "s.zip")]) == 0
    capsys.readouterr()
    told = why(tmp_path / "s.zip", "1", capsys)
    assert (told["status"], told["decided"]) == ("failed", "exit codes")


def test_what_others_wrote_is_shown_and_not_obeyed(tmp_path: Path, capsys: Any) -> None:
    a_sweep(tmp_path, RUNS)
    ended(tmp_path, RUNS[0], Status.FAILED, "\x1b[2J\u202ereason\n\nx" + "y" * 5000)
    main([str(tmp_path), "--why", "1"])
    text = capsys.readouterr().out
    assert "\x1b" not in text and "\u202e" not in text and len(text.splitlines()) < 24


def test_a_log_that_is_a_pipe(tmp_path: Path, capsys: Any) -> None:
    a_sweep(tmp_path, RUNS)
    path = paths(tmp_path, RUNS[0]).log
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert main([str(tmp_path), "--why", "1"]) == 1
    assert "unknown" in capsys.readouterr().out


def test_more_than_a_screen_is_cut() -> None:
    looked = {f"what {n}": ("word " * 60,) for n in range(13)}
    told = Why("run", 1, 1, Status.FAILED, "word " * 60, "what 3", looked)
    rows = text_of(told, 80).splitlines()
    assert len(rows) < 24 and sum(row.endswith("...") for row in rows) == 14


# --- users' programs

PROGRAM = UserProgram("mine", "rank", ("train.py",), read=ReadTable(format="megatron"))
CASE = Case(
    "mine", "toy", Topology(1, 2), "fp32", 4, 0, processes_per_node=2, launch="rank", replicas=2
)
MEASURE = Measure(warmup=5, iterations=20)
BEGUN = datetime(2026, 11, 22, 12)


def lines(count: int, batch: int = 8) -> list[str]:
    return [
        f"{(BEGUN + timedelta(seconds=0.1 * step)).strftime('%Y-%m-%dT%H:%M:%S.%fZ')} 0| "
        f" iteration {step:8d}/     100 | elapsed time per iteration (ms): 100.0 |"
        f" learning rate: 1.000E-04 | global batch size: {batch:5d} | lm loss: 1.000000E+00 |"
        for step in range(1, count + 1)
    ]


def a_program(
    root: Path, text: Sequence[str], status: Status = Status.OK, reason: str = "", **end: Any
) -> None:
    run = Run(CASE, 1)
    made = replace(manifest([run]), measure=MEASURE, programs={"mine": PROGRAM})
    root.mkdir(exist_ok=True)
    write_manifest(root, made)
    told = {"ended": "by us after the window", "codes": [-15, -15], **end}
    begin = {"format": 1, "sweep": "s", "run": run.id, "repeat": 1, "attempt": 1, "launch": "1_0.0"}
    rows = [
        write_line("begin", begin),
        write_line("case", CASE.to_dict()),
        write_line("measure", vars(MEASURE)),
        write_line("world", {"ranks": 2, "nodes": 1, "hosts": ["n7"]}),
        write_line("program", {"name": "mine", "format": "megatron"}),
        *text,
        write_line("program_end", told),
        write_line("end", {"status": status.value, "reason": reason or None}),
    ]
    log = paths(root, run).log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(rows) + "\n", encoding="utf-8")


def test_a_program_with_a_figure(tmp_path: Path, capsys: Any) -> None:
    a_program(tmp_path, lines(30))
    told = why(tmp_path, "1", capsys)
    assert (told["status"], told["decided"], told["nodes"]) == ("ok", "reading", "n7")
    assert (
        told["exit codes"] == "-15 of rank 0, 1" and told["settings"] == "global_batch 8, as asked"
    )
    assert "format megatron, which its table names; 30 lines with an iteration" in told["reading"]
    assert "rule arrival[5:25], factor 8" in told["reading"] and "80 samples/s" in told["reading"]


def test_what_decides_of_a_program(tmp_path: Path, capsys: Any) -> None:
    words = "the program ended with exit code 0 after iteration 9, and the window lies between"
    bad = {"bad_loss": 7}
    lost = "rank 0 on n7: the loss is not finite from iteration 7 on"
    rows: list[tuple[str, Sequence[str], Status, str, dict[str, Any]]] = [
        ("window", lines(9), Status.PARTIAL, words, {}),
        ("settings", lines(30, batch=16), Status.OK, "", {}),
        ("loss", lines(30), Status.FAILED, lost, bad),
        ("must", lines(30), Status.FAILED, "no line is as read.must says: 'done'", {}),
        ("signs", lines(30), Status.FAILED, "a line of read.fail: rank 0 on n7 printed 'x'", {}),
        (
            "exit codes",
            lines(3),
            Status.FAILED,
            "rank 0 on n7: the program ended with exit code 1",
            {},
        ),
    ]
    for what, text, status, reason, end in rows:
        a_program(tmp_path / what, text, status, reason, **end)
        told = why(tmp_path / what, "1", capsys)
        assert told["decided"] == what, told
    assert told["reading"].endswith("no figure: the run does not count")


def test_a_program_of_which_nothing_is_read_shows_its_last_lines(
    tmp_path: Path, capsys: Any
) -> None:
    stamp = "2026-11-22T12:00:01.123456Z"
    a_program(tmp_path, [f"{stamp} {n % 2}| step {n} of 5" for n in range(5)])
    told = why(tmp_path, "1", capsys)
    assert told["decided"] == "reading" and told["lines"] == [f"step {n} of 5" for n in (2, 3, 4)]
    assert told["reading"].startswith("no line of the program is in the format megatron")
