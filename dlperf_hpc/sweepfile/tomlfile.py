"""A TOML file into tables, and pydantic's complaints of them into issues with key paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import tomllib
from pydantic import BaseModel, ValidationError

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.sweepfile.keys import complaint, nearest

_DOUBLE = ("zip", "exclude", "override")  # tables written with double brackets


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and its tables; SpecError with the line for a syntax error."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError(str(path), [Issue("file", "there is no such file")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), [Issue("file", f"cannot be read: {error}")]) from error
    try:
        return text, tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and numbers too long for Python
        raise SpecError(str(path), [Issue("TOML syntax", str(error))]) from error
    except RecursionError:
        raise SpecError(str(path), [Issue("TOML syntax", "is nested too deeply")]) from None


def pydantic_issues(
    error: ValidationError, known: type[BaseModel], hints: Mapping[str, str] | None = None
) -> list[Issue]:
    """A model's complaints as issues with key paths and nearest names.

    ``hints`` are for unknown keys that have their place elsewhere.
    """
    issues = []
    for item in error.errors():
        loc = [part for part in item["loc"] if part != "[key]"]
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc)[1:]
        if item["type"] == "extra_forbidden":
            name = str(loc[-1])
            names = [*_names_of(known, item["loc"][:-1]), *(hints or {})]
            hint = (hints or {}).get(name) or nearest(name, names)
            issues.append(Issue(where, f"unknown key {name!r}", hint))
        elif item["type"] == "missing":
            issues.append(Issue(where, "is missing"))
        else:
            doubled = where in _DOUBLE and isinstance(item["input"], dict)
            hint = f"write [[{where}]], with two brackets" if doubled else None
            issues.append(Issue(where, complaint(item), hint))
    return issues


def _names_of(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part))
        model = next(_models_in(field.annotation if field else None), model)
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
