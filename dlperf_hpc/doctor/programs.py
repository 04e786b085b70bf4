"""Users' programs before they are run: is what a table names there, and can it be started?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlperf_hpc.engines.base import CheckResult, Grade
from dlperf_hpc.engines.site import Site
from dlperf_hpc.records.manifest import Array, Manifest
from dlperf_hpc.sweepfile.commands import LAUNCHERS, command, plan_values
from dlperf_hpc.sweepfile.programs import RUN_NAMES, TASK_NAMES, UserProgram

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


def needed(program: UserProgram, manifest: Manifest, arrays: Sequence[Array]) -> Needed:
    """Of the cases of these arrays; what only a task knows is left out."""
    directories, files, commands = dict[str, None](), dict[str, None](), dict[str, None]()
    cases = [run.case for array in arrays for run in array.tasks]
    for case in dict.fromkeys(each for each in cases if each.framework == program.name):
        values = plan_values(case, manifest.measure, manifest.sweep)
        made = command(program, values, later=(*TASK_NAMES, *RUN_NAMES))
        place = made.workdir or os.getcwd()
        if "{" in place:
            continue
        directories[place] = None
        for word in _started(made.argv):
            if word.endswith(_SCRIPTS) or "/" in word:
                files[str(Path(place, word))] = None
            else:
                commands[word] = None
    return Needed(tuple(directories)[:_MOST], tuple(files)[:_MOST], tuple(commands)[:_MOST])


def _started(argv: Sequence[str]) -> list[str]:
    """The words of a command that are started: the first one, and behind what runs scripts, or
    options of a launcher, the first script. Of ``-m`` nothing is known."""
    runs_scripts = argv[0].startswith("--") or Path(argv[0]).name in _RUN_SCRIPTS
    scripts = [word for word in argv[1:] if word.endswith(_SCRIPTS)] if runs_scripts else []
    found = [*([] if argv[0].startswith("-") else argv[:1]), *scripts[:1]]
    return [word for word in found if "{" not in word]


def needed_paths(manifest: Manifest, arrays: Sequence[Array]) -> Mapping[str, tuple[str, ...]]:
    """The paths that must be there on each node, by the name of the program that needs them."""
    found = {name: needed(each, manifest, arrays) for name, each in manifest.programs.items()}
    return {name: each.paths for name, each in found.items() if each.paths}


def examine(
    manifest: Manifest, site: Site, graded: Callable[[str], Grade]
) -> Iterator[CheckResult]:
    """For each program, as this machine sees it, what is not there, else a line that says ok.
    ``graded`` says of a path that is not there here whether it can be there on compute nodes."""
    for name, program in manifest.programs.items():
        arrays = [a for a in manifest.arrays if a.tasks[0].case.framework == name]
        if not arrays:
            continue
        environment = site.environment_named(arrays[0].environment)
        check, told = f"program {name}", 0
        there = needed(program, manifest, arrays)
        if environment.pyxis is None:  # else all of it is in the image
            for path, seen, to_do in _missing(there, inside=environment.apptainer is not None):
                told += 1
                grade = graded(path) if path else "warn"
                yield CheckResult(grade, check, seen, to_do)
        if not told:
            how = f", started by {LAUNCHERS[program.launch]}" if program.launch in LAUNCHERS else ""
            places = ", ".join((*there.paths, *there.commands)[:3])
            yield CheckResult("ok", check, f"{places or 'nothing to look for'}{how}")


def _missing(there: Needed, inside: bool) -> Iterator[tuple[str, str, str]]:
    """The path of what is missing ('' if it has none), what was seen, and what to do. ``inside`` a
    container files and commands are another's, and only directories are this machine's."""
    absent = [path for path in there.directories if not os.path.isdir(path)]
    for path in absent:
        yield path, f"{path} is no directory", "correct workdir of this program"
    if inside:
        return
    for path in there.files:
        if any(path.startswith(f"{place}/") for place in absent):
            continue
        if not os.path.isfile(path):
            to_do = "correct run or workdir of this program"
            yield path, f"there is no file {path}", to_do
        elif not path.endswith(_SCRIPTS) and not os.access(path, os.X_OK):
            yield path, f"{path} cannot be run", f"chmod +x {path}"
    for word in there.commands:
        if shutil.which(word) is None:
            to_do = "name its full path, or load what has it in this environment's setup"
            yield "", f"no command {word} is on the PATH of this machine", to_do
