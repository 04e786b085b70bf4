"""A run's settings and, by them, samples/s over all devices; the same run on another basis.

Where the log, the user and the file's name differ in a setting, the log counts first, because the
program that ran wrote it; then the user; then the name. A warning names what does not count.
:func:`converted` finds the one factor between a printed figure and samples/s. Printed tokens/s stay
tokens/s where the length of a sequence is not known. The speed of one run on two bases (the clock
and the printed figures, or the lines of two formats) shows whether the settings are right: where
the two differ by more than 5 %, :func:`disagreement` names the factor that lies between them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlperf_hpc.logs.interpret.figures import ends_behind, figure
from dlperf_hpc.logs.interpret.rules import Basis, WindowRule
from dlperf_hpc.logs.interpret.segments import NoFigure, Segment, WindowFigure, segments_of
from dlperf_hpc.logs.names import alike
from dlperf_hpc.logs.scanned import FACTS, Counter, Fact, Reading, Scope, Unit
from dlperf_hpc.model.case import Topology

LOG, USER, NAME = "the log", "the command line", "the file's name"

_PRECEDENCE = (LOG, USER, NAME)
_WHY = {
    LOG: "the log counts, for the program that ran wrote it",
    USER: "the command line counts",
    NAME: "the former counts",
}
_PER_NODE = 8  # devices of a node, where no source states them

Values = Mapping[str, Any]
"""Settings by their names in ``FACTS``."""


@dataclass(frozen=True)
class ResolvedSettings:
    """Settings, and warnings of contradictions."""

    values: Values
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Claim:
    """A setting as one source states it; ``line`` is that of the log, or 0."""

    source: str
    value: Any
    line: int = 0

    def __str__(self) -> str:
        at = f" (line {self.line})" if self.line else ""
        return f"{self.source} says {_short(self.value)}{at}"


def resolved(
    logged: Sequence[Fact],
    stated: Values,
    named: Sequence[Fact],
    line: int = 0,
    framework: str = "",
) -> ResolvedSettings:
    """Settings of the run whose first iteration stands in ``line`` of the log.

    ``logged``, ``stated`` and ``named`` are the settings by the log, the user and the file's name;
    ``framework`` is that of the log's format. If a log states a setting more than once, the last
    value before that line counts.
    """
    best: dict[str, _Claim] = {}
    warnings: list[str] = []
    for name in FACTS:
        claims = _of_log([fact for fact in logged if fact.name == name], line, warnings)
        claims.append(_Claim(USER, stated.get(name)))
        claims += [_Claim(NAME, fact.value) for fact in named if fact.name == name]
        claims.append(_Claim(LOG, {"framework": framework}.get(name)))
        claims = [claim for claim in claims if _sound(name, claim.value)]
        if claims:
            best[name] = _CHOOSE.get(name, _best)(name, claims, warnings)
    _agree_on_tokens(best, warnings)
    _agree_on_replicas(best, warnings)
    _agree_on_devices(best, warnings)
    return ResolvedSettings({name: best[name].value for name in best}, tuple(warnings))


def _sound(name: str, value: Any) -> bool:
    kind = FACTS[name]
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63
    return isinstance(value, kind) and value != ""


def _of_log(facts: Sequence[Fact], line: int, warnings: list[str]) -> list[_Claim]:
    if not facts:
        return []
    fact = next((fact for fact in reversed(facts) if fact.line <= line), facts[0])
    latest = next((each for each in reversed(facts) if not _same(each.value, fact.value)), None)
    if latest is not None:
        warnings.append(
            f"the log says {_spelt_out(fact.name)} {_short(latest.value)} (line {latest.line}) and "
            f"{_short(fact.value)} (line {fact.line}): the latter is taken for this run"
        )
    return [_Claim(LOG, fact.value, fact.line)]


def _best(name: str, claims: Sequence[_Claim], warnings: list[str]) -> _Claim:
    """The claim of the first source in order, and a warning for each that differs from it."""
    best = min(claims, key=lambda claim: _PRECEDENCE.index(claim.source))
    for claim in claims:
        if not _same(claim.value, best.value):
            warnings.append(f"{_spelt_out(name)}: {best}, {claim}: {_WHY[best.source]}")
    return best


def _label(name: str, claims: Sequence[_Claim], warnings: list[str]) -> _Claim:
    """A label as the user states it, else as the name does unless the log names something else."""
    by_source = {claim.source: claim for claim in reversed(claims)}
    if USER in by_source:
        return by_source[USER]
    if NAME not in by_source or LOG not in by_source:
        return claims[0]
    log, named = by_source[LOG], by_source[NAME]
    if any(alike(named.value, claim.value) for claim in claims if claim.source == LOG):
        return named
    warnings.append(f"{name}: {log}, {named}: {_WHY[LOG]}")
    return log


_CHOOSE = {"framework": _label, "model": _label}
"""One thing has several labels, so that they rarely contradict."""


def _same(one: Any, other: Any) -> bool:
    return str(one).casefold() == str(other).casefold()


def _spelt_out(name: str) -> str:
    return name.replace("_", " ").replace("gpus", "GPUs").replace("seq len", "sequence length")


def _short(value: Any) -> str:
    return str(value)[:60]


def _agree_on_tokens(best: dict[str, _Claim], warnings: list[str]) -> None:
    """The sequences of an optimizer step by its tokens, where these are a whole number."""
    tokens, length = best.get("global_tokens"), best.get("seq_len")
    if tokens is not None and length is not None and tokens.value % length.value == 0:
        batch = replace(tokens, value=tokens.value // length.value)
        stated = best.get("global_batch", batch)
        best["global_batch"] = _best("global_batch", [batch, stated], warnings)


def _agree_on_replicas(best: dict[str, _Claim], warnings: list[str]) -> None:
    """A device for each copy of the model, unless the log or the user says that there are several
    for each: the model is split over them."""
    replicas = best.pop("replicas", None)
    if replicas is None:
        return
    stated = {name: claim.value for name, claim in best.items() if claim.source != NAME}
    devices, count = devices_of(stated), replicas.value
    if devices is None and count % stated.get("gpus_per_node", 1):
        return
    if devices is None or devices % count:
        best["devices"] = _best("devices", [replicas, best.get("devices", replicas)], warnings)
    elif devices > count:
        warnings.append(
            f"the log counts {count} copies of the model, on {devices} devices: each copy is taken "
            f"to be split over {devices // count}"
        )


def _agree_on_devices(best: dict[str, _Claim], warnings: list[str]) -> None:
    """Where ``devices`` and nodes x GPUs per node differ, drop what the lesser source states."""
    parts = ("nodes", "gpus_per_node")
    if "devices" not in best or not all(part in best for part in parts):
        return
    devices, product = best["devices"].value, best["nodes"].value * best["gpus_per_node"].value
    if devices == product:
        return
    source = best["devices"].source
    worst = max((best[part].source for part in parts), key=_PRECEDENCE.index)
    taken, lesser = product, ["devices"]
    if _PRECEDENCE.index(source) <= _PRECEDENCE.index(worst):
        taken, lesser = devices, [*parts]
    for name in lesser:
        del best[name]
    warnings.append(
        f"{source} says {devices} devices, {worst} {product} (nodes x GPUs per node): "
        f"{taken} are taken"
    )


def devices_of(values: Values) -> int | None:
    """Devices over all nodes; None if they are not stated."""
    if "devices" in values:
        return int(values["devices"])
    if "nodes" in values and "gpus_per_node" in values:
        return int(values["nodes"] * values["gpus_per_node"])
    return None


def accumulation_of(values: Values) -> int | None:
    """Iterations per optimizer step: stated, or the quotient of the batch sizes if it is whole."""
    return _of_global_batch(values, "accumulation", "batch_size")


def batch_size_of(values: Values) -> int | None:
    """Samples per device and iteration: stated, or the global batch over all that divides it."""
    return _of_global_batch(values, "batch_size", "accumulation")


def _of_global_batch(values: Values, name: str, other: str) -> int | None:
    if name in values:
        return int(values[name])
    devices = devices_of(values)
    if devices is None or "global_batch" not in values or other not in values:
        return None
    quotient, rest = divmod(values["global_batch"], values[other] * devices)
    return int(quotient) if quotient and not rest else None


def topology_of(values: Values) -> tuple[Topology | None, str]:
    """Nodes x GPUs per node, and what was assumed for it: up to 8 devices are one node, more are
    nodes of 8 if that divides them."""
    nodes, per_node, devices = values.get("nodes"), values.get("gpus_per_node"), devices_of(values)
    if nodes and per_node:
        return Topology(nodes, per_node), ""
    if devices is None:
        return None, ""
    if per_node and devices % per_node == 0:
        return Topology(devices // per_node, per_node), ""
    if nodes and devices % nodes == 0:
        return Topology(nodes, devices // nodes), ""
    if devices == 1:
        return Topology(1, 1), ""
    if devices > _PER_NODE and devices % _PER_NODE:
        return None, ""
    topology = Topology(max(1, devices // _PER_NODE), min(devices, _PER_NODE))
    return topology, f"{devices} devices on unknown nodes are taken for {topology} (--nodes)"


# --- speeds

OPTIONS: Mapping[str, str] = {
    "devices": "--devices",
    "batch_size": "--batch-size",
    "seq_len": "--seq-len",
    "accumulation": "--accumulation",
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "precision": "--precision",
}
"""Settings that a user can give, and the options for them."""

_NAMES = {
    "devices": "number of devices",
    "batch_size": "batch size per device",
    "seq_len": "sequence length",
    "nodes": "number of nodes",
}
_TIMES = {Unit.MS_PER_ITERATION: 1000.0, Unit.S_PER_ITERATION: 1.0}


class MissingFact(ValueError):
    """A figure cannot be converted; the message names the facts and the options for them."""

    def __init__(self, names: Sequence[str]) -> None:
        listed = " and ".join(f"the {_NAMES[name]} ({OPTIONS[name]})" for name in names)
        verb = "is" if len(names) == 1 else "are"
        super().__init__(f"{listed} {verb} not known")


@dataclass(frozen=True)
class Converted:
    """A figure over all devices, in samples/s or, as ``unit`` says, in tokens/s or in a unit of its
    own, ``name``. ``factor`` times the printed figure, or over a printed time, is ``value``;
    ``assumed`` are settings that were taken without being stated."""

    value: float
    factor: float
    assumed: tuple[str, ...] = ()
    unit: Unit = Unit.SAMPLES_PER_S
    name: str = ""

    @property
    def label(self) -> str:
        """The unit's name."""
        return self.name or self.unit.value


