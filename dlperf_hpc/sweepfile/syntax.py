"""What is meant by text that is no TOML: the hint beside tomllib's complaint.

tomllib says where it stopped, in words for those who know the grammar. Most files that it refuses
are YAML or JSON, or TOML with the habits of Python. It is loaded only when a file is refused.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_KEY = r"""\s*(?P<key>[\w."'-]+)\s*"""
_YAML = re.compile(r"---\s*$|\s*- |\s*[\w.\"'-]+:(\s|$)")
_BARE = re.compile(rf"{_KEY}=\s*\[?\s*(?P<word>[A-Za-z_~][\w./~-]*)\s*(?:[],#].*)?$")
_CURLY = re.compile("[\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb]")
_WORDS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false"}
_WORDS["off"] = "false"
_NOTHING = ("none", "null", "nil", "~")
_QUOTED = 40  # characters of a line that a message repeats


def told(complaint: str) -> str:
    """tomllib's complaint with its place first: ``line 6, column 13: invalid value``."""
    words, _, place = complaint.partition(" (at ")
    return f"{place.rstrip(')')}: {words[:1].lower()}{words[1:]}" if place else complaint


def hint(text: str, complaint: str) -> str:
    """What to write, by the line at which tomllib stopped; it is quoted where nothing is known."""
    lines = text.splitlines()
    match = _LINE.search(complaint)
    line = lines[int(match[1]) - 1] if match and int(match[1]) <= len(lines) else ""
    if text.lstrip()[:1] == "{":
        return f"the file looks like JSON; {_FORM}"
    if _looks_like_yaml(lines) and not complaint.startswith("Cannot"):
        return f"the file looks like YAML; {_FORM}"
    return _of_line(line, complaint)


_FORM = 'write TOML: a key as `key = "value"`, a table as `[case]`'


def _looks_like_yaml(lines: list[str]) -> bool:
    """More lines of YAML's form than of TOML's, comments apart."""
    told = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    yaml = sum(_YAML.match(line) is not None for line in told)
    return yaml > sum("=" in line or line.lstrip().startswith("[") for line in told)


def _of_line(line: str, complaint: str) -> str:
    shown = line.strip() if len(line.strip()) <= _QUOTED else f"{line.strip()[:_QUOTED]}..."
    bare = _BARE.match(line)
    if "Cannot overwrite" in complaint:
        return f"the key of this line is there twice: keep one of the two: {shown}"
    if "Cannot declare" in complaint:
        return f"the table is there twice: put all its keys below one {shown}"
    if "Unclosed array" in complaint:
        return "write ] at the end of the list that begins with ["
    if "Unterminated string" in complaint or "Illegal character '\\n'" in complaint:
        return f"write a quote at the end of the text too: {shown}"
    if "Unescaped" in complaint:
        return f"write single quotes around a text with a backslash: {shown}"
    if _CURLY.search(line):
        return f"write straight quotes, \" or ': {shown}"
    if bare is None:
        return f"the line is: {shown}" if shown else "the file ends too early"
    key, word = bare["key"], bare["word"]
    if word.lower() in _NOTHING:
        return f"TOML has no {word}: leave the line out, and {key} has its default"
    meant = _WORDS.get(word.lower(), f'"{word}"')
    return f"write {key} = {meant}" if "[" not in line else f"write {meant} in the list of {key}"
