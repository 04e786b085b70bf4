"""Environments of a site profile: where a framework's Python lives, and how a batch script gets
there. Each kind becomes lines before srun, options of srun, and words before the interpreter.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationInfo

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.records.layout import SETUP_MARK
from dlperf_hpc.sweepfile.validation import STRICT, Line, matching

Word = Annotated[str, matching(r"[^\s\x00-\x1f\x7f]+", "write one word without blanks")]
Flag = Annotated[
    str,
    matching(
        r"--?[A-Za-z][^\x00-\x1f\x7f]*",
        "write an option as one word, its value after '=': --cpu-bind=cores",
    ),
]
Interpreter = Annotated[
    str,
    matching(
        r"([^\s\x00-\x1f\x7f$~-][^\s\x00-\x1f\x7f$]*)?",
        "write one path, in full: no shell reads it, so ~, $VAR and arguments do not work"
        " (for a container there are apptainer and pyxis)",
    ),
]
Variable = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "write a variable's name: letters, digits and '_'")
]
_Directory = Annotated[
    str, matching(r"/[^\x00-\x1f\x7f:]*", "write a full path; no shell reads it: no ~, no $VAR")
]
_Conda = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_.][A-Za-z0-9_.-]*|/[^\x00-\x1f\x7f:]*",
        "write the name of a conda environment, or its full path",
    ),
]
_Module = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_./][A-Za-z0-9_./+@:=,~-]*",
        "write a module as `module load` takes it: cuda/12.4 (other commands belong in setup)",
    ),
]
_Image = Annotated[
    str,
    matching(r"(?:/|[a-z]+://)[^\x00-\x1f\x7f]+", "write the image's full path, or a URI"),
]
_Mount = Annotated[
    str,
    matching(r"/[^\x00-\x1f\x7f,]*", "write SRC, SRC:DST or SRC:DST:FLAGS with full paths"),
]
_PyxisFlag = Annotated[
    str,
    matching(r"--(?:no-)?container-[^\x00-\x1f\x7f]+", "write one of pyxis's --container-* flags"),
]

# What a shell set up for another Python; it would be led astray by them.
_OTHER_PYTHONS = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
_OTHER_CONDAS = ("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_SHLVL")
# A batch shell is no login shell: `module` may not be there yet.
_FIND_MODULE = (
    "type module >/dev/null 2>&1 || for dlperf_init in"
    ' "${LMOD_PKG:-}/init/bash" "${MODULESHOME:-}/init/bash"'
    " /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh;"
    ' do [ ! -r "$dlperf_init" ] || { source "$dlperf_init"; break; }; done'
)


class _Table(BaseModel):
    model_config = STRICT


class Apptainer(_Table):
    """An Apptainer (or Singularity) image; ``options`` are further words of ``exec``."""

    image: _Image
    binds: list[_Mount] = []
    nv: bool = True
    options: list[Flag] = []
    program: Literal["apptainer", "singularity"] = "apptainer"


class Pyxis(_Table):
    """An image for pyxis, Slurm's plug-in for enroot; ``options`` are further flags of srun."""

    image: Word
    mounts: list[_Mount] = []
    options: list[_PyxisFlag] = []


def _one_python(value: Any, info: ValidationInfo) -> Any:
    """Refuse a second Python. One inside a container is named by ``python``."""
    container = info.field_name in ("apptainer", "pyxis")
    others = ["venv", "conda", "apptainer", *([] if container else ["python"])]
    for other in others:
        if value is not None and other != info.field_name and info.data.get(other):
            raise ValueError(f"{other} names another Python, and an environment has one")
    return value


def _beside_conda(value: Any, info: ValidationInfo) -> Any:
    if value is not None and info.data.get("conda", "") is None:
        raise ValueError("says where conda is, but conda names no environment")
    return value


class Environment(_Table):
    """The Python a framework lives in, and the MPI in it.

    Without ``venv``, ``conda``, ``apptainer`` or ``pyxis``, ``python`` runs the wrapper (default:
    the Python that submits); in a container it is the Python inside. ``mpi`` is srun's ``--mpi``.
    ``modules`` are loaded first, then ``setup``'s shell lines run, then ``env`` is exported.
    """

    python: Interpreter = ""
    venv: Annotated[_Directory | None, BeforeValidator(_one_python)] = None
    conda: Annotated[_Conda | None, BeforeValidator(_one_python)] = None
    conda_root: Annotated[_Directory | None, AfterValidator(_beside_conda)] = None
    modules: list[_Module] = []
    modules_purge: bool = False
    apptainer: Annotated[Apptainer | None, BeforeValidator(_one_python)] = None
    pyxis: Annotated[Pyxis | None, BeforeValidator(_one_python)] = None
    mpi: Word = "pmi2"
    setup: list[Line] = []
    env: dict[Variable, Line] = {}

    @property
    def interpreter(self) -> str:
        """The Python that runs the wrapper: a path, or a name that is looked up on the PATH."""
        if self.venv or (self.conda or "").startswith("/"):
            return f"{(self.venv or self.conda or '').rstrip('/')}/bin/python"
        if self.conda:
            return "python"
        return self.python or ("python3" if self.contained else sys.executable)

    @property
    def contained(self) -> bool:
        """Whether that Python is inside a container."""
        return self.apptainer is not None or self.pyxis is not None

    @property
    def own_python(self) -> bool:
        """Whether it is another Python than the one that submits."""
        return self.contained or self.interpreter != sys.executable