def converted(figure: WindowFigure, values: Values, counter: Counter, processes: int) -> Converted:
    """``figure`` in samples/s over all devices; tokens of sequences of an unknown length, or
    counted without their padding, in tokens/s; another rate as it is.

    MissingFact if a setting for it is not known, NoFigure if no setting would help.

    ``processes`` is how many processes print; 1 may mean that only one of all prints.
    """
    assumed: list[str] = []
    unit, printed = Unit.SAMPLES_PER_S, figure.printed
    tokens = None if figure.batch or "global_batch" in values else values.get("global_tokens")
    if figure.unit is Unit.ITERATIONS_PER_S and tokens:
        factor, unit = float(tokens), Unit.TOKENS_PER_S
    elif figure.unit is Unit.ITERATIONS_PER_S:
        # all devices do an iteration together, whoever prints its time
        factor = figure.batch or samples_per_iteration(values, counter, assumed)
    else:
        factor = _over(printed.scope, values, processes, figure.rule.per_node)
        if figure.unit is Unit.TOKENS_PER_S and "seq_len" in values:
            factor /= float(values["seq_len"])
        elif figure.unit is Unit.OWN:
            unit = Unit.OWN
        elif figure.unit is not Unit.SAMPLES_PER_S:
            unit = Unit.TOKENS_PER_S
    per_printed = factor * printed.scale
    if printed.unit in _TIMES:
        per_printed = factor * _TIMES[printed.unit] / printed.scale
    name = printed.name if unit is Unit.OWN else ""
    return Converted(figure.value * factor, per_printed, tuple(assumed), unit, name)


