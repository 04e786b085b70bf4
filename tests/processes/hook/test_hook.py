"""The hook around programs without torch: they run as Python would run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dlperf_hpc.hook import OnImport
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.logfile import result_of_log

SHOW = """
import __main__, json, sys, pickle
import neighbour
class Mine: pass
pickle.dumps(Mine())
print(json.dumps([sys.argv, __name__, sys.path[0], __file__, __main__.neighbour.__name__]))
"""
HOOK = ("-m", "dlperf_hpc.hook", "--batch-size", "4")


def python(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    argv = [sys.executable, *words]
    return subprocess.run(
        argv, cwd=place, env=kept, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "neighbour.py").touch()
    (tmp_path / "lib" / "program.py").write_text(SHOW)
    return tmp_path


def test_a_program_sees_what_it_would_see_without_the_hook(place: Path) -> None:
    words = ("lib/program.py", "--batch-size", "9", "-m", "x")
    plain, hooked = python(place, *words), python(place, *HOOK, *words)
    assert plain.returncode == hooked.returncode == 0, hooked.stderr
    assert hooked.stdout == plain.stdout
    assert json.loads(hooked.stdout)[0] == list(words)


def test_a_module_runs_as_with_m(place: Path) -> None:
    (place / "lib" / "__init__.py").touch()
    (place / "lib" / "mod.py").write_text("import sys; print(sys.argv[1:], __package__)\n")
    plain, hooked = python(place, "-m", "lib.mod", "a"), python(place, *HOOK, "-m", "lib.mod", "a")
    assert hooked.stdout == plain.stdout == "['a'] lib\n", hooked.stderr


def test_no_step_means_no_number_and_why(place: Path) -> None:
    done = python(place, *HOOK, "--logs", "out", "lib/program.py")
    (log,) = place.rglob("out/**/*.log")
    told = result_of_log(log)
    assert told.status is Status.PARTIAL and told.run.case.framework == "hook"
    assert "no optimizer steps seen; optimizers outside torch.optim.Optimizer" in told.reason
    assert f"dlperf_hpc: partial, no number: {told.reason}" in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "status", "reason"),
    [
        ("sys.exit(7)", 7, "failed", "SystemExit: 7"),
        ("sys.exit(0)", 0, "partial", "no optimizer steps seen"),
        ("raise ValueError('so')", 1, "failed", "ValueError: so"),
        ("raise KeyboardInterrupt", -2, "cancelled", "KeyboardInterrupt"),
    ],
)
def test_exit_codes_and_tracebacks_pass(
    place: Path, line: str, code: int, status: str, reason: str
) -> None:
    (place / "end.py").write_text(f"import sys\n{line}\n")
    done = python(place, *HOOK, "end.py")
    assert done.returncode == python(place, "end.py").returncode == code
    assert ('end.py", line 2, in <module>' in done.stderr) is ("raise" in line)
    (log,) = place.rglob("*.log")
    told = result_of_log(log)
    assert told.status.value == status and reason in told.reason


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gone.py",), "error: gone.py: there is no such file"),
        (("--warmup", "0", "lib/program.py"), "warmup: 0 is not a whole number from 1 on"),
        (("--no-such", "lib/program.py"), "unrecognized arguments|required: program|no-such"),
        ((), "required: program"),
    ],
)
def test_what_cannot_be_is_told(place: Path, words: tuple[str, ...], message: str) -> None:
    done = python(place, "-m", "dlperf_hpc.hook", *words)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert re.search(message, done.stderr)


def test_a_module_is_told_of_once_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another finder than Python's own has it, as of an editable installation."""
    (tmp_path / "late.py").write_text("value = 1\n")
    found: list[int] = []

    class Other(MetaPathFinder):
        def find_spec(
            self, fullname: str, path: Any, target: ModuleType | None = None
        ) -> ModuleSpec | None:
            mine = fullname == "late"
            return spec_from_file_location("late", tmp_path / "late.py") if mine else None

    watcher = OnImport("late", lambda module: found.append(module.value))
    monkeypatch.setattr(sys, "meta_path", [watcher, *sys.meta_path, Other()])
    monkeypatch.delitem(sys.modules, "late", raising=False)
    import_module("json")
    assert found == [] and watcher in sys.meta_path
    import_module("late")
    assert found == [1] and watcher not in sys.meta_path
