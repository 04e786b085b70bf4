"""What people write, validated by pydantic: how strict its models are, the kinds of text in them,
and a model's complaints as issues with key paths, nearest names and what to write instead.

A field's ``description`` is what to write where its value is missing or of another kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from dlperf_hpc.errors import MOST_LISTED, Issue, meant, nearest, toml_text
from dlperf_hpc.model.case import LINE, NAME

_REFUSED = "refused"


STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
"""Of all models: no unknown key, no text in place of a number. A validator is built when a table is
validated, so that a verb does not wait for those that it does not need."""


def refusal(*issues: Issue) -> PydanticCustomError:
    """What a validator raises that has its own words; ``where`` of the issues counts from the value
    that is validated, '' for the value itself."""
    return PydanticCustomError(_REFUSED, "refused", {"issues": issues})


def matching(pattern: str, rule: str) -> AfterValidator:
    """For a type of text: what does not match all of ``pattern`` is refused with ``rule``."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if compiled.fullmatch(text) is None:
            raise ValueError(rule)
        return text

    return AfterValidator(check)


def one_of(known: Iterable[str]) -> AfterValidator:
    """For a type of text: one of these names; another is refused with the nearest of them."""

    def check(text: str, info: ValidationInfo) -> str:
        if text in known:
            return text
        hint = nearest(text, known) or f"there are: {', '.join(known)}"
        raise refusal(Issue("", f"there is no {info.field_name} {text!r}", hint))

    return AfterValidator(check)


Name = Annotated[
    str,
    matching(NAME, "write at most 64 letters, digits, '.', '_' and '-', a letter or digit first"),
]
Line = Annotated[str, matching(LINE, "write one line without control characters")]


def issues_of(
    error: ValidationError, model: type[BaseModel], elsewhere: Mapping[str, str] | None = None
) -> list[Issue]:
    """A model's complaints as issues. ``elsewhere`` has by unknown key where its place is."""
    issues: list[Issue] = []
    for item in error.errors():
        keys = [part for part in item["loc"] if part != "[key]"]
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)[1:]
        inner, field = _at(model, item["loc"])
        if item["type"] == _REFUSED:
            for issue in item["ctx"]["issues"]:
                place = f"{where}.{issue.where}".strip(".").replace(".[", "[")
                issues.append(Issue(place, issue.message, issue.hint))
        elif item["type"] == "extra_forbidden":
            # To look for the nearest name takes long.
            near = len(issues) < MOST_LISTED
            issues.append(_unknown(where, str(keys[-1]), inner, elsewhere or {}, near))
        else:
            issues.append(_invalid(where, item, field))
    return issues


def _unknown(
    where: str, name: str, model: type[BaseModel], elsewhere: Mapping[str, str], near: bool
) -> Issue:
    hint = elsewhere.get(name)
    if hint is None and near:
        hint = nearest(name, [*model.model_fields, *elsewhere])
        hint = meant(model.__name__.lower(), name) or hint
    return Issue(where, f"unknown key {name!r}", hint)


def _invalid(where: str, item: Mapping[str, Any], field: FieldInfo | None) -> Issue:
    hint = field and field.description
    if item["type"] == "missing":
        return Issue(where, "is missing", hint)
    if hint is not None:
        return Issue(where, f"{toml_text(item['input'])} is invalid", hint)
    return Issue(where, complaint(item))


def _at(
    model: type[BaseModel], loc: Iterable[int | str]
) -> tuple[type[BaseModel], FieldInfo | None]:
    """The innermost model on the way to a value, and the field that the value is of; None for a
    value within a field's list or table."""
    field: FieldInfo | None = None
    for part in loc:
        if field is not None:
            model = next(_models_in(field.annotation), model)
        field = model.model_fields.get(str(part))
    return model, field


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def complaint(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors in the words of a sweep file."""
    write = _WRITE.get(error["type"])
    if write is not None:
        return (
            f"{toml_text(error['input'])} is invalid: write {write.format(**error.get('ctx', {}))}"
        )
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{toml_text(error['input'])} is invalid: {text[0].lower()}{text[1:]}"


_WRITE = {
    "bool_type": "true or false, without quotes",
    "dict_type": "a table, as [name] with its keys below it",
    "finite_number": "a number that is not infinite",
    "float_type": "a number, without quotes",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "int_type": "a whole number, without quotes and without a point",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "list_type": "a list, [...]",
    "literal_error": "{expected}",
    "model_type": "a table, as [name] with its keys below it",
    "string_too_long": "at most {max_length} characters",
    "string_type": 'a text in quotes, "..."',
    "too_long": "a list of at most {max_length} values",
    "too_short": "a list with a value in it, [...]",
    "tuple_type": "a list, [...]",
}
"""What to write, by the type of pydantic's error."""
