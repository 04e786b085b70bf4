"""A log format that a table tells, read by the same reader as those of modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlperf_hpc.logs.gather import Gathered, gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.scanner import Scanner
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.logs.scanned import Averaging, Counter, Evidence, Reading, Scope, Stamps, Unit
from dlperf_hpc.logs.tableformat import format_of
from dlperf_hpc.sweepfile.readtable import PrintedFigure, ReadTable

LINE = r"step (?P<iteration>[0-9,]+): (?P<printed>[0-9.,]+) tok/s, loss (?P<loss>\S+)$"
TABLE = ReadTable(line=LINE, first=0, printed=PrintedFigure("tokens/s", "device"))


def readings(table: ReadTable, *lines: str) -> tuple[Reading, ...]:
    data = "".join(f"{line}\n" for line in lines).encode()
    return Scanner([format_of(table, "mine")]).scan("a.log", len(data), [data]).readings


def numbers(table: ReadTable, *lines: str) -> list[int]:
    (found,) = readings(table, *lines)
    return [step.iteration for step in found.steps]


def test_a_table_tells_what_a_module_tells() -> None:
    (found,) = readings(TABLE, "noise", "step 1,234: 10,000.5 tok/s, loss 2.5", "step x: 1 tok/s")
    (step,) = found.steps
    assert (step.line, step.iteration, step.printed, step.loss) == (2, 1235, 10000.5, 2.5)
    assert (found.format, found.evidence) == ("read:mine", Evidence.TOML)
    assert (found.printed.unit, found.printed.scope) == (Unit.TOKENS_PER_S, Scope.DEVICE)
    assert found.counter is Counter.OPTIMIZER_STEPS


def test_the_table_says_how_iterations_are_counted() -> None:
    from_1 = replace(TABLE, first=1, counts="micro-steps")
    assert numbers(from_1, "step 7: 1 tok/s, loss 1") == [7]
    assert readings(from_1, "step 7: 1 tok/s, loss 1")[0].counter is Counter.MICRO_STEPS
    each = ReadTable(line="loss (?P<loss>[0-9.]+)", each=10)
    assert numbers(each, "loss 3.", "no", "loss 2.", "loss 1.") == [10, 20, 30]
    epochs = ReadTable(line=r"Epoch (?P<epoch>[0-9]+) it (?P<iteration>[0-9]+)", first=0)
    lines = [f"Epoch {epoch} it {it}" for epoch in range(2) for it in range(3)]
    assert numbers(epochs, *lines) == [1, 2, 3, 4, 5, 6]
    assert readings(replace(epochs, first=9), *lines) == ()


def test_lines_of_several_ranks_are_counted_apart() -> None:
    table = ReadTable(line=r"\[(?P<rank>[0-9]+)\] took (?P<printed>[0-9.]+)", each=1,
                      printed=PrintedFigure("s/iteration", averaging="last-iteration"))  # fmt: skip
    (found,) = readings(table, "[0] took 1.", "[1] took 1.", "[0] took 1.", "[1] took 1.")
    assert [(s.rank, s.iteration) for s in found.steps] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert found.printed.averaging is Averaging.LAST_ONE


@pytest.mark.parametrize(
    ("text", "stamps", "seconds"),
    [
        ("2026-01-05 10:00:05.250", Stamps.ABSOLUTE, 1767607205.25),
        ("1767607205.25", Stamps.ABSOLUTE, 1767607205.25),
        ("10:00:05,250", Stamps.TIME_ONLY, 36005.25),
        ("12.5", Stamps.ELAPSED, 12.5),
        ("noon", Stamps.NONE, None),
    ],
)
def test_times(text: str, stamps: Stamps, seconds: float | None) -> None:
    table = ReadTable(line=r"it (?P<iteration>[0-9]+) at (?P<time>.*)")
    (found,) = readings(table, f"it 3 at {text}")
    assert (found.stamps, found.steps[0].stamp) == (stamps, seconds)


@pytest.mark.parametrize("lines", [1, 40_000])  # few; so many that lines are known by their forms
def test_a_pattern_of_numbers_alone(lines: int) -> None:
    table = ReadTable(line=r"^\s*(?P<iteration>[0-9]+)\s+(?P<loss>[0-9.]+)$")
    rows = [f"   {number}   {number % 7}.5" for number in range(1, lines + 1)]
    (found,) = readings(table, "# no head", *rows)
    assert found.steps.values("iteration") == list(range(1, lines + 1))
    assert found.steps[-1].loss == lines % 7 + 0.5


def test_a_total_in_a_unit_of_its_own() -> None:
    table = ReadTable(total=r"WR\w+ .* (\S+)$", unit="GFLOP/s")
    (found,) = readings(table, "WR11C2R4  1000  128  2  2  0.05  1.4335e+01")
    (total,) = found.totals
    assert (total.name, total.value, total.unit) == ("GFLOP/s", 14.335, Unit.OWN)
    assert (found.printed.unit, found.printed.label) == (Unit.OWN, "GFLOP/s")


# --- report --format-file


def lines(count: int) -> str:
    return "".join(
        f"2026-01-05 10:{n // 60:02d}:{n % 60:02d}.000 step {n}: 512.0 tok/s, loss 1.5\n"
        for n in range(count)
    )


STATED = {"nodes": 1, "gpus_per_node": 2, "batch_size": 4, "seq_len": 128}


def gathered(path: Path, table: ReadTable, cache: ScanCache | None = None) -> Gathered:
    told = ("mine", table)
    made = cache or ScanCache(None, told)
    return gather([path], rule(), STATED, made)


def test_a_log_that_is_there_is_read_by_a_told_format(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(lines(130))
    timed = replace(TABLE, line=rf"^(?P<time>.*) {LINE}")
    (found,) = gathered(tmp_path / "a.log", timed).results
    assert found.samples_per_s == pytest.approx(8) and found.rates["tokens/s"] == 1024
    assert found.external is not None
    assert found.external.basis == "clock" and found.external.check == pytest.approx(8)
    assert (found.external.format, found.external.evidence) == ("read:mine", "told in TOML")


def test_a_told_format_counts_before_those_that_are_known(tmp_path: Path) -> None:
    text = "".join(
        f" iteration {n:8d}/     100 | elapsed time per iteration (ms): 9.0 |"
        f" learning rate: 1.000E-04 | global batch size:     8 | lm loss: 1.0E+00 |\n"
        for n in range(1, 130)
    )
    (tmp_path / "a.log").write_text(text)
    (tmp_path / "b.log").write_text(text.replace("iteration ", "iter. "))
    table = ReadTable(
        line=r"iteration\s+(?P<iteration>[0-9]+)/.*iteration \(ms\): (?P<printed>[0-9.]+)",
        printed=PrintedFigure("ms/iteration"),
    )
    (found,) = gathered(tmp_path / "a.log", table).results
    assert found.external is not None and found.external.format == "read:mine"
    cache = ScanCache(tmp_path / "cache" / "scans", None)
    (found,) = gather([tmp_path / "a.log"], rule(), STATED, cache).results
    assert found.external is not None and found.external.format == "megatron"


def test_the_cache_knows_by_which_format_a_log_was_read(tmp_path: Path) -> None:
    import os

    path = tmp_path / "a.log"
    path.write_text(lines(130))
    os.utime(path, (1, 1))
    found = []
    for table in (TABLE, TABLE, replace(TABLE, first=20)):
        cache = ScanCache(tmp_path / "cache" / "scans", ("mine", table))
        cache._now += 60  # the file is not as young
        found.append(gathered(path, table, cache))
    assert [each.cached for each in found] == [0, 1, 0]
    assert found[0].results == found[1].results != found[2].results


def test_a_total_is_a_figure_of_its_own(tmp_path: Path) -> None:
    text = "10.0 done\n" * 3 + "Performance: 50 GFLOP/s\nPerformance: 120.5 GFLOP/s\n"
    (tmp_path / "a.log").write_text(text)
    table = ReadTable(
        line=r"(?P<loss>[0-9.]+) done", each=1, total="Performance: (.+) GFLOP/s", unit="GFLOP/s"
    )
    (found,) = gathered(tmp_path / "a.log", table).results
    assert dict(found.rates) == {"GFLOP/s": 120.5} and found.samples_per_s is None
    assert found.external is not None and found.external.unit == "GFLOP/s"
    assert any("several figures in GFLOP/s: that of line 5" in each for each in found.warnings)
