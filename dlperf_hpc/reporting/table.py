"""One table, and how it is written: for a terminal, as Markdown, CSV, a dataframe, a JUnit file.

A column says where its value is, what it means and how people read it. The page's template writes
the cells of a table as HTML.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from dlperf_hpc.errors import printable
from dlperf_hpc.reporting.text import code, escape, number

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Group

Kind = Literal["text", "integer", "number", "boolean"]
Row = TypeVar("Row")
Part = TypeVar("Part")

_BETWEEN = 2  # blanks between two columns of a terminal; behind the last one there is one
_NARROWEST = 24  # characters of a column whose text may take several lines
_BAD = "red"


class Cell(NamedTuple):
    """What people see of a value; ``order`` is what the page sorts by, None: by the text; ``hint``
    is shown when a mouse rests on it."""

    text: str
    order: float | None = None
    hint: str = ""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column. ``unit`` is '' for names and counts; ``value`` gives None for an empty cell, and
    a :class:`Cell` where the text for people does not follow from a value.

    ``form`` makes a text for people of a value. A column of ``rank`` 0 is always shown; others are
    left out where they are empty, and a narrow terminal drops the highest rank first. ``long``:
    the text may take several lines. ``code``: the text is a name from a log. ``style`` is rich's,
    of a cell with this text. For the page, ``quantity`` names what its script writes anew for
    another base, and a column that ``opens`` has a button that opens the run of its row.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    value: Callable[[Row], Any]
    form: Callable[[Any], str] | None = None
    rank: int = 0
    long: bool = False
    code: bool = False
    style: Callable[[str], str] | None = None
    quantity: str = ""
    opens: bool = False

    def cell(self, row: Row) -> Any:
        """The value, printable if text, None instead of '' or of a number that is not finite."""
        value = self.value(row)
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return (printable(value) or None) if isinstance(value, str) else value

    def view(self, row: Row) -> Cell:
        """The value as people read it."""
        value = self.cell(row)
        if value is None:
            return Cell("")
        if isinstance(value, Cell):
            return value._replace(text=printable(value.text), hint=printable(value.hint))
        if isinstance(value, str):
            return Cell(value)
        order = float(value)
        if self.form is not None:
            return Cell(self.form(value), order)
        return Cell(number(value) if self.kind == "number" else str(value), order)


def words(title: str, value: Callable[[Row], Any], **look: Any) -> Column[Row]:
    """A column of texts for people; ``look`` are other fields of :class:`Column`."""
    return Column(title, "text", look.pop("unit", ""), look.pop("meaning", ""), value, **look)


def figures(title: str, value: Callable[[Row], Any], **look: Any) -> Column[Row]:
    """A column of numbers for people; ``look`` are other fields of :class:`Column`."""
    return Column(title, "number", look.pop("unit", ""), look.pop("meaning", ""), value, **look)


PartOf = Callable[[Callable[[Part], Any]], Callable[[Row], Any]]
"""Makes the value of a column of a figure of one part of a row."""


def part(of: Callable[[Row], Part | None]) -> PartOf[Part, Row]:
    """For columns of a part of a row: their cells are empty where the row lacks the part."""

    def figure(value: Callable[[Part], Any]) -> Callable[[Row], Any]:
        def cell(row: Row) -> Any:
            found = of(row)
            return None if found is None else value(found)

        return cell

    return figure


def picked(columns: Iterable[Column[Row]]) -> Callable[..., Column[Row]]:
    """A function that gives one of these columns by its name, changed for people: it is left out
    where it is empty, unless its ``rank`` is given as 0."""
    by_name = {column.name: column for column in columns}

    def pick(column: str, **changes: Any) -> Column[Row]:
        return replace(by_name[column], **{"rank": 1, **changes})

    return pick


@dataclass(frozen=True)
class Table(Generic[Row]):
    """``beneath`` are lines that belong to the table. ``bad``: what a row tells of does not count.

    For the page, ``name`` is the table's in the address and in copies, ``items`` are the numbers of
    the cases (or of what else is filtered) that the rows are about, and the rows of ``runs`` are
    the page's runs, in their order.
    """

    title: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    beneath: Sequence[str] = ()
    bad: Callable[[Row], bool] | None = None
    name: str = ""
    items: Sequence[int] = ()
    runs: bool = False

    @cached_property
    def cells(self) -> Sequence[Sequence[Cell]]:
        """The cells of each row, as people read them."""
        return [[column.view(row) for column in self.columns] for row in self.rows]

    def is_bad(self, place: int) -> bool:
        """Whether what the row at this place tells of does not count."""
        return self.bad is not None and self.bad(self.rows[place])

    def without_empty(self) -> Table[Row]:
        """The table without optional columns in which no row has a text."""
        filled = [any(cell.text for cell in column) for column in zip(*self.cells)]
        some = filled or [False] * len(self.columns)
        kept = [each for each, has in zip(self.columns, some) if has or each.rank == 0]
        return replace(self, columns=kept)

    def dropped(self, kept: Table[Row]) -> list[str]:
        """Headings of the columns that are not among those which were kept."""
        return [column.name for column in self.columns if column not in kept.columns]

    def fitting(self, room: int) -> Table[Row]:
        """The table in ``room`` characters: columns of the highest rank are dropped first."""
        widths: dict[int, int] = {}
        for place, column in enumerate(self.columns):
            longest = max((len(row[place].text) for row in self.cells), default=0)
            if column.long:
                widths[id(column)] = min(longest, _NARROWEST)
            else:
                widths[id(column)] = max(len(column.name), longest)
        kept = list(self.columns)
        while sum(widths[id(column)] + _BETWEEN for column in kept) - 1 > room:
            least = max(kept, key=lambda column: column.rank)
            if least.rank == 0:
                break
            kept.remove(least)
        return replace(self, columns=kept)


# --- for the terminal


def drawn(table: Table[Any], style: str = "dim") -> Group:
    """The table for a terminal with its title, and the lines beneath it in this style of rich's.
    What a log or a scheduler said is shown, never obeyed."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    # Narrow: without edges and frames seven columns fit 80 characters.
    made = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        side: Literal["left", "right"] = "left" if column.kind == "text" else "right"
        made.add_column(column.name, justify=side, no_wrap=not column.long, overflow="fold")
    for place, cells in enumerate(table.cells):
        texts = [Text(cell.text) for cell in cells]
        for column, text in zip(table.columns, texts):
            if column.style is not None:
                text.stylize(column.style(text.plain))
        made.add_row(*texts, style=_BAD if table.is_bad(place) else "")
    lines = [Text(printable(line), style=style) for line in table.beneath]
    return Group(Text(printable(table.title), style="bold"), made, *lines)


