"""A real Slurm on this machine for tests: four nodes, eight pretend GPUs each, gone at the end.

`conftest.py` imports the fixtures: `onebox` with `place` and `queue`, and `small` and `accounting`,
which have the habits of unusual sites. `Onebox` serves tests that need a cluster of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from places import BUSY, ROOT
from queueing import Queue
from sweeping import Workplace

ONEBOX = ROOT / "slurm" / "onebox"
# Ended jobs are forgotten soon, so that nobody has to wait for that.
_FORGETS = ("--nodes", "2", "--conf", "MinJobAge=2")
Done = subprocess.CompletedProcess[str]


class Onebox:
    """A one-machine Slurm, and the environment in which Slurm's commands talk to it."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.dir = directory
        # The owner: should the tests be killed with SIGKILL, the cluster goes all the same.
        argv = ["up", str(directory), "--json", "--owner", str(os.getpid()), *options]
        done = call(argv, timeout=60 * BUSY)
        # Not a skip where Slurm is absent: its message says what to install.
        assert done.returncode == 0, done.stderr
        self.facts: dict[str, Any] = json.loads(done.stdout)
        self.env = sourced(directory / "env.sh")

    def run(self, argv: Sequence[str], **kw: Any) -> Done:
        """Run a command in the cluster's environment; keywords as for subprocess.run."""
        return captured(argv, {"env": self.env} | kw)

    def node(self, action: str, name: str) -> None:
        """`kill` a node as a power cut would, or `start` it again."""
        done = call(["node", str(self.dir), action, name])
        assert done.returncode == 0, done.stderr

    def down(self) -> None:
        done = call(["down", str(self.dir)])
        assert done.returncode == 0, done.stderr


def call(argv: Sequence[str], **kw: Any) -> Done:
    """Run `onebox` itself."""
    return captured([sys.executable, str(ONEBOX), *argv], kw)


def captured(argv: Sequence[str], options: dict[str, Any]) -> Done:
    """subprocess.run with what nearly every test wants; the caller looks at the return code."""
    usual: dict[str, Any] = {"text": True, "capture_output": True, "timeout": 60 * BUSY}
    done: Done = subprocess.run(argv, **(usual | options))
    return done


def sourced(script: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment that a shell has after sourcing a script."""
    argv = ["sh", "-c", '. "$1"; env -0', "sh", str(script)]
    done = subprocess.run(argv, env=base, text=True, capture_output=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)


@pytest.fixture(scope="session")
def onebox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onebox]:
    """One cluster without accounting for the whole session."""
    cluster = Onebox(short_directory(tmp_path_factory.mktemp("onebox")))
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onebox]:
    """Arrays of five tasks, twelve jobs, GPUs by their type alone, no accounting."""
    directory = short_directory(tmp_path_factory.mktemp("small"))
    cluster = Onebox(directory, "--like", "small-limits", *_FORGETS)
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def accounting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onebox]:
    """slurmdbd, a QOS of three jobs, preemption, whole nodes, a plug-in that refuses."""
    directory = short_directory(tmp_path_factory.mktemp("accounting"))
    cluster = Onebox(directory, "--like", "accounting", *_FORGETS)
    yield cluster
    cluster.down()


@pytest.fixture
def place(tmp_path: Path, onebox: Onebox) -> Iterator[Workplace]:
    """A directory of its own, in which verbs talk to the session's cluster. What waits or runs
    there after the test is cancelled, as a test that failed may leave it to the next one."""
    yield Workplace(tmp_path, onebox.env)
    onebox.run(["scancel", "--me"])


@pytest.fixture
def queue(onebox: Onebox) -> Queue:
    """The queue of the session's cluster."""
    return Queue(onebox.env)


def short_directory(wish: Path) -> Path:
    """The wish, or a directory whose name leaves room for the names of sockets in it."""
    return wish if len(str(wish)) <= 60 else Path(tempfile.mkdtemp(prefix="onebox-", dir="/tmp"))
