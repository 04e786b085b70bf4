"""What a run of a user's program rests on: its words, its file, its repository, its packages."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlperf_hpc.files import open_regular, read_regular
from dlperf_hpc.sweepfile.commands import Command
from dlperf_hpc.sweepfile.programs import UserProgram
from dlperf_hpc.train.joblog import telling

_MOST_BYTES = 1 << 26  # of a program's file, and of the changes of a repository
_GIT_S = 10.0
_PACKAGES_S = 10.0  # less than the other supervisors wait for rank 0
_SHOWN = 200  # words of a command
_MOST_PACKAGES = 5000
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})\b")
# The global header of an image of Apptainer: https://github.com/apptainer/sif, pkg/sif/sif.go
_SIF_MAGIC, _SIF_ID = slice(32, 41), slice(48, 64)
# In the Python of the program, of any version that there is.
_LIST = """\
import sys
sys.path = [path for path in sys.path if path]
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]}))
"""


def program_facts(program: UserProgram, command: Command, words: Sequence[str]) -> dict[str, Any]:
    """For the log's line ``program``: what is started, and what of it may have been changed since.

    Of the environment what the table sets; a variable whose name may mean a secret is left out.
    ``words`` are the command of the environment's Python, a container's before it.
    """
    workdir = command.workdir or os.getcwd()
    told = {name: command.env[name] for name in program.env}
    return {
        "name": program.name,
        "launch": program.launch,
        "argv": list(command.argv[:_SHOWN]),
        "workdir": workdir,
        "set": [f"{name}={value}" for name, value in sorted(told.items()) if not _secret(name)],
        "format": program.read.format or None,
        "read": program.read.to_dict(),
        "stop": program.stop,
        **_file(workdir, command),
        **_commit(workdir),
        "image": _image(words),
    }


def packages_of(words: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Every distribution with its version that the program's Python lists, in the program's own
    environment; none if it does not answer in time."""
    argv = [*words, "-c", _LIST]
    try:
        done = subprocess.run(
            argv, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_PACKAGES_S, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1])
        listed = sorted((str(name), str(found[name])) for name in found)
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return {}
    return dict(listed[:_MOST_PACKAGES])


def _secret(name: str) -> bool:
    """Whether a variable's name may mean a secret: by the rule of all that is written of an
    environment, as if its family were one that is."""
    return not telling({f"TORCH_{name}": ""})


def _file(workdir: str, command: Command) -> dict[str, Any]:
    """The program's file and its digest: of a module the file that Python would find in the
    working directory."""
    own = command.argv[len(command.argv) - (command.own or len(command.argv)) :]
    script = next((word for word in own if word.endswith((".py", ".sh"))), own[0])
    if "-m" in own[:-1]:
        module = Path(workdir, *own[own.index("-m") + 1].split("."))
        files = [module.with_suffix(".py"), module / "__main__.py"]
    else:
        files = [Path(workdir, script), *map(Path, filter(None, [shutil.which(script)]))]
    for path in files:
        try:
            content = read_regular(path, _MOST_BYTES)
        except OSError:
            continue
        return {"file": str(path), "sha256": hashlib.sha256(content).hexdigest()}
    return {}


def _commit(workdir: str) -> dict[str, Any]:
    """The commit of the directory's repository, whether files that it knows were changed, and a
    digest of the changes: two runs with the same one ran the same code."""
    commit = _git(workdir, "rev-parse", "HEAD")
    if not commit:
        return {}
    changes = _git(workdir, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
    if not changes:
        return {
            "commit": commit.decode("ascii", "replace"),
            "changed": None if changes is None else False,
        }
    return {
        "commit": commit.decode("ascii", "replace"),
        "changed": True,
        "changes_sha256": hashlib.sha256(changes).hexdigest(),
    }


def _git(workdir: str, *words: str) -> bytes | None:
    # No program that a repository's own configuration names is run.
    argv = ["git", "-C", workdir, "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _image(words: Sequence[str]) -> str | None:
    """What identifies the image around the program: the digest in its name, or the id in the file
    of Apptainer's own form; None where there is none."""
    image = words[-2] if len(words) > 1 else ""
    if named := _DIGEST.search(image):
        return named[1]
    try:
        with open_regular(Path(image)) as file:
            head = file.read(_SIF_ID.stop)
    except OSError:
        return None
    whole = len(head) == _SIF_ID.stop and head[_SIF_MAGIC] == b"SIF_MAGIC"
    return f"sif:{uuid.UUID(bytes=head[_SIF_ID])}" if whole else None