def command(environment: Environment, root: Path, words: Iterable[str]) -> list[str]:
    """The command line that runs the environment's Python with ``words`` as its arguments.

    ``root``, the sweep's directory, is to be seen inside a container too.
    """
    prefix: list[str] = []
    box = environment.apptainer
    if box is not None:
        binds = [f"--bind={each}" for each in (_mountable(root), *box.binds)]
        nv = ["--nv"] if box.nv else []
        prefix = [box.program, "exec", *nv, *binds, *box.options, box.image]
    return [*prefix, environment.interpreter, *words]


def task_command(
    environment: Environment, root: Path, arguments: Iterable[str], supervised: bool
) -> list[str]:
    """The command line of a task. A supervisor runs in the Python that submits, outside of
    Apptainer, and is told the environment's; pyxis's container is around all that srun starts."""
    if not supervised:
        return command(environment, root, arguments)
    inside = environment.pyxis is not None
    ours = environment.interpreter if inside else sys.executable
    return [ours, *arguments, *command(environment, root, ())]


def srun_options(environment: Environment, root: Path) -> list[str]:
    """What srun is told of an environment: the MPI plug-in, and pyxis's container."""
    options = [f"--mpi={environment.mpi}"]
    box = environment.pyxis
    if box is not None:
        mounts = ",".join(_pair(each) for each in (_mountable(root), *box.mounts))
        options += [f"--container-image={box.image}", f"--container-mounts={mounts}"]
        if environment.env:  # else a variable that the image sets itself would stay as it is there
            options.append(f"--container-env={','.join(environment.env)}")
        options += box.options
    return options


def _pair(mount: str) -> str:
    return mount if ":" in mount else f"{mount}:{mount}"


def _mountable(root: Path) -> str:
    """The sweep's directory as a mount; LedgerError if its name cannot stand in one."""
    if set(str(root)) & set(",:"):
        raise LedgerError(
            f"{root}: a container cannot be given a directory with ',' or ':' in its path;"
            " sweep with another --logs"
        )
    return str(root)


def setup_lines(environment: Environment, first: Iterable[str] = ()) -> list[str]:
    """Shell lines that lead into an environment, for a shell that only runs the ranks.

    A step that fails, or leaves the shell, ends it, and is named in the output; ``first`` are
    steps before all others.
    """
    cleared = (*_OTHER_PYTHONS, *(_OTHER_CONDAS if environment.conda else ()))
    unset = [f"unset {' '.join(cleared)}"] if environment.own_python else []
    kind = [*_module_steps(environment), *_conda_steps(environment)]
    steps = [*first, *kind, *environment.setup]
    return [*unset, *_checked(steps), *_venv_lines(environment), *_exports(environment)]


def _checked(steps: list[str]) -> list[str]:
    """Each step (one line of shell code) so that the shell ends with it if it fails.

    ``eval``, because a slip of the pen in a step must not make bash misread what follows.
    """
    lines = [
        line
        for step in steps
        for line in (f"dlperf_line={shlex.quote(step)}", 'eval "$dlperf_line" || exit')
    ]
    return [*_TRAP, *lines, "dlperf_line="] if lines else []


_TRAP = (
    """trap 'dlperf_status=$?; [ -z "$dlperf_line" ] ||"""
    f""" printf "{SETUP_MARK} %d: %s\\n" "$dlperf_status" "$dlperf_line" >&2' EXIT""",
)


def _module_steps(environment: Environment) -> list[str]:
    purge = ["module purge"] if environment.modules_purge else []
    steps = [*purge, *(f"module load {shlex.quote(name)}" for name in environment.modules)]
    return [_FIND_MODULE, *steps] if steps else []


def _conda_steps(environment: Environment) -> list[str]:
    if environment.conda is None:
        return []
    root = environment.conda_root
    # A batch shell has not read the lines that `conda init` writes for interactive ones.
    hook = (
        f"source {shlex.quote(root.rstrip('/') + '/etc/profile.d/conda.sh')}"
        if root
        else 'dlperf_hook="$(conda shell.bash hook)" && eval "$dlperf_hook"'
    )
    activate = f"conda activate {shlex.quote(environment.conda)}"
    return [hook, activate, '[ -x "$CONDA_PREFIX/bin/python" ]']


def _venv_lines(environment: Environment) -> list[str]:
    if environment.venv is None:
        return []
    path = shlex.quote(environment.venv.rstrip("/"))
    return [f"export VIRTUAL_ENV={path}", 'export PATH="$VIRTUAL_ENV/bin:$PATH"']


def _exports(environment: Environment) -> list[str]:
    given = {**environment.env, **_inside(environment)}
    return [f"export {name}={shlex.quote(value)}" for name, value in given.items()]


def _inside(environment: Environment) -> dict[str, str]:
    """What gives a container's ranks the variables of ``env``: else those that the image sets
    itself, and PATH and LD_LIBRARY_PATH, would be the image's. Apptainer has a shell read them."""
    box = environment.apptainer
    if box is None:
        return {}
    prefix = f"{box.program.upper()}ENV_"
    special = str.maketrans({each: f"\\{each}" for each in "\\$`"})
    return {prefix + name: value.translate(special) for name, value in environment.env.items()}


def local_variables(environment: Environment) -> dict[str, str]:
    """Variables of an environment where no shell runs. Python takes an empty one for unset."""
    cleared = dict.fromkeys(_OTHER_PYTHONS[:2], "") if environment.own_python else {}
    return {**cleared, **environment.env, **_inside(environment)}


def local_refusal(environment: Environment) -> str | None:
    """Why mpiexec alone cannot start an environment; None if it can."""
    if environment.pyxis is not None:
        return "pyxis is a part of Slurm's srun"
    if environment.conda and not environment.conda.startswith("/"):
        return f"conda environment {environment.conda!r} is found by a batch script only"
    return None
