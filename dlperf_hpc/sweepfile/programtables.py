"""``[program.NAME]`` and ``[program.NAME.read]`` as a user writes them, in a sweep file or in one
of their own: the models that check the tables, and the plain values that become of them.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from dlperf_hpc.errors import Issue, SpecError, nearest, toml_text
from dlperf_hpc.model.case import LINE, NAME
from dlperf_hpc.sweepfile import programs, readtable
from dlperf_hpc.sweepfile.casetables import SweepFile
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.keys import name_hint
from dlperf_hpc.sweepfile.programs import LAUNCHES, LOCAL_RANKS, STOPS, UserProgram
from dlperf_hpc.sweepfile.readtable import AVERAGINGS, COUNTS, SCOPES, PrintedFigure, ReadTable
from dlperf_hpc.sweepfile.tomlfile import read_toml
from dlperf_hpc.sweepfile.validation import STRICT, issues_of, matching, one_of, refusal

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_FORM = '{ unit = "tokens/s", scope = "device" }'
_FOLDER = "programs"  # in which programs have files of their own
_FORMATS = "formats"  # of a validation's context: the log formats that there are

_Text = Annotated[
    str,
    Field(max_length=programs.LONGEST_WORD),
    matching(LINE, "write one line without control characters"),
]
_Words = Annotated[tuple[_Text, ...], Strict(False), Field(max_length=programs.MOST_WORDS)]
_Patterns = Annotated[
    tuple[str, ...],
    Strict(False),
    Field(
        max_length=readtable.MOST_PATTERNS,
        description=f"write a list of at most {readtable.MOST_PATTERNS} patterns, each in single"
        " quotes",
    ),
]
_Unit = Annotated[str, AfterValidator(lambda text: _unit(text))]


def _unit(text: str) -> str:
    if issue := readtable.unit_issue("", text):
        raise refusal(issue)
    return text


def _scope(text: str, info: ValidationInfo) -> str:
    """The scope of a printed figure, which only the time or the rate of an iteration may lack."""
    if text:
        return text
    if info.data.get("unit", readtable.BY_ITERATION[0]) not in readtable.BY_ITERATION:
        hint = f"say of what the figure is: one of {', '.join(SCOPES)}"
        raise refusal(Issue("", "is missing", hint))
    return SCOPES[0]


class _ProgramTable(BaseModel):
    model_config = STRICT


class _PrintedTable(_ProgramTable):
    unit: Annotated[_Unit, Field(description=f"say what the figure is: {_FORM}")]
    scope: Annotated[
        str, one_of(("", *SCOPES)), AfterValidator(_scope), Field(validate_default=True)
    ] = ""
    averaging: Annotated[str, one_of(AVERAGINGS)] = PrintedFigure.averaging
    scale: Annotated[
        float,
        Field(
            gt=0,
            le=readtable.HIGHEST,
            description="write what one of the printed figure stands for: 1000 for thousands of"
            " tokens",
        ),
    ] = PrintedFigure.scale


def _known_format(name: str, info: ValidationInfo) -> str:
    formats: Collection[str] | None = (info.context or {}).get(_FORMATS)
    if name and formats is not None and name not in formats:
        near = nearest(name, formats) or "`dlperf report --formats` lists them"
        raise refusal(Issue("", f"there is no log format {name!r}", near))
    return name


class _Read(_ProgramTable):
    format: Annotated[str, AfterValidator(_known_format)] = ReadTable.format
    line: str = ReadTable.line
    printed: Annotated[_PrintedTable | None, Field(description=f"write a table: {_FORM}")] = None
    counts: Annotated[str, one_of(COUNTS)] = ReadTable.counts
    first: Annotated[int, Field(ge=0, le=readtable.HIGHEST)] = ReadTable.first
    each: Annotated[int, Field(ge=1, le=readtable.HIGHEST)] = ReadTable.each
    total: str = ReadTable.total
    unit: _Unit = ReadTable.unit
    fail: _Patterns = ReadTable.fail
    must: _Patterns = ReadTable.must

    def value(self) -> ReadTable:
        """The table as it travels in a manifest."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        if self.printed is not None:
            values["printed"] = PrintedFigure(**dict(self.printed))
        return ReadTable(**values)

    @model_validator(mode="after")
    def _together(self) -> _Read:
        if issues := list(readtable.misuses(self.value())):
            raise refusal(*issues)
        return self


