"""What is looked at before a sweep's first submission: doctor's checks that need no job, of
environments and of users' programs.

Each environment's Python and its modules, as far as this machine sees them, and what the engine
tells in an instant. A result is a FAIL only where the compute nodes must see what this machine
sees; what they may have and this machine lacks is a warning.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dlperf_hpc.engines.base import CheckResult, Engine, Grade, clean_environment
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.files import read_regular
from dlperf_hpc.records.manifest import Array, Manifest, by_environment
from dlperf_hpc.sweepfile import programs
from dlperf_hpc.train.registry import registry

OLDEST_PYTHON = (3, 9)  # that the wrapper runs on
NEWER_PYTHON = "give this environment a Python 3.9 or newer in the site profile"
_PACKAGES = {"mpi4py": "mpi4py mpich", "torch": "torch numpy"}
_RECIPES = ("tensorflow", "deepspeed", "horovod")  # of `dlperf env`
_PATIENCE_S = 5.0
_DDP_WATCHES = 11  # iterations, the first of which DDP's logger looks at
_NETWORK = {
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "panfs", "wekafs"),
    *("pvfs2", "orangefs", "glusterfs", "quobyte", "vast"),
}
_IMPORTED = re.compile(rb"^(from|import) dlperf_hpc\b", re.MULTILINE)
# Where a Python of any version looks for these modules; packages are not imported for it.
_LOOK = """\
import json, sys
from importlib.util import find_spec
print(json.dumps({"version": sys.version_info[:3], "path": sys.path, "missing": [
    name for name in sys.argv[1:] if find_spec(name) is None]}))
"""


def modules_of(arrays: Sequence[Array]) -> tuple[str, ...]:
    """What the environment of these arrays must have: the wrapper, MPI, what back ends declare."""
    cases = [run.case for array in arrays for run in array.tasks]
    # A program brings its own modules; what starts its processes must be there.
    launchers = {programs.LAUNCHERS.get(case.launch, "").split(".")[0] for case in cases} - {""}
    names = {case.framework for case in cases if not case.launch}
    if not names:
        return tuple(sorted(launchers))
    backends = [registry().backends[name] for name in names]
    libraries = {backend.library for backend in backends}
    more = set().union(*(backend.modules for backend in backends))
    found = ("dlperf_hpc", "mpi4py", *sorted(libraries), *sorted(more), *sorted(launchers))
    return tuple(dict.fromkeys(found))


def _of_timers(manifest: Manifest, arrays: Sequence[Array]) -> Iterator[str]:
    """This package, where a command names it (the hook), or a script imports it, not indented."""
    for program in manifest.programs.values():
        there = needed(program, manifest, arrays)
        found = bool(there.directories) and any(
            word.startswith("dlperf_hpc") for word in program.run
        )
        for path in there.files:
            with contextlib.suppress(OSError):  # examine_programs tells of it
                found = found or _IMPORTED.search(read_regular(path)) is not None
        if found:
            yield "dlperf_hpc"


def modules_without_mpi(
    modules: Sequence[str], engine: Engine, environment: Environment, arrays: Sequence[Array]
) -> tuple[str, ...]:
    """``modules``, without mpi4py where these arrays' runs do without MPI."""
    without = engine.without_mpi(environment, arrays)
    return tuple(name for name in modules if name != "mpi4py" or not without)


def how_to_install(name: str, python: str) -> str:
    """What to do where this Python lacks a module."""
    load = "or load its module in setup of the site profile"
    if name == "dlperf_hpc":
        extras = "a checkout of this project, with the extras mpi and that of the framework"
        return f"install {extras}, with {python} -m pip; {load}"
    made = f"make an environment with it (dlperf env make {name}), or " if name in _RECIPES else ""
    return f"{made}install it: {python} -m pip install {_PACKAGES.get(name, name)}; {load}"


def examine(manifest: Manifest, site: Site, engine: Engine, root: Path) -> Iterator[CheckResult]:
    """What is not well, certainly (FAIL) or perhaps (warn); nothing of what is well."""
    for name, arrays in by_environment(manifest.arrays).items():
        environment = site.environment_named(name)
        modules = modules_without_mpi(modules_of(arrays), engine, environment, arrays)
        modules = tuple(dict.fromkeys((*modules, *_of_timers(manifest, arrays))))
        yield from _of_environment(name, environment, modules, engine, root)
    of_programs = examine_programs(manifest, site, partial(grade_of, engine, root))
    yield from (each for each in of_programs if each.grade != "ok")
    yield from engine.preflight(site, manifest.arrays)
    yield from _warmup(manifest)


