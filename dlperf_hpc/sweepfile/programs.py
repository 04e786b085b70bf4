"""``[program.NAME]``: anybody's training program as a table, and the command that it comes to.

What stands in the table is checked when the sweep file is read, and again when a task reads the
manifest. A command is a list of words for the operating system: no shell ever reads one of them.

Standard library only and importable on Python 3.9, as all that a compute node needs.
"""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Callable

from dlperf_hpc.errors import Issue
from dlperf_hpc.sweepfile.case import LINE, NAME, Optimizer, Schedule, Topology
from dlperf_hpc.sweepfile.declarations import Option
from dlperf_hpc.sweepfile.expressions import (
    LONGEST,
    ExpressionError,
    names_in,
)
from dlperf_hpc.sweepfile.readtable import ReadTable, read_table

LAUNCHES: Mapping[str, str] = {
    "rank": "one process for each device",
    "torchrun": "one torchrun on each node, which starts a process for each of its devices",
    "accelerate": "one `accelerate launch` on each node, which starts a process for each device",
    "node": "one process on each node, which drives all of its devices",
    "once": "one process on the first node, for a program that calls srun or mpirun itself",
}
"""How a program is started: what runs where."""
STOPS = ("after-window", "never")
PYTHON = "{python}"

TABLES = ("optimizer", "schedule")
CASE_NAMES: tuple[str, ...] = (
    *("framework", "model", "precision", "batch_size", "seq_len", "accumulation", "global_batch"),
    *("data", "data_path", "device", "environment", "threads", "seed"),
    *(f"optimizer.{each.name}" for each in fields(Optimizer)),
    *(f"schedule.{each.name}" for each in fields(Schedule)),
)
"""Placeholders that are keys of a case."""
PLAN_NAMES = (
    *("topology", "nodes", "gpus_per_node", "devices", "ranks", "ranks_per_node", "replicas"),
    *("warmup", "iterations", "steps", "run_id", "repeat", "name"),
)
"""Placeholders that the plan knows beside them."""
TASK_NAMES: Mapping[str, type] = {
    **dict.fromkeys(("rank", "local_rank", "node_rank", "attempt", "master_port"), int),
    **dict.fromkeys(("scratch", "outdir", "host", "hosts", "hostfile", "master_addr"), str),
    "python": str,
}
"""Placeholders whose value only a task knows, with its type."""
RUN_NAMES = ("run_id", "repeat", "name")
"""Placeholders in which the runs of a case differ."""

