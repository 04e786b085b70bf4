"""The keys of a case: their types, defaults and meaning, each in one place, and what other programs
call them.

``docs/sweep-file.md`` is checked against this table, and every value of a sweep is checked by it
where it stands, so that an error can name ``matrix.batch_size[1]`` and not a case made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dlperf_hpc.errors import Issue, meant, nearest
from dlperf_hpc.model.case import LARGEST, MODES, OPTIMIZERS, SCHEDULES, Option, Topology
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.validation import Line, Name, complaint

Count = Annotated[int, Field(ge=1, le=10**9)]
Steps = Annotated[int, Field(ge=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
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
        Key("framework", Name, None, "back end that trains"),
        Key("model", Name, None, "model with its data"),
        Key("precision", Name, "fp32", "fp32 (TF32 really off), tf32, bf16, fp16"),
        Key("mode", Name, MODES[0], "eager, compile (torch.compile), or tuned (compile and more)"),
        Key(
            "batch_size",
            Count,
            None,
            "samples per device in one iteration (micro-batch); max: the most that fit",
        ),
        Key("seq_len", Count, None, "tokens per sample; default is the workload's"),
        Key("accumulation", Count, 1, "iterations per optimizer step"),
        Key(
            "global_batch",
            Count,
            None,
            "samples per optimizer step; sets accumulation, must divide by batch_size x devices",
        ),
        Key("optimizer.name", Name, "adamw", "adam, adamw, sgd, or a LAMB"),
        Key("optimizer.lr", Rate, 1e-4, "learning rate: the schedule's peak"),
        Key("optimizer.weight_decay", Rate, 0.01, "weight decay"),
        Key("optimizer.beta1", Beta, 0.9, "first-moment decay (sgd: momentum)"),
        Key("optimizer.beta2", Beta, 0.999, "second-moment decay"),
        Key("optimizer.eps", Rate, 1e-6, "epsilon"),
        Key("optimizer.grad_clip", Rate, 1.0, "clip gradients to this global norm; 0 is off"),
        Key("optimizer.bias_correction", bool, True, "correct the moments of the first steps"),
        Key("optimizer.max_coeff", Rate, 10.0, "lamb-deepspeed: largest trust ratio"),
        Key("optimizer.min_coeff", Rate, 0.01, "lamb-deepspeed: smallest trust ratio"),
        Key("schedule.name", Literal[tuple(SCHEDULES)], "constant", "shape of the learning rate"),
        Key("schedule.warmup", Steps, 0, "optimizer steps from 0 to the peak"),
        Key("schedule.total", Steps, 0, "optimizer steps until the rate is 0"),
        Key("schedule.power", Rate, 1.0, "exponent of the polynomial"),
        Key("schedule.decay_rate", Rate, 1.0, "factor per decay_steps after the warm-up"),
        Key("schedule.decay_steps", Count, 1, "optimizer steps that decay_rate is for"),
        Key("schedule.offset", Rate, 0.0, "added to the learning rate"),
        Key("data", Literal["synthetic", "real"], "synthetic", "where samples come from"),
        Key("data_path", Line, "", "files of data = real, as the compute nodes see them"),
        Key("device", Literal["auto", "cpu", "cuda"], "auto", "auto: GPUs where there are any"),
        Key("environment", Name, "default", "the site's environment that holds the framework"),
        Key("processes_per_node", Count, None, "ranks per node; default one per GPU"),
        Key("threads", Count, 1, "CPU threads per rank when it computes on CPUs"),
        Key("seed", Seed, 1, "seed of weights and data"),
    )
}


COMPILE = "compile"
"""An earlier name: ``compile = true`` is ``mode = "compile"``, and false is ``"eager"``."""


def renamed(key: str, value: Any) -> tuple[str, Any]:
    """A key and its value by today's names, where these are others."""
    if key != COMPILE or not (value is None or isinstance(value, bool)):
        return key, value
    return "mode", MODES[bool(value)]


def known_keys(registry: Registry) -> dict[str, Any]:
    """Every key a sweep may name, with its type: the generic ones, topology, and all options."""
    types: dict[str, Any] = {COMPILE: bool, **{name: key.type for name, key in KEYS.items()}}
    types["topology"] = str
    types.update({option.name: _option_type(option) for option in registry.declared()})
    return types


