"""The rooms' table of docs/design.md holds: no module imports what its room may not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

PACKAGE = ROOT / "dlperf_hpc"
_CELL = re.compile(r"`([\w.]+)`")


def allowed() -> dict[str, set[str]]:
    """What each room may import, by the table."""
    section = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Rooms\n")[2]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return {room: {room, *_CELL.findall(row[3])} for row in rows for room in _CELL.findall(row[1])}


def module(path: Path) -> str:
    """``train.window`` of a file; "" of the package's own ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in PACKAGE.rglob("*.py")}


def imported(path: Path) -> Iterator[str]:
    """The modules of this package that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dlperf_hpc"):
            base = (node.module or "").partition(".")[2]
            for alias in node.names:
                name = f"{base}.{alias.name}".strip(".")
                yield name if name in MODULES else base
        elif isinstance(node, ast.Import):
            yield from (a.name.partition(".")[2] for a in node.names if "dlperf_hpc" in a.name)


def test_every_room_is_in_the_table_and_every_row_is_a_room() -> None:
    rooms = {name.partition(".")[0] or "__init__" for name in MODULES}
    assert allowed().keys() == rooms


@pytest.mark.parametrize("room", sorted(allowed()))
def test_imports_follow_the_table(room: str) -> None:
    may = allowed()[room]
    for name in MODULES:
        if (name.partition(".")[0] or "__init__") == room:
            for other in imported(MODULES[name]):
                within = {other.rsplit(".", n)[0] for n in range(other.count(".") + 1)}
                assert not other or within & may, f"{name} imports {other}"


def test_the_package_has_few_files_at_its_top() -> None:
    assert len([path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]) <= 7
