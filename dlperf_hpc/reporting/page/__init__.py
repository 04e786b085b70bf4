"""A page: one HTML file that opens offline, for a report (:mod:`.report_page`) and for a comparison
(:mod:`.comparison_page`).

Two layers. Without scripts there are the tables and figures as SVG; scripts add menus, filters,
hover, sorting and copies. Nothing is fetched: the page's own policy forbids all network. What logs
say is text everywhere: the template escapes it, and the data for scripts travel compressed.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.reporting.table import Table

_HERE = Path(__file__).parent
_LIBRARIES = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


COLOURS = (
    "#3b7dd8", "#d9730d", "#2f9650", "#d6409f", "#8f63d9", "#0f968a",
    "#b8860b", "#e5484d", "#6f8f14", "#2090c0", "#a0693f", "#7a8696",
)  # fmt: skip
"""Twelve, each with a contrast of 3 : 1 or more to white and to the dark page."""


class Mark(NamedTuple):
    """One shape: as a path within -1 to 1, and by matplotlib's name."""

    path: str
    marker: str


MARKS = (
    Mark("M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z", "o"),
    Mark("M-.9,-.9H.9V.9H-.9Z", "s"),
    Mark("M0,-1.15L1.15,0L0,1.15L-1.15,0Z", "D"),
    Mark("M0,-1.1L1.1,.85H-1.1Z", "^"),
    Mark("M0,1.1L1.1,-.85H-1.1Z", "v"),
    Mark("M-.4,-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z", "P"),
    Mark("M-.5,-1.1H.5L1.1,-.5V.5L.5,1.1H-.5L-1.1,.5V-.5Z", "8"),
)


DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (2, 2.5), (8, 3, 2, 3))
"""How lines are broken: lengths drawn and left out in turn, in pixels; none: not at all."""


def colour_of(place: int) -> str:
    """The colour of a series by its place among all."""
    return COLOURS[place % len(COLOURS)]


def mark_of(place: int) -> Mark:
    """Its shape: no two of 84 series have both in common."""
    return MARKS[(place + place // len(COLOURS)) % len(MARKS)]


def dash_of(place: int) -> tuple[float, ...]:
    """How its line is broken: of twelve series no two have colour and line in common."""
    return DASHES[place % len(DASHES)]


@dataclass(frozen=True)
class Section:
    """A part of the page behind the figure: sentences, then a table; ``folded``: on request.
    ``draws``: the scripts draw a figure above the table, by the name of its specification."""

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    table: Table[Any] | None = None
    folded: bool = False
    draws: str = ""


@dataclass(frozen=True)
class Remark:
    """What a reader must know before any figure: a sentence and the cases that it is about. Of a
    flag the sentence says how many cases have it; ``about`` are its own sentences, with cases."""

    sentence: str
    cases: tuple[str, ...] = ()
    flag: str = ""
    meaning: str = ""
    about: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Choice:
    """A menu of the figure: its values with what they are called; ``default`` is the chosen one."""

    name: str
    label: str
    values: Mapping[str, str]
    default: str


@dataclass(frozen=True)
class Series:
    """What the legend shows of a series: ``colour`` and ``path`` are its mark's, ``dash`` is its
    line's."""

    name: str
    colour: str
    path: str
    dash: tuple[float, ...] = ()


@dataclass(frozen=True)
class PageFigure:
    """The one figure. ``still`` is its SVG for readers without scripts, with ``still_caption``;
    ``specs`` are Vega-Lite's, by what they draw; ``folded`` are those of one run that one unfolds:
    name, title, and what a point is. ``empty`` says why there is no figure."""

    title: str
    caption: str
    still: str = ""
    still_caption: str = ""
    specs: Mapping[str, Any] = field(default_factory=dict)
    menus: tuple[Choice, ...] = ()
    series: tuple[Series, ...] = ()
    most_series: int = 12
    folded: tuple[tuple[str, str, str], ...] = ()
    empty: str = ""


@dataclass(frozen=True)
class Page:
    """All that the template shows. ``facts`` stand in the head, ``counts`` are runs by status or
    cases by outcome: (word, count, ``good``, ``bad`` or ''). ``missing`` are sentences.
    ``filters`` are keys of the cases with their values; ``data`` is for the scripts; ``files`` are
    for download, by name."""

    kind: str
    title: str
    subtitle: str
    facts: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int, str], ...]
    remarks: tuple[Remark, ...]
    missing: tuple[str, ...]
    figure: PageFigure
    sections: tuple[Section, ...]
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    how_to_read: tuple[str, ...] = ()


def render(page: Page) -> bytes:
    """The file's content; the same page gives the same bytes. LedgerError without jinja2."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise LedgerError(
            "the page needs jinja2, which is not installed: pip install jinja2, or write the other"
            " files with --write csv,json,md,png"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["grouped"] = grouped
    script, libraries = _text("page.js"), _libraries()
    packed: dict[str, str] = {}
    if page.figure.specs:
        packed["libraries"] = pack(libraries.encode())
    values = {"kind": page.kind, "specs": page.figure.specs, **page.data}
    packed["data"] = pack(json.dumps(values, allow_nan=False, separators=(",", ":")).encode())
    packed |= {f"file-{name}": pack(content) for name, content in page.files.items()}
    made = environment.get_template("page.html.j2").render(
        page=page,
        policy=_policy(script, libraries),
        style=Markup(_text("page.css")),
        script=Markup(script),
        still=Markup(page.figure.still),
        packed=packed,
    )
    return made.encode("utf-8", errors="backslashreplace")


_NARROW = "\N{NARROW NO-BREAK SPACE}"
_DIGITS = re.compile(r"(?<![\d.])[1-9]\d{4,}")


def grouped(text: str) -> str:
    """Figures from 10 000 on with narrow blanks between thousands (SI brochure, 5.4.4)."""
    return _DIGITS.sub(lambda found: f"{int(found[0]):,}".replace(",", _NARROW), text)


def pack(content: bytes) -> str:
    """Compressed, as text that HTML does not take for anything else."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _policy(*scripts: str) -> str:
    """What the page may do: run these scripts, and nothing else of the kind; style itself; show the
    images it holds. No address is ever opened."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _libraries() -> str:
    """The three libraries as one script. Of a source map the address alone would be sought."""
    texts = (_SOURCE_MAP.sub("", _text(f"vendor/{name}")) for name in _LIBRARIES)
    return "".join(f"{text.strip()}\n" for text in texts)
