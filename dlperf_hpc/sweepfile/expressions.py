"""Whole-number expressions of a program's table: ``devices // tp``, ``devices % tp == 0``.

Names, whole numbers, ``+ - * / // %``, brackets, and for a condition one comparison. Python's own
parser reads them, and nothing but the nodes below is evaluated: no call, no attribute but the dot
of a key (``optimizer.lr``), no number above 2**63. ``/`` must come out whole, ``//`` rounds down.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Callable

LONGEST = 200  # characters of an expression; it bounds depth and time as well
_MOST = 2**63

_Number = Callable[[int, int], Any]
_OPERATORS: dict[type[ast.operator], _Number] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], _Number] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NODES = (
    *(ast.Name, ast.Load, ast.UnaryOp, ast.USub, ast.BinOp, ast.Div, ast.Compare),
    *(*_OPERATORS, *_COMPARISONS),
)
_RULE = "write names and whole numbers with + - * / // % and brackets"


class ExpressionError(ValueError):
    """An expression that cannot be read, or has no whole value for a case; the message says why."""


@lru_cache(maxsize=1024)
def parsed(text: str) -> ast.expr:
    """The expression; ExpressionError for anything else than the nodes that are evaluated."""
    if len(text) > LONGEST:
        raise ExpressionError(f"has more than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r} is no expression: {_RULE}") from None
    if not all(map(_is_allowed, ast.walk(tree))):
        raise ExpressionError(f"{text!r} is no expression: {_RULE}")
    return tree


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int and node.value < _MOST
    if isinstance(node, ast.Attribute):
        return _name(node) is not None
    return isinstance(node, _NODES)


def _name(node: ast.AST) -> str | None:
    """``optimizer.lr`` of a name, with its dots; None for any other node."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _name(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


def names_in(text: str) -> list[str]:
    """The names of an expression, each once; ExpressionError as :func:`parsed`."""
    return list(dict.fromkeys(_names(parsed(text))))


def _names(node: ast.AST) -> Iterator[str]:
    name = _name(node)
    if name is not None:
        yield name
        return
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def is_name(text: str) -> bool:
    """Whether an expression is one name and nothing else: its value may then be text too."""
    return _name(parsed(text)) is not None


def whole(text: str, values: Mapping[str, Any]) -> int:
    """The value of an expression; ExpressionError if it is not whole, or a name has no number."""
    value = _value(parsed(text), text, values)
    if isinstance(value, bool):
        raise ExpressionError(f"{text!r} is a condition, and a whole number is wanted")
    return value


def holds(text: str, values: Mapping[str, Any]) -> bool:
    """Whether a condition holds; ExpressionError as :func:`whole`, or if it compares nothing."""
    value = _value(parsed(text), text, values)
    if not isinstance(value, bool):
        raise ExpressionError(f"{text!r} compares nothing: write a condition, as devices % tp == 0")
    return value


def _value(node: ast.expr, text: str, values: Mapping[str, Any]) -> int | bool:
    name = _name(node)
    if name is not None:
        return _whole_of(name, values)
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]  # only whole numbers are allowed
    if isinstance(node, ast.UnaryOp):
        return -_number(node.operand, text, values)
    if isinstance(node, ast.Compare):
        ends = [_number(each, text, values) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, ends, ends[1:])
        return all(bool(_COMPARISONS[type(op)](one, other)) for op, one, other in pairs)
    assert isinstance(node, ast.BinOp)
    left, right = _number(node.left, text, values), _number(node.right, text, values)
    return _computed(node.op, left, right, text)


def _number(node: ast.expr, text: str, values: Mapping[str, Any]) -> int:
    value = _value(node, text, values)
    if isinstance(value, bool):
        raise ExpressionError(f"{text!r} computes with a condition")
    return value


def _whole_of(name: str, values: Mapping[str, Any]) -> int:
    if name not in values:
        raise ExpressionError(f"{name} is not given")
    value = values[name]
    if type(value) is not int:
        raise ExpressionError(f"{name} is {value!r}, and one computes with whole numbers only")
    return value


def _computed(kind: ast.operator, left: int, right: int, text: str) -> int:
    if right == 0 and isinstance(kind, (ast.Div, ast.FloorDiv, ast.Mod)):
        raise ExpressionError(f"{text!r} divides {left} by 0")
    if isinstance(kind, ast.Div):
        if left % right:
            raise ExpressionError(f"{text!r} is {left} / {right}, which is not whole")
        return left // right
    result = int(_OPERATORS[type(kind)](left, right))
    if abs(result) >= _MOST:
        raise ExpressionError(f"{text!r} is above 2**63")
    return result
