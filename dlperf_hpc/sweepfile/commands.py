"""What a user's program comes to for a case: the words of its command, its variables, its place.

Standard library only and importable on Python 3.9, as all that a compute node needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlperf_hpc.model.case import Case, Measure, Run
from dlperf_hpc.sweepfile.expressions import ExpressionError, holds, is_name, names_in, whole
from dlperf_hpc.sweepfile.programs import (
    RUN_NAMES,
    TABLES,
    TASK_NAMES,
    UserProgram,
    pieces_of,
    splice,
)

LAUNCHERS: Mapping[str, str] = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch",
}
"""The modules of those that start processes of their own, which the environment's Python runs."""
BEHIND_WINDOW = 10  # iterations that {steps} has behind the window


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
    plain = ("framework", "model", "precision", "batch_size", "accumulation", "global_batch")
    values: dict[str, Any] = {name: getattr(case, name) for name in plain}
    for name in ("data", "data_path", "device", "environment", "threads", "seed"):
        values[name] = getattr(case, name)
    for table in TABLES:
        values.update({f"{table}.{key}": each for key, each in vars(getattr(case, table)).items()})
    if case.seq_len:
        values["seq_len"] = case.seq_len
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
    missing, not whole, or has no words.

    Placeholders named in ``later`` stay as they are written: of what only a task knows.
    """
    left = frozenset(later)
    argv: list[str] = []
    for i, word in enumerate(program.run):
        spliced = splice(word)
        words: Sequence[str] = [word] if spliced is None else _spliced(program, spliced, values)
        argv += [_filled(f"run[{i}]", each, values, left) for each in words]
    env = {name: _filled(f"env.{name}", text, values, left) for name, text in program.env.items()}
    return Command(tuple(argv), env, _filled("workdir", program.workdir, values, left))


def _spliced(program: UserProgram, key: str, values: Mapping[str, Any]) -> Sequence[str]:
    if key not in values:
        raise ExpressionError(f"words.{key}: {key} is not given")
    text = _text_of(values[key])
    words = program.words[key].get(text)
    if words is None:
        there = ", ".join(program.words[key]) or "none"
        raise ExpressionError(f"words.{key}: {key} {text!r} has no words (there are: {there})")
    return words


def _filled(where: str, text: str, values: Mapping[str, Any], later: frozenset[str]) -> str:
    try:
        return "".join(
            _value_of(piece, values, later) if is_expression else piece
            for is_expression, piece in pieces_of(text)
        )
    except ExpressionError as error:
        raise ExpressionError(f"{where}: {error}") from None


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
    """How many copies of the model train side by side; ExpressionError if that is no number above
    0."""
    try:
        number = whole(program.replicas, values)
    except ExpressionError as error:
        raise ExpressionError(f"replicas: {error}") from None
    if number < 1:
        raise ExpressionError(f"replicas: {program.replicas!r} is {number}, and must be 1 or more")
    return number


def unmet(program: UserProgram, values: Mapping[str, Any]) -> str:
    """The first condition of ``require`` that does not hold for a case; '' if all do.
    ExpressionError if one cannot be told."""
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
    an option of the launcher, which says itself what is its script.
    """
    box, python = words[:-1], words[-1]
    script = argv[0] == "-m" or argv[0].endswith(".py")
    if program.launch not in LAUNCHERS:
        return (*box, *([python] if script else []), *argv)
    options = _torchrun(values) if program.launch == "torchrun" else _accelerate(argv, values)
    alone = "--no-python" if program.launch == "torchrun" else "--no_python"
    own = argv[0].startswith("--")  # the launcher's own options stand before the script
    told = [*options, *([] if script or own else [alone])]
    return (*box, python, "-m", LAUNCHERS[program.launch], *map(str, told), *argv)


def _torchrun(values: Mapping[str, Any]) -> list[Any]:
    options = {
        "--nnodes": values["nodes"],
        "--nproc-per-node": values["gpus_per_node"],
        "--node-rank": values["node_rank"],
        "--master-addr": values["master_addr"],
        "--master-port": values["master_port"],
        "--max-restarts": 0,
    }
    return [word for pair in options.items() for word in pair]


_MIXED = ("fp16", "bf16", "fp8")  # of accelerate's --mixed_precision; all else is its "no"


def _accelerate(argv: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
    """The options of ``accelerate launch``. With ``--cpu`` it starts one process, whatever number
    it is told; ``--multi_gpu`` starts them all, on CPUs too (``ACCELERATE_USE_CPU``), and must not
    stand beside ``--use_fsdp`` or ``--use_deepspeed`` of the table."""
    precision = values["precision"]
    options = {
        "--num_machines": values["nodes"],
        "--machine_rank": values["node_rank"],
        "--num_processes": values["devices"],
        "--main_process_ip": values["master_addr"],
        "--main_process_port": values["master_port"],
        "--mixed_precision": precision if precision in _MIXED else "no",
        "--dynamo_backend": "no",
    }
    kind = "--multi_gpu" if values["devices"] > 1 else "--cpu" if values["device"] == "cpu" else ""
    own = argv[0].startswith("--")
    told = [word for pair in options.items() for word in pair]
    return told if own or not kind else [*told, kind]


def shown_command(
    program: UserProgram, case: Case, measure: Measure, words: Sequence[str]
) -> Command:
    """What a case's task starts, for people: what only the task knows stays a placeholder."""
    values = plan_values(case, measure)
    made = command(program, values, later=(*TASK_NAMES, *RUN_NAMES))
    told = {name: f"{{{name}}}" for name in (*TASK_NAMES, *RUN_NAMES)}
    return replace(made, argv=child_argv(program, made.argv, {**values, **told}, words))
