"""The keys of a case: their types, defaults and meaning, each in one place.

``docs/sweep-file.md`` is checked against this table, and every value of a sweep is checked by it
where it stands, so that an error can name ``matrix.batch_size[1]`` and not a case made of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dlperf_hpc.errors import Issue
from dlperf_hpc.spec.case import Topology
from dlperf_hpc.spec.declarations import Option, Registry

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Key:
    """A key that any case may set; ``default`` None means "must be given" or "follows another"."""

    name: str
    type: Any
    default: Any
    doc: str


KEYS = {
    key.name: key
    for key in (
        Key("framework", Name, None, "back end that trains: ddp (others are named when planned)"),
        Key("model", Name, None, "workload: bert-base, bert-large, bert-tiny"),
        Key("precision", Name, "fp32", "fp32 (TF32 really off), tf32, bf16, fp16"),
        Key("batch_size", Count, None, "samples per device in one iteration (micro-batch)"),
        Key("seq_len", Count, None, "tokens per sample; default is the workload's"),
        Key("accumulation", Count, 1, "iterations per optimizer step"),
        Key(
            "global_batch",
            Count,
            None,
            "samples per optimizer step; sets accumulation, must divide by batch_size x devices",
        ),
        Key("optimizer.name", Name, "adamw", "adam, adamw or sgd"),
        Key("optimizer.lr", Rate, 1e-4, "learning rate, constant"),
        Key("optimizer.weight_decay", Rate, 0.01, "weight decay"),
        Key("optimizer.beta1", Beta, 0.9, "first-moment decay (sgd: momentum)"),
        Key("optimizer.beta2", Beta, 0.999, "second-moment decay"),
        Key("optimizer.eps", Rate, 1e-6, "epsilon"),
        Key("optimizer.grad_clip", Rate, 1.0, "clip gradients to this global norm; 0 is off"),
        Key("data", Literal["synthetic", "real"], "synthetic", "where samples come from"),
        Key("data_path", str, "", "files of data = real, as the compute nodes see them"),
        Key("device", Literal["auto", "cpu", "cuda"], "auto", "auto: GPUs where there are any"),
        Key("environment", Name, "default", "the site's environment that holds the framework"),
        Key("processes_per_node", Count, None, "ranks per node; default one per GPU"),
        Key("threads", Count, 1, "CPU threads per rank when it computes on CPUs"),
        Key("seed", Annotated[int, Field(ge=0)], 1, "seed of weights and data"),
    )
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """``did you mean ...`` for a name that is close to a known one, else None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None


def known_keys(registry: Registry) -> dict[str, Any]:
    """Every key a sweep may name, with its type: the generic ones, topology, and all options."""
    types: dict[str, Any] = {name: key.type for name, key in KEYS.items()}
    types["topology"] = str
    declared = [option for backend in registry.backends.values() for option in backend.options]
    declared += [option for model in registry.workloads.values() for option in model.options]
    types.update({option.name: _option_type(option) for option in declared})
    return types


def _option_type(option: Option) -> Any:
    return Literal[option.choices] if option.choices else type(option.default)


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def type_issue(where: str, annotation: Any, value: Any) -> Issue | None:
    """What is wrong with a value for a key of this type; None if nothing is."""
    try:
        _adapter(annotation).validate_python(value, strict=True)
    except ValidationError as error:
        return Issue(where, f"{value!r} will not do: {error.errors()[0]['msg'].lower()}")
    return None


def key_issue(where: str, name: str, registry: Registry) -> Issue | None:
    """Refuse a key nobody declares; say so when it belongs to a back end not built yet."""
    known = known_keys(registry)
    if name in known:
        return None
    if name in registry.planned_options:
        return Issue(where, f"the key {name!r} is refused: {registry.planned_options[name]}")
    return Issue(where, f"unknown key {name!r}", nearest(name, [*known, *registry.planned_options]))


def value_issue(where: str, name: str, value: Any, registry: Registry) -> Issue | None:
    """Check one value of a known key, wherever in the file it stands."""
    if name == "topology":
        return topology_issue(where, value)
    issue = type_issue(where, known_keys(registry)[name], value)
    if issue is not None or name not in ("framework", "model", "precision"):
        return issue
    return _name_issue(where, name, value, registry)


def topology_issue(where: str, value: Any) -> Issue | None:
    """Not of the form 4n8g."""
    if not isinstance(value, str):
        return Issue(where, f"{value!r} is not a topology: write a string such as '4n8g'")
    try:
        Topology.parse(value)
    except ValueError as error:
        return Issue(where, str(error))
    return None


def _name_issue(where: str, kind: str, value: str, registry: Registry) -> Issue | None:
    if kind == "precision":
        built: Iterable[str] = PRECISIONS
        planned: dict[str, str] = {}
    elif kind == "framework":
        built, planned = registry.backends, dict(registry.planned_backends)
    else:
        built, planned = registry.workloads, dict(registry.planned_workloads)
    if value in built:
        return None
    if value in planned:
        return Issue(where, f"{kind} {value!r} is refused: {planned[value]}")
    offered = nearest(value, [*built, *planned]) or f"there are: {', '.join(sorted(built))}"
    return Issue(where, f"there is no {kind} {value!r}", offered)
