"""``sweep SPEC --try-log LOG``: what would be read of a log of a user's program."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pasting import blocks

from dlperf_hpc.cli import report, sweep

SPEC = """
topologies = ["1n2g"]
repeats = 1
[measure]
warmup = 5
iterations = 20
[case]
framework = "mine"
model = "toy"
batch_size = 4
[program.mine]
launch = "rank"
run = ["train.py", "{steps}"]
[program.mine.read]
format = "pytorch_imagenet"
"""
LINE = "Epoch: [0][{n:4d}/40]\tTime  0.500 ( 0.500)\tData 0.000 ( 0.000)\tLoss 6.9e+00 (6.9e+00)\n"
Done = subprocess.CompletedProcess[str]


def try_log(place: Path, log: bytes | None, spec: str = SPEC, *more: str) -> Done:
    file, path = place / "mine.toml", place / "old.log"
    file.write_text(spec)
    if log is not None:
        path.write_bytes(log)
    out, err = io.StringIO(), io.StringIO()
    argv = [str(file), "--try-log", str(path), "--logs", str(place / "logs"), *more]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = sweep.main(argv)
    assert not (place / "logs").exists()
    return Done(argv, code, out.getvalue(), err.getvalue())


def lines(count: int) -> bytes:
    return "".join(LINE.format(n=n) for n in range(count)).encode()


def test_what_would_be_read(tmp_path: Path) -> None:
    done = try_log(tmp_path, lines(30))
    assert (done.returncode, done.stderr) == (0, "")
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert told["format"] == "pytorch_imagenet"
    assert told["lines"] == "30 with an iteration, 1 to 30"
    assert told["window"].startswith("after iteration 5, up to 25: printed")
    assert told["figure"] == "16 samples/s"  # 2 devices x 4 samples / 0.5 s
    found = json.loads(try_log(tmp_path, lines(30), SPEC, "--json").stdout)
    assert found["figure"] == ["16 samples/s"] and found["no figure"] is None


def test_a_log_that_ends_too_early_has_no_figure(tmp_path: Path) -> None:
    done = try_log(tmp_path, lines(12))
    assert done.returncode == 1
    assert (
        "no figure  the log ends at iteration 12, the window lies between 5 and 25" in done.stdout
    )


def test_a_log_in_no_known_format_shows_its_last_lines(tmp_path: Path) -> None:
    done = try_log(tmp_path, b"one\n\ntwo\x1b[31m\nthree\nfour\n")
    assert (
        done.returncode == 1
        and "no line of the program is in the format pytorch_imagenet" in done.stdout
    )
    assert done.stderr.splitlines()[1:] == ["  two", "  three", "  four"]


TOLD = r"""
[program.mine.read]
line = 'Epoch: \[0\]\[ *(?P<iteration>[0-9]+)/.*Time +(?P<printed>[0-9.]+)'
printed = { unit = "s/iteration" }
first = 0
fail = ['Loss 7']
must = ['all done']
"""
BY_PATTERN = SPEC.partition("[program.mine.read]")[0] + TOLD


def test_a_pattern_is_tried_on_a_log(tmp_path: Path) -> None:
    done = try_log(tmp_path, lines(30) + b"Loss 7\n", BY_PATTERN)
    assert (done.returncode, done.stderr) == (0, "")
    assert "format     read:mine\nlines      30 with an iteration, 1 to 30\n" in done.stdout
    assert "figure     16 samples/s\n" in done.stdout
    assert "signs      a line of read.fail: Loss 7\nsigns      no line is as" in done.stdout


def test_signs_stand_behind_a_bar(tmp_path: Path) -> None:
    """A bar without a newline is longer than any line that is read, and its states are lines."""
    bar = b"".join(b"\r%d%% of a bar" % (number % 100) for number in range(9999))
    done = try_log(tmp_path, lines(30) + bar + b"\rLoss 7\rall done\r", BY_PATTERN)
    assert done.returncode == 0 and "signs      a line of read.fail: Loss 7\n" in done.stdout
    assert "no line is as read.must" not in done.stdout


def test_the_pages_pattern_reads_the_pages_program(tmp_path: Path) -> None:
    """As a user would paste it: the example of docs/programs.md with the table in place of its
    own, and lines that its program has really printed."""
    program, (spec, table, hpl, *_) = (
        blocks("programs.md", "python")[0],
        blocks("programs.md", "toml"),
    )
    env = {**os.environ, "RANK": "0"}
    argv = [sys.executable, "-c", program, "4", "1", "35"]
    log = subprocess.run(argv, env=env, capture_output=True, check=True).stdout
    done = try_log(tmp_path, log, spec.partition("[program.mine.read]")[0] + table, "--only=1n2g",
                   "--only=layers=1", "--json")  # fmt: skip
    told = json.loads(done.stdout)
    assert (done.returncode, told["format"]) == (0, "read:mine")
    assert told["window"].startswith("after iteration 5, up to 25: printed[5:25]")
    (figure,) = told["figure"]
    assert 0 < float(figure.split()[0]) <= 800 and figure.endswith(" samples/s")  # 8 in 10 ms
    row = "WR11C2R4       29184   192     2     2              22.10             7.4990e+02\n"
    (tmp_path / "hpl.log").write_text(row)
    (tmp_path / "hpl.toml").write_text(hpl)
    out = io.StringIO()
    argv = [str(tmp_path / "hpl.log"), "--format-file", str(tmp_path / "hpl.toml"), "--json"]
    with contextlib.redirect_stdout(out):
        assert report.main([*argv, "--nodes=1", "--gpus-per-node=4", f"--out={tmp_path}"]) == 0
    (found,) = json.loads(out.getvalue())["runs"]
    assert (found["figure"], found["figure_unit"]) == (749.9, "GFLOP/s")
    assert (found["samples_per_s"], found["basis"]) == (None, "total")


def test_a_pattern_that_no_line_fits_shows_the_nearest_lines(tmp_path: Path) -> None:
    spec = BY_PATTERN.replace("Time +(", "Took +(")
    done = try_log(tmp_path, b"step\n" + lines(4) + b"end\nend\nend\n", spec)
    assert done.returncode == 1 and "no line of the program fits a pattern" in done.stdout
    shown = done.stderr.splitlines()[1:]
    assert [line.split("]")[1].split("[")[1] for line in shown] == [" 1/40", " 2/40", " 3/40"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "(?P<iteration>[0-9]+)",
            "(?P<iteration>[0-9]+",
            "mine.toml: 1 error\n  program.mine.read",
        ),
        ("first = 0", "each = 3", "program.mine.read.each: stands beside the group iteration"),
        ("all done", r"(x)\1", 'program.mine.read.must[0]: "(x)'),
        ("s/iteration", "s/it", "program.mine.read.printed.unit: there is no unit 's/it' (it is"),
    ],
)
def test_a_bad_pattern_is_told_before_anything_is_submitted(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    done = try_log(tmp_path, lines(30), BY_PATTERN.replace(old, new))
    assert done.returncode == 2 and told in done.stderr, done.stderr


def test_several_cases(tmp_path: Path) -> None:
    spec = SPEC.replace('["1n2g"]', '["1n1g", "1n2g"]')
    done = try_log(tmp_path, lines(30), spec)
    assert "of 2 cases the first is tried" in done.stderr and "8 samples/s" in done.stdout
    done = try_log(tmp_path, lines(30), spec, "--only", "1n2g")
    assert done.stderr.startswith("note: --only") and "16 samples/s" in done.stdout


@pytest.mark.parametrize(
    ("spec", "log", "told"),
    [
        (SPEC, None, "old.log: no such file"),
        (SPEC.split("[program")[0].replace('"mine"', '"ddp"').replace('"toy"', '"bert-base"'),
         b"", "the sweep has no [program.NAME]"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, spec: str, log: bytes | None, told: str) -> None:
    done = try_log(tmp_path, log, spec)
    assert done.returncode == 2 and told in done.stderr, done.stderr
