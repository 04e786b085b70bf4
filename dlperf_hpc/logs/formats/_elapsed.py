"""A clock of a program's own, which begins at 0 with each run: modded-nanogpt's, a bar's of tqdm.

What lies between two runs of one file is not known, and does not matter: a window lies in one run.
But a line with an earlier stamp than the one before would be taken for another rank's.
"""

from __future__ import annotations

from dlperf_hpc.logs.format import Draft

_APART_S = 86400.0


def on_one_line(draft: Draft, done: int, seconds: float) -> float:
    """The time of step ``done``, ``seconds`` since its run began, on one time line of the file.

    A run begins where the step is lower than that of the line before; its stamps lie behind those
    of the run before. Call it before the step is added.
    """
    before = draft.steps[-1] if draft.steps else None
    if before and before.stamp is not None and done < before.iteration:
        draft.state["since"] = before.stamp + _APART_S
    return float(draft.state.get("since", 0.0) + seconds)
