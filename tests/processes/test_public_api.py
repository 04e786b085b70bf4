"""What ``dlperf_hpc`` offers to programs: as docs/timer.md has it, and loaded when asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import ROOT

import dlperf_hpc


def test_the_public_names_are_those_of_the_page() -> None:
    assert dlperf_hpc.__all__ == ["LightningTimer", "Timer", "TrainerTimer", "__version__"]
    page = (ROOT / "docs" / "timer.md").read_text(encoding="utf-8")
    section = page.partition("## The public API\n")[2].partition("\n## ")[0]
    for name in dlperf_hpc.__all__:
        assert f"`{name}`" in section
    from dlperf_hpc.timer import timer

    assert dlperf_hpc.Timer is timer.Timer
    for name in vars(timer.Timer):
        if not name.startswith("_"):
            assert f"`{name}" in section, name


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match="module 'dlperf_hpc' has no attribute 'Tymer'"):
        dlperf_hpc.Tymer  # noqa: B018
    with pytest.raises(ImportError):
        from dlperf_hpc import Tymer  # noqa: F401


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = """
import sys
before = set(sys.modules)
import dlperf_hpc
print(*sorted(name for name in set(sys.modules) - before if name.startswith("dlperf")))
from dlperf_hpc import Timer
print(*sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}){code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == "dlperf_hpc dlperf_hpc.source"
    assert second.split() in (["__main__", "dlperf_hpc"], ["dlperf_hpc"])
