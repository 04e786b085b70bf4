"""One table, and how it is written: for a terminal, as Markdown, CSV, a dataframe, a JUnit file.

A column says where its value is, what it means and how people read it; the forms of figures for
people stand here too. The page's template writes the cells of a table as HTML.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union

from dlperf_hpc.errors import printable
from dlperf_hpc.model.case import value_at
from dlperf_hpc.model.result import SAMPLES_PER_S

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Group

    from dlperf_hpc.model.case import Topology
    from dlperf_hpc.model.statistics import Interval


Kind = Literal["text", "integer", "number", "boolean"]
Row = TypeVar("Row")

FOLDED = 2
"""The rank from which on the page folds a column away."""
_BETWEEN = 2  # blanks between two columns of a terminal; behind the last one there is one
_NARROWEST = 24  # characters of a column whose text may take several lines
_BAD = "red"
_DIGITS = re.compile(r"([0-9]{1,18})")
_SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")


# --- figures and names as text


def number(value: float | None) -> str:
    """Two digits after the point, none from 100 000 on, four significant ones below 10."""
    if value is None:
        return ""
    if abs(value) >= 100_000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


Form = Callable[[Optional[float]], str]


def _form(text: str, factor: int = 1) -> Form:
    """A figure as text; '' for None."""

    def form(value: float | None) -> str:
        return "" if value is None else text.format(factor * value)

    return form


two_digits = _form("{:.2f}")
"""Two digits after the point, as of a speedup."""
hundredths = _form("{:.1f}", 100)
"""A fraction as per cent with one digit, without the sign."""
percent = _form("{:.1f} %", 100)
"""A fraction as per cent with one digit."""
signed_percent = _form("{:+.1f} %", 100)
"""``+6.1 %``: a fraction as per cent with its sign."""


def interval_text(
    interval: Interval | None, form: Callable[[float], str] = number, to: str = "-"
) -> str:
    """``4873.92-4903.74``; '' for None."""
    return "" if interval is None else f"{form(interval.low)}{to}{form(interval.high)}"


def speed_heading(units: Iterable[str]) -> str:
    """The heading of a column of throughputs: their unit, if they have one in common."""
    found = {*units} or {SAMPLES_PER_S}
    return found.pop() if len(found) == 1 else "throughput"


def natural(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts names with their numbers as numbers: bz2 before bz16, 2n8g before 10n8g."""
    parts = _DIGITS.split(name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]


def by_devices(topology: Topology) -> tuple[int, Topology]:
    """A key that sorts topologies from few devices to many."""
    return topology.devices, topology


