"""docs/adding-a-verb.md: its example works in a copy of the repository, pasted and nothing more."""

from __future__ import annotations

from pathlib import Path

from pasting import blocks, copied, python


def test_the_example_is_a_verb(tmp_path: Path) -> None:
    module, tests = blocks("adding-a-verb.md", "python")
    root = copied(tmp_path, "tests/processes/cli/test_login_node.py")
    (root / "dlperf_hpc" / "cli" / "count.py").write_text(module, encoding="utf-8")
    unit = root / "tests" / "unit" / "cli"
    unit.mkdir(parents=True)
    (unit / "test_count.py").write_text(tests, encoding="utf-8")
    assert "  count       count the runs of a sweep that have a log" in python(
        root, "-m", "dlperf_hpc", "--help"
    )
    selected = ["tests/unit/cli/test_count.py", "tests/processes/cli/test_login_node.py"]
    found = python(root, "-m", "pytest", "-p", "no:cacheprovider", "-k", "count", *selected)
    assert found[-1].startswith("3 passed")
