"""The example of docs/adding-a-writer.md, run as a stranger would paste it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from places import ROOT
from record_samples import a_sweep, ended_ok, many
from report_samples import case

PAGE = (ROOT / "docs" / "adding-a-writer.md").read_text(encoding="utf-8")
RUNS = many([case("1n1g", model="my_bert"), case("1n2g", model="my_bert")], 1)


def test_the_example_is_a_writer_by_one_new_file(tmp_path: Path) -> None:
    package = tmp_path / "package" / "dlperf_hpc"
    shutil.copytree(ROOT / "dlperf_hpc", package, ignore=shutil.ignore_patterns("__pycache__"))
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (place,) = re.findall(r"save this as `dlperf_hpc/(\S+)`", PAGE)
    (package / place).write_text(example, encoding="utf-8")
    (options,) = re.findall(r"`dlperf report logs/my_sweep (.*?)`", PAGE)
    a_sweep(tmp_path / "sweep", RUNS)
    for run, seconds in zip(RUNS, (0.05, 0.04)):
        ended_ok(tmp_path / "sweep", run, seconds=seconds)

    def report(*arguments: str) -> str:
        command = [sys.executable, "-m", "dlperf_hpc", "report", *arguments]
        done = subprocess.run(
            command, cwd=package.parent, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert "latex    speedup.tex" in report("--write", "help")
    report(str(tmp_path / "sweep"), *options.split())
    (made,) = (tmp_path / "sweep" / "report").iterdir()
    assert made.name == "speedup.tex"
    lines = made.read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{llrr}" and lines[-1] == r"\end{tabular}"
    first, second = (line.removesuffix(r" \\").split(" & ") for line in lines[2:-1])
    assert first[0] == second[0] == r"torch/my\_bert/bz32/fp32"
    assert [first[1], first[3]] == ["1n1g", "1"] and [second[1], second[3]] == ["1n2g", "2.5"]
    assert float(second[2]) > float(first[2]) > 0