_MOST_WORDS = 1000
_LONGEST_WORD = 4096
_KEY = re.compile(r"[a-z][a-z0-9_]{0,39}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_SPLICE = re.compile(r"\{\*([A-Za-z_][\w.]*)\}", re.ASCII)
_LINE = re.compile(LINE)
_NAME = re.compile(NAME)
_BEFORE_REPLICAS = frozenset({"replicas", "global_batch", *TASK_NAMES})


@dataclass(frozen=True)
class UserProgram:
    """A program of a sweep's user. ``run`` are the words of its command, with placeholders.

    ``replicas`` is an expression: how many copies of the model train side by side, each on samples
    of its own. ``require`` are conditions without which a case is left out. ``words`` has for a
    key, by the text of its value, the words that stand where ``{*key}`` does. ``read`` says what
    it prints.
    """

    name: str
    launch: str
    run: tuple[str, ...]
    workdir: str = ""
    replicas: str = "devices"
    require: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    read: ReadTable = field(default_factory=ReadTable)
    stop: str = STOPS[0]

    @property
    def options(self) -> tuple[Option, ...]:
        """Its own keys, as those of a back end are declared."""
        doc = f"a key of program {self.name}"
        return tuple(
            Option(key, default, doc, minimum=-(2**53), maximum=2**53)
            for key, default in self.keys.items()
        )

    def per_node(self, topology: Topology) -> int:
        """Tasks of a launcher on each node: how many supervisors run there."""
        return topology.gpus_per_node if self.launch == "rank" else 1

    def to_dict(self) -> dict[str, Any]:
        """The table as :func:`read_program` reads it; plain JSON."""
        table = {key: value for key, value in vars(self).items() if key != "name"}
        table.update(run=list(self.run), require=list(self.require))
        table.update(env=dict(self.env), keys=dict(self.keys), read=self.read.to_dict())
        table["words"] = {
            key: {value: list(words) for value, words in each.items()}
            for key, each in self.words.items()
        }
        return table


def read_program(
    name: str, table: Any, formats: Iterable[str] | None = None
) -> tuple[UserProgram | None, list[Issue]]:
    """The program of a table, None if anything is wrong with it, and what is.

    ``formats`` are the log formats that there are; without them ``read.format`` is not looked up,
    and no pattern is compiled: a manifest's were checked before it was written.
    """
    reader = _Reader(f"program.{name}", formats)
    if _NAME.fullmatch(name) is None:
        reader.say("", f"{name!r} is no name", "write letters, digits, '.', '_' and '-'")
    elif not isinstance(table, dict):
        reader.say("", "is no table", f"write [program.{name}] with its keys below it")
    else:
        program = reader.program(name, table)
        if not reader.issues:
            return program, []
    return None, reader.issues


class _Reader:
    """Reads the values of one table; what is wrong with them becomes ``issues``."""

    def __init__(self, where: str, formats: Iterable[str] | None) -> None:
        self.where = where
        self.formats = None if formats is None else list(formats)
        self.issues: list[Issue] = []

    def say(self, key: str, message: str, hint: str | None = None) -> None:
        self.issues.append(Issue(f"{self.where}.{key}" if key else self.where, message, hint))

    def program(self, name: str, table: Mapping[str, Any]) -> UserProgram:
        known = [f.name for f in fields(UserProgram) if f.name != "name"]
        for key in table:
            if key not in known:
                self.say(key, f"unknown key {key!r}", _near(key, known))
        if "run" not in table:
            self.say("run", "is missing", 'write the command as a list of words: ["train.py"]')
        program = UserProgram(
            name=name,
            launch=self._one_of("launch", table.get("launch"), LAUNCHES),
            run=self._list("run", table.get("run", ["-"])),
            workdir=self._text("workdir", table.get("workdir", "")),
            replicas=self._text("replicas", table.get("replicas", "devices")),
            require=self._list("require", table.get("require", [])),
            env=self._env(table.get("env", {})),
            keys=self._keys(table.get("keys", {})),
            words=self._words(table.get("words", {})),
            read=self._read(table.get("read", {})),
            stop=self._one_of("stop", table.get("stop", STOPS[0]), STOPS),
        )
        if not self.issues:
            self._check_names(program)
        return program

    def _text(self, key: str, value: Any) -> str:
        if isinstance(value, str) and len(value) <= _LONGEST_WORD and _LINE.fullmatch(value):
            return value
        self.say(key, f"{_shown(value)} is invalid", "write one line of text in quotes")
        return ""

    def _list(self, key: str, value: Any) -> tuple[str, ...]:
        least = 1 if key == "run" else 0
        if not isinstance(value, list) or not least <= len(value) <= _MOST_WORDS:
            hint = 'write a list of words, each in quotes: ["train.py", "--steps", "{steps}"]'
            self.say(key, f"{_shown(value)} is invalid", hint)
            return ()
        return tuple(self._text(f"{key}[{i}]", each) for i, each in enumerate(value))

    def _one_of(self, key: str, value: Any, known: Iterable[str]) -> str:
        if isinstance(value, str) and value in known:
            return value
        told = "is missing" if value is None else f"there is no {key} {_shown(value)}"
        there = f"there are: {', '.join(known)}"
        self.say(key, told, _near(value, known) or there)
        return ""

    def _table(self, key: str, value: Any) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        self.say(key, f"{_shown(value)} is invalid", f"write a table, as [{self.where}.{key}]")
        return {}

    def _env(self, value: Any) -> dict[str, str]:
        found = {}
        for name, text in self._table("env", value).items():
            if _VARIABLE.fullmatch(name) is None:
                self.say(f"env.{name}", "is no name of a variable")
            elif name == "PYTHONSAFEPATH":
                self.say(f"env.{name}", "would keep a script from finding the files beside it")
            found[name] = self._text(f"env.{name}", text)
        return found

    def _keys(self, value: Any) -> dict[str, Any]:
        taken = {*CASE_NAMES, *PLAN_NAMES, *TASK_NAMES, *TABLES, "topologies"}
        found = {}
        for name, default in self._table("keys", value).items():
            plain = type(default) in (bool, int, float)
            if _KEY.fullmatch(name) is None or keyword.iskeyword(name):
                hint = "write small letters, digits and '_', a letter first"
                self.say(f"keys.{name}", f"{name!r} is no name of a key", hint)
            elif name in taken:
                self.say(f"keys.{name}", f"{name} is a key or a placeholder of every program")
            elif not plain and not (isinstance(default, str) and _LINE.fullmatch(default)):
                hint = "its default says its type: true, a number, or a text of one line"
                self.say(f"keys.{name}", f"{_shown(default)} is invalid", hint)
            found[name] = default
        return found

    def _words(self, value: Any) -> dict[str, dict[str, tuple[str, ...]]]:
        return {
            key: {
                text: self._list(f"words.{key}.{text}", words)
                for text, words in self._table(f"words.{key}", table).items()
            }
            for key, table in self._table("words", value).items()
        }

    def _read(self, value: Any) -> ReadTable:
        check = self.formats is not None
        read, issues = read_table(f"{self.where}.read", value, self.formats, check)
        self.issues += issues
        return read

    def _check_names(self, program: UserProgram) -> None:
        """What a placeholder or an expression names must be there, and what is there be named."""
        known = {*CASE_NAMES, *PLAN_NAMES, *TASK_NAMES, *program.keys}
        used: set[str] = set()
        for where, names in self._named(program):
            used.update(names)
            for name in names:
                if name not in known:
                    own = f"own keys stand in [{self.where}.keys]"
                    hint = _near(name, known) or own
                    self.say(where, f"there is no placeholder {name!r}", hint)
        spliced = {splice(word) for word in program.run}
        for key in program.words:
            if key not in {*CASE_NAMES, *program.keys}:
                near = _near(key, [*CASE_NAMES, *program.keys])
                self.say(f"words.{key}", f"{key!r} is no key of a case", near)
            elif key not in spliced:
                self.say(f"words.{key}", "are used nowhere", f"write {{*{key}}} as a word of run")
        for key in program.keys:
            if key not in used:
                self.say(f"keys.{key}", "is used nowhere", f"write {{{key}}} in a word of run")

    def _named(self, program: UserProgram) -> Iterator[tuple[str, list[str]]]:
        """Each text with a placeholder, and each expression: where it stands and what it names."""
        texts = {f"run[{i}]": word for i, word in enumerate(program.run)}
        texts.update({f"env.{name}": text for name, text in program.env.items()})
        for key, each in program.words.items():
            for value, words in each.items():
                texts.update({f"words.{key}.{value}[{i}]": word for i, word in enumerate(words)})
        for where, text in {**texts, "workdir": program.workdir}.items():
            spliced = splice(text) if where.startswith("run[") else None
            if spliced is None:
                yield where, self._or_issue(where, _names_of, text)
                continue
            if spliced not in program.words:
                table = f"[{self.where}.words]"
                self.say(where, f"{text} has no words", f"write {spliced} = {{ ... }} in {table}")
            yield where, [spliced]
        yield "replicas", self._or_issue("replicas", _early, program.replicas)
        for i, text in enumerate(program.require):
            yield f"require[{i}]", self._or_issue(f"require[{i}]", _planned, text)

    def _or_issue(self, where: str, names: Callable[[str], list[str]], text: str) -> list[str]:
        try:
            return names(text)
        except ExpressionError as error:
            self.say(where, str(error))
            return []


def _early(text: str) -> list[str]:
    """The names of ``replicas``, from which others follow."""
    for name in (found := names_in(text)):
        if name in _BEFORE_REPLICAS:
            raise ExpressionError(f"{name} is not known before replicas is")
    return found


def _planned(text: str) -> list[str]:
    """The names of a condition, by which cases are planned."""
    for name in (found := names_in(text)):
        if name in TASK_NAMES:
            raise ExpressionError(f"only a task knows {name}, and cases are planned before")
    return found


def splice(word: str) -> str | None:
    """The key of a word ``{*key}``; None for any other."""
    found = _SPLICE.fullmatch(word)
    return found[1] if found else None


@lru_cache(maxsize=4096)
def pieces_of(text: str) -> tuple[tuple[bool, str], ...]:
    """A text in pieces, each with whether it is an expression; ExpressionError for a lone brace."""
    pieces, end = [], 0
    for found in _PIECE.finditer(text):
        pieces.append((False, text[end : found.start()]))
        end = found.end()
        if found[1] is not None:
            if found[1].startswith("*"):
                raise ExpressionError(f"{found[0]} stands for several words: write it alone")
            if not found[1].strip():
                raise ExpressionError("{} names nothing; a brace is written twice, {{ or }}")
            pieces.append((True, found[1].strip()))
        elif len(found[0]) == 2:
            pieces.append((False, found[0][0]))
        else:
            raise ExpressionError(f"a lone {found[0]!r}: a brace is written twice, {{{{ or }}}}")
    return (*pieces, (False, text[end:]))


def _names_of(text: str) -> list[str]:
    return [name for is_expr, piece in pieces_of(text) if is_expr for name in names_in(piece)]


def _near(name: Any, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(str(name)[:LONGEST], list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
