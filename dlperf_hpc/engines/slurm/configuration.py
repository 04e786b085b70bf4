"""How a site has set up its Slurm, as ``scontrol`` and ``sacctmgr`` tell it.

Some sites forbid the one or the other, and some have no accounting: that is no error, what they
would have told is not known then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlperf_hpc.engines.command import run
from dlperf_hpc.errors import SiteError

_PATIENCE_S = 20.0


def settings() -> dict[str, str]:
    """``scontrol show config`` as keys and values; empty where it is not known."""
    rows = (line.partition("=") for line in _printed("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, equals, value in rows if equals}


def partition_qos(partition: str) -> str | None:
    """The quality of service that a partition brings with it, '' for none; None where it is not
    known."""
    found = re.search(r"\bQoS=(\S+)", _printed("scontrol", "show", "partition", partition))
    return found and found[1].replace("N/A", "")


def accounting_rows(what: Sequence[str], columns: Sequence[str]) -> list[list[str]]:
    """The rows of ``sacctmgr show <what>`` with these columns; none where they are not known."""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={','.join(columns)}"]
    rows = [line.split("|") for line in _printed(*argv).splitlines()]
    return [row for row in rows if len(row) == len(columns)]


def _printed(*argv: str) -> str:
    """What a command prints; nothing if it is absent, forbidden or silent."""
    try:
        done = run(argv, timeout_s=_PATIENCE_S)
    except SiteError:
        return ""
    return done.stdout if done.code == 0 else ""
