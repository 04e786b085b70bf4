"""docs/glossary.md: each term is one sentence, and what it names is there."""

from __future__ import annotations

import importlib
import importlib.util
import re

import pytest
from places import ROOT

from dlperf_hpc.model.case import Case
from dlperf_hpc.reporting import csv_columns
from dlperf_hpc.sweepfile.casetables import SweepFile

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|\n").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| term", "| -"))
]

_SUBJECTS = {"to count": "run counts", "steady": "window is steady"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_a_term_is_one_sentence_about_itself(row: tuple[str, ...]) -> None:
    term, meaning, where = row
    subject = re.match(r"(?:(?:A|An|The) )?(.*)", meaning)
    assert subject and subject[1].lower().startswith(_SUBJECTS.get(term, term.lower())), meaning
    assert meaning.endswith(".") and ". " not in meaning, meaning
    assert where


def test_terms_stand_once() -> None:
    terms = [row[0] for row in ROWS]
    assert len(terms) == len(set(terms)) > 40


def test_modules_and_classes_named_are_there() -> None:
    names = [
        name for row in ROWS for name in re.findall(r"(?<!column )(?<!key )`([\w.]+)`", row[2])
    ]
    for name in names:
        module, _, last = name.rpartition(".")
        if last[:1].isupper():
            assert hasattr(importlib.import_module(f"dlperf_hpc.{module}"), last), name
        else:
            assert importlib.util.find_spec(f"dlperf_hpc.{name}"), name
    assert len(names) > 30


def test_columns_and_keys_named_are_there() -> None:
    text = " ".join(row[2] for row in ROWS)
    known = {each.name for each in csv_columns.CASE_COLUMNS} | {
        each.name for each in csv_columns.RUN_COLUMNS
    }
    assert set(re.findall(r"column `(\w+)`", text)) <= known
    keys = {*SweepFile.model_fields, *Case.__dataclass_fields__}
    assert set(re.findall(r"key `(\w+)`", text)) <= keys
