"""The settings of a run, resolved from three sources: its log, the user, and the file's name.

Where they differ, the log counts first, because the program that ran wrote it; then the user; then
the name of the file. A warning names the source that does not count, with both values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.logs.scanned import FACTS, Fact
from dlperf_hpc.model.case import Topology

LOG, USER, NAME = "the log", "the command line", "the file's name"

_PRECEDENCE = (LOG, USER, NAME)
_WHY = {
    LOG: "the log counts, for the program that ran wrote it",
    USER: "the command line counts",
    NAME: "the former counts",
}
_LABELS = ("framework", "model")  # one thing has several names, so that they rarely contradict
_SAME_MODEL = {"rn50": "resnet50", "r50": "resnet50", "rn": "resnet"}
_PER_NODE = 8  # devices of a node, where no source states them


@dataclass(frozen=True)
class Settings:
    """Settings and their sources by their names in ``FACTS``, and warnings of contradictions."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
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
    stated: Mapping[str, Any],
    named: Sequence[Fact],
    line: int = 0,
    framework: str = "",
) -> Settings:
    """Settings of the run whose first iteration stands in ``line`` of the log.

    ``logged``, ``stated`` and ``named`` are the settings by the log, the user and the file's name;
    ``framework`` is that of the log's format. If a log states a setting more than once, the last
    value before that line counts.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    warnings: list[str] = []
    for name in FACTS:
        claims = _of_log([fact for fact in logged if fact.name == name], line, warnings)
        claims.append(_Claim(USER, stated.get(name)))
        claims += [_Claim(NAME, fact.value) for fact in named if fact.name == name]
        if name == "framework" and framework:
            claims.append(_Claim(LOG, framework))
        claims = [claim for claim in claims if _sound(name, claim.value)]
        if not claims:
            continue
        best = _label(name, claims, warnings) if name in _LABELS else _best(name, claims, warnings)
        values[name], sources[name] = best.value, best.source
    _agree_on_devices(values, sources, warnings)
    return Settings(values, sources, tuple(warnings))


def _sound(name: str, value: Any) -> bool:
    kind = FACTS[name]
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63
    return isinstance(value, kind) and value != ""


def _of_log(facts: Sequence[Fact], line: int, warnings: list[str]) -> list[_Claim]:
    if not facts:
        return []
    before = [fact for fact in facts if fact.line <= line]
    fact = before[-1] if before else facts[0]
    differing = [other for other in facts if not _same(other.value, fact.value)]
    if differing:
        latest = differing[-1]
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
    log, user, named = by_source.get(LOG), by_source.get(USER), by_source.get(NAME)
    if user is not None:
        return user
    if named is None or log is None:
        return named or log or claims[0]
    logged = [claim for claim in claims if claim.source == LOG]
    if any(_alike(named.value, claim.value) for claim in logged):
        return named
    warnings.append(f"{name}: {log}, {named}: {_WHY[LOG]}")
    return log


def _alike(one: Any, other: Any) -> bool:
    """``rn50`` and ``resnet50_v1.5`` are one model, ``ngc/tensorflow`` and ``tensorflow`` alike."""
    a, b = _plain(one), _plain(other)
    return a in b or b in a


def _plain(label: Any) -> str:
    parts = re.split(r"[^a-z0-9]+", str(label).casefold())
    return "".join(_SAME_MODEL.get(part, part) for part in parts)


def _same(one: Any, other: Any) -> bool:
    return str(one).casefold() == str(other).casefold()


def _spelt_out(name: str) -> str:
    return name.replace("_", " ").replace("gpus", "GPUs").replace("seq len", "sequence length")


def _short(value: Any) -> str:
    return str(value)[:60]


def _agree_on_devices(values: dict[str, Any], sources: dict[str, str], warnings: list[str]) -> None:
    """Where ``devices`` and nodes x GPUs per node differ, drop what the lesser source states."""
    parts = ("nodes", "gpus_per_node")
    if "devices" not in values or not all(part in values for part in parts):
        return
    devices, product = values["devices"], values["nodes"] * values["gpus_per_node"]
    if devices == product:
        return
    worst = max((sources[part] for part in parts), key=_PRECEDENCE.index)
    keep_devices = _PRECEDENCE.index(sources["devices"]) <= _PRECEDENCE.index(worst)
    for name in parts if keep_devices else ("devices",):
        del values[name]
    warnings.append(
        f"{sources['devices']} says {devices} devices, {worst} {product} (nodes x GPUs per node): "
        f"{devices if keep_devices else product} are taken"
    )


def devices_of(values: Mapping[str, Any]) -> int | None:
    """Devices over all nodes; None if they are not stated."""
    if "devices" in values:
        return int(values["devices"])
    if "nodes" in values and "gpus_per_node" in values:
        return int(values["nodes"] * values["gpus_per_node"])
    return None


def accumulation_of(values: Mapping[str, Any]) -> int | None:
    """Iterations per optimizer step: stated, or the quotient of the batch sizes if it is whole."""
    if "accumulation" in values:
        return int(values["accumulation"])
    devices = devices_of(values)
    if devices is None or "global_batch" not in values or "batch_size" not in values:
        return None
    quotient, rest = divmod(values["global_batch"], values["batch_size"] * devices)
    return int(quotient) if quotient and not rest else None


def batch_size_of(values: Mapping[str, Any]) -> int | None:
    """Samples per device and iteration: stated, or the global batch over all that divides it."""
    if "batch_size" in values:
        return int(values["batch_size"])
    devices = devices_of(values)
    if devices is None or "global_batch" not in values or "accumulation" not in values:
        return None
    quotient, rest = divmod(values["global_batch"], devices * values["accumulation"])
    return int(quotient) if quotient and not rest else None


def topology_of(values: Mapping[str, Any]) -> tuple[Topology | None, str]:
    """Nodes x GPUs per node, and what was assumed for it: up to 8 devices are one node, more are
    nodes of 8 if that divides them."""
    nodes, per_node = values.get("nodes"), values.get("gpus_per_node")
    if nodes and per_node:
        return Topology(nodes, per_node), ""
    devices = devices_of(values)
    if devices is None:
        return None, ""
    if per_node and devices % per_node == 0:
        return Topology(devices // per_node, per_node), ""
    if nodes and devices % nodes == 0:
        return Topology(nodes, devices // nodes), ""
    return _assumed_topology(devices)


def _assumed_topology(devices: int) -> tuple[Topology | None, str]:
    if devices == 1:
        return Topology(1, 1), ""
    if devices > _PER_NODE and devices % _PER_NODE:
        return None, ""
    topology = Topology(max(1, devices // _PER_NODE), min(devices, _PER_NODE))
    return topology, f"{devices} devices on unknown nodes are taken for {topology} (--nodes)"
