"""A TOML file into tables, within bounds; and what is meant by a text that is no TOML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomllib

from dlperf_hpc.errors import Issue, SpecError, nearest
from dlperf_hpc.files import read_regular

# docs/sweep-file.md tells these bounds. All that follows is bounded by them, in time and in memory.
MOST_BYTES = 1 << 20
MOST_VALUES = 20_000
MOST_LEVELS = 16
MOST_IN_A_KEY = 200

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
# The time that tomllib takes for a key grows with the square of the number of its parts. As many
# as 100 parts with dots between them are in no text and in no comment either.
_LONG_KEY = re.compile(rf"(?<![\w.-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{99}}", re.ASCII)


class _TooMuch(ValueError):
    """TOML that is valid, but more than is read."""


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and its tables; SpecError with the line for a syntax error. SpecError also
    for what is no regular file, and for one with more of anything than the bounds above allow."""
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        missing = Issue("file", "there is no such file", _beside(path))
        raise SpecError(str(path), [missing]) from None
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise SpecError(str(path), [Issue("file", why)]) from error
    except UnicodeDecodeError as error:
        form = f"not UTF-8 at byte {error.start + 1}"
        if error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
            form = "in UTF-16"
        why = f"cannot be read: the text is {form}"
        raise SpecError(str(path), [Issue("file", why, "save it as UTF-8")]) from error
    try:
        return text, parse_toml(text)
    except _TooMuch as error:
        raise SpecError(str(path), [Issue("file", str(error))]) from error
    except ValueError as error:
        issue = Issue("TOML syntax", _placed(str(error)), hint(text, str(error)))
        raise SpecError(str(path), [issue]) from error


def _beside(path: Path) -> str | None:
    """The file beside a missing one whose name is most like it."""
    try:
        names = [each.name for each in path.parent.iterdir() if each.suffix == path.suffix]
    except OSError:
        return f"the directory {path.parent} cannot be read, or is not there"
    return nearest(path.name, names)


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as tables; ValueError for what is none, or has more of anything than is allowed."""
    long_key = _LONG_KEY.search(text)
    if long_key is not None:
        line = text.count("\n", 0, long_key.start()) + 1
        raise _TooMuch(f"line {line}: a key has more than {MOST_LEVELS} parts")
    try:
        tables = tomllib.loads(text)  # ValueError also for numbers too long for Python
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    _check_size(tables)
    return tables


def _check_size(tables: Mapping[str, Any]) -> None:
    """_TooMuch for more values, levels or digits than are read."""
    count = 0
    left: list[tuple[str, int, Iterator[Any]]] = [("", 0, iter(tables.items()))]
    while left:
        where, level, items = left.pop()
        for key, value in items:
            count += 1
            if count > MOST_VALUES:
                place = _short(_place(where, key))
                raise _TooMuch(f"{place}: the file has more than {MOST_VALUES} values")
            if wrong := _too_large(key, value, level):
                raise _TooMuch(f"{_short(_place(where, key))}: {wrong}")
            if isinstance(value, (dict, list)):
                inner = value.items() if isinstance(value, dict) else enumerate(value)
                left.append((_place(where, key), level + 1, iter(inner)))


def _place(where: str, key: str | int) -> str:
    return f"{where}.{key}" if isinstance(key, str) else f"{where}[{key}]"


def _too_large(key: str | int, value: Any, level: int) -> str:
    """Why a value at this depth is more than is read; '' if it is not."""
    if isinstance(key, str) and len(key) > MOST_IN_A_KEY:
        return f"a key has more than {MOST_IN_A_KEY} characters"
    if isinstance(value, (dict, list)) and level == MOST_LEVELS:
        return f"is nested more than {MOST_LEVELS} deep"
    if isinstance(value, int) and value.bit_length() > 63:
        return "has more than the 64 bits of a TOML number"
    return ""


def _short(place: str) -> str:
    place = place[1:]  # less the dot before its first key
    return place if len(place) <= 80 else f"{place[:60]}..."


# What is meant by text that is no TOML. tomllib says where it stopped, in words for those who know
# the grammar. Most files that it refuses are YAML or JSON, or TOML with the habits of Python.
_LINE = r"\(at line (\d+), column \d+\)"
_YAML = r"---\s*$|\s*- |\s*[\w.\"'-]+:(\s|$)"
_BARE = r"""\s*(?P<key>[\w."'-]+)\s*=\s*\[?\s*(?P<word>[A-Za-z_~][\w./~-]*)\s*(?:[],#].*)?$"""
_CURLY = "[\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb]"
_WORDS = dict(true="true", yes="true", on="true", false="false", no="false", off="false")
_NOTHING = ("none", "null", "nil", "~")
_QUOTED = 40  # characters of a line that a message repeats
_FORM = 'write TOML: a key as `key = "value"`, a table as `[case]`'
_MEANT = {
    "Cannot overwrite": "the key of this line is there twice: keep one of the two: {line}",
    "Cannot declare": "the table is there twice: put all its keys below one {line}",
    "Unclosed array": "write ] at the end of the list that begins with [",
    "Unterminated string": "write a quote at the end of the text too: {line}",
    "Illegal character '\\n'": "write a quote at the end of the text too: {line}",
    "Unescaped": "write single quotes around a text with a backslash: {line}",
}
"""What to write, by a part of tomllib's complaint."""


def _placed(complaint: str) -> str:
    """tomllib's complaint with its place first: ``line 6, column 13: invalid value``."""
    words, _, place = complaint.partition(" (at ")
    return f"{place.rstrip(')')}: {words[:1].lower()}{words[1:]}" if place else complaint


def hint(text: str, complaint: str) -> str:
    """What to write, by the line at which tomllib stopped; it is quoted where nothing is known."""
    lines = text.splitlines()
    match = re.search(_LINE, complaint)
    line = "".join(lines[int(match[1]) - 1 : int(match[1])]) if match else ""
    if text.lstrip()[:1] == "{":
        return f"the file looks like JSON; {_FORM}"
    if _looks_like_yaml(lines) and not complaint.startswith("Cannot"):
        return f"the file looks like YAML; {_FORM}"
    quoted = line.strip()
    if len(quoted) > _QUOTED:
        quoted = f"{quoted[:_QUOTED]}..."
    return _by_line(line, complaint, quoted)


def _by_line(line: str, complaint: str, quoted: str) -> str:
    for part, meant in _MEANT.items():
        if part in complaint:
            return meant.format(line=quoted)
    if re.search(_CURLY, line):
        return f"write straight quotes, \" or ': {quoted}"
    bare = re.match(_BARE, line)
    if bare is not None:
        return _bare_word(line, bare["key"], bare["word"])
    return f"the line is: {quoted}" if quoted else "the file ends too early"


def _looks_like_yaml(lines: list[str]) -> bool:
    written = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    yaml = sum(re.match(_YAML, line) is not None for line in written)
    return yaml > sum("=" in line or line.lstrip().startswith("[") for line in written)


def _bare_word(line: str, key: str, word: str) -> str:
    if word.lower() in _NOTHING:
        return f"TOML has no {word}: leave the line out, and {key} has its default"
    meant = _WORDS.get(word.lower(), f'"{word}"')
    if "[" in line:
        return f"write {meant} in the list of {key}"
    return f"write {key} = {meant}"
