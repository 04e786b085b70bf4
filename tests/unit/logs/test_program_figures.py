"""The figures in the lines of a user's program, which stand in a log of ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.logs.supervised import with_figures
from dlperf_hpc.records.lines import write_line
from dlperf_hpc.records.logfile import glance, result_of_log
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status
from dlperf_hpc.sweepfile.case import Case, Run, Topology

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


def read(place: Path, text: Sequence[str], stopped: str = "", named: str = "default") -> RunResult:
    run = Run(CASE, 1)
    begin = {"format": 1, "sweep": "s", "run": run.id, "repeat": 1, "attempt": 1, "launch": "1_0.0"}
    end = {"ended": "by itself", "codes": [0, 0], "stopped": stopped or None}
    rows = [
        write_line("begin", begin),
        write_line("case", CASE.to_dict()),
        write_line("measure", {"warmup": 5, "iterations": 20}),
        write_line("program", {"name": "mine", "format": "megatron"}),
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


def test_another_rule_years_later(tmp_path: Path) -> None:
    found = read(tmp_path, lines(30, printed_ms=50.0), named="printed[10:20]")
    assert found.samples_per_s == pytest.approx(160)
    assert any("over those by printed" in text for text in found.warnings)


def test_output_that_was_buffered_has_no_arrival(tmp_path: Path) -> None:
    text = [at(number // 5) + line[27:] for number, line in enumerate(lines(30))]
    found = read(tmp_path, text)
    assert found.external is not None and found.external.basis == "printed"
    assert any("the output was buffered" in text for text in found.warnings)


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
