"""Tables of docs/sweep-file.md that are made from the declarations of back ends and models.

``python -m dlperf_hpc.train.reference docs/sweep-file.md`` writes them into the page, each between
its two marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dlperf_hpc.sweepfile.declarations import Option, Registry
from dlperf_hpc.train.registry import registry

_END = "<!-- end -->"


def tables(known: Registry) -> dict[str, str]:
    """Markdown of each table, by the name in its mark."""
    return {
        "options": _table("key | of | default | meaning", _option_rows(known)),
        "frameworks": _table(
            "framework | what it is | precisions | optimizers",
            (
                f"`{name}` | {_line(each.doc)} | {', '.join(each.precisions)}"
                f" | {', '.join(each.optimizers)}"
                for name, each in known.backends.items()
            ),
        ),
        "models": _table(
            "model | what it is | tokens: default, at most",
            (
                f"`{name}` | {_line(each.doc)} | {each.default_seq_len}, {each.max_seq_len}"
                for name, each in known.workloads.items()
            ),
        ),
    }


def _table(head: str, rows: Iterable[str]) -> str:
    rule = " | ".join("-" for _ in head.split(" | "))
    return "".join(f"| {row} |\n" for row in (head, rule, *rows))


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).rstrip(".")


def _option_rows(known: Registry) -> Iterable[str]:
    owners: dict[tuple[str, str, str], list[str]] = {}
    declared: Mapping[str, Sequence[Option]] = {
        **{name: each.options for name, each in known.backends.items()},
        **{name: each.options for name, each in known.workloads.items()},
    }
    for name, options in declared.items():
        for option in options:
            key = (option.name, json.dumps(option.default), _line(option.doc))
            owners.setdefault(key, []).append(name)
    for (option_name, default, doc), names in owners.items():
        of = ", ".join(f"`{name}`" for name in _families(names, list(declared)))
        yield f"`{option_name}` | {of} | `{default}` | {doc}"


def _families(names: Sequence[str], every: Sequence[str]) -> list[str]:
    """``bert-*`` in place of all names that begin so, where there are several."""
    found: dict[str, None] = {}
    for name in names:
        family = name.rpartition("-")[0]
        members = [each for each in every if family and each.startswith(f"{family}-")]
        whole = len(members) > 1 and set(members) <= set(names)
        found[f"{family}-*" if whole else name] = None
    return list(found)


def with_tables(page: str, known: Registry) -> str:
    """The page with its tables made anew. ValueError if it lacks the marks of one."""
    for name, table in tables(known).items():
        mark = f"<!-- {name}: python -m dlperf_hpc.train.reference docs/sweep-file.md -->\n"
        before, found, rest = page.partition(mark)
        if not found or _END not in rest:
            raise ValueError(f"the page has no {mark.strip()} with {_END} behind it")
        page = before + mark + table + rest[rest.index(_END) :]
    return page


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8"), registry()), encoding="utf-8")
