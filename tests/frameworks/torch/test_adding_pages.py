"""The examples of docs/adding-a-back-end.md and docs/adding-a-workload.md, as a stranger would
paste them: into the files that the pages name, in a copy of the package, and then a real sweep."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import pytest
from places import ROOT
from sweeping import Workplace, local_environment

from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.train.session import Session

DOCS = ROOT / "docs"
FILE = re.compile(r"`([\w/.-]+\.(?:py|toml))`:\n\n```\w+\n(.*?)```", re.DOTALL)


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def pasted(place: Path, name: str) -> list[str]:
    """A copy of the package with the page's files in it; their names."""
    shutil.copytree(ROOT / "dlperf_hpc", place / "dlperf_hpc")
    files = dict(FILE.findall(page(name)))
    for path, text in files.items():
        assert not (place / path).exists(), path
        (place / path).write_text(text, encoding="utf-8")
    return list(files)


def swept(place: Path, file: str) -> list[RunResult]:
    """The results of a sweep file, measured by the copy."""
    env = {**local_environment(), "PYTHONPATH": str(place)}
    done = Workplace(place, env).verb("sweep", file, "--cluster", "local", "--name", "new")
    assert done.returncode == 0, done.stdout + done.stderr
    results = list(full_results(place / "logs" / "new").results)
    assert {result.status for result in results} == {Status.OK}
    return results


def test_the_back_end_of_the_page(tmp_path: Path) -> None:
    files = pasted(tmp_path, "adding-a-back-end.md")
    assert [Path(name).name for name in files] == ["torch_mpi.py", "mpi.py", "mpi.toml"]
    results = swept(tmp_path, "mpi.toml")
    found = {r.run.case.id for r in results}
    assert len(found) == len(results) == 4
    for result in results:
        assert result.window is not None and result.window.optimizer_steps == 2
        assert result.checkpoint is not None and result.warnings == ()
        assert result.facts["world"]["framework_name"] == "PyTorch"
        # A model that has learnt nothing guesses: of 30528 words, and of yes and no.
        assert result.window.loss_first == pytest.approx(math.log(30528) + math.log(2), abs=0.7)
    wide = [r.window for r in results if r.run.case.topology.devices == 2]
    fused, single = (window.loss_last for window in wide if window)
    assert fused == pytest.approx(single, rel=1e-5)


def test_the_model_of_the_page(tmp_path: Path) -> None:
    files = pasted(tmp_path, "adding-a-workload.md")
    assert [Path(name).name for name in files] == ["bag_of_words.py"] * 2 + ["bag.toml"]
    results = swept(tmp_path, "bag.toml")
    assert len(results) == 4
    for result in results:
        assert isinstance(result.run.case, Case)
        width = result.run.case.option("width")
        assert result.facts["world"]["flops_per_sample"] == 6.0 * (width * width + 20 * width)
        assert result.window is not None
        first, last = result.window.loss_first, result.window.loss_last
        assert first == pytest.approx(math.log(20), abs=0.3)
        assert first is not None and last is not None and last < first


def test_every_method_of_a_session_is_told_of() -> None:
    rows = re.findall(r"^\| `(\w+)\(", page("adding-a-back-end.md"), re.MULTILINE)
    methods = [name for name in vars(Session) if not name.startswith("_")]
    assert rows[-len(methods) :] == methods
