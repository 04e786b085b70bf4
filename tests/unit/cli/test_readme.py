"""What the pages tell a newcomer to type or to read is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc.__main__ import verbs
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "slurm" / "README.md"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_sweep_file_shown_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "shown.toml"
    path.write_text(example, encoding="utf-8")
    sweep = load_sweep(path, registry())
    assert len(sweep.cases) == 3 * 2 * 2 and sweep.repeats == 7


def test_every_verb_is_told_of_and_every_verb_told_of_is_there() -> None:
    assert set(re.findall(r"^\| `dlperf (\w+)", README, re.MULTILINE)) == set(verbs())


def test_files_and_targets_named_are_there() -> None:
    for name in re.findall(r"sweeps/\w+\.toml|slurm/install\.sh", README):
        assert (ROOT / name).exists(), name
    targets = set(re.findall(r"make ([\w-]+)", README))
    done = subprocess.run(
        ["make", "-n", *sorted(targets)], cwd=ROOT, capture_output=True, text=True
    )
    assert len(targets) > 4 and done.returncode == 0, done.stderr
