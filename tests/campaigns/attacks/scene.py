"""Two users of one file system: what the attacker plants, and what a command of the victim's does.

Where root runs the campaign the two are users of their own; else both are whoever runs it, and
attacks that rest on an owner are left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from places import BUSY, ROOT, SUPPORT

ATTACKER, VICTIM = 60101, 60102
SECRET = "the-victims-private-key-4711"
TOKEN = f"ghp_{'thevictimsprivatekey4711' * 2}"
PATIENCE_S = 120.0 * BUSY
"""A command that takes longer hangs. Far more than any of them needs, on a busy machine too."""
SWEEP = SUPPORT / "data" / "sweeps_2026_11" / "local.zip"
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_OURS = ("__pycache__", ".cache")


def two_users() -> bool:
    """Whether attacker and victim can be two users here."""
    return os.geteuid() == 0


@dataclass(frozen=True)
class Command:
    """One command of the victim's. ``told`` is a pattern of what it must say, '' for nothing, and
    ``works`` of what it says when it could do what it was typed for, all the same;
    ``writes`` are the paths, below the scene, that it is asked to write. ``of_slurm``: the victim
    is the user of Slurm's daemons, who alone can have jobs on a one-machine Slurm. ``user``: who
    types it; a colleague is of the victim's group, and has a Python that everybody may start."""

    argv: Sequence[str]
    told: str = ""
    writes: Sequence[Path] = ()
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = (sys.executable, "-m", "dlperf_hpc")
    works: str = ""
    umask: int = 0o022
    of_slurm: bool = False
    user: int = VICTIM

    def __str__(self) -> str:
        return " ".join(["dlperf", *self.argv])


@dataclass
class Effect:
    """What commands did that they must not do, and how many told what they had to tell."""

    tried: int = 0
    told: int = 0
    written: list[str] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)