def span(times: Sequence[str]) -> str:
    """``2026-11-21 14:53 to 16:10 UTC``: from the first to the last of time stamps in order."""
    if not times:
        return ""
    first, last = (when[:16].replace("T", " ") for when in (times[0], times[-1]))
    if first == last:
        return f"{first} UTC"
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def common_beginning(names: Sequence[str]) -> str:
    """What whole parts of a path all names begin with: ``ddp/bert-base/``; '' for no names."""
    parts = [name.split("/") for name in names] or [[""]]
    shared = 0
    while all(len(each) > shared + 1 and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    return "".join(f"{part}/" for part in parts[0][:shared])


def escape(text: str) -> str:
    """``text`` on one line, shown as it is by a Markdown reader."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def code(text: str) -> str:
    """``text`` as a Markdown code span that is safe in a table cell; '' for ''."""
    # GitHub splits cells before it sees code spans, and in a span no backtick can be escaped
    return text and "`" + printable(text).replace("`", "'").replace("|", "\\|") + "`"


# --- columns and tables


class Cell(NamedTuple):
    """What people see of a value; ``order`` is what the page sorts by, None: by the text; ``hint``
    is shown when a mouse rests on it."""

    text: str
    order: float | None = None
    hint: str = ""


def speed_cell(value: float | None, unit: str, heading: str) -> Cell:
    """A throughput, with its unit where the column's heading does not say it."""
    text = number(value)
    return Cell(f"{text} {unit}" if text and unit != heading else text, value)


Value = Union[str, Callable[[Row], Any]]
"""Where a row has the value of a column: a function, or a path of attributes."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column. ``unit`` is '' for names and counts; ``value`` gives None for an empty cell, and
    a :class:`Cell` where the text for people does not follow from a value. ``form`` makes a text
    for people of a value. A column of ``rank`` 0 is always visible; others are left out where they
    are empty, a narrow terminal drops the highest rank first, and the page folds those of rank
    :data:`FOLDED` away. ``long``: the text may take
    several lines. ``code``: the text is a name from a log. ``style`` is rich's, of a cell with this
    text. For the page, ``quantity`` names what its script writes anew for another base, and a
    column that ``opens`` has a button that opens the run of its row."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    value: Value[Row]
    form: Callable[[Any], str] | None = None
    rank: int = 0
    long: bool = False
    code: bool = False
    style: Callable[[str], str] | None = None
    quantity: str = ""
    opens: bool = False

    @property
    def folded(self) -> bool:
        """Whether the page shows the column on request only."""
        return self.rank >= FOLDED

    @cached_property
    def _value(self) -> Callable[[Row], Any]:
        return value_at(self.value) if isinstance(self.value, str) else self.value

    def cell(self, row: Row) -> Any:
        """The value, printable if text, None instead of '' or of a number that is not finite."""
        value = self._value(row)
        if isinstance(value, str):
            return printable(value) or None
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def view(self, row: Row) -> Cell:
        """The value as people read it."""
        value = self.cell(row)
        if value is None:
            return Cell("")
        if isinstance(value, Cell):
            return value._replace(text=printable(value.text), hint=printable(value.hint))
        if isinstance(value, str):
            return Cell(value)
        form = self.form or (number if self.kind == "number" else str)
        return Cell(form(value), float(value))


def words(title: str, value: Value[Row], **look: Any) -> Column[Row]:
    """A column of texts for people; ``look`` are other fields of :class:`Column`."""
    return Column(title, "text", look.pop("unit", ""), look.pop("meaning", ""), value, **look)


def figures(title: str, value: Value[Row], **look: Any) -> Column[Row]:
    """A column of numbers for people; ``look`` are other fields of :class:`Column`."""
    return replace(words(title, value, **look), kind="number")


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
    the page's runs, in their order."""

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

    @property
    def folds(self) -> bool:
        """Whether the page shows some columns on request only."""
        return any(column.folded for column in self.columns)

    def is_bad(self, place: int) -> bool:
        """Whether what the row at this place tells of does not count."""
        return self.bad is not None and self.bad(self.rows[place])

    def without_empty(self) -> Table[Row]:
        """The table without optional columns in which no row has a text."""
        filled = {place for row in self.cells for place, cell in enumerate(row) if cell.text}
        kept = (n for n, each in enumerate(self.columns) if n in filled or each.rank == 0)
        return self._with([*kept])

    def _with(self, places: Sequence[int]) -> Table[Row]:
        """The table with some of its columns; their cells are not made again."""
        kept = replace(self, columns=[self.columns[place] for place in places])
        vars(kept)["cells"] = [[row[place] for place in places] for row in self.cells]
        return kept

    def dropped(self, kept: Table[Row]) -> list[str]:
        """Headings of the columns that are not among those which were kept."""
        return [column.name for column in self.columns if column not in kept.columns]

    def fitting(self, room: int) -> Table[Row]:
        """The table in ``room`` characters: columns of the highest rank are dropped first."""
        widths = []
        for place, column in enumerate(self.columns):
            longest = max((len(row[place].text) for row in self.cells), default=0)
            width = min(longest, _NARROWEST) if column.long else max(len(column.name), longest)
            widths.append(width + _BETWEEN)
        kept = list(range(len(self.columns)))
        while sum(widths[place] for place in kept) - 1 > room:
            least = max(kept, key=lambda place: self.columns[place].rank)
            if self.columns[least].rank == 0:
                break
            kept.remove(least)
        return self._with(kept)


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
        made.add_column(Text(column.name), justify=side, no_wrap=not column.long, overflow="fold")
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
    quotes = [code if column.code else escape for column in table.columns]
    names = [column.name for column in table.columns]
    lines = [names, ["-" * len(name) for name in names]]
    for cells in table.cells:
        lines.append([quote(cell.text) for quote, cell in zip(quotes, cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
    return "\n\n".join(filter(None, parts)) + "\n"


# --- for programs


def rows(columns: Iterable[Column[Row]], items: Iterable[Row]) -> list[dict[str, Any]]:
    """One dict per item, keys in the order of the columns."""
    columns = tuple(columns)
    return [{column.name: column.cell(item) for column in columns} for item in items]


def ends_json(name: str, interval: Interval | None) -> dict[str, float | None]:
    """The ends of an interval; null for None."""
    ends = ("low", "high")
    return {f"{name}_{end}": getattr(interval, end, None) for end in ends}


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
class JunitCase:
    """One test: ``failure`` is why it failed, ``skipped`` why it says nothing; '' for neither.
    ``output`` stands with it."""

    group: str
    name: str
    failure: str = ""
    skipped: str = ""
    output: str = ""


def junit(suite: str, tests: Sequence[JunitCase]) -> bytes:
    """A JUnit file of the form that Jenkins and GitLab read (``testsuite``, ``testcase``,
    ``failure``, ``skipped``, ``system-out``); no other element is written."""
    from xml.etree.ElementTree import Element, SubElement, indent, tostring

    failures, skipped = sum(bool(t.failure) for t in tests), sum(bool(t.skipped) for t in tests)
    counts = {"tests": len(tests), "failures": failures, "skipped": skipped, "errors": 0}
    texts = {name: str(count) for name, count in counts.items()}
    root = Element("testsuite", {"name": printable(suite), **texts})
    for test in tests:
        group = printable(test.group.replace("/", "."))
        element = SubElement(root, "testcase", classname=group, name=printable(test.name))
        if test.failure:
            SubElement(element, "failure", message=printable(test.failure))
        elif test.skipped:
            SubElement(element, "skipped", message=printable(test.skipped))
        if test.output:
            lines = "\n".join(map(printable, test.output.splitlines()))
            SubElement(element, "system-out").text = lines
    indent(root)
    made: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return made + b"\n"
