"""Settings from a log's head, held back until a figure shows whose log it is.

``Batch size: 96`` is anybody's line; only in front of ``Iter #0: 11.5 img/sec per GPU`` is it a
fact of that benchmark.
"""

from __future__ import annotations

from typing import Any

from dlperf_hpc.logs.format import Draft, Line

_MOST = 100


def hold(line: Line, draft: Draft, name: str, value: Any) -> None:
    """Keep a fact for :func:`tell`; of very many the first hundred."""
    held = draft.state.setdefault("held", [])
    if len(held) < _MOST:
        held.append((line._replace(text=""), name, value))


def tell(draft: Draft) -> None:
    """The log is of this format: what was held is so."""
    for line, name, value in draft.state.pop("held", ()):
        draft.fact(line, name, value)
