"""What most tests of this folder begin with: a directory and a queue of the session's cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures_slurm import Onebox
from queueing import Queue
from sweeping import Workplace


@pytest.fixture
def place(tmp_path: Path, onebox: Onebox) -> Workplace:
    """A directory of its own, in which verbs talk to the cluster."""
    return Workplace(tmp_path, onebox.env)


@pytest.fixture
def queue(onebox: Onebox) -> Queue:
    """The cluster's queue."""
    return Queue(onebox.env)
