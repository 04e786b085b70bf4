"""Fixtures that several folders share, and what a test's folder says about it.

A test's folder names what the test needs beyond the package: ``pytest -m slurm`` selects the tests
of ``tests/slurm``. A test that was asked for and does not find what it needs fails; it is never
skipped for that reason. The tests of ``tests/unit`` need the package alone: one that loads a
framework fails.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from fixtures_slurm import accounting, onebox, place, queue, small

__all__ = ["accounting", "onebox", "place", "queue", "small"]

TESTS = Path(__file__).parent
MARKERS = {
    "mpi": "mpi",
    "browser": "browser",
    "slurm": "slurm",
    "frameworks/torch": "torch",
    "frameworks/deepspeed": "deepspeed",
    "frameworks/tensorflow": "tensorflow",
    "frameworks/horovod": "horovod",
    "frameworks": "frameworks",
    "campaigns": "campaign",
    "containers": "containers",
}
FRAMEWORKS = {"torch", "tensorflow", "deepspeed", "horovod"}


def marker_of(path: Path) -> str | None:
    """The marker of a test file's folder, or of the next folder above it that has one."""
    if TESTS not in path.parents:
        return None
    folders = (folder.as_posix() for folder in path.relative_to(TESTS).parents)
    return next((MARKERS[folder] for folder in folders if folder in MARKERS), None)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test by its folder."""
    if marker := marker_of(item.path):
        item.add_marker(marker)


def loaded() -> set[str]:
    """The frameworks that this process has imported so far."""
    return FRAMEWORKS & sys.modules.keys()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file of tests/unit whose import loads a framework fails as it is collected."""
    before = loaded()
    report = yield
    new = loaded() - before
    if new and isinstance(collector, pytest.Module) and TESTS / "unit" in collector.path.parents:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} loads {', '.join(new)}: move it to tests/frameworks"
    return report


@pytest.fixture(autouse=True)
def unit_tests_load_no_framework(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of tests/unit that loads a framework fails, wherever the import stands."""
    before = loaded()
    yield
    new = loaded() - before
    if new and TESTS / "unit" in request.path.parents:
        pytest.fail(f"the test loaded {', '.join(new)}: move it to tests/frameworks")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which Pythons the wheel was tried with: those that this machine has."""
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    found = {m[1] for name in passed if (m := re.search(r"_other_pythons.*\[3\.(\d+)\]", name))}
    if found:
        others = ", ".join(f"3.{minor}" for minor in sorted(map(int, found)) if minor >= 9)
        here = "{}.{}".format(*sys.version_info[:2])
        terminalreporter.write_line(f"tests run by Python {here}; other Pythons tried: {others}")
