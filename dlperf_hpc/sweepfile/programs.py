"""``[program.NAME]``: anybody's training program as a table, and the command that it comes to.

The table is checked as a user wrote it by :mod:`.programtables`, and as a manifest holds it by
:mod:`dlperf_hpc.model.checks`. A command is a list of words for the operating system: no shell
ever reads one of them.

Standard library only and importable on Python 3.9, as all that a compute node needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Callable

from dlperf_hpc.errors import Issue, nearest
from dlperf_hpc.model.case import Optimizer, Option, Schedule, Topology
from dlperf_hpc.sweepfile.expressions import ExpressionError, names_in
from dlperf_hpc.sweepfile.readtable import ReadTable

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

MOST_WORDS = 1000
LONGEST_WORD = 4096
KEY = r"[a-z][a-z0-9_]{0,39}"
"""What a program's own key may be called."""
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,199}"

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_SPLICE = re.compile(r"\{\*([A-Za-z_][\w.]*)\}", re.ASCII)
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
        """The table as :func:`.programtables.read_program` reads it; plain JSON."""
        table = {key: value for key, value in vars(self).items() if key != "name"}
        table.update(run=list(self.run), require=list(self.require))
        table.update(env=dict(self.env), keys=dict(self.keys), read=self.read.to_dict())
        table["words"] = {
            key: {value: list(words) for value, words in each.items()}
            for key, each in self.words.items()
        }
        return table


def misuses(program: UserProgram) -> Iterator[Issue]:
    """What is wrong between the keys of a table whose values hold one by one: a placeholder or an
    expression that names what is not there, and what is there but named nowhere."""
    known = {*CASE_NAMES, *PLAN_NAMES, *TASK_NAMES, *program.keys}
    used: set[str] = set()
    for where, text, names_of in _texts(program):
        try:
            names = names_of(text)
        except ExpressionError as error:
            yield Issue(where, str(error))
            continue
        used.update(names)
        for name in names:
            if name not in known:
                own = f"own keys stand in [program.{program.name}.keys]"
                message = f"there is no placeholder {name!r}"
                yield Issue(where, message, nearest(name, known) or own)
    yield from _misused_words(program)
    for key in program.keys:
        if key not in used:
            yield Issue(f"keys.{key}", "is used nowhere", f"write {{{key}}} in a word of run")


def _texts(program: UserProgram) -> Iterator[tuple[str, str, Callable[[str], list[str]]]]:
    """Each text that may have a placeholder, and each expression: where it stands, and what reads
    the names in it."""
    for i, word in enumerate(program.run):
        yield f"run[{i}]", word, _names_of_word
    for name, text in program.env.items():
        yield f"env.{name}", text, _names_of
    for key, table in program.words.items():
        for value, words in table.items():
            for i, word in enumerate(words):
                yield f"words.{key}.{value}[{i}]", word, _names_of
    yield "workdir", program.workdir, _names_of
    yield "replicas", program.replicas, _names_of_replicas
    for i, text in enumerate(program.require):
        yield f"require[{i}]", text, _names_of_condition


def _misused_words(program: UserProgram) -> Iterator[Issue]:
    """What is wrong between ``{*key}`` in ``run`` and the tables of ``words``."""
    spliced = [splice(word) for word in program.run]
    for i, key in enumerate(spliced):
        if key is not None and key not in program.words:
            hint = f"write {key} = {{ ... }} in [program.{program.name}.words]"
            yield Issue(f"run[{i}]", f"{program.run[i]} has no words", hint)
    keys = [*CASE_NAMES, *program.keys]
    for key in program.words:
        if key not in keys:
            yield Issue(f"words.{key}", f"{key!r} is no key of a case", nearest(key, keys))
        elif key not in spliced:
            yield Issue(f"words.{key}", "are used nowhere", f"write {{*{key}}} as a word of run")


def _names_of_replicas(text: str) -> list[str]:
    """The names of ``replicas``, from which others follow."""
    for name in (found := names_in(text)):
        if name in _BEFORE_REPLICAS:
            raise ExpressionError(f"{name} is not known before replicas is")
    return found


def _names_of_condition(text: str) -> list[str]:
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


def _names_of_word(text: str) -> list[str]:
    spliced = splice(text)
    return _names_of(text) if spliced is None else [spliced]
