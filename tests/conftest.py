"""Fixtures that several folders share, and what a test's folder says about it.

A test's folder names what the test needs beyond the package: ``pytest -m slurm`` selects the tests
of ``tests/slurm``. A test that was asked for and does not find what it needs fails; it is never
skipped for that reason. The tests of ``tests/unit`` and ``tests/processes`` need the package alone:
one that loads a framework fails. One of ``tests/unit`` that starts a process has the marker of
``tests/processes`` too, so that ``-m "not processes"`` leaves it out, or it fails.
"""

from __future__ import annotations

import platform
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from fixtures_browser import chromium, opened_browser
from fixtures_slurm import accounting, onebox, place, queue, small
from hypothesis import HealthCheck, settings

__all__ = ["accounting", "chromium", "onebox", "opened_browser", "place", "queue", "small"]

# No test asserts how long something took, and some share a directory among their examples.
settings.register_profile("ours", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("ours")

TESTS = Path(__file__).parent
MARKERS = {
    "processes": "processes",
    "mpi": "mpi",
    "browser": "browser",
    "slurm": "slurm",
    "frameworks/torch": "torch",
    "frameworks/deepspeed": "deepspeed",
    "frameworks/tensorflow": "tensorflow",
    "frameworks/horovod": "horovod",
    "frameworks": "frameworks",
    "campaigns": "campaign",
    "long": "long",
    "containers": "containers",
}
# The files that take minutes, the slowest first: files that run side by side shall end together.
SLOW = (
    *("campaigns/test_faults.py", "frameworks/test_published_sweeps.py"),
    *("campaigns/test_attacks.py", "frameworks/test_checkpoints.py"),
    *("frameworks/horovod/test_horovod.py", "frameworks/tensorflow/test_models_tensorflow.py"),
    *("frameworks/tensorflow/test_tensorflow.py", "frameworks/deepspeed/test_deepspeed.py"),
    # xdist binds the next file to the worker of one that has two tests or less: a short one.
    *(
        "frameworks/test_all_frameworks.py",
        "campaigns/test_fuzz.py",
        "campaigns/test_interrupts.py",
    ),
    *("mpi/test_local_engine.py", "slurm/test_resume.py", "mpi/test_local_programs.py"),
    *("slurm/test_unusual_sites.py", "slurm/test_slow_node.py", "slurm/test_slurm_sweeps.py"),
    *("slurm/test_slurm_programs.py", "frameworks/torch/test_fsdp.py"),
    *("slurm/test_earlier_sweeps.py", "frameworks/torch/test_gpt2.py"),
    *("frameworks/torch/test_llama3.py", "frameworks/torch/test_adding_pages.py"),
    *("slurm/test_first_day.py", "slurm/test_doctor.py", "mpi/test_largest_batch.py"),
    *("frameworks/torch/test_first_commands.py", "frameworks/torch/test_timed_programs.py"),
    *("slurm/test_growing_sweeps.py", "frameworks/torch/test_placement.py"),
    *("frameworks/torch/test_nanogpt_program.py", "slurm/test_largest_on_slurm.py"),
)
FRAMEWORKS = {"torch", "tensorflow", "deepspeed", "horovod"}
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
started: list[str] = []  # audit events by which this process has started others


def note_start(event: str, _: object) -> None:
    """An audit hook: remembers that a process was started."""
    if event in STARTS:
        started.append(event)


platform.processor()  # h5py asks for it; the first call starts a process, its answer is kept
sys.addaudithook(note_start)
# What a shell starts in the background ignores Ctrl-C, as do its children: but not the tests of it.
signal.signal(signal.SIGINT, signal.default_int_handler)


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


def begins(item: pytest.Item) -> int:
    """Where a test's file stands among those that are slow; behind them if it is none."""
    name = item.path.relative_to(TESTS).as_posix() if TESTS in item.path.parents else ""
    return SLOW.index(name) if name in SLOW else len(SLOW)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first; the others, and the tests of a file, as they stand."""
    items.sort(key=begins)


def needs_the_package_alone(path: Path) -> bool:
    """The file's tests may load no framework."""
    return any(TESTS / folder in path.parents for folder in ("unit", "processes"))


def loaded() -> set[str]:
    """The frameworks that this process has imported so far."""
    return FRAMEWORKS & sys.modules.keys()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that needs the package alone fails as it is collected if it loads a framework."""
    before = loaded()
    report = yield
    new = loaded() - before
    if new and isinstance(collector, pytest.Module) and needs_the_package_alone(collector.path):
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} loads {', '.join(new)}: move it to tests/frameworks"
    return report


@pytest.fixture(autouse=True)
def a_test_does_what_its_folder_says(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that needs the package alone fails if it loads a framework, wherever the import
    stands, and a unit test without the marker of tests/processes if it starts a process."""
    before = loaded()
    started.clear()
    yield
    new = loaded() - before
    if new and needs_the_package_alone(request.path):
        pytest.fail(f"the test loaded {', '.join(new)}: move it to tests/frameworks")
    marked = request.node.get_closest_marker("processes")
    if started and not marked and TESTS / "unit" in request.path.parents:
        pytest.fail(
            f"the test started a process ({started[0]}): mark it, or move it to tests/processes"
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which Pythons the wheel was tried with: those that this machine has."""
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    found = {m[1] for name in passed if (m := re.search(r"_other_pythons.*\[3\.(\d+)\]", name))}
    if found:
        others = ", ".join(f"3.{minor}" for minor in sorted(map(int, found)) if minor >= 9)
        here = "{}.{}".format(*sys.version_info[:2])
        terminalreporter.write_line(f"tests run by Python {here}; other Pythons tried: {others}")
