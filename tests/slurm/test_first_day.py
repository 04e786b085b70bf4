"""docs/first-day.md as a newcomer follows it: each command typed into one shell at a strange site,
each file written as the page shows it, and what is printed compared with the page."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import built_wheel
import pytest
from fixtures_slurm import Onebox
from pasting import blocks, steps
from places import BUSY

PAGE = "first-day.md"
_REFUSED = "dlperf doctor --site mycluster"


class Shell:
    """One bash that reads a command after another, as a terminal does."""

    def __init__(self, place: Path, env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            ["bash", "--norc"], cwd=place, env=env, stdin=pipe, stdout=pipe,
            stderr=subprocess.STDOUT, text=True, bufsize=1,
        )  # fmt: skip

    def type(self, command: str) -> tuple[int, list[str]]:
        """The exit code of a command and the lines that it prints."""
        mark, printed = secrets.token_hex(8), list[str]()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{command} </dev/null\nprintf '\\n{mark} %d\\n' $?\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(mark):
                return int(line.split()[1]), printed
            printed.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended: {printed}")


@contextmanager
def shell(place: Path, cluster: Onebox) -> Iterator[Shell]:
    """A newcomer's shell: nothing is set that has to do with this project or its tests."""
    kept = {k: v for k, v in cluster.env.items() if not k.startswith(("DLPERF", "PYTHON", "VIRT"))}
    env = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
        "HOME": str(place / "home"),
        "LD_LIBRARY_PATH": f"{sys.prefix}/lib",  # of the MPI that the tests' environment has
        "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1",
    }
    typed = Shell(place, env)
    try:
        yield typed
    finally:
        assert typed.process.stdin and typed.process.stdout
        typed.process.stdin.close()
        typed.process.wait(60 * BUSY)
        typed.process.stdout.close()
        cluster.run(["scancel", "--me"])  # what a command that failed has left for other tests


def has(shown: str, printed: list[str]) -> None:
    """Each line of the page stands in what was printed, in this order. Numbers may be others, and
    ``...`` anything."""
    left = iter(printed)
    for line in filter(None, (line.strip() for line in shown.splitlines())):
        if line != "...":
            pattern = re.compile(_as_pattern(line))
            found = any(pattern.search(each) for each in left)
            assert found, f"the page says {line!r}; printed:\n" + "\n".join(printed)


def _as_pattern(line: str) -> str:
    parts = (re.escape(part.strip()) for part in line.split("..."))
    text = ".*".join(re.sub(r"(?:\\ )+", r"\\s+", part) for part in parts)
    return re.sub(r"\d+(?:\\?[.:-]\d+)*", r"\\d+(?:[.:-]\\d+)*", text)


def edited(profile: Path, answers: str) -> None:
    """The template's lines of these keys, each replaced by the answer."""
    text = profile.read_text(encoding="utf-8")
    for answer in answers.splitlines():
        key = re.escape(answer.partition(" =")[0])
        text, count = re.subn(rf"(?m)^(?:# )?{key} = .*", answer, text)
        assert count == 1, answer
    profile.write_text(text, encoding="utf-8")


def test_ten_commands_from_pip_install_to_a_table(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, accounting: Onebox
) -> None:
    shutil.copy(built_wheel.wheel(tmp_path_factory), tmp_path)
    profile, spec = blocks(PAGE, "toml")
    commands = steps(PAGE)
    assert len(commands) == 10
    with shell(tmp_path, accounting) as newcomer:
        for command, shown in commands:
            code, printed = newcomer.type(command)
            assert code == (1 if command == _REFUSED else 0), "\n".join([command, *printed])
            has(shown, printed)
            if "-m venv" in command:
                built_wheel.offer_packages(tmp_path / ".venv")
            if command == _REFUSED:
                edited(tmp_path / "slurm" / "mycluster.toml", profile)
                (tmp_path / "first.toml").write_text(spec, encoding="utf-8")