def _variable(name: str) -> str:
    if re.fullmatch(programs.VARIABLE, name) is None:
        raise refusal(Issue("", "is no name of a variable"))
    if name == "PYTHONSAFEPATH":
        raise refusal(Issue("", "would keep a script from finding the files beside it"))
    return name


_TAKEN = {
    *(*programs.CASE_NAMES, *programs.PLAN_NAMES, *programs.TASK_NAMES, *programs.TABLES),
    "topologies",
}


def _own_key(name: str) -> str:
    if re.fullmatch(programs.KEY, name) is None or keyword.iskeyword(name):
        hint = "write small letters, digits and '_', a letter first"
        raise refusal(Issue("", f"{name!r} is no name of a key", hint))
    if name in _TAKEN:
        raise refusal(Issue("", f"{name} is a key or a placeholder of every program"))
    return name


def _default(value: Any) -> Any:
    line = isinstance(value, str) and re.fullmatch(LINE, value)
    if type(value) not in (bool, int, float) and not line:
        hint = "its default says its type: true, a number, or a text of one line"
        raise refusal(Issue("", f"{toml_text(value)} is invalid", hint))
    return value


_COMMAND = 'write the command as a list of words: ["train.py", "--steps", "{steps}"]'


class _Program(_ProgramTable):
    launch: Annotated[str, one_of(LAUNCHES), Field(description=f"there are: {', '.join(LAUNCHES)}")]
    run: Annotated[_Words, Field(min_length=1, description=_COMMAND)]
    workdir: _Text = UserProgram.workdir
    replicas: _Text = UserProgram.replicas
    require: Annotated[
        _Words, Field(description='write a list of conditions, each in quotes: ["devices > 1"]')
    ] = UserProgram.require
    env: dict[Annotated[str, AfterValidator(_variable)], _Text] = {}
    keys: dict[
        Annotated[str, AfterValidator(_own_key)], Annotated[Any, AfterValidator(_default)]
    ] = {}
    words: dict[str, dict[str, _Words]] = {}
    read: _Read = _Read.model_construct()
    stop: Annotated[str, one_of(STOPS)] = UserProgram.stop
    local_rank: Annotated[str, one_of(LOCAL_RANKS)] = UserProgram.local_rank


def read_program(
    name: str, table: Any, formats: Collection[str] | None = None
) -> tuple[UserProgram | None, list[Issue]]:
    """The program of a table, None if anything is wrong with it, and what is. ``formats`` are the
    log formats that ``read.format`` may name; None: any."""
    if re.fullmatch(NAME, name, re.ASCII) is None:
        message = f"{name!r} is no name"
        return None, [Issue("", message, "write letters, digits, '.', '_' and '-'")]
    if not isinstance(table, dict):
        hint = "write [program.NAME], with a name of yours, and its keys below it"
        return None, [Issue("", "is no table", hint)]
    try:
        found = _Program.model_validate(table, context={_FORMATS: formats})
    except ValidationError as error:
        return None, issues_of(error, _Program)
    values = {key: getattr(found, key) for key in _Program.model_fields}
    program = UserProgram(name, **{**values, "read": found.read.value()})
    if issues := list(programs.misuses(program)):
        return None, issues
    return program, []


def read_table(table: Any, formats: Collection[str]) -> tuple[ReadTable, list[Issue]]:
    """The value of a table ``[program.NAME.read]``, and what is wrong with it."""
    try:
        return _Read.model_validate(table, context={_FORMATS: formats}).value(), []
    except ValidationError as error:
        return ReadTable(), issues_of(error, _Read)


def read_table_file(path: Path, formats: Collection[str]) -> tuple[str, ReadTable]:
    """Name and table of a file for ``--format-file``: the keys stand at its top, or where a program
    has them: below [read] in a file of its own, below [program.NAME.read] in a sweep's of which no
    other program has any. SpecError for a file that tells no format."""
    name, where, table = _table_in(path, read_toml(path)[1])
    read, issues = read_table(table, formats)
    if not issues and not read.tells_format:
        found = "tells no format"
        if read.format:
            found = f"names the known format {read.format!r}"
        hint = "write line, or total with its unit: docs/programs.md; a known format needs no file"
        issues = [Issue("line", f"{path.name} {found}", hint)]
    if issues:
        raise SpecError(str(path), [replace(each, where=f"{where}{each.where}") for each in issues])
    return _NO_NAME.sub("_", name)[:64], read


