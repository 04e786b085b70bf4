"""The figures in the lines of a user's program, which stand in a log of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.program_figures import with_figures
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.model.case import Case, Run, Topology
from dlperf_hpc.model.result import RunResult, Status, Window
from dlperf_hpc.records.lines import TimerReport, timed_line, write_line
from dlperf_hpc.records.logfile import glance, result_of_log
from dlperf_hpc.reporting.csv_columns import RUN_COLUMNS
from dlperf_hpc.reporting.table import rows
from dlperf_hpc.sweepfile.programtables import read_table
from dlperf_hpc.sweepfile.readtable import ReadTable
from dlperf_hpc.train.program.stdout import ProgramOutput, Progress

BEGUN = datetime(2026, 11, 22, 12)
CASE = Case(
    "mine", "toy", Topology(1, 2), "fp32", 4, 0, processes_per_node=2, launch="rank", replicas=2
)


def at(seconds: float) -> str:
    return (BEGUN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def lines(count: int, batch: int = 8, printed_ms: float = 100.0, rank: int = 1) -> list[str]:
    return [
        f"{at(0.1 * step)} {rank}|  iteration {step:8d}/     100 | elapsed time per iteration (ms):"
        f" {printed_ms:.1f} | learning rate: 1.000E-04 | global batch size: {batch:5d} |"
        f" lm loss: 1.000000E+00 |"
        for step in range(1, count + 1)
    ]


def read(
    place: Path,
    text: Sequence[str],
    stopped: str = "",
    named: str = "default",
    case: Case = CASE,
    table: Mapping[str, Any] = MappingProxyType({"format": "megatron"}),
) -> RunResult:
    run = Run(case, 1)
    begin = {"format": 1, "sweep": "s", "run": run.id, "repeat": 1, "attempt": 1, "launch": "1_0.0"}
    end = {"ended": "by itself", "codes": [0, 0], "stopped": stopped or None}
    rows = [
        write_line("begin", begin),
        write_line("case", case.to_dict()),
        write_line("measure", {"warmup": 5, "iterations": 20}),
        write_line("program", {"name": "mine", "format": table.get("format"), "read": table}),
        *text,
        write_line("program_end", end),
        write_line("end", {"status": "ok"}),
    ]
    path = place / "run.log"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    result = result_of_log(path)
    assert result.status is Status.OK
    (found,) = with_figures([result], rule(named))
    return found


def test_the_clock_is_when_the_lines_came(tmp_path: Path) -> None:
    found = read(tmp_path, lines(30))
    assert found.samples_per_s == pytest.approx(80)
    window = found.external
    assert window is not None and (window.basis, window.first, window.last) == ("arrival", 5, 25)
    assert window.check_basis == "printed" and window.check == pytest.approx(80)
    assert found.warnings == ()


def test_which_way_nccl_talked_stands_in_a_programs_lines(tmp_path: Path) -> None:
    said = "n1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    found = read(tmp_path, [f"{at(0)} 0| {said}", *lines(30)])
    assert rows(RUN_COLUMNS, [found])[0]["nccl_transport"] == "P2P/CUMEM within nodes"
    found = read(tmp_path, [f"{at(0)} 0| {said}", f"{at(1)} 0| in no known format"])
    assert found.facts["nccl"] == {"within": ["P2P/CUMEM"], "channels": 1}


def test_another_rule_years_later(tmp_path: Path) -> None:
    found = read(tmp_path, lines(30, printed_ms=50.0), named="printed[10:20]")
    assert found.samples_per_s == pytest.approx(160)
    assert any("over those by printed" in text for text in found.warnings)


def test_output_that_was_buffered_has_no_arrival(tmp_path: Path) -> None:
    text = [at(number // 5) + line[27:] for number, line in enumerate(lines(30))]
    found = read(tmp_path, text)
    assert found.external is not None and found.external.basis == "printed"
    assert any("the output was buffered" in text for text in found.warnings)


def test_states_of_a_bar_have_come_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No newline came between them, and their clock is that of arrival nevertheless. That all lie
    in one of the bar's seconds is no warning, nor are ranks that Lightning states."""
    moments = (at(0.1 * number) for number in range(1, 99))
    monkeypatch.setattr("dlperf_hpc.train.program.stdout.utc", lambda: next(moments))
    output = ProgramOutput(tmp_path / "lines", 1, Progress(ReadTable("epoch_bars")))
    for number in range(1, 31):
        bar = f"Epoch 0:  1%|#  | {number}/99 [00:00<00:01, 10.00it/s, v_num=0]"
        output.take(f"\r{bar}".encode())
    output.take(b"\r")
    text = (tmp_path / "lines").read_text().splitlines()
    found = read(tmp_path, text, table={"format": "epoch_bars"})
    window = found.external
    assert window is not None and (window.basis, window.first, window.last) == ("arrival", 5, 25)
    assert found.samples_per_s == pytest.approx(80)
    (said,) = found.warnings
    assert said.startswith("no line states the ranks")
    text.insert(0, f"{at(0)} 0| All distributed processes registered. Starting with 2 processes")
    assert read(tmp_path, text, table={"format": "epoch_bars"}).warnings == ()


