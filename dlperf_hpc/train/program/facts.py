"""What a run of a user's program rests on: its words, its file, its repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

from dlperf_hpc.files import read_regular
from dlperf_hpc.sweepfile.programs import Command, UserProgram
from dlperf_hpc.train.provenance import telling

_MOST_BYTES = 1 << 26  # of a program's file
_GIT_S = 10.0
_SHOWN = 200  # words of a command


def program_facts(program: UserProgram, command: Command) -> dict[str, Any]:
    """For the log's line ``program``: what is started, and what of it may have been changed since.

    Of the environment what the table sets; a variable whose name may mean a secret is left out.
    """
    workdir = command.workdir or os.getcwd()
    told = {name: command.env[name] for name in program.env}
    file = next((word for word in command.argv if word.endswith((".py", ".sh"))), command.argv[0])
    return {
        "name": program.name,
        "launch": program.launch,
        "argv": list(command.argv[:_SHOWN]),
        "workdir": workdir,
        "set": [f"{name}={value}" for name, value in sorted(told.items()) if not _secret(name)],
        "format": program.read.format or None,
        "read": program.read.to_dict(),
        "stop": program.stop,
        "sha256": _digest(Path(workdir, file)),
        **_commit(workdir),
    }


def _secret(name: str) -> bool:
    """Whether a variable's name may mean a secret: by the rule of all that is written of an
    environment, as if its family were one that is."""
    return not telling({f"TORCH_{name}": ""})


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(read_regular(path, _MOST_BYTES)).hexdigest()
    except OSError:
        return None


def _commit(workdir: str) -> dict[str, Any]:
    """The commit of the directory's repository, and whether files that it knows were changed."""
    commit = _git(workdir, "rev-parse", "HEAD")
    if not commit:
        return {}
    changed = _git(workdir, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def _git(workdir: str, *words: str) -> str | None:
    # No program that a repository's own configuration names is run.
    argv = ["git", "-C", workdir, "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stdout.decode(errors="replace").strip()
    return text if done.returncode == 0 else None
