"""What several formats do with a figure or an iteration number before they tell the draft."""

from __future__ import annotations

import bisect
import re

from dlperf_hpc.logs.format import MAX_STEPS, Draft, Line

_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]*)?")
_MOST_DIGITS = 18  # what Draft takes for an iteration


def cut_short(value: str, decimals: int) -> bool:
    """True for a plain number with fewer decimals than its program always prints.

    Such a number is the beginning of another: its line was cut.
    """
    return bool(_PLAIN.fullmatch(value)) and len(value.partition(".")[2]) < decimals


def one_more(digits: str) -> int | str:
    """The iterations done, of an index from 0; text that is too long is left for Draft to note."""
    return int(digits) + 1 if len(digits) <= _MOST_DIGITS else digits


def later_epoch(draft: Draft, line: Line, epoch: str) -> bool:
    """Whether a line is of another epoch than the first that is printed: for programs whose count
    and whose means begin anew with each. It is noted once, and not to be read: another epoch is no
    other run, and a mean over two of them is in no line."""
    first = draft.state.setdefault("epoch", epoch)
    if epoch != first and "epochs" not in draft.state:
        draft.state["epochs"] = True
        draft.note(line, "count and mean begin anew with each epoch: only the first was read")
    return bool(epoch != first)


def over_epochs(draft: Draft, line: Line, epoch: int, done: int) -> int:
    """Iterations done since the file began, of a number that begins anew with each epoch.

    ``draft.state["epoch_length"]`` is what the log says an epoch has. If it does not say, an epoch
    is taken to have as many iterations as were printed of it, which is less than the truth where
    the last ones were not printed: the numbers increase, and a note says so.
    """
    length = draft.state.get("epoch_length")
    if length:
        return int(epoch * length + done)
    epochs: list[int] = draft.state.setdefault("epochs", [])
    before: dict[int, int] = draft.state.setdefault("before_epoch", {})
    most: dict[int, int] = draft.state.setdefault("most_of_epoch", {})
    if epoch not in before:
        if len(draft.steps) >= MAX_STEPS:
            return done
        place = bisect.bisect(epochs, epoch)
        before[epoch] = before[epochs[place - 1]] + most[epochs[place - 1]] if place else 0
        epochs.insert(place, epoch)
        if len(epochs) == 2:
            draft.note(
                line,
                "an epoch's number of iterations is taken from the last one printed of it:"
                " the log does not say it",
            )
    most[epoch] = max(most.get(epoch, 0), done)
    return before[epoch] + done