def _table_in(path: Path, tables: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Name of a file's format, what stands before its keys, and the table."""
    if isinstance(tables.get("read"), dict):
        return path.stem, "read.", tables["read"]
    if not isinstance(tables.get("program"), dict):
        return path.stem, "", tables
    read = {
        n: t["read"] for n, t in tables["program"].items() if isinstance(t, dict) and "read" in t
    }
    if len(read) == 1:
        ((name, table),) = read.items()
        return name, f"program.{name}.read.", table
    hint = "copy the keys of the one that you mean into a file of its own"
    message = f"{len(read)} programs have a table [program.NAME.read]"
    raise SpecError(str(path), [Issue("program", message, hint)])


def _named_frameworks(file: SweepFile) -> Iterator[str]:
    singles = [file.case, *(each.set for each in file.override)]
    lists = [file.matrix, *file.zip]
    found = [table.get("framework") for table in singles]
    found += [value for table in lists for value in table.get("framework", ())]
    yield from dict.fromkeys(name for name in found if isinstance(name, str))


@dataclass(frozen=True)
class _FoundTable:
    """A program's table. ``place`` is what stands before its keys in a message."""

    name: str
    place: str
    table: Any

    def placed(self, issues: Iterable[Issue]) -> list[Issue]:
        """Issues whose key paths begin in the table, as paths from the file's top."""
        return [replace(each, where=f"{self.place}{each.where}".rstrip(".: ")) for each in issues]


def with_programs(
    file: SweepFile,
    path: Path,
    folders: Sequence[Path] | None,
    registry: Registry,
    formats: Iterable[str] | None,
) -> tuple[Registry, list[Issue]]:
    """The registry with the sweep's programs: its own tables, and for names that neither they nor
    a back end has, ``NAME.toml`` in the first of the folders that has it. Arguments as of
    :func:`.load.load_sweep`."""
    beside = path.parent / _FOLDER
    sought = [beside] if folders is None else folders
    tables, issues = _program_tables(file, beside, sought, registry)
    programs: dict[str, UserProgram] = {}
    known = list(formats) if tables and formats is not None else None
    for found in tables:
        name = found.name
        program, wrong = read_program(name, found.table, known)
        issues += found.placed(wrong)
        if name in registry.backends:
            message = f"{name!r} is a back end of dlperf_hpc: two programs of one name"
            issues.append(Issue(f"program.{name}", message, "give yours another name"))
        elif program is not None:
            issues += found.placed(_type_issues(program, replace(registry, programs=programs)))
            programs[name] = program
    return replace(registry, programs=programs), issues


def _program_tables(
    file: SweepFile, beside: Path, folders: Sequence[Path], registry: Registry
) -> tuple[list[_FoundTable], list[Issue]]:
    found = [_FoundTable(name, f"program.{name}.", table) for name, table in file.program.items()]
    issues: list[Issue] = []
    for name in _named_frameworks(file):
        if name in registry.backends or not re.fullmatch(NAME, name):
            continue
        there = next(filter(Path.exists, (each / f"{name}.toml" for each in folders)), None)
        own = beside / f"{name}.toml"
        if name not in file.program:
            if there is not None:
                found.append(_FoundTable(name, f"{there}: ", read_toml(there)[1]))
            else:
                issues += _near_program(name, folders, registry)
        elif own.exists():  # a file elsewhere gives way to the sweep's own table
            message = f"stands here and in {own}: two programs of one name"
            issues.append(Issue(f"program.{name}", message, "rename or remove one of them"))
    return found, issues


def _near_program(name: str, folders: Iterable[Path], registry: Registry) -> list[Issue]:
    """The issue of a framework that there is not where a program's file has nearly its name."""
    files = {path.stem for each in folders for path in each.glob("*.toml")}
    hint = nearest(name, sorted({*files, *registry.backends})) or ""
    if name_hint("framework", name, registry) is None and any(repr(each) in hint for each in files):
        return [Issue("framework", f"there is no framework {name!r}", hint)]
    return []


def _type_issues(program: UserProgram, registry: Registry) -> list[Issue]:
    """Own keys that are of another type elsewhere: a value in [matrix] has one type."""
    types = {option.name: type(option.default) for option in registry.declared()}
    return [
        Issue(
            f"keys.{key}",
            f"{key} is a {types[key].__name__} elsewhere, and here {toml_text(default)}",
            "rename it, or give it a default of that type",
        )
        for key, default in program.keys.items()
        if types.get(key, type(default)) is not type(default)
    ]
