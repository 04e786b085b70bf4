"""The table at the end of NVIDIA's MXNet ``benchmark.py``: what published figures are taken from.

::

    train.ips
               |    128    |
    ------------------------
         8     |   2957.8  |

A row is a number of GPUs, a column a batch size per GPU; a cell is the harmonic mean of the
epochs' images/s after ``--warmup`` epochs, over all GPUs, with five digits.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Line

NEEDLE = " |   "
"""In the row of batch sizes, and in each row with a figure below 100,000."""

_ROW = re.compile(r" *(?P<gpus>[0-9]{1,5}) *\|(?P<cells>(?: *[-+.0-9a-z]{1,15} *\|){1,32})\s*")
_HEAD = re.compile(r" *\|(?P<cells>(?: *[0-9]{1,7} *\|){1,32})\s*")


def table_line(line: Line, draft: Draft, metric: str) -> bool:
    """True if the line belongs to the table whose head is ``metric`` alone on its line."""
    if line.text.strip() == metric:
        draft.state["table"] = (line.number, ())
        return True
    if "|" not in line.text or "table" not in draft.state:
        return False
    top, sizes = draft.state["table"]
    head = _HEAD.fullmatch(line.text)
    if head is not None:
        # The next table (val.ips) has a head too, but not below our metric's name.
        if line.number == top + 1:
            draft.state["table"] = (top, tuple(_cells(head["cells"])))
        else:
            del draft.state["table"]
        return True
    row = _ROW.fullmatch(line.text)
    if row is None or not sizes:
        return False
    _row(line, draft, row["gpus"], sizes, _cells(row["cells"]))
    return True


def _row(line: Line, draft: Draft, gpus: str, sizes: tuple[str, ...], cells: list[str]) -> None:
    if len(cells) != len(sizes):
        draft.note(line, f"a row of {len(cells)} cells below {len(sizes)} batch sizes")
        return
    for size, cell in zip(sizes, cells):
        draft.total(line, "table" if len(sizes) == 1 else f"table, batch size {size}", cell)
    if len(sizes) == 1:
        draft.fact(line, "devices", gpus)
        draft.fact(line, "batch_size", sizes[0])


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.split("|")[:-1]]