@cache
def _option_type(option: Option) -> Any:
    if option.choices:
        return Literal[option.choices]
    if isinstance(option.default, str):
        return Line
    if isinstance(option.default, bool):
        return bool
    number: Any = type(option.default)
    if number is float:
        number = Annotated[float, Field(allow_inf_nan=False)]
    return Annotated[number, Field(ge=option.minimum, le=option.maximum)]


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def key_issue(
    where: str, name: str, registry: Registry, top_level: Iterable[str] = (), near: bool = True
) -> Issue | None:
    """Refuse a key nobody declares; ``near``: with the name that is nearest."""
    known = known_keys(registry)
    if name in known:
        return None
    if name in top_level:
        hint = f"{name} stands at the top of the file, above the first [table]"
        return Issue(where, f"{name!r} is not a key of a case", hint)
    if not near:
        return Issue(where, f"unknown key {name!r}")
    names = [*known, *top_level]
    meant = key_hint(name, names) or nearest(name, names) or "docs/sweep-file.md lists the keys"
    return Issue(where, f"unknown key {name!r}", meant)


def read_value(where: str, name: str, value: Any, registry: Registry) -> tuple[Any, Issue | None]:
    """One value of a known key, as its type has it (``1`` is ``1.0`` where a float belongs)."""
    if name == "topology":
        return value, topology_issue(where, value)
    if (name, value) == ("batch_size", LARGEST):
        return value, None
    try:
        value = _adapter(known_keys(registry)[name]).validate_python(value, strict=True)
    except ValidationError as error:
        return value, Issue(where, complaint(error.errors()[0]))
    if isinstance(value, float):
        return value + 0.0, None  # -0.0 is 0.0
    return value, _name_issue(where, name, value, registry)


def topology_issue(where: str, value: Any) -> Issue | None:
    """Not of the form 4n8g."""
    if not isinstance(value, str):
        return Issue(where, f"{value!r} is not a topology: write a string such as '4n8g'")
    try:
        Topology.parse(value)
    except ValueError as error:
        numbers = re.fullmatch(r"(\d{1,5})\D+(\d{1,5})\D*", value, re.ASCII)
        return Issue(where, str(error), numbers and f"perhaps {numbers[1]}n{numbers[2]}g is meant")
    return None


def _name_issue(where: str, kind: str, value: Any, registry: Registry) -> Issue | None:
    names: dict[str, Iterable[str]] = {
        "framework": [*registry.backends, *registry.programs],
        "model": registry.workloads,
        "precision": PRECISIONS,
        "mode": MODES,
    }
    # A program's model is a label, and it may have a key ``mode`` of its own; :mod:`.expand`
    # refuses what a back end does not have.
    if value in names.get(kind, [value]) or (kind in ("model", "mode") and registry.programs):
        return None
    return no_such(where, kind, value, names[kind], registry)


def no_such(where: str, kind: str, value: str, built: Iterable[str], registry: Registry) -> Issue:
    """There is no framework, model, precision or mode of this name; with the nearest there is."""
    known = f"there are: {', '.join(sorted(built))}"
    offered = name_hint(kind, value, registry) or nearest(value, built) or known
    return Issue(where, f"there is no {kind} {value!r}", offered)


_TABLES = {"optimizer": OPTIMIZERS, "schedule": tuple(SCHEDULES)}


def key_hint(name: str, known: Iterable[str]) -> str | None:
    """What to write for a key that nobody declares, one of ``known`` perhaps; None: not known."""
    if name in _TABLES:
        names, settings = ", ".join(_TABLES[name]), [k for k in known if k.startswith(f"{name}.")]
        example = f'write {name}.name = "{_TABLES[name][0]}" under [case]; the names are {names}'
        return f"{example}; the settings are {', '.join(settings[1:4])}, ..."
    hint, called = meant("key", name), ""
    if hint is None and name != "name":
        called = " or ".join(key for key in known if key.endswith(f".{name}"))
    return f"it is called {called}, under [case] or [matrix]" if called else hint


def name_hint(kind: str, value: str, registry: Registry) -> str | None:
    """What a framework, a model or a precision of another name is called here: one name, or all
    that belong to a family; None if nothing is known of it."""
    plain = value.lower().replace("_", "-")
    called = meant(kind, plain) or ""
    if kind == "precision" or called in registry.workloads:
        return f"write '{called}'" if called else None
    if kind == "framework" and called in registry.backends:
        library = registry.backends[called].library
        rest = [n for n, each in registry.backends.items() if each.library == library]
        rest.remove(called)
        return f"write {called!r}; with {library} train also: {', '.join(rest)}"
    names: Iterable[str] = registry.workloads
    if kind == "framework":
        names = registry.backends
    family = _family(names, (called or plain).replace("-", ""))
    if family:
        return f"write one of {', '.join(family)}"
    begins = [name for name in names if plain.startswith(f"{name}-")]
    return f"write {max(begins, key=len)!r}" if begins else meant("own", plain)


def _family(names: Iterable[str], wanted: str) -> list[str]:
    """Those of the names that are of a family, as ``gpt2-tiny`` is of ``gpt2``."""
    heads = {name: name.rpartition("-")[0].replace("-", "") for name in names}
    return [repr(name) for name, head in heads.items() if wanted and head == wanted]