def in_iterations(reading: Reading) -> tuple[Reading, Values]:
    """The reading and the settings with which a speed comes out in iterations/s."""
    return replace(reading, counter=Counter.OPTIMIZER_STEPS), {"global_batch": 1}


def samples_per_iteration(values: Values, counter: Counter, assumed: list[str]) -> float:
    """Samples over all devices in what the log counts as one iteration; MissingFact."""
    accumulation, stated = accumulation_of(values), values.get("global_batch")
    if counter is Counter.OPTIMIZER_STEPS and stated is not None:
        return float(stated)
    batch, devices = batch_size_of(values), devices_of(values)
    micro_steps = counter is Counter.MICRO_STEPS
    if batch is None or devices is None:
        if micro_steps and stated is not None and accumulation:
            return float(stated) / accumulation
        facts = (("batch_size", batch), ("devices", devices))
        raise MissingFact([name for name, value in facts if value is None])
    if micro_steps:
        return float(batch * devices)
    if accumulation is None:
        assumed.append("no gradient accumulation is stated: 1 is taken (--accumulation)")
    return float(batch * devices * (accumulation or 1))


def _over(scope: Scope, values: Values, processes: int, per_node: bool) -> float:
    if scope is Scope.ALL:
        return 1.0
    if scope is Scope.PROCESS and per_node:
        return _need("nodes", values.get("nodes"))
    devices = _need("devices", devices_of(values))
    if scope is Scope.DEVICE or devices == 1:
        return devices
    if processes > 1 and processes in (devices, values.get("nodes")):
        return float(processes)
    raise NoFigure(
        f"the printed speed is of one process; {processes} of them print, and how many ran on "
        f"the {devices:.0f} devices is not known"
    )


