"""``[program.NAME]``: anybody's training program as a table, and the command that it comes to.

The table is checked as a user wrote it by :mod:`.programtables`, and as a manifest holds it by
:mod:`dlperf_hpc.model.checks`. A command is a list of words for the operating system: no shell
ever reads one of them.

Standard library only and importable on Python 3.9, as all that a compute node needs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Callable

from dlperf_hpc.errors import Issue, nearest
from dlperf_hpc.model.case import Case, Measure, Optimizer, Option, Run, Schedule, Topology
from dlperf_hpc.sweepfile.expressions import ExpressionError, holds, is_name, names_in, whole
from dlperf_hpc.sweepfile.readtable import ReadTable

LAUNCHES = ("rank", "torchrun", "accelerate", "node", "once")
"""How a program is started: a process for each device; one torchrun or ``accelerate launch`` on
each node; a process on each node for all of its devices; one that calls srun or mpirun itself."""
LAUNCHERS: Mapping[str, str] = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch",
}
"""The modules of those that start processes of their own, which the environment's Python runs."""
STOPS = ("after-window", "never")
LOCAL_RANKS = ("launcher", "visible")
"""What LOCAL_RANK counts: the processes of a node, or the GPUs that a process sees."""
BEHIND_WINDOW = 10  # iterations that {steps} has behind the window

