"""A sweep file of any size or shape is refused at once, in a few lines that say why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spec_samples import issues_of, load, write

from dlperf_hpc.engines.site import load_site
from dlperf_hpc.errors import SpecError

CASE = '[case]\nframework = "ddp"\nmodel = "bert-tiny"\nbatch_size = 8\n'
TOP = 'topologies = ["1n1g"]\n'
SEEDS = f"[matrix]\nseed = {list(range(10_000))}\n"
EXCLUDES = "".join(f"[[exclude]]\nseed = {n}\n" for n in range(1000))

TOO_MUCH = {
    "a list of 10^6 values": (f"{TOP}{CASE}[matrix]\nseed = [{'1,' * 10**6}]", "1048576 bytes"),
    "30 000 values": (f"{TOP}{CASE}[matrix]\nseed = [{'1,' * 30_000}]", "more than 20000 values"),
    "30 000 tables": (TOP + CASE + "[[zip]]\n" * 30_000, "more than 20000 values"),
    "10^7 runs": (f"repeats = 1000\n{TOP}{CASE}{SEEDS}", "repeats: makes 10000000 runs"),
    "1000 excludes": (f"{TOP}{CASE}{SEEDS}{EXCLUDES}", "are 10000000 comparisons, above 1000000"),
    "a decimal number": (f"repeats = {'9' * 5000}\n{TOP}{CASE}", "digits"),
    "a binary number": (f"repeats = 0b{'1' * 900_000}\n{TOP}{CASE}", "repeats: has more than the"),
    "a number in a list": (f"topologies = [0x{'f' * 9000}]\n{CASE}", "topologies[0]: has more"),
    "100 000 lists": (f"{TOP}x = {'[' * 100_000}\n{CASE}", "nested too deeply"),
    "40 lists": (f"{TOP}x = {'[' * 40}{']' * 40}\n{CASE}", "nested more than 16 deep"),
    "100 000 parts of a key": (f"{TOP}a{'.a' * 100_000} = 1\n{CASE}", "line 2: a key has more"),
    "parts in quotes": (f"""{TOP}"a" {". 'a'" * 50_000} = 1\n{CASE}""", "line 2: a key has more"),
    "a long key": (f"{TOP}{'a' * 900_000} = 1\n{CASE}", "more than 200 characters"),
}


@pytest.mark.parametrize(("text", "said"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_too_much_of_anything_is_one_short_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    (issue,) = issues_of(path)
    assert said in issue and len(issue) < 300


def test_a_number_of_cases_with_a_thousand_digits_is_not_written_out(tmp_path: Path) -> None:
    issues = issues_of(write(tmp_path, tables="[[zip]]\nseed = [1, 2]\n" * 4000))
    assert "matrix: makes more than 10^18 cases, above 10000" in issues
    assert all(len(issue) < 300 for issue in issues)


def test_what_is_just_not_too_much_is_read(tmp_path: Path) -> None:
    sweep = load(write(tmp_path, top=f"repeats = 10\n{TOP}", tables=SEEDS))
    assert len(sweep.cases) * sweep.repeats == 100_000
    matrix = SEEDS.replace("9999]", "0]")  # which is there twice
    (issue,) = issues_of(write(tmp_path, tables=matrix))
    assert "matrix.seed: has 0 twice" in issue


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"key{n} = 1\n" for n in range(9000)) + TOP + CASE,
        TOP + CASE + "".join(f"key{n} = 1\n" for n in range(9000)),
        f"{TOP}{CASE}[matrix]\nseed = [{'-1,' * 9000}]",
        TOP + "[time_limit]\n" + "".join(f'"{n}n1g" = 1\n' for n in range(2, 9000)) + CASE,
    ],
    ids=["at the top", "in a table", "values", "topologies"],
)
def test_a_hundred_errors_are_listed_and_the_others_counted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 102 and lines[-1] == f"  and {len(caught.value.issues) - 100} more"


def _sweep(path: str | Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(path), "--dry-run", *arguments]
    return subprocess.run(
        argv, cwd=cwd, text=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL
    )


@pytest.mark.processes
def test_what_is_no_file_is_neither_waited_for_nor_read_for_ever(tmp_path: Path) -> None:
    pipe, large, spec = tmp_path / "pipe", tmp_path / "large", write(tmp_path)
    os.mkfifo(pipe)
    with open(large, "wb") as file:
        file.truncate(2 << 30)
    for path, said in (
        (pipe, "is a named pipe, not a file"),
        (Path("/dev/zero"), "is a device, not a file"),
        (large, "has more than the 1048576 bytes"),
    ):
        for given, *more in ([path], [spec, "--site", f"{path.parent}/./{path.name}"]):
            done = _sweep(str(given), tmp_path, *map(str, more))
            assert done.returncode == 2, done.stderr
            where = f"{path.parent}/{path.name}"
            assert done.stderr == f"error: {where}: 1 error\n  file: cannot be read: {said}" + (
                " that are read of such a file\n" if path == large else "\n"
            )


@pytest.mark.processes
def test_a_value_of_the_command_line_is_bounded_too(tmp_path: Path) -> None:
    spec = write(tmp_path)
    for value in ("0x" + "f" * 100_000, "[" * 100_000, "{a" + ".a" * 50_000 + " = 1}"):
        done = _sweep(spec, tmp_path, "--set", f"repeats={value}")
        assert done.returncode == 2 and len(done.stderr) < 1000
        assert "repeats: " in done.stderr and "is invalid" in done.stderr


def test_a_site_profile_has_the_same_bounds(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    for text, said in (
        (f"x = {'[' * 40}{']' * 40}", "nested more than 16 deep"),
        (f"cpus_per_task = 0x{'f' * 5000}", "cpus_per_task: has more than the 64 bits"),
        ("".join(f"key{n} = 1\n" for n in range(9000)), "  and 8900 more"),
    ):
        path.write_text(text)
        with pytest.raises(SpecError) as caught:
            load_site(str(path))
        assert said in str(caught.value) and len(str(caught.value).splitlines()) <= 102
