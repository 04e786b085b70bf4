"""Programs of the table of confusing output as processes under the supervisor, in one sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confusing import NONE, ROWS, WARMUP, WINDOW, Row
from places import SUPPORT
from sweeping import Workplace, local_environment

from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.program_figures import with_figures
from dlperf_hpc.records.collect import full_results

TERMINAL = "terminal"
FEW = ["bar-of-tqdm", "bar-of-an-epoch", "each-from-0", "samples-as-iterations", "whole-seconds"]
MORE = ["bar-of-tqdm-told", "bars-nested", "evaluation-of-the-same-form", "all-at-the-end"]
SWEEP = """
topologies = ["1n1g"]
repeats = 1
[measure]
warmup = {warmup}
iterations = {window}
[case]
model = "toy"
batch_size = 4
[matrix]
framework = {names}
"""
PROGRAM = """
[program.{name}]
launch = "rank"
run = ["{script}", "{row}", "{stamps}"{more}]
[program.{name}.read]
{read}
"""


def stamps_of(place: Path, name: str) -> Path:
    return place / f"{name}.stamps"


def described(place: Path, row: Row, name: str, more: str = "") -> str:
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in row.read.items())
    script = SUPPORT / "confusing.py"
    stamps = stamps_of(place, name)
    return PROGRAM.format(
        name=name, script=script, row=row.name, stamps=stamps, read=keys, more=more
    )


@pytest.mark.parametrize("names", [FEW, pytest.param(MORE, marks=pytest.mark.long)])
def test_programs_that_confuse(names: list[str], tmp_path: Path) -> None:
    place = Workplace(tmp_path, local_environment())
    rows = {name.replace("-", "_"): ROWS[name] for name in names}
    text = "".join(described(tmp_path, row, name) for name, row in rows.items())
    rows[TERMINAL] = ROWS["bar-of-tqdm-told"]
    text += described(tmp_path, rows[TERMINAL], TERMINAL, ', "pty"')
    text = SWEEP.format(warmup=WARMUP, window=WINDOW, names=json.dumps([*rows])) + text
    done = place.verb("sweep", place.write("odd.toml", text), "--cluster", "local")
    assert "Traceback" not in done.stderr, done.stderr
    results = with_figures(full_results(place.directory("odd")).results, rule())
    assert len(results) == len(rows)
    for result in results:
        row = rows[result.run.case.framework]
        words = "; ".join([result.reason, *result.warnings])
        if "was buffered" in words:
            continue  # a machine under load hands lines on late, which is said
        assert (not result.rates) == (row.want == NONE), (row.name, words)
        assert row.words.split("|")[0] in words, (row.name, words)
        if result.external is not None and not row.words:
            path = stamps_of(tmp_path, result.run.case.framework)
            stamps = [float(line) for line in path.read_text().split()]
            true = 4 * WINDOW / (stamps[WARMUP + WINDOW - 1] - stamps[WARMUP - 1])
            assert 0.5 < (result.samples_per_s or 0) / true < 2, (row.name, words)