def _need(name: str, value: int | None) -> float:
    if value is None:
        raise MissingFact([name])
    return float(value)


def optimizer_steps(
    values: Values, counter: Counter, first: int | None, last: int | None
) -> int | None:
    """Optimizer steps that end in the window after ``first`` up to ``last``; None if not known."""
    if first is None or last is None or counter is Counter.BLOCKS:
        return None
    accumulation = 1 if counter is Counter.OPTIMIZER_STEPS else accumulation_of(values)
    return None if accumulation is None else last // accumulation - first // accumulation


TOLERANCE = 0.05
"""The relative difference up to which two bases agree, and up to which a factor explains one."""

_MOST_ACCUMULATION = 4096

Other = tuple[Basis, Converted]
"""A speed on another basis, and which that is."""

_CLOCKS: Sequence[Basis] = (Basis.CLOCK, Basis.ARRIVAL)
_PRINTED_FIRST = (Basis.PRINTED, Basis.CLOCK)


def on_other_basis(
    taken: WindowFigure, reading: Reading, segment: Segment, values: Values
) -> Other | None:
    """The speed of the same iterations by the clock, or for a clock by the printed figures, else by
    the other clock."""
    if taken.first is None or taken.last is None or taken.rule.basis is Basis.TOTAL:
        return None
    bases = _CLOCKS
    if taken.rule.basis in _CLOCKS:
        bases = (Basis.PRINTED, *_CLOCKS[: taken.rule.basis is Basis.ARRIVAL])
    ends = taken.first, taken.last
    return _speed(bases, ends, reading, segment, values, taken.rule.per_node)