def test_a_bar_of_optimizer_steps(tmp_path: Path) -> None:
    """The examples of Accelerate and diffusers state the batch, and their bar counts optimizer
    steps where other programs' count batches."""
    case = replace(CASE, accumulation=2)
    settings = (
        "Num Epochs = 2",
        "Instantaneous batch size per device = 4",
        "Total train batch size (w. parallel, distributed & accumulation) = 16",
        "Gradient Accumulation steps = 2",
        "Total optimization steps = 198",
    )
    head = [f"{at(0)} 0| 11/27/2026 - INFO - __main__ -   {line}" for line in settings]
    drawn = "Epoch 0:  1%|#  | {}/99 [00:00<00:01, 10.00it/s, loss=0.5]"
    bars = [f"{at(0.1 * number)} 0| {drawn.format(number)}" for number in range(1, 41)]
    found = read(tmp_path, [*head, *bars], case=case, table={"format": "epoch_bars"})
    assert found.samples_per_s == pytest.approx(160) and found.warnings == ()
    halves = [line.replace("/99 ", "/198 ") for line in bars]
    found = read(tmp_path, [*head, *halves], case=case, table={"format": "epoch_bars"})
    assert found.samples_per_s == pytest.approx(80)


def test_what_came_after_we_ended_it_does_not_count(tmp_path: Path) -> None:
    found = read(tmp_path, lines(30), stopped=at(2.05))
    assert (found.status, found.samples_per_s) == (Status.PARTIAL, None)
    assert found.reason.startswith("the log ends at iteration 20, the window lies between 5 and 25")


def test_a_setting_that_is_not_as_asked(tmp_path: Path) -> None:
    found = read(tmp_path, lines(30, batch=16))
    assert (found.status, found.samples_per_s) == (Status.PARTIAL, None)
    assert found.reason == "not as asked: the log says global_batch 16, the sweep 8"


def test_lines_in_no_known_format_give_no_figure(tmp_path: Path) -> None:
    found = read(tmp_path, [f"{at(1)} 0| step 3 of 7", "2026 3| x", "| y", f"{at(2)} 0| "])
    assert (found.status, found.samples_per_s) == (Status.OK, None)
    assert any(text.startswith("no figure: no line") for text in found.warnings)


TOLD = {
    "line": r"step (?P<iteration>[0-9]+) took (?P<printed>[0-9.]+) ms, loss (?P<loss>\S+)",
    "printed": {"unit": "ms/iteration", "averaging": "last-iteration"},
    "first": 0,
}


def steps(count: int, rank: int = 0) -> list[str]:
    took = (f"step {n} took 100.0 ms, loss 2.5" for n in range(count))
    return [f"{at(0.1 * n)} {rank}| {line}" for n, line in enumerate(took)]


def test_a_pattern_in_the_log_reads_it(tmp_path: Path) -> None:
    found = read(tmp_path, steps(30), table=TOLD)
    assert found.samples_per_s == pytest.approx(80)
    (said,) = found.warnings
    assert said.startswith("no line states the ranks or the global batch")
    window = found.external
    assert window is not None and (window.basis, window.first, window.last) == ("arrival", 5, 25)
    assert window.format == "read:mine" and window.check == pytest.approx(80)


