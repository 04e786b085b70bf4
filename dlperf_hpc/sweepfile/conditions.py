"""What an [[exclude]] and the ``when`` of an [[override]] ask of a key: one value, a list of which
any will do, or, where the key is a number, a range written as text: ``"2..8"``, ``">= 4"``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from dlperf_hpc.errors import Issue, toml_text
from dlperf_hpc.model.case import Topology
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.keys import known_keys, read_value

COUNTS = ("nodes", "gpus_per_node", "devices")
"""Keys of these tables alone: parts of a case's topology."""

Number = Union[int, float]

_NUMBER = r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?"
_BETWEEN = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})")
_COMPARED = re.compile(rf"(<=|>=|<|>)\s*({_NUMBER})")
_FORMS = 'write a number, or a range: "2..8" (both included), "> 4", ">= 4", "< 4" or "<= 4"'


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, these included."""

    low: Number = -math.inf
    high: Number = math.inf

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high


@dataclass(frozen=True)
class Condition:
    """What a key's value must be: any of ``values``, or within any of ``ranges``."""

    values: frozenset[Any]
    ranges: tuple[Range, ...] = ()

    def holds(self, value: Any) -> bool:
        """Whether a case with this value of the key is meant."""
        return value in self.values or any(value in each for each in self.ranges)


def counts_of(topology: str) -> Mapping[str, int]:
    """The values of :data:`COUNTS` for a topology."""
    found = Topology.parse(topology)
    return dict(zip(COUNTS, (found.nodes, found.gpus_per_node, found.devices)))


def read_condition(
    where: str, key: str, given: Any, registry: Registry
) -> tuple[Condition, list[Issue]]:
    """What is asked of a known key, or one of :data:`COUNTS`, and what is wrong with it."""
    if given == []:
        issue = Issue(where, "is empty, so that it would match no case")
        return Condition(frozenset()), [issue]
    listed = isinstance(given, list)
    items = given if isinstance(given, list) else [given]
    number = _number_type(key, registry)
    values: set[Any] = set()
    ranges: list[Range] = []
    issues: list[Issue] = []
    for i, item in enumerate(items):
        place = f"{where}[{i}]" if listed else where
        if number is not None and isinstance(item, str):
            try:
                ranges.append(_range(item, number))
            except ValueError as error:
                issues.append(Issue(place, str(error), _FORMS))
            continue
        # A number of nodes is written as a size of a batch is.
        named = "batch_size" if key in COUNTS else key
        value, wrong = read_value(place, named, item, registry)
        if wrong is None:
            values.add(value)
        else:
            issues.append(wrong)
    return Condition(frozenset(values), tuple(ranges)), issues


def _number_type(key: str, registry: Registry) -> type[Any] | None:
    """int or float, for a key whose values are such numbers."""
    if key in COUNTS:
        return int
    annotation = known_keys(registry)[key]
    base = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return base if base in (int, float) else None


def _range(text: str, number: type[Any]) -> Range:
    """The range that a text writes; ValueError, with what is wrong, for any other text."""
    between, compared = _BETWEEN.fullmatch(text.strip()), _COMPARED.fullmatch(text.strip())
    if between:
        low, high = (_bound(text, word, number) for word in between.groups())
        if low > high:
            raise ValueError(f"{toml_text(text)} is empty: {low} is above {high}")
        return Range(low, high)
    if not compared:
        raise ValueError(f"{toml_text(text)} is no range")
    sign, bound = compared[1], _bound(text, compared[2], number)
    if sign in (">", "<"):
        bound = math.nextafter(bound, math.inf if sign == ">" else -math.inf)
    return Range(low=bound) if sign.startswith(">") else Range(high=bound)


def _bound(text: str, word: str, number: type[Any]) -> Number:
    try:
        value: Number = number(word)
    except ValueError:
        raise ValueError(f"{toml_text(text)} is no range of whole numbers") from None
    if not math.isfinite(value):
        raise ValueError(f"{toml_text(text)} has a number that is too large")
    return value


def comparisons(conditions: Iterable[Condition]) -> int:
    """How many comparisons a case with these conditions takes, at most; a list of values is one."""
    return max(1, sum(len(condition.ranges) for condition in conditions))