def _warmup(manifest: Manifest) -> Iterator[CheckResult]:
    cases = [run.case for array in manifest.arrays for run in array.tasks]
    on_gpus = any(
        (case.framework, case.device, case.launch) == ("ddp", "cuda", "") for case in cases
    )
    if on_gpus and manifest.measure.warmup < _DDP_WATCHES:
        seen = f"measure.warmup = {manifest.measure.warmup}: DDP's own logger waits for the GPU in"
        to_do = f"set measure.warmup to {_DDP_WATCHES} or more"
        yield CheckResult(
            "warn", "warmup", f"{seen} the first {_DDP_WATCHES - 1} iterations", to_do
        )


def _of_environment(
    name: str, environment: Environment, modules: Sequence[str], engine: Engine, root: Path
) -> Iterator[CheckResult]:
    if environment.contained or environment.modules or environment.setup:
        return  # what a container or a shell adds is seen where it runs
    given, grade = environment.interpreter, partial(grade_of, engine, root)
    path = given if "/" in given else shutil.which(given) or ""
    if not os.access(path, os.X_OK):
        seen = f"{given} is not there, or cannot be run, on this machine"
        to_do = "correct python, venv or conda of this environment in the site profile"
        yield CheckResult(grade(given if "/" in given else ""), "python", seen, to_do, name)
        return
    found = _look(path, environment, modules)
    if found is None:
        seen = f"{path} does not answer on this machine as a Python does"
        yield CheckResult("warn", "python", seen, "`dlperf doctor` tries it in a job", name)
        return
    version, folders, missing = found
    if version < OLDEST_PYTHON:
        seen = f"{path} is Python {'.'.join(map(str, version))}"
        yield CheckResult(grade(path), "python", seen, NEWER_PYTHON, name)
        return
    places = [each for each in folders if each.endswith(("site-packages", "dist-packages"))]
    for module in missing:
        seen = f"{path} has no module {module}"
        yield CheckResult(grade(*places), module, seen, how_to_install(module, path), name)


def grade_of(engine: Engine, root: Path, *places: str) -> Grade:
    """How bad it is that this machine does not see something at these places: FAIL if compute
    nodes cannot see it either, warn if they may, as where no place is known ('', or none)."""
    known = all(places) and len(places) > 0
    same = known and (not engine.detached or all(is_shared(each, root) for each in places))
    return "FAIL" if same else "warn"


