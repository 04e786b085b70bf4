"""Sweep files for the tests of the sweep file, its cases and its arrays."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from dlperf_hpc.errors import SpecError
from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.load import Sweep, load_sweep
from dlperf_hpc.train.registry import registry

# Top-level keys go in front, tables behind.
BASE = """\
{top}
[case]
framework = "ddp"
model = "bert-tiny"
{case}
{tables}
"""


def write(
    directory: Path,
    *,
    top: str = 'topologies = ["1n1g"]',
    case: str = "batch_size = 8",
    tables: str = "",
) -> Path:
    path = directory / "sample.toml"
    text = BASE.format(top=top, case=case, tables=textwrap.dedent(tables))
    path.write_text(text, encoding="utf-8")
    return path


def load(path: Path, **overrides: Any) -> Sweep:
    return load_sweep(path, registry(), overrides)


def issues_of(path: Path, **overrides: Any) -> list[str]:
    """The issues a file is refused with, as a user reads them."""
    with pytest.raises(SpecError) as caught:
        load(path, **overrides)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(str(path))
    return [str(issue) for issue in caught.value.issues]


def cases(directory: Path, **parts: str) -> tuple[Case, ...]:
    return load(write(directory, **parts)).cases