class Scene:
    """A place of its own: ``shared`` is everybody's (sticky), ``home`` the victim's alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shared, self.home = root / "shared", root / "home"
        self.effects = root / "effects"
        self.started: list[subprocess.Popen[str]] = []
        for path, mode in ((self.shared, 0o1777), (self.home, 0o700), (self.effects, 0o777)):
            path.mkdir()
            path.chmod(mode)
        (self.home / ".ssh").mkdir(mode=0o700)
        (self.home / ".ssh" / "id_rsa").write_text(f"{SECRET}\n")
        (self.home / ".bashrc").write_text("# the victim's\n")
        self.give(self.home, VICTIM)

    def payload(self, name: str) -> str:
        """A shell command that shows that it was run."""
        return f"touch {self.effects / name}"

    def give(self, path: Path, uid: int) -> None:
        """Make a user the owner of a path and of all below it."""
        if not two_users():
            return
        for each in (path, *path.rglob("*")):
            os.chown(each, uid, uid, follow_symlinks=False)

    def sweep(self, name: str, where: Path | None = None) -> Path:
        """A sweep's directory with its logs and records; its sweep is called as the directory."""
        place = (where or self.shared) / name
        with zipfile.ZipFile(SWEEP) as archive:
            archive.extractall(place.parent / f".{name}")
        (place.parent / f".{name}" / "quick").rename(place)
        (place.parent / f".{name}").rmdir()
        return place

    def plant(self, place: Path) -> Path:
        """Give a directory to the attacker, who lets everybody read it."""
        self.give(place, ATTACKER)
        return place

    def start(self, uid: int, argv: Sequence[str]) -> None:
        """Let a user run something until the scene ends; returns after its first line."""
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        process = subprocess.Popen([*become, *argv], stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        assert process.stdout is not None and process.stdout.readline()

    def run(self, command: Command) -> subprocess.CompletedProcess[bytes] | None:
        """Run a command as the victim; None if it hangs."""
        become: list[str] = []
        if two_users() and not command.of_slurm:
            # A Python below root's home is found all the same; nothing more can be written.
            rights = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
            become = ["setpriv", f"--reuid={command.user}", f"--regid={VICTIM}", "--clear-groups"]
            become += [] if _reachable(Path(command.program[0])) else rights
        process = subprocess.Popen(
            [*become, *command.program, *command.argv],
            cwd=command.cwd or self.home,
            env={**self._environment(), **command.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=command.umask,
        )
        try:
            output, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return None
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        own = {"HOME": str(self.home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return {**kept, **own, "PYTHONDONTWRITEBYTECODE": "1"}

    def strike(self, commands: Sequence[Command]) -> Effect:
        """Run commands one after another, and look at what each of them did."""
        effect = Effect()
        for command in commands:
            before = self._files()
            done = self.run(command)
            self._judge(command, done, before, effect)
        return effect

    def _judge(
        self,
        command: Command,
        done: subprocess.CompletedProcess[bytes] | None,
        before: Mapping[str, str],
        effect: Effect,
    ) -> None:
        effect.tried += 1
        words = str(command)[:200]
        after = self._files()
        changed = [path for path in after if before.get(path) != after[path]]
        changed += [path for path in before if path not in after]
        effect.written += [f"{words}: others can write {path}" for path in _open(command.writes)]
        allowed = tuple(str(path) for path in command.writes)
        effect.written += [f"{words}: {p}" for p in changed if not p.startswith(allowed or "\0")]
        effect.executed += [f"{words}: {path.name}" for path in self.effects.iterdir()]
        for path in self.effects.iterdir():
            path.unlink()
        if done is None:
            effect.crashed.append(f"{words}: hangs")
            return
        text = (done.stdout + done.stderr).decode("utf-8", "replace")
        if "Traceback (most recent call last)" in text or done.returncode not in (0, 1, 2):
            effect.crashed.append(f"{words}: exit {done.returncode}: {text[-600:]}")
        if _RAW.search(text):
            effect.raw.append(f"{words}: {_RAW.findall(text)[:5]!r}")
        effect.leaked += [f"{words}: {where}" for where in self._leaks(text, command.writes)]
        if not re.search(command.works, text):
            effect.blocked.append(f"{words}: exit {done.returncode}: {text[-600:]}")
        if re.search(command.told, text):
            effect.told += 1
        else:
            effect.untold.append(f"{words}: exit {done.returncode}: {text[-600:]}")

    def _files(self) -> dict[str, str]:
        """Every file but caches, by its content; of a link, where it leads."""
        found: dict[str, str] = {}
        for folder, folders, names in os.walk(self.root):
            folders[:] = [each for each in folders if each not in _OURS]
            for name in names:
                path = Path(folder, name)
                if path.is_symlink():
                    found[str(path)] = f"-> {os.readlink(path)}"
                elif path.is_file() and path.parent != self.effects:
                    found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def _leaks(self, text: str, written: Sequence[Path]) -> Iterator[str]:
        """Where the victim's secret has got to: what was printed, and what was written."""
        if SECRET in text or TOKEN in text:
            yield "printed"
        files = [f for path in written for f in (path, *path.rglob("*")) if f.is_file()]
        for file in files:
            data = [file.read_bytes()]
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    data += [archive.read(name) for name in archive.namelist()]
            if any(each.encode() in b"".join(data) for each in (SECRET, TOKEN)):
                yield str(file)


def _open(written: Sequence[Path]) -> list[Path]:
    """What everybody can write of that which a command was asked to write."""
    files = [f for path in written for f in (path, *path.rglob("*")) if os.path.lexists(f)]
    found = [(f, f.lstat()) for f in files if not f.is_symlink()]
    return [f for f, seen in found if seen.st_mode & 0o002 and seen.st_uid != ATTACKER]


def _reachable(path: Path) -> bool:
    """Whether any user may follow a path."""
    real = Path(os.path.realpath(path))
    return all(os.stat(each).st_mode & 0o005 for each in real.parents) and bool(
        os.stat(real).st_mode & 0o001
    )


@contextmanager
def scene() -> Iterator[Scene]:
    """A scene in a directory of its own; nothing of it remains."""
    with tempfile.TemporaryDirectory(prefix="dla-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        made = Scene(Path(folder))
        try:
            yield made
        finally:
            for process in made.started:
                process.kill()
                process.communicate()
            shutil.rmtree(folder, ignore_errors=True)