def print_tables(tables: Iterable[Table[Any]], lines: Iterable[str], style: str = "dim") -> None:
    """Print tables with the lines beneath them, a blank line behind each, then other lines."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for table in tables:
        console.print(drawn(table, style))
        console.print()
    for line in lines:
        console.print(Text(printable(line)))


# --- as Markdown


def markdown_table(table: Table[Row]) -> str:
    """The table as GitHub-flavoured Markdown; text from logs is escaped."""
    lines = [
        [column.name for column in table.columns],
        ["-" * len(column.name) for column in table.columns],
    ]
    for cells in table.cells:
        quotes = (code if column.code else escape for column in table.columns)
        lines.append([quote(cell.text) for quote, cell in zip(quotes, cells)])
    return "\n".join(map(markdown_row, lines))


def markdown_row(cells: Iterable[str]) -> str:
    """One line of a table; its texts are Markdown already."""
    return f"| {' | '.join(cells)} |"


def markdown_lines(lines: Iterable[str]) -> str:
    """A list of these lines; text from logs is escaped."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def markdown_tables(
    title: str, tables: Iterable[Table[Any]], lines: Iterable[str], first: Iterable[str] = ()
) -> str:
    """Tables with the lines beneath them, each with a heading; other lines before and behind."""
    parts = [f"# {escape(title)}", markdown_lines(first)]
    for table in tables:
        parts += [f"## {escape(table.title)}", markdown_table(table), markdown_lines(table.beneath)]
    parts.append(markdown_lines(lines))
    return "\n\n".join(part for part in parts if part) + "\n"


# --- for programs


def rows(columns: Iterable[Column[Row]], items: Iterable[Row]) -> list[dict[str, Any]]:
    """One dict per item, keys in the order of the columns."""
    columns = tuple(columns)
    return [{column.name: column.cell(item) for column in columns} for item in items]


# the nullable types: an empty cell among integers must not turn 5 into 5.0, nor false into 0
_DTYPES = {"text": "string", "integer": "Int64", "number": "Float64", "boolean": "boolean"}


def frame(columns: Sequence[Column[Any]], made: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows, as :func:`rows` makes them, as a pandas table with a type for each column."""
    import pandas as pd

    names = [column.name for column in columns]
    # by way of object: from None and 5 pandas would otherwise make 5.0
    table = pd.DataFrame(made, columns=names, dtype=object)
    return table.astype({column.name: _DTYPES[column.kind] for column in columns})


_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _text_in_csv(value: str) -> str:
    """A spreadsheet would compute a log's ``=HYPERLINK(...)``; one that begins with ' is a text."""
    return f"'{value}" if value.startswith(_FORMULA) else value


# An integer among numbers is written as they are: 5 as 5.0.
_IN_CSV: Mapping[str, Callable[[Any], Any]] = {
    "text": _text_in_csv,
    "integer": int,
    "number": float,
    "boolean": {True: "true", False: "false"}.__getitem__,
}


def csv_table(columns: Sequence[Column[Any]], made: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows, as :func:`rows` makes them, as CSV (RFC 4180, ``\\n`` at line ends): full precision,
    empty cells for None, true and false."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    kinds = [(column.name, _IN_CSV[column.kind]) for column in columns]
    for row in made:
        cells = ((kind, row[name]) for name, kind in kinds)
        writer.writerow(["" if cell is None else kind(cell) for kind, cell in cells])
    return stream.getvalue().encode()


# --- for CI servers


@dataclass(frozen=True)
class Entry:
    """One test: ``failure`` is why it failed, ``skipped`` why it says nothing; '' for neither.
    ``output`` is shown with it."""

    group: str
    name: str
    failure: str = ""
    skipped: str = ""
    output: str = ""


def junit(suite: str, tests: Sequence[Entry]) -> bytes:
    """A JUnit file of the form that Jenkins and GitLab read (``testsuite``, ``testcase``,
    ``failure``, ``skipped``, ``system-out``); no other element is written."""
    from xml.etree import ElementTree

    root = ElementTree.Element(
        "testsuite",
        name=printable(suite),
        tests=str(len(tests)),
        failures=str(sum(bool(test.failure) for test in tests)),
        skipped=str(sum(bool(test.skipped) for test in tests)),
        errors="0",
    )
    for test in tests:
        group = printable(test.group.replace("/", "."))
        element = ElementTree.SubElement(
            root, "testcase", classname=group, name=printable(test.name)
        )
        if test.failure:
            ElementTree.SubElement(element, "failure", message=printable(test.failure))
        elif test.skipped:
            ElementTree.SubElement(element, "skipped", message=printable(test.skipped))
        if test.output:
            lines = "\n".join(map(printable, test.output.splitlines()))
            ElementTree.SubElement(element, "system-out").text = lines
    ElementTree.indent(root)
    made: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return made + b"\n"
