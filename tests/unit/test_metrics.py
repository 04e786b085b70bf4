"""The package's numbers keep to their bounds, and each is counted as ``metrics.toml`` says."""

from __future__ import annotations

import ast
from pathlib import Path

import metrics
import pytest
from metrics import Module


def modules(place: Path, **texts: str) -> list[Module]:
    """Modules ``package.NAME`` with these texts."""
    package = place / "package"
    package.mkdir()
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    return metrics.read_modules(package)


def test_no_number_is_beyond_its_bound() -> None:
    bounds = metrics.read_bounds()
    assert metrics.beyond(metrics.measure(bounds["rules"]), bounds) == []


def test_a_number_beyond_its_bound_is_named() -> None:
    bounds = {"numbers": {"lines": {"bound": 10}, "documented": {"bound": 90, "least": True}}}
    assert metrics.beyond({"lines": 10, "documented": 90}, bounds) == []
    found = metrics.beyond({"lines": 11, "documented": 89}, bounds)
    assert [line.partition(" ")[0] for line in found] == ["lines", "documented"]


def test_every_number_has_a_bound_and_every_bound_its_reason() -> None:
    numbers = metrics.read_bounds()["numbers"]
    assert all(row["what"] for row in numbers.values())
    assert all(row["goal"] >= row["bound"] for row in numbers.values() if row.get("least"))


def test_imports_for_types_and_within_functions_make_circles(tmp_path: Path) -> None:
    found = modules(
        tmp_path,
        a="def f():\n    from package import b\n",
        b="if TYPE_CHECKING:\n    from .c import C\n",
        c="from package.a import f\n",
        d="import package.a\n",
    )
    assert metrics.circles(found) == [["package.a", "package.b", "package.c"]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("def f(): pass", 1),
        ("def f(a, b):\n    return a and b and not a", 3),
        ("def f(a):\n    return [x if x else 0 for x in a if x]", 4),
        ("def f(a):\n    for x in a:\n        try: g()\n        except E: pass", 3),
    ],
)
def test_complexity_counts_branches_and_operands(text: str, value: int) -> None:
    assert metrics.complexity(ast.parse(text).body[0]) == value


def test_lines_of_code_are_not_blank_and_no_comment_and_no_docstring(tmp_path: Path) -> None:
    text = '"""What it is.\n\nAnd more."""\n\n# why\nx = 1\n"""What x is."""\ny = """\ntext\n"""\n'
    assert metrics.code_lines(modules(tmp_path, a=text)[0]) == 4


def test_a_sentence_that_another_module_says_may_not_be_compared(tmp_path: Path) -> None:
    found = modules(
        tmp_path,
        a='def f(reason):\n    return "ended from outside" in reason\n',
        b='def g(n):\n    return f"rank {n} ended from outside"\n',
        c='def h(text):\n    return text.startswith("srun: error")\n',
        d='TABLE = (("rank (.*) ended from", 1),)\n',
    )
    assert metrics.compared_sentences(found, []) == ["package.a:2", "package.d:1"]
    assert metrics.compared_sentences(found, ["package.a"]) == ["package.d:1"]


def test_two_words_of_failures_among_its_constants_make_a_module_a_table(tmp_path: Path) -> None:
    found = modules(tmp_path, a='T = ("Out of memory", b"bus error")\n', b='T = ("bus error",)\n')
    assert metrics.failure_tables(found, ["out of memory", "bus error"]) == ["package.a"]


def test_a_class_with_one_name_and_two_meanings_is_counted(tmp_path: Path) -> None:
    found = modules(tmp_path, a="class A: pass\nclass B: pass\n", b="class A: pass\n")
    assert metrics.ambiguous_classes(found) == ["A"]
