"""The page of a newcomer's mistakes: ``python tests/support/mistakes.py`` (or ``make mistakes``).

Types each command of :mod:`mistakes_made` in a fresh directory, in this process, and writes
``docs/mistakes.md``: what was typed, the message, the exit code.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mistakes_made import BY_HAND, DRY, MISTAKES, SWEEP, Mistake
from places import ROOT
from record_samples import a_run, a_sweep, ended_ok

from dlperf_hpc.__main__ import main as dlperf
from dlperf_hpc.engines.site import Site

PAGE = ROOT / "docs" / "mistakes.md"
_HOME = "/home/me"
_WIDTH = 110
BAR = "\\|"  # in a table
_HEAD = f"""\
# A newcomer's mistakes

What is typed wrong in the first days, and what the answer is. `make mistakes` types every command
and writes this page; a test holds the page against the answers. The exit code is 2 (an invalid
request) where nothing else is told, and long lines are wrapped here. Most of the commands read this
sweep file, with the line that is shown in place of its own:

```toml
{SWEEP}```
"""


@dataclass(frozen=True)
class Answer:
    """What came of a mistake: the exit code, and what was printed."""

    mistake: Mistake
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """All that was printed, errors first."""
        return [line.rstrip() for line in (self.err + self.out).splitlines()]


def _fill(place: Path) -> None:
    """What the commands find: a sweep file, sweeps that ran and one that waits, other files."""
    (place / "my.toml").write_text(SWEEP)
    for folder in ("results", "empty"):
        (place / folder).mkdir()
    for name in ("notes.txt", "results/notes.txt"):
        (place / name).write_text("To do: buy milk.\n")
    (place / "core.1234").write_bytes(bytes(range(256)) * 64)
    (place / "logs.tar.gz").write_bytes(b"\x1f\x8b\x08\x00")
    site = Site().to_dict()
    for name, model in (("first", "gpt2-tiny"), ("bert", "bert-base")):
        runs = [a_run("1n1g", repeat, framework="ddp", model=model) for repeat in (1, 2, 3)]
        a_sweep(place / "logs" / name, runs, site=site)
        for run in runs:
            ended_ok(place / "logs" / name, run)
    waiting = a_run("1n1g", framework="ddp", model="gpt2-tiny")
    a_sweep(place / "logs" / "waiting", [waiting], site=site)


def _changed(written: str) -> str:
    """The sweep file with a line of its own replaced, or with lines more at its end."""
    lines, key = SWEEP.splitlines(), written.partition(" ")[0]
    at = [i for i, line in enumerate(lines) if line.partition(" ")[0] == key]
    top = lines.index("[case]")
    if key == "base":
        lines.insert(0, written)
    elif at and (at[0] > top or key != "repeats" or "-" in written):
        lines[at[0]] = written
    else:
        lines.append(written)
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(values)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _answer(mistake: Mistake, place: Path) -> Answer:
    """Type the command in ``place``; paths in the answer are as in a user's home."""
    if mistake.written:
        (place / "my.toml").write_text(_changed(mistake.written))
    for name, text in mistake.files.items():
        (place / name).write_bytes(text.encode() if isinstance(text, str) else text)
    programs = place / "bin"
    programs.mkdir()
    for name, script in mistake.path.items():
        (programs / name).write_text("#!/bin/sh\n" + script)
        (programs / name).chmod(0o755)
    env = {"PATH": str(programs), "HOME": str(place), "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    out, err = io.StringIO(), io.StringIO()
    with (
        _environment(env),
        contextlib.chdir(place),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = dlperf(shlex.split(mistake.typed)[1:])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    return Answer(mistake, code, _at_home(out.getvalue(), place), _at_home(err.getvalue(), place))


def _at_home(text: str, place: Path) -> str:
    known = {str(place): _HOME, sys.executable: f"{_HOME}/venv/bin/python", str(ROOT): "PACKAGE"}
    for path, shown in known.items():
        text = text.replace(path, shown)
    return text


def answers() -> dict[str, list[Answer]]:
    """The answer to each mistake, by chapter; every command begins with the same files."""
    with tempfile.TemporaryDirectory(prefix="dlperf-mistakes-") as temporary:
        first = Path(temporary, "files").resolve()
        first.mkdir()
        _fill(first)
        found: dict[str, list[Answer]] = {}
        for chapter, mistakes in MISTAKES.items():
            for number, mistake in enumerate(mistakes):
                place = first.with_name(f"{len(found)}-{number}")
                shutil.copytree(first, place)
                found.setdefault(chapter, []).append(_answer(mistake, place))
                shutil.rmtree(place)
        return found


def _item(number: int, answer: Answer) -> str:
    """A mistake as an item of a numbered list."""
    mistake = answer.mistake
    wrong = " | ".join(mistake.written.splitlines())
    typed = [f"`{wrong}`"] if wrong else []
    typed += [f"`{mistake.typed}`"] if mistake.typed != DRY else []
    where = f": {', '.join(typed)}" if typed else ""
    code = f" (exit code {answer.code})" if answer.code != 2 else ""
    title = f"{number}. {mistake.what[0].upper()}{mistake.what[1:]}{where}{code}"
    titles = textwrap.wrap(title, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    lines = ["", "```text"]
    for line in answer.lines[slice(*mistake.shown)]:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        wrapper = textwrap.TextWrapper(
            _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += wrapper.wrap(line) or [""]
    return "\n".join([*titles, *(f"    {line}".rstrip() for line in [*lines, "```"])])


def _hint(answer: Answer) -> str:
    """What an answer says to do: of an error its last brackets, where it has them."""
    text = " ".join(map(str.strip, answer.lines[: len(answer.lines) if answer.code else 1]))
    text = re.sub("^error: (my.toml: 1 error )?|; `dlperf[^`]* --help` (shows|lists) .*", "", text)
    return text[text.find(" (") + 2 : -1] if text.endswith(")") else text.partition(" [")[0]


def _table(found: list[Answer]) -> str:
    """Mistakes in short: those with one hint in one row."""
    rows: dict[str, list[str]] = {}
    for answer in found:
        mistake = answer.mistake
        lines = [
            *mistake.written.splitlines(),
            *"".join(map(str, mistake.files.values())).splitlines(),
        ]
        typed = " / ".join(lines) or mistake.typed.removeprefix(DRY).strip()
        rows.setdefault(_hint(answer), []).append(f"`{typed}`".replace("|", BAR))
    body = [f"| {', '.join(typed)} | {hint.replace('|', BAR)} |" for hint, typed in rows.items()]
    return "\n".join(["| typed | what the answer says to do |", "| - | - |", *body]) + "\n"


def page(found: Mapping[str, list[Answer]]) -> str:
    """``docs/mistakes.md``."""
    parts, number = [_HEAD], 0
    for chapter, all_of_it in found.items():
        parts.append(f"## {chapter}\n")
        if chapter == BY_HAND:
            parts.append(_table(all_of_it))
            continue
        for answer in all_of_it:
            number += 1
            parts.append(_item(number, answer) + "\n")
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(answers()), encoding="utf-8")


if __name__ == "__main__":
    main()