def _look(
    path: str, environment: Environment, modules: Sequence[str]
) -> tuple[tuple[int, ...], Sequence[str], Sequence[str]] | None:
    """A Python's version, where it looks for modules, and which of these it does not find; None if
    it does not answer."""
    if path == sys.executable and not any(name.startswith("PYTHON") for name in environment.env):
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        return sys.version_info[:3], sys.path, missing
    env = {**clean_environment(), **environment.local_variables()}
    try:
        done = subprocess.run(
            [path, "-c", _LOOK, *modules], env=env, cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
        row = json.loads(done.stdout)
        return tuple(row["version"]), tuple(row["path"]), tuple(row["missing"])
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
        return None


def is_shared(path: str, root: Path, table: str = "/proc/self/mounts") -> bool:
    """Whether other machines see what this one sees at ``path``, there or not: it is on a network's
    file system, or on the one of the sweep's directory, which they must see too. (One machine's own
    root file system is no proof, whatever lies on it.)"""
    mounts = _mounts(table)
    point = _mount_point(path, mounts)
    kind = mounts.get(point, "")
    return kind in _NETWORK or (point != "/" and point == _mount_point(str(root), mounts))


def _mounts(table: str) -> dict[str, str]:
    try:
        rows = [line.split() for line in Path(table).read_text(errors="replace").splitlines()]
    except OSError:
        return {}
    return {row[1].replace("\\040", " "): row[2] for row in rows if len(row) > 2}


def _mount_point(path: str, mounts: dict[str, str]) -> str:
    whole = Path(os.path.realpath(path))
    return next((str(each) for each in (whole, *whole.parents) if str(each) in mounts), "/")


_MOST = 50  # files of a program: a matrix may name many
_SCRIPTS = (".py", ".sh")
_RUN_SCRIPTS = ("bash", "sh", "python", "python3", "srun", "mpirun", "mpiexec")


@dataclass(frozen=True)
class Needed:
    """What the cases of a program need on the file system of every node: directories in which it
    runs, and files; ``commands`` are looked up on the PATH there."""

    directories: tuple[str, ...]
    files: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All of which the place is known."""
        return (*self.directories, *self.files)


def needed(program: programs.UserProgram, manifest: Manifest, arrays: Sequence[Array]) -> Needed:
    """What the cases of these arrays need; what only a task knows is left out."""
    directories, words = dict[str, None](), dict[tuple[str, str], None]()
    cases = [run.case for array in arrays for run in array.tasks]
    for case in dict.fromkeys(each for each in cases if each.framework == program.name):
        values = programs.plan_values(case, manifest.measure, manifest.sweep)
        made = programs.command(program, values, later=(*programs.TASK_NAMES, *programs.RUN_NAMES))
        place = made.workdir or os.getcwd()
        if "{" not in place:
            directories[place] = None
            words.update(dict.fromkeys((place, word) for word in _started_words(made.argv)))
    files, commands = dict[str, None](), dict[str, None]()
    for place, word in words:
        if word.endswith(_SCRIPTS) or "/" in word:
            files[str(Path(place, word))] = None
        else:
            commands[word] = None
    return Needed(tuple(directories)[:_MOST], tuple(files)[:_MOST], tuple(commands)[:_MOST])


def _started_words(argv: Sequence[str]) -> list[str]:
    """The words of a command that are started: the first one, and behind what runs scripts, or
    options of a launcher, the first script. Of ``-m`` nothing is known."""
    runs_scripts = argv[0].startswith("--") or Path(argv[0]).name in _RUN_SCRIPTS
    scripts = [word for word in argv[1:] if word.endswith(_SCRIPTS)] if runs_scripts else []
    found = [*argv[:1], *scripts[:1]]
    return [word for word in found if "{" not in word and not word.startswith("-")]


def needed_paths(manifest: Manifest, environment: str) -> Mapping[str, tuple[str, ...]]:
    """The paths that must be there on each node for the programs of an environment, by program."""
    arrays = by_environment(manifest.arrays).get(environment, [])
    found = {name: needed(each, manifest, arrays) for name, each in manifest.programs.items()}
    return {name: each.paths for name, each in found.items() if each.paths}


def examine_programs(
    manifest: Manifest, site: Site, graded: Callable[[str], Grade]
) -> Iterator[CheckResult]:
    """For each program, as this machine sees it, what is not there, else a line that says ok.
    ``graded`` says of a path that is not there here whether it can be there on compute nodes."""
    for name, program in manifest.programs.items():
        used = [run.case for run in manifest.runs if run.case.framework == name]
        if not used:
            continue
        check, there = f"program {name}", needed(program, manifest, manifest.arrays)
        missing = list(_missing(there, site.environment_named(used[0].environment)))
        for path, seen, to_do in missing:
            yield CheckResult(graded(path), check, seen, to_do)
        if not missing:
            seen = ", ".join((*there.paths, *there.commands)[:3]) or "nothing to look for"
            if program.launch in programs.LAUNCHERS:
                seen += f", started by {programs.LAUNCHERS[program.launch]}"
            yield CheckResult("ok", check, seen)


def _missing(there: Needed, environment: Environment) -> Iterator[tuple[str, str, str]]:
    """The path of what is missing ('' if it has none), what was seen, and what to do. In Apptainer
    files and commands are the image's, and only directories are this machine's; with pyxis all of
    it is in the image."""
    if environment.pyxis is not None:
        return
    absent = [path for path in there.directories if not os.path.isdir(path)]
    for path in absent:
        yield path, f"{path} is no directory", "correct workdir of this program"
    if environment.apptainer is not None:
        return
    for path in there.files:
        if not path.startswith(tuple(f"{place}/" for place in absent)):
            yield from _wrong_file(path)
    for word in there.commands:
        if shutil.which(word) is None:
            to_do = "name its full path, or load what has it in this environment's setup"
            yield "", f"no command {word} is on the PATH of this machine", to_do


def _wrong_file(path: str) -> Iterator[tuple[str, str, str]]:
    if not os.path.isfile(path):
        yield path, f"there is no file {path}", "correct run or workdir of this program"
    elif not path.endswith(_SCRIPTS) and not os.access(path, os.X_OK):
        yield path, f"{path} cannot be run", f"chmod +x {path}"