TABLES = ("optimizer", "schedule")
_PLAIN = (
    *("framework", "model", "precision", "batch_size", "accumulation", "global_batch"),
    *("data", "data_path", "device", "environment", "threads", "seed"),
)
CASE_NAMES: tuple[str, ...] = (
    *(*_PLAIN, "seq_len"),
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
_SHELL = re.compile(r"&&?|\|\|?|;|[12&]?>>?|<|2>&1")
_RUNNERS = ("python", "python3", "bash", "sh", "srun", "mpirun", "mpiexec", *LAUNCHES[1:3])
_BEFORE_REPLICAS = frozenset({"replicas", "global_batch", *TASK_NAMES})
_MIXED = ("fp16", "bf16", "fp8")  # of accelerate's --mixed_precision; all else is its "no"


@dataclass(frozen=True)
class UserProgram:
    """A program of a sweep's user. ``run`` are the words of its command, with placeholders.
    ``replicas`` is an expression: how many copies of the model train side by side, each on samples
    of its own. ``require`` are conditions without which a case is left out. ``words`` has by a key
    and its value's text the words for ``{*key}``. ``read`` says what it prints, ``local_rank`` what
    LOCAL_RANK counts."""

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
    local_rank: str = LOCAL_RANKS[0]

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
        if self.local_rank == LOCAL_RANKS[0]:
            del table["local_rank"]  # as earlier versions write it: a digest is made of it
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
    own = f"own keys stand in [program.{program.name}.keys]"
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
                yield Issue(where, f"there is no placeholder {name!r}", nearest(name, known) or own)
    yield from _misused_words(program)
    for i, word in enumerate(program.run):
        if _is_for_a_shell(program.run[:i], word):
            hint = 'write each word by itself, or the whole line for a shell: ["bash", "-c", "..."]'
            yield Issue(f"run[{i}]", f"{word!r} is for a shell, and no shell reads this", hint)
    yield from _misused_local_rank(program)
    for key in program.keys:
        if key not in used:
            yield Issue(f"keys.{key}", "is used nowhere", f"write {{{key}}} in a word of run")


def _misused_local_rank(program: UserProgram) -> Iterator[Issue]:
    if program.local_rank != LOCAL_RANKS[0] and program.launch != "rank":
        hint = f"leave it out: with {program.launch} no process gets it from here"
        yield Issue("local_rank", 'is for launch = "rank" alone', hint)


def _texts(program: UserProgram) -> Iterator[tuple[str, str, Callable[[str], list[str]]]]:
    """Each text that may have a placeholder, and each expression: its place, and who reads it."""
    for i, word in enumerate(program.run):
        yield f"run[{i}]", word, _names_of_word
    for name, text in program.env.items():
        yield f"env.{name}", text, _names_of
    for key, table in program.words.items():
        for value, words in table.items():
            for i, word in enumerate(words):
                yield f"words.{key}.{value}[{i}]", word, _names_of
    yield "workdir", program.workdir, _names_of
    not_yet = "{} is not known before replicas is"
    yield "replicas", program.replicas, _names_without(_BEFORE_REPLICAS, not_yet)
    of_tasks = "only a task knows {}, and cases are planned before"
    for i, text in enumerate(program.require):
        yield f"require[{i}]", text, _names_without(TASK_NAMES, of_tasks)


def _is_for_a_shell(before: Sequence[str], word: str) -> bool:
    """Whether a word of ``run`` is an operator of a shell, or a whole line where the program's name
    belongs. A path with a blank in it is neither, and an option may have any value."""
    if before:
        return _SHELL.fullmatch(word) is not None and not before[-1].startswith("-")
    first, *more = word.split() or [""]
    runs = first.endswith((".py", ".sh")) or first in _RUNNERS
    return bool(more) and (runs or any(each.startswith("-") for each in more))


def _misused_words(program: UserProgram) -> Iterator[Issue]:
    spliced = list(map(splice, program.run))
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


def _names_without(refused: Collection[str], why: str) -> Callable[[str], list[str]]:
    """The reader of an expression that may not name any of these; ``why`` has ``{}`` for it."""

    def read(text: str) -> list[str]:
        for name in (found := names_in(text)):
            if name in refused:
                raise ExpressionError(why.format(name))
        return found

    return read


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
    key = splice(text)
    return _names_of(text) if key is None else [key]


@dataclass(frozen=True)
class Command:
    """What is started: words, variables added to the environment, and where ('': anywhere).
    ``own``: how many of the words, at their end, are those of the table; None if all are."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    own: int | None = None


def plan_values(
    case: Case, measure: Measure, sweep: str = "", run: Run | None = None
) -> dict[str, Any]:
    """The placeholders of a case that are known before anything runs, but for ``run``'s own names
    where that is None. A key that is not given (``seq_len``) has no value."""
    values: dict[str, Any] = {name: getattr(case, name) for name in _PLAIN}
    for table in TABLES:
        values.update({f"{table}.{key}": each for key, each in vars(getattr(case, table)).items()})
    if case.seq_len:
        values["seq_len"] = case.seq_len
    values["data_path"] = os.path.expanduser(case.data_path)
    topology = case.topology
    per_node = 1 if case.launch == "node" else topology.gpus_per_node
    values.update(
        topology=str(topology),
        nodes=topology.nodes,
        gpus_per_node=topology.gpus_per_node,
        devices=topology.devices,
        ranks=topology.nodes * per_node,
        ranks_per_node=per_node,
        replicas=case.replicas or topology.devices,
        warmup=measure.warmup,
        iterations=measure.iterations,
        steps=measure.warmup + measure.iterations + BEHIND_WINDOW,
        name=sweep,
    )
    if run is not None:
        values.update(run_id=run.id, repeat=run.repeat)
    return {**values, **dict(case.options)}


def command(program: UserProgram, values: Mapping[str, Any], later: Iterable[str] = ()) -> Command:
    """What ``program`` comes to for a case. ExpressionError, which names the key, if some value is
    missing, not whole, or has no words. Placeholders in ``later`` stay: only a task knows them."""
    left = frozenset(later)
    argv: list[str] = []
    for i, word in enumerate(program.run):
        argv += [_filled(f"run[{i}]", e, values, left) for e in _spliced(program, word, values)]
    env = {name: _filled(f"env.{name}", text, values, left) for name, text in program.env.items()}
    workdir = os.path.expanduser(_filled("workdir", program.workdir, values, left))
    return Command(tuple(argv), env, workdir)


def _spliced(program: UserProgram, word: str, values: Mapping[str, Any]) -> Sequence[str]:
    key = splice(word)
    if key is None:
        return [word]
    if key not in values:
        raise ExpressionError(f"words.{key}: {key} is not given")
    text = _text_of(values[key])
    words = program.words[key].get(text)
    if words is None:
        there = ", ".join(program.words[key]) or "none"
        raise ExpressionError(f"words.{key}: {key} {text!r} has no words (there are: {there})")
    return words


def _filled(where: str, text: str, values: Mapping[str, Any], later: frozenset[str]) -> str:
    words = []
    try:
        for is_expression, piece in pieces_of(text):
            words.append(_value_of(piece, values, later) if is_expression else piece)
    except ExpressionError as error:
        raise ExpressionError(f"{where}: {error}") from None
    return "".join(words)


def _value_of(piece: str, values: Mapping[str, Any], later: frozenset[str]) -> str:
    if later.intersection(names_in(piece)):
        return f"{{{piece}}}"
    if not is_name(piece):
        return str(whole(piece, values))
    if piece not in values:
        raise ExpressionError(f"{piece} is not given")
    return _text_of(values[piece])


def _text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def replicas_of(program: UserProgram, values: Mapping[str, Any]) -> int:
    """How many copies of the model train side by side; ExpressionError for a number below 1."""
    try:
        number = whole(program.replicas, values)
    except ExpressionError as error:
        raise ExpressionError(f"replicas: {error}") from None
    if number < 1:
        raise ExpressionError(f"replicas: {program.replicas!r} is {number}, and must be 1 or more")
    return number


def unmet(program: UserProgram, values: Mapping[str, Any]) -> str:
    """The first condition of ``require`` that does not hold for a case; '' if all do.
    ExpressionError if one cannot be computed."""
    for i, text in enumerate(program.require):
        try:
            if not holds(text, values):
                return text
        except ExpressionError as error:
            raise ExpressionError(f"require[{i}]: {error}") from None
    return ""


def child_argv(
    program: UserProgram, argv: Sequence[str], values: Mapping[str, Any], words: Sequence[str]
) -> tuple[str, ...]:
    """The words that a supervisor starts: those of the table, and before them its launcher's.
    ``words`` are the command of the environment's Python, a container's before it. A table's first
    word that is a script of Python, or ``-m``, is run by that Python; a first word with ``--`` is
    an option of the launcher, which says itself what is its script."""
    box, python = words[:-1], words[-1]
    script = argv[0] == "-m" or argv[0].endswith(".py")
    if program.launch not in LAUNCHERS:
        return (*(words if script else box), *argv)
    own = argv[0].startswith("--")  # the launcher's own options stand before the script
    if program.launch == "torchrun":
        options, alone = _torchrun(values), "--no-python"
    else:
        options, alone = _accelerate(values, own), "--no_python"
    if not (script or own):
        options.append(alone)
    return (*box, python, "-m", LAUNCHERS[program.launch], *map(str, options), *argv)


def _torchrun(values: Mapping[str, Any]) -> list[Any]:
    return [
        *("--nnodes", values["nodes"], "--nproc-per-node", values["gpus_per_node"]),
        *("--node-rank", values["node_rank"], "--master-addr", values["master_addr"]),
        *("--master-port", values["master_port"], "--max-restarts", 0),
    ]


def _accelerate(values: Mapping[str, Any], own: bool) -> list[Any]:
    """The options of ``accelerate launch``; ``own``: the table has options too. With ``--cpu`` it
    starts one process, whatever number is given; ``--multi_gpu`` starts them all, on CPUs too
    (``ACCELERATE_USE_CPU``), and must not stand beside ``--use_fsdp`` or ``--use_deepspeed`` of the
    table."""
    precision = values["precision"]
    options = [
        *("--num_machines", values["nodes"], "--machine_rank", values["node_rank"]),
        *("--num_processes", values["devices"], "--main_process_ip", values["master_addr"]),
        *("--main_process_port", values["master_port"]),
        *("--mixed_precision", precision if precision in _MIXED else "no"),
        *("--dynamo_backend", "no"),
    ]
    if not own and values["devices"] > 1:
        options.append("--multi_gpu")
    elif not own and values["device"] == "cpu":
        options.append("--cpu")
    return options


def typed_command(
    program: UserProgram, case: Case, measure: Measure, words: Sequence[str]
) -> Command:
    """What a case's task starts, for people: what only the task knows stays a placeholder."""
    values = plan_values(case, measure)
    later = (*TASK_NAMES, *RUN_NAMES)
    made = command(program, values, later)
    values.update({name: f"{{{name}}}" for name in later})
    return replace(made, argv=child_argv(program, made.argv, values, words))
