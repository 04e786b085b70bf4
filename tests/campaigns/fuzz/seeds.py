"""What fuzzing starts from: the made logs, whole and in little, real ones if there are any, and
the words that formats and launchers look for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

from damage import ODD_NUMBERS, tagged
from external_corpus import corpus, log, names

from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.scan.sources import Source, blocks, find
from dlperf_hpc.records.failures import Where, patterns

LONGEST = 1 << 12
_DIGITS = re.compile(rb"[0-9]+")


def seeds(real: Path | None) -> Iterator[bytes]:
    """Small inputs first."""
    contents = [made.text.encode() for made in corpus()]
    for source in find([real]) if real else ():
        if isinstance(source, Source):
            contents.append(b"".join(blocks(source)))
    for content in contents:
        yield _kinds(content, 1)
        yield _kinds(content, 3)
        yield _kinds(content, 8)
    for name in names():
        yield log(name, last=12).text.encode()[:LONGEST]
        texts = [log(name, slow).text[:1000] for slow in (1.0, 1.25)]
        yield tagged([text[: text.rindex("\n") + 1] for text in texts], Random(1), chunked=True)
    yield from (content[:LONGEST] for content in contents)


def _kinds(content: bytes, times: int) -> bytes:
    """Of lines that differ in digits only, the first ones."""
    seen: dict[bytes, int] = {}
    kept = []
    for line in content.splitlines(keepends=True):
        kind = _DIGITS.sub(b"0", line)[:80]
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= times and len(line) < 2000:
            kept.append(line)
    return b"".join(kept)[:LONGEST]


def dictionary() -> str:
    """In libFuzzer's form."""
    failing = [text for row in patterns(Where.LOG) for text in row.literals]
    known = [literal for each in formats() for literal in (*each.literals, *each.facts_literals)]
    marks = ["[1,0]<stdout>:", "[1,1]<stderr>: ", "[0]<stdout>:", "vs001: ", " 0: ", "[rank0]: "]
    stamps = ["2021-12-31 23:59:59,123", "I1231 23:59:59.123456 1 a.py:1] ", "DLL ", " - "]
    odd = [
        "\r",
        "\n",
        "\0",
        "\x1b[0m",
        "\ufffd",
        "Sun May 29 09:48:38 2022",
        " | ",
        ": ",
        "=",
        ", ",
    ]
    words = [word.encode() for word in (*known, *failing, *marks, *stamps, *odd)]
    numbers = [number for number in ODD_NUMBERS if 0 < len(number) < 40]
    unique = dict.fromkeys((*words, *numbers))
    return "".join(f'"{_escaped(word)}"\n' for word in unique)


def _escaped(word: bytes) -> str:
    plain = (32 <= code < 127 and code not in b'"\\' for code in word)
    return "".join(chr(c) if is_plain else f"\\x{c:02x}" for c, is_plain in zip(word, plain))
