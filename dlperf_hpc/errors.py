"""Every error that a user can correct, and how other people's words are printed, secrets masked.

DlperfError                      says what is wrong, where, and what to do
├── SpecError                    an invalid sweep file, site profile or command line: all issues
├── SiteError                    a site profile or a command of the site cannot be used
├── LedgerError                  a sweep's directory is missing, read-only, damaged or already used
├── LogError                     a job log or a record cannot be read
├── DataError                    text or training data cannot be used
└── RunError                     a run cannot go on, on its compute node
    ├── AttemptError             another attempt at the run lives
    ├── WorldError               the ranks do not form the topology of the case
    ├── DeviceError              the device is missing, or lacks the precision of the case
    ├── WeightsError             a file of initial weights does not fit the model
    └── MeasurementError         the window has ended, but its figure may not be reported

A verb that receives an error returns its ``exit_code``: 2 for an invalid request, 1 for what went
wrong although the request was valid.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

ABSENT = (FileNotFoundError, NotADirectoryError)  # what a file that is not there raises
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# Logs, records and archives are sent to others. A variable whose name may mean a secret is never
# recorded, at the price of a few settings that hold these letters: FI_OPX_CREDITS,
# MPIR_CVAR_..._BYPASS.
SECRET_NAME = re.compile("(?i)KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH|JWT|COOKIE|PRECONDITION")
MASK = "***"
# What every secret has in or before it: only such lines are looked at. A letter begins nearly each,
# not a set of letters, which takes several times as long.
_SIGN = re.compile(
    r"(?:[pP](?i:ass(?:word|wd|phrase)?|wd)|t(?i:oken)|T(?i:oken)|k(?i:ey)|K(?i:ey)|s(?i:ecret)"
    r"|S(?i:ecret))[\\\"'\s=]|gh[pousr]_|hf_[A-Za-z0-9]{34}|github_pat_|gl[a-z]{2,6}-\w|xox[a-z]-"
    r"|xapp-|nvapi-|wandb_v1_|sk-|A(?:KI|SI)A|eyJ|://[^\s/:@]{0,128}:[^\s/]{1,256}@|hooks\.slack"
    r"|webhook|sig(?:nature)?=|Signature=|earer |uthorization|AUTHORIZATION"
)
_Q = r"""\\{0,3}["']"""
_BODY = r"""(?:(?!(?P=%s))(?:\\.|[^"\\\n]|"(?=[^"'\n]{0,99}')))+"""  # quoted, in JSON too
# The groups with long names are what is redacted, and its kind. Every repetition is bounded, or
# consumes what it has read: linear. ``o``: a command's option; ``q``, ``v``: the quote before the
# name, the value; ``p``: a password, which may be a number. Not masked: numbers, special tokens of
# models, arrays' own tokens, what only refers to a secret ($NAME, {placeholder}, a path, METAVAR).
_SECRET = rf"""(?<![\w.-])(?P<access_token>(?:gh[pousr]_|hf_)[A-Za-z0-9]{{34,}}|github_pat_\w{{22,}}
    |gl[a-z]{{2,6}}-[\w-]{{20,}}|xox[a-z]-[\w-]{{10,}}|xapp-[\w-]{{20,}}|nvapi-[\w-]{{40,}}
    |wandb_v1_\w{{20,}}|A(?:KI|SI)A[A-Z0-9]{{16}}|sk-(?:(?:proj|ant|svcacct)-[\w-]{{20,}}
    |[A-Za-z0-9]{{32,}})|eyJ[\w-]{{10,}}\.[\w-]{{10,}}\.[\w-]{{10,}})
|https://(?:hooks\.slack\.com|(?:[\w-]{{1,63}}\.){{0,3}}webhook\.office\.com|outlook\.office(?:365)?
    \.com/webhook|(?:\w{{1,20}}\.)?discord(?:app)?\.com/api/(?:v\d{{1,3}}/)?webhooks)
    /(?!\*\*\*)(?P<webhook>[^\s"'<>\\]+)
|://[^\s/:@"'\\]{{0,128}}:(?![$*]|\{{\w+\}})(?P<password_in_address>[^\s/"'<>\\\0-\37]{{1,256}})@
|(?:(?<![A-Za-z])(?:sig|[Ss]ignature)|[?&;]key)=(?P<signature>[\w%+/~=-]{{16,}})
|(?:[Bb]earer|(?i:authorization)\W{{1,6}}(?i:basic|token))\s+(?P<authorization>[\w.~+/=-]{{12,}})
|(?<![\w./-])(?P<q>{_Q})?(?P<o>--?(?=\w))?[\w.-]{{0,200}}?(?i:(?P<p>pass(?:word|wd|phrase)|mysql_pwd)
    |(?<=[_-])pass|token|api[-_]?key|secret(?:[-_]?access)?(?:[-_]?key)?
    |(?:access|account|storage)[-_]?key)
    (?:(?:{_Q})?[ \t]{{0,2}}=(?!=)[ \t]{{0,2}}|{_Q}\s{{0,2}}:\s{{0,2}}(?={_Q})
    |(?(o)(?:{_Q}(?:,\s{{0,40}}|[ ])|[ \t]{{1,40}})(?!(?:{_Q})?-|{_Q}[^"'\n]{{0,99}}{_Q}\s?:)|(?!)))
    (?!\s|(?:{_Q})?(?:\$[({{A-Z_]|\{{\w+\}}|\*\*\*|~/|\.\.?/|/[a-z]{{2,12}}/))
    (?(p)|(?!(?:{_Q})?(?:[<\[]|dlperf-[0-9a-f]|(?:[-+]?(?:\d{{1,12}}|\d*\.\d+)(?:e[-+]?\d+)?
        [kMGBTs%]?|None|null|[Tt]rue|[Ff]alse|[A-Z_]{{2,24}})(?![\w.-]))))
    (?P<v>{_Q}(?![\s,:\]}}]))?(?P<value_of_an_option_or_variable>(?(v){_BODY % "v"}
    |(?(q){_BODY % "q"}|(?:[^\s"'\\,;&]|[,;&](?=[^\s"'\\])(?![\w.-]{{0,40}}[=:]))+)))"""
_MOST_RANKS = 8  # that a reason names
_USUAL = 200  # characters of a cell or a name; these are many, and often the same


def secrets_in(text: str) -> Iterator[tuple[int, int, str]]:
    """Where each secret begins and ends, and what kind it is, in words."""
    end = 0
    for sign in _SIGN.finditer(text):
        if sign.end() > end:  # the line, and the next: a list in JSON has an option above its value
            begin = text.rfind("\n", end, sign.start()) + 1 or end
            end = text.find("\n", text.find("\n", sign.end()) + 1)
            end = len(text) if end < sign.end() else end
            for match in re.compile(_SECRET, re.VERBOSE).finditer(text, begin, end):
                kind = str(match.lastgroup)
                yield (*match.span(kind), kind.replace("_", " "))


def redacted(text: str) -> str:
    """The text with ``***`` for every secret in it. All that is written for people passes here."""
    return _redacted(text) if len(text) > _USUAL else _redacted_cell(text)


def _redacted(text: str) -> str:
    pieces, at = [], 0
    for begin, end, _ in secrets_in(text):
        pieces += [text[at:begin], MASK]
        at = end
    return "".join([*pieces, text[at:]])


_redacted_cell = lru_cache(maxsize=4096)(_redacted)


def number_of(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def numbered(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0,1,2 and 5 more``."""
    return f"rank{'s' * (len(ranks) > 1)} {listed(list(map(str, ranks)), _MOST_RANKS, ',')}"


def at_most(lines: Sequence[str], most: int, rest: str = "") -> list[str]:
    """The first lines, then how many more there are, with what is to be said of the ``rest``."""
    left = len(lines) - most
    return [*lines[:most], f"and {left} more{rest}"] if left > 0 else list(lines)


def below(lines: Sequence[object], most: int) -> str:
    """The first lines, indented, for the end of a message; and how many more there are."""
    return "\n  ".join(["", *at_most(list(map(str, lines)), most)])


def visible(text: str) -> str:
    """Other people's words (names, reasons, outputs) for a terminal or a file that people read.
    Colours go. What else a terminal would act upon, or what hides or reorders text, is escaped as
    in Python: control characters but for newlines and tabs, directions of writing, halves of
    surrogate pairs, which stand for bytes that are no UTF-8. Secrets are :func:`redacted`."""
    text = redacted(text)
    if text.isascii() and text.isprintable():  # nearly every name and path
        return text
    return _escaped(_COLOUR.sub("", text.replace("\r\n", "\n")))


def _escaped(text: str) -> str:
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def printable(text: str) -> str:
    """Other people's words on one line, as :func:`visible` shows them: blanks count as one, and
    ``/`` stands between the lines of the text."""
    text = redacted(text)
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    lines = (" ".join(line.split()) for line in _COLOUR.sub("", text).splitlines())
    return _escaped(" / ".join(filter(None, lines)))


def toml_text(value: Any) -> str:
    """A value as a TOML file writes it, shortened where it is long."""
    import json
    import reprlib

    if isinstance(value, (str, int, float)) and len(str(value)) <= 60:
        return json.dumps(value, ensure_ascii=False)
    if hasattr(value, "isoformat"):  # a date or a time
        return str(value)
    return reprlib.repr(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """``did you mean ...`` for a name that is spelt nearly as a known one, else None."""
    import difflib

    bare = {each.lstrip("-"): each for each in known}
    close = difflib.get_close_matches(name[:200].lstrip("-"), bare, n=1, cutoff=0.75)
    return f"did you mean {bare[close[0]]!r}?" if close else None


_PROFILE = "the site profile, the file that --site names"
_KEYS = {
    "slurm": f"{{}} is a key of {_PROFILE}",
    "ranks": f"{{}} is a key of [environment.NAME] in {_PROFILE}",
    "sbatch": f"write sbatch = {{{{ {{}} = ... }}}} in {_PROFILE}",
}
_FORMS = {
    "option": {"set": "write `dlperf sweep FILE --set {}={}`", **_KEYS},
    "key": {"set": "it is called {}, under [case] or [matrix]", **_KEYS},
    "site": {"set": "{} is a key of the sweep file", "sbatch": _KEYS["sbatch"]},
}
"""How a hint is made of a name, by where a word was written and by the section of the name."""


@lru_cache
def meanings() -> dict[str, dict[str, str]]:
    """The tables of ``meant.toml``."""
    from pathlib import Path

    import tomllib

    return tomllib.loads(Path(__file__).with_name("meant.toml").read_text(encoding="utf-8"))


def meant(place: str, word: str) -> str | None:
    """What to write in place of a word that other tools have, by where it was written: a section of
    ``meant.toml``; None for a word that is in none of its tables."""
    bare = word.lstrip("-").replace("_", "-")
    if len(bare) > 1:
        bare = bare.lower()
    for section, form in {place: "{}", **_FORMS.get(place, {})}.items():
        for name, words in meanings().get(section, {}).items():
            if bare in words.split():
                name = {"*": bare}.get(name, name)
                if place == "key" and name in meanings()["place"]:
                    return meanings()["place"][name]
                return form.format(name, meanings()["example"].get(name, "VALUE"))
    return None


class DlperfError(Exception):
    """The base of all these errors. Its message says what is wrong, where, and what to do."""

    exit_code = 2


@contextlib.contextmanager
def raising(kind: type[DlperfError], what: object) -> Iterator[None]:
    """Raise an OSError of the block as an error of this kind: ``what``, and the system's words."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Issue:
    """One thing that is wrong in a sweep file, a site profile or a command line. ``where`` is a key
    path (``matrix.seq_len[1]``), a position in the file or an option; ``hint`` says what to
    write instead."""

    where: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{printable(self.where)}: {self.message}{hint}"


MOST_LISTED = 100
"""Issues that a message lists; it counts the others."""


class SpecError(DlperfError):
    """An invalid request. It carries every issue found, so that one edit can correct them all."""

    def __init__(self, source: str, issues: Sequence[Issue]) -> None:
        self.source = source
        self.issues = tuple(issues)
        head = f"{printable(source)}: {number_of(len(self.issues), 'error')}"
        super().__init__(f"{head}{below(self.issues, MOST_LISTED)}")


class SiteError(DlperfError):
    """A site profile, or a command that it needs, cannot be used on this machine."""


class LedgerError(DlperfError):
    """A sweep's directory cannot be read, written, or used again."""


class LogError(DlperfError):
    """A job log or a record cannot be read; the message names file and line."""

    exit_code = 1


class DataError(DlperfError):
    """Text or training data cannot be used; the message says what was found and expected."""

    exit_code = 1


class RunError(DlperfError):
    """One run cannot go on, on its compute node; its record says why. ``fault`` is the word for
    what its environment lacks (a key of :data:`dlperf_hpc.records.quarantine.KINDS`), '' where the
    environment is not known to be why."""

    exit_code = 1

    def __init__(self, message: str, fault: str = "") -> None:
        self.fault = fault
        super().__init__(message)


class AttemptError(RunError):
    """Another task measures the run at this moment; what it writes must be left alone."""


class WorldError(RunError):
    """The ranks that started do not form the topology of the case."""


class DeviceError(RunError):
    """The device is missing, or lacks the precision of the case."""


class WeightsError(RunError):
    """A file of initial weights cannot be read, or was written for another model."""


class MeasurementError(RunError):
    """The window has ended, but its figure may not be reported as a throughput."""
