"""docs/frameworks.md's table of back ends, models and precisions, beside what a sweep accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc.errors import SpecError
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")


def rows() -> dict[str, tuple[set[str], set[str]]]:
    """Families of models and precisions, by back end."""
    head = "| `framework` | models | precisions | what is refused, with the reason |\n"
    lines = PAGE.partition(head)[2].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        name.strip("`"): (
            {_family(each) for each in models.split(", ")},
            set(precisions.split(", ")),
        )
        for name, models, precisions, _ in cells
    }


def _family(model: str) -> str:
    """``gpt`` of GPT-2 and of gpt2-small."""
    return re.split("[^a-z]", model.lower())[0]


def accepted(tmp_path: Path, framework: str, model: str, precision: str) -> bool:
    path = tmp_path / "sweep.toml"
    case = f'framework = "{framework}"\nmodel = "{model}"\nprecision = "{precision}"\n'
    path.write_text(f'topologies = ["1n1g"]\n[case]\n{case}batch_size = 1\n', encoding="utf-8")
    try:
        load_sweep(path, registry())
    except SpecError as error:
        keys = {issue.where for issue in error.issues}
        assert keys <= {"model", "precision"}, error
        return False
    return True


@pytest.mark.parametrize("framework", sorted(registry().backends))
def test_the_table_says_what_a_sweep_accepts(tmp_path: Path, framework: str) -> None:
    """For one size of each family of models, and each precision."""
    models, precisions = rows()[framework]
    families = {_family(name): name for name in registry().workloads}
    assert models <= families.keys() and precisions <= set(PRECISIONS)
    for family, model in families.items():
        for precision in PRECISIONS:
            listed = family in models and precision in precisions
            found = accepted(tmp_path, framework, model, precision)
            assert found == listed, f"{model} in {precision}"


def test_every_back_end_has_a_row() -> None:
    assert rows().keys() == registry().backends.keys() | {"all"}
