"""What the pages tell a newcomer to type or to read is there."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc.__main__ import verbs
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("slurm", "logs", "dlperf_hpc/published")),
]
WIDTH = 120
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", text):
        if not target.startswith("http"):
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or linked.is_dir() or anchor in _anchors(linked), (target, anchor)


@cache
def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each).strip().lower() for each in headings)
    return {re.sub(r"[^\w -]", "", each).replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_wrapped(page: Path) -> None:
    """But for tables, code and comments."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    ", "<!--"))]
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("  |")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_spelled_one_way(page: Path) -> None:
    """Only where the first page says that the spellings are one command does it use another."""
    spellings = re.findall(r"python3? -m dlperf_hpc [a-z]+", page.read_text(encoding="utf-8"))
    assert spellings == (["python -m dlperf_hpc sweep"] if page == ROOT / "README.md" else [])


def test_tests_and_benchmarks_named_are_there() -> None:
    """The pages on how to add something name files that are still to be written."""
    for page in PAGES:
        if not page.name.startswith("adding-"):
            text = page.read_text(encoding="utf-8")
            for name in re.findall(r"`((?:tests|benchmarks)/[\w/.-]+)`", text):
                assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_the_sweep_file_shown_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "shown.toml"
    path.write_text(example, encoding="utf-8")
    sweep = load_sweep(path, registry())
    assert len(sweep.cases) == 3 * 2 * 2 and sweep.repeats == 7


def test_every_verb_is_told_of_and_every_verb_told_of_is_there() -> None:
    assert set(re.findall(r"^\| `dlperf (\w+)", README, re.MULTILINE)) == set(verbs())


@pytest.mark.processes
def test_files_and_targets_named_are_there() -> None:
    for name in re.findall(r"sweeps/\w+\.toml|slurm/install\.sh", README):
        assert (ROOT / name).exists(), name
    targets = set(re.findall(r"(?<!env )make ([\w-]+)", README))
    done = subprocess.run(
        ["make", "-n", *sorted(targets)], cwd=ROOT, capture_output=True, text=True
    )
    assert len(targets) > 4 and done.returncode == 0, done.stderr