def test_a_pattern_that_no_line_fits_shows_the_nearest_lines(tmp_path: Path) -> None:
    text = [line.replace("took", "used") for line in steps(9)]
    table = {**TOLD, "line": "step (?P<iteration>[0-9]+) took "}
    del table["printed"]
    found = read(tmp_path, text, table={**table, "line": "(?P<iteration>[0-9]+) of .* loss"})
    assert (found.status, found.samples_per_s) == (Status.OK, None)
    (told,) = found.warnings
    assert told.startswith(
        "no figure: no line of the program fits a pattern of [program.NAME.read]"
    )
    assert told.endswith("; ".join(f"step {n} used 100.0 ms, loss 2.5" for n in (6, 7, 8)))
    gathered = gather([tmp_path / "run.log"], rule(), {}, ScanCache(None))
    assert gathered.results[0].warnings == found.warnings


def test_a_pattern_that_was_wrong_is_mended_without_a_run(tmp_path: Path) -> None:
    read(tmp_path, steps(30), table={**TOLD, "line": "(?P<iteration>[0-9]+) used", "printed": None})
    mended, wrong = read_table(TOLD, [])
    assert not wrong
    told = ("mended", mended)
    (found,) = gather([tmp_path / "run.log"], rule(), {}, ScanCache(None, told)).results
    assert found.samples_per_s == pytest.approx(80)
    assert found.external is not None and found.external.format == "read:mended"


def test_a_table_of_somebody_elses_log_is_checked(tmp_path: Path) -> None:
    found = read(tmp_path, steps(30), table={**TOLD, "line": r"(?P<iteration>.)(?=x)"})
    assert found.samples_per_s is None and found.status is Status.OK
    assert "looks around or back" in found.warnings[0]


def test_a_total_in_a_unit_of_its_own_is_the_figure(tmp_path: Path) -> None:
    text = [*steps(30), f"{at(4)} 1| Performance: 1,234.5 GFLOP/s"]
    table = {"line": "step (?P<iteration>[0-9]+)", "total": "Performance: (.*) GFLOP/s",
             "unit": "GFLOP/s"}  # fmt: skip
    found = read(tmp_path, text, table=table)
    assert dict(found.rates) == {"GFLOP/s": 1234.5} and found.samples_per_s is None
    row, *_ = rows(RUN_COLUMNS, [found])
    assert (row["figure"], row["figure_unit"], row["samples_per_s"]) == (1234.5, "GFLOP/s", None)


def test_of_several_ranks_one_counts(tmp_path: Path) -> None:
    both = [line for pair in zip(lines(30), lines(30, rank=0)) for line in pair]
    found = read(tmp_path, [*both, f"{at(9)} 0+  iteration       99/     100 | elapsed"])
    assert found.samples_per_s == pytest.approx(80)


def test_a_programs_end_is_seen_at_a_glance(tmp_path: Path) -> None:
    read(tmp_path, lines(30))
    log = tmp_path / "run.log"
    assert glance(log, Run(CASE, 1).id) == (None, True, ())
    text = log.read_text().replace(" program_end ", " phase ")
    log.write_text(text)
    assert glance(log, Run(CASE, 1).id)[1] is False
    assert result_of_log(log).status is Status.PARTIAL


def test_the_log_alone_tells_it_all(tmp_path: Path) -> None:
    read(tmp_path, lines(30))
    (found,) = gather([tmp_path / "run.log"], rule(), {}, ScanCache(None)).results
    assert found.run.id == Run(CASE, 1).id and found.samples_per_s == pytest.approx(80)


def test_accumulation_and_copies_of_the_model(tmp_path: Path) -> None:
    """Samples of an iteration are those of an optimizer step over all copies, or there is no
    number."""
    found = read(tmp_path, lines(30, batch=32), case=replace(CASE, accumulation=4))
    assert found.samples_per_s == pytest.approx(320)
    found = read(tmp_path, lines(30), case=replace(CASE, accumulation=4))
    assert (found.samples_per_s, found.reason) == (
        None,
        "not as asked: the log says global_batch 8, the sweep 32",
    )
    # Two devices that hold one copy together.
    found = read(tmp_path, lines(30, batch=4), case=replace(CASE, replicas=1))
    assert found.samples_per_s == pytest.approx(40)
    assert read(tmp_path, lines(30), case=replace(CASE, replicas=1)).samples_per_s is None


def test_batches_that_differ_are_counted_line_by_line(tmp_path: Path) -> None:
    mixed = [lines(30, batch=16 if step % 3 else 8)[step] for step in range(30)]
    found = read(tmp_path, mixed)
    samples = sum(16 if step % 3 else 8 for step in range(5, 25))
    assert found.samples_per_s == pytest.approx(samples / 2.0)
    assert any("the global batch changes within the window" in text for text in found.warnings)


