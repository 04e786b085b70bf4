"""Files to and from the login node, and between the nodes, through the log directory."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

_PINGS = 3
_SLOW_S = 5.0  # a round trip that took longer is not repeated
_POLL_S = 0.01
_WAIT_S = 120.0  # for the other nodes


def exchange(directory: str, name: str, token: str, patience_s: float) -> dict[str, Any]:
    """What the log directory is like from here, and what this clock is against the other side's.

    The login node's token is read; then files are written for it, each of which it answers with
    its own time. Of each round trip the middle is set against the answer, as NTP does: ``offset_s``
    (this clock ahead) is right within ``within_s``.
    """
    facts: dict[str, Any] = {}
    begin = time.monotonic()
    try:
        found = _awaited(os.path.join(directory, "token"), patience_s)
    except OSError as error:
        return {"unread": error.strerror}
    if found is None or found.strip() != token:
        return {"unread": f"the login node's file does not show within {patience_s:g} s"}
    facts["read_s"] = time.monotonic() - begin
    for number in range(_PINGS):
        sent, since = time.time(), time.monotonic()
        try:
            _write(os.path.join(directory, f"ping-{name}-{number}"), repr(sent))
            answer = _awaited(os.path.join(directory, f"pong-{name}-{number}"), patience_s)
        except OSError as error:
            return {**facts, "unwritten": error.strerror}
        took = time.monotonic() - since
        if answer is None:
            facts.setdefault("unanswered", f"no answer within {patience_s:g} s")
            break
        if took / 2 < facts.get("within_s", float("inf")):
            facts["within_s"] = took / 2
            facts["offset_s"] = sent + took / 2 - float(answer)
        facts.setdefault("round_trip_s", took)
        if took > _SLOW_S:
            break
    return facts


def all_told(directory: str, name: str | None, nodes: int) -> None:
    """Wait for the first rank of each node to have spoken, of which ``name`` is one: a rank that
    dies in MPI takes the others with it, and theirs is what explains it."""
    deadline = time.monotonic() + _WAIT_S
    with contextlib.suppress(OSError):
        if name is not None:
            _write(os.path.join(directory, f"told-{name}"), "")
        while time.monotonic() < deadline:
            names = os.listdir(directory)
            if sum(each.startswith("told-") and each[-1].isdigit() for each in names) >= nodes:
                return
            time.sleep(_POLL_S)


def _write(path: str, text: str) -> None:
    """Whole or not at all; the other side looks at names."""
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def _awaited(path: str, patience_s: float) -> str | None:
    """A file's text once it is there; None if it does not come."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with open(path) as file:
                return file.read()
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return None
        time.sleep(_POLL_S)