def of_all_lines(reading: Reading, segment: Segment, values: Values) -> Other | None:
    """The speed of all iterations behind the first line, which has the warm-up in it: what a total
    is held against. None where the lines give no speed, or are fewer than three."""
    if len(segment.steps) < 3:
        return None
    ends = segment.steps[0].iteration, segment.steps[-1].iteration
    return _speed(_PRINTED_FIRST, ends, reading, segment, values)


def behind_window(
    taken: WindowFigure, reading: Reading, segment: Segment, values: Values
) -> Converted | None:
    """The speed of the iterations behind a window, on its basis; None if they are fewer than half
    of the window's, or give no speed."""
    if taken.first is None or taken.last is None or taken.rule.basis is Basis.TOTAL:
        return None
    basis, least = (taken.rule.basis,), taken.last + max(1, (taken.last - taken.first) / 2)
    for end in (end for end in ends_behind(segment, taken.last) if end >= least):
        found = _speed(basis, (taken.last, end), reading, segment, values, taken.rule.per_node)
        if found is not None:
            return found[1]
    return None


def by_other_reading(
    taken: WindowFigure, segment: Segment, other: Reading, values: Values
) -> Other | None:
    """The speed of what another format reads in the lines of the same window; None unless its lines
    span half of it."""
    if not taken.steps or taken.rule.basis is Basis.TOTAL:
        return None
    first, last = taken.steps[0].line, taken.end_line
    lines = other.steps.numbers("line")
    steps = other.steps[bisect_left(lines, first) : bisect_right(lines, last)]
    runs = segments_of(replace(other, steps=steps, totals=()))
    run = max(runs, key=lambda run: len(run.steps))
    if len(run.steps) < 2 or run.steps[-1].line - run.steps[0].line < (last - first) / 2:
        return None
    ends = run.steps[0].iteration, run.steps[-1].iteration
    return _speed(_PRINTED_FIRST, ends, other, replace(run, after=ends[0]), values)


def _speed(
    bases: Sequence[Basis],
    ends: tuple[int, int],
    reading: Reading,
    segment: Segment,
    values: Values,
    per_node: bool = False,
) -> Other | None:
    """The speed between two iterations on the first of the bases that gives one."""
    for basis in bases:
        try:
            found = figure(WindowRule("check", basis, *ends, per_node=per_node), reading, segment)
            speed = converted(found, values, reading.counter, segment.ranks)
        except (NoFigure, MissingFact):
            continue
        if not found.lacking and math.isfinite(speed.value):
            return basis, speed
    return None


def disagreement(one: float, other: float, values: Values) -> str:
    """What lies between two speeds of one run; '' if they agree to 5 %."""
    ratio = other / one
    if abs(ratio - 1) <= TOLERANCE:
        return ""
    if not ratio > 0:
        return f"{other!r} is no speed"
    fitting = [
        f"1/{value} ({name})" if ratio < 1 else f"{value} ({name})"
        for name, value in _factors(values, ratio)
        if abs(ratio * value - 1) <= TOLERANCE or abs(ratio / value - 1) <= TOLERANCE
    ]
    likely = f"as by a factor {' or '.join(fitting)}" if fitting else "no known factor explains it"
    return f"{other:.6g} / {one:.6g} = {ratio:.4g}: {likely}"


def _factors(values: Values, ratio: float) -> Iterator[tuple[str, int]]:
    known = [
        ("a speed of one device", devices_of(values)),
        ("gradient accumulation", accumulation_of(values)),
        ("tokens of a sequence", values.get("seq_len")),
        ("samples of a batch", batch_size_of(values)),
        ("a speed of one node", values.get("nodes")),
        ("devices of a node", values.get("gpus_per_node")),
    ]
    yield from ((name, int(value)) for name, value in known if value and value > 1)
    about = round(min(max(ratio, 1 / ratio), _MOST_ACCUMULATION + 1))
    if accumulation_of(values) is None and 1 < about <= _MOST_ACCUMULATION:
        yield "gradient accumulation, which is not stated", about
