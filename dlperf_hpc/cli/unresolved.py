"""What ``sweep`` and ``rerun`` say of a sweep that is there already: what they would add to it, and
which runs they leave alone although these ended badly.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli.messages import shortest
from dlperf_hpc.errors import LedgerError, printable
from dlperf_hpc.model.result import Status

if TYPE_CHECKING:
    from dlperf_hpc.model.result import RunResult
    from dlperf_hpc.records.manifest import Manifest

_DONE_TO = (Status.CANCELLED, Status.REJECTED, Status.PREEMPTED)


@dataclass(frozen=True)
class UnresolvedRuns:
    """Runs that ended badly and that a command leaves alone: how many of ``runs``, by status; of
    ``unknown`` ones nobody knows yet how they ended. ``options`` are those with which ``dlperf
    rerun`` selects these ``runs`` among all of the sweep in ``root``."""

    counts: dict[str, int]
    unknown: int
    runs: int
    root: Path
    options: str = ""

    def tell(self, default: Collection[str]) -> None:
        """One line for each command that does something about them; ``default`` are the statuses
        that ``rerun`` takes where none are named."""
        plain = [name for name in self.counts if name in default]
        groups = {"": plain, **{f" --status {n}": [n] for n in self.counts if n not in default}}
        where = shortest(self.root)
        for option, names in groups.items():
            if number := sum(self.counts[name] for name in names):
                them = "them" if number > 1 else "it"
                typed = f"`dlperf rerun {where}{option}{self.options}`"
                of = f"{number} of {self.runs} run{'s' * (self.runs > 1)}"
                _tell(f"{of} {_became(number, names)}: {typed} takes {them}")
        if self.unknown:
            of = f"{self.unknown} of {self.runs} run{'s' * (self.runs > 1)}"
            _tell(f"of {of} the end is not known: `dlperf status {where}` says why, and what to do")


def _tell(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _became(number: int, names: list[str]) -> str:
    if len(names) == 1 and names[0] in {status.value for status in _DONE_TO}:
        return f"{'were' if number > 1 else 'was'} {names[0]}"
    return f"ended as {' or '.join(names)}"


def unresolved(
    results: Iterable[RunResult], root: Path, taken: Collection[str] = (), options: str = ""
) -> UnresolvedRuns:
    """Those of the results that are bad or unknown, and of no status in ``taken``."""
    found = Counter(result.status for result in results)
    left = {status: number for status, number in found.items() if status.value not in taken}
    counts = {status.value: left[status] for status in Status if status.bad and status in left}
    unknown = left.get(Status.UNKNOWN, 0)
    return UnresolvedRuns(counts, unknown, sum(found.values()), root, options)


def unresolved_in_sweep(root: Path, asked: Manifest) -> UnresolvedRuns:
    """Those of the runs asked for that are bad or unknown; asks the scheduler once."""
    from dlperf_hpc.engines.states import current

    wanted = {run.id for run in asked.runs}
    results = current(root).results
    among = [result for result in results if result.run.id in wanted]
    topologies = dict.fromkeys(str(result.run.case.topology) for result in among)
    options = f" --only {','.join(topologies)}" if len(among) < len(results) else ""
    return unresolved(among, root, options=options)


def compared(root: Path, asked: Manifest) -> dict[str, Any] | None:
    """How many runs of a plan the directory has, how many it does not, and what contradicts the
    sweep there; None if there is none, or none that can be read."""
    from dlperf_hpc.records import layout

    if not os.path.exists(root / layout.MANIFEST):  # nor if nobody may look there
        return None
    from dlperf_hpc.engines.plan import differences
    from dlperf_hpc.records.manifest import read_manifest

    try:
        there = read_manifest(root)
    except LedgerError as error:
        _tell(f"note: {error}")
        return None
    known = {run.id for run in there.runs}
    number = sum(run.id in known for run in asked.runs)
    return {
        "there": number,
        "added": len(asked.runs) - number,
        "differences": differences(there, asked),
    }


def compared_text(found: dict[str, Any]) -> str:
    """:func:`compared` in a sentence for people."""
    if found["differences"]:
        listed = "".join(f"\n  {line}" for line in found["differences"][:10])
        return (
            "in that directory there is a sweep from which this one differs, so that without"
            f" --dry-run the command would be refused:{listed}"
        )
    there, added = found["there"], found["added"]
    if not added:
        return f"in that directory there are all of these {there} runs: nothing would be added"
    return (
        f"in that directory there is this sweep, with {there} of these {there + added} runs:"
        f" {added} would be added, as new arrays"
    )