def test_a_counter_that_begins_again(tmp_path: Path) -> None:
    """What lies behind the restart is another run's: the window is found before it, or not at
    all."""

    def twice(count: int) -> list[str]:
        again = [f"{at(0.1 * (count + step))}{line[27:]}" for step, line in enumerate(lines(count))]
        return [*lines(count), *again]

    assert read(tmp_path, twice(30)).samples_per_s == pytest.approx(80)
    found = read(tmp_path, twice(15))
    assert (found.status, found.samples_per_s) == (Status.PARTIAL, None)
    assert found.reason.startswith("the log ends at iteration 15, the window lies between 5 and 25")


# --- a Timer in the program


def timed(
    status: Status = Status.OK, samples: int = 160, global_batch: int = 8, **more: Any
) -> str:
    window = Window(
        warmup=5, iterations=20, optimizer_steps=20, skipped_steps=None, accumulation=1,
        global_batch=global_batch, ranks=2, samples=samples, elapsed_s=2.0, elapsed_min_s=1.9,
        step_ms_p5=99.0, step_ms_p50=100.0, step_ms_p95=101.0, step_ms_p99=102.0,
        loss_first=2.0, loss_last=1.0, data_wait_s=0.5,
    )  # fmt: skip
    told = TimerReport(status, window if status is Status.OK else None, **more)
    return f"{at(2.55)} 0| [default0]:{timed_line(told)}"


def test_a_timers_number_decides_and_the_lines_check_it(tmp_path: Path) -> None:
    found = read(tmp_path, [*lines(30), timed(notes=("its batches differ",))])
    (row,) = rows(RUN_COLUMNS, [found])
    assert (row["basis"], row["rule"], row["samples_per_s"]) == ("timer", "timer[5:25]", 80)
    assert row["check_samples_per_s"] == pytest.approx(80) and row["step_ms_p50"] == 100
    assert (row["data_wait_s"], row["loss_last"]) == (0.5, 1) and row["rank_spread"] > 0.04
    assert found.warnings == ("its batches differ",)
    by_rule = read(tmp_path, [*lines(30), timed()], named="printed[5:25]")
    assert by_rule.external is not None and by_rule.external.basis == "printed"


def test_a_timer_that_differs_from_the_lines_is_told(tmp_path: Path) -> None:
    half = [row.replace("(ms): 100.0", "(ms): 50.0") for row in lines(30)]
    slow = [row.replace(row[:27], at(0.2 * n)) for n, row in enumerate(half, 1)]
    found = read(tmp_path, [*slow, timed()])
    assert found.samples_per_s == 80
    assert any("samples/s by arrival over those by its Timer: 40 / 80" in w for w in found.warnings)


def test_a_timer_alone_gives_the_number(tmp_path: Path) -> None:
    found = read(tmp_path, [f"{at(1)} 0| hello", timed()], table={})
    assert found.samples_per_s == 80 and found.warnings == ()
    assert found.external is not None and found.external.check is None


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        (
            [timed(samples=320, global_batch=16)],
            Status.PARTIAL,
            "not as asked: its Timer counts 16",
        ),
        ([timed(Status.FAILED, reason="the loss is nan")], Status.FAILED, "the loss is nan"),
        ([timed(), timed()], Status.OK, "2 Timers have told a number"),
        ([timed(Status.PARTIAL, reason="it ended early")], Status.OK, "it ended early"),
        ([timed().replace("samples=160", "samples=x")], Status.OK, ""),
    ],
)
def test_a_timer_without_a_number(
    tmp_path: Path, told: Sequence[str], status: Status, words: str
) -> None:
    found = read(tmp_path, [*lines(30), *told])
    assert found.status is status and words in " ".join([found.reason, *found.warnings])
    assert (found.samples_per_s is None) == (status is not Status.OK)
    if found.external is not None and status is Status.OK:
        assert found.external.basis == "arrival"


def test_a_figure_of_its_own_stays_beside_a_timer(tmp_path: Path) -> None:
    table = {"total": "Performance: ([0-9.]+) GFLOP/s", "unit": "GFLOP/s"}
    found = read(tmp_path, [f"{at(3)} 0| Performance: 7.5 GFLOP/s", timed()], table=table)
    assert found.rates == {"GFLOP/s": 7.5} and "its Timer tells 80 samples/s" in found.warnings[-1]
