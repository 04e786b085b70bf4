"""Site profiles: a cluster's dialect as a TOML file (docs/site-profiles.md), with its environments:
where a framework's Python lives, and the command lines that run it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
)

from dlperf_hpc.bundled import profile_file
from dlperf_hpc.errors import Issue, LedgerError, SpecError, nearest
from dlperf_hpc.records.forms import NODE_LIST
from dlperf_hpc.sweepfile.tomlfile import read_toml
from dlperf_hpc.sweepfile.validation import STRICT, Line, Name, issues_of, matching

_Word = Annotated[str, matching(r"[^\s\x00-\x1f\x7f]+", "write one word without blanks")]
_Flag = Annotated[
    str,
    matching(
        r"--?[A-Za-z][^\x00-\x1f\x7f]*",
        "write an option as one word, its value after '=': --cpu-bind=cores",
    ),
]
_Interpreter = Annotated[
    str,
    matching(
        r"([^\s\x00-\x1f\x7f$~-][^\s\x00-\x1f\x7f$]*)?",
        "write one path, in full: no shell reads it, so ~, $VAR and arguments do not work"
        " (for a container there are apptainer and pyxis)",
    ),
]
_Variable = Annotated[
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
    str, matching(r"(?:/|[a-z]+://)[^\x00-\x1f\x7f]+", "write the image's full path, or a URI")
]
_Mount = Annotated[
    str, matching(r"/[^\x00-\x1f\x7f,]*", "write SRC, SRC:DST or SRC:DST:FLAGS with full paths")
]
_PyxisFlag = Annotated[
    str,
    matching(r"--(?:no-)?container-[^\x00-\x1f\x7f]+", "write one of pyxis's --container-* flags"),
]

_Count = Annotated[int, Field(ge=1, le=10**6)]
_Nodes = Annotated[str, matching(NODE_LIST, "write nodes as Slurm does, without blanks: n1,n[3-5]")]
_Memory = Annotated[str, matching(r"[0-9]+[KMGTkmgt]?[Bb]?", "write an amount: 0 (all), 512M, 64G")]
_Export = Annotated[
    str,
    matching(
        r"NONE|NIL|(?!NONE\b|NIL\b)[A-Za-z_][A-Za-z0-9_]*(=[^\s\x00-\x1f\x7f,]*)?"
        r"(,[A-Za-z_][A-Za-z0-9_]*(=[^\s\x00-\x1f\x7f,]*)?)*",
        "write ALL, NONE, NIL, or variables: ALL,NAME=value,NAME",
    ),
]
_Group = Annotated[str, matching(r"[^\x00-\x1f\x7f:]+", "write the name of a group, as `id` does")]


def mountable(root: Path) -> str:
    """The sweep's directory as a mount; LedgerError if its name cannot stand in one."""
    if set(str(root)) & set(",:"):
        raise LedgerError(
            f"{root}: a container cannot be given a directory with ',' or ':' in its path;"
            " sweep with another --logs"
        )
    return str(root)


class _ProfileTable(BaseModel):
    model_config = STRICT


class Apptainer(_ProfileTable):
    """An Apptainer (or Singularity) image; ``options`` are further words of ``exec``."""

    image: _Image
    binds: list[_Mount] = []
    nv: bool = True
    options: list[_Flag] = []
    program: Literal["apptainer", "singularity"] = "apptainer"


class Pyxis(_ProfileTable):
    """An image for pyxis, Slurm's plug-in for enroot; ``options`` are further flags of srun."""

    image: _Word
    mounts: list[_Mount] = []
    options: list[_PyxisFlag] = []


def _one_python(value: Any, info: ValidationInfo) -> Any:
    """Refuse a second Python. One inside a container is named by ``python``."""
    kinds = ["venv", "conda", "apptainer"]
    if info.field_name not in ("apptainer", "pyxis"):
        kinds.append("python")
    for kind in kinds:
        if value is not None and kind != info.field_name and info.data.get(kind):
            raise ValueError(f"{kind} names another Python, and an environment has one")
    return value


def _beside_conda(value: Any, info: ValidationInfo) -> Any:
    if value is not None and info.data.get("conda", "") is None:
        raise ValueError("says where conda is, but conda names no environment")
    return value


class Environment(_ProfileTable):
    """The Python a framework lives in, and the MPI in it. Without ``venv``, ``conda``,
    ``apptainer`` or ``pyxis``, ``python`` runs the wrapper (default: the Python that submits); in a
    container it is the Python inside. ``mpi`` is srun's ``--mpi``. ``modules`` are loaded first,
    then ``setup``'s shell lines run, then ``env`` is exported."""

    python: _Interpreter = ""
    venv: Annotated[_Directory | None, BeforeValidator(_one_python)] = None
    conda: Annotated[_Conda | None, BeforeValidator(_one_python)] = None
    conda_root: Annotated[_Directory | None, AfterValidator(_beside_conda)] = None
    modules: list[_Module] = []
    modules_purge: bool = False
    apptainer: Annotated[Apptainer | None, BeforeValidator(_one_python)] = None
    pyxis: Annotated[Pyxis | None, BeforeValidator(_one_python)] = None
    mpi: _Word = "pmi2"
    setup: list[Line] = []
    env: dict[_Variable, Line] = {}

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

    def command(self, root: Path, words: Iterable[str]) -> list[str]:
        """The command line that runs this Python with ``words`` as its arguments. ``root``, the
        sweep's directory, is to be seen inside a container too."""
        box = self.apptainer
        prefix: list[str] = []
        if box is not None:
            binds = [f"--bind={each}" for each in (mountable(root), *box.binds)]
            prefix = [box.program, "exec", *["--nv"] * box.nv, *binds, *box.options, box.image]
        return [*prefix, self.interpreter, *words]

    def task_command(self, root: Path, arguments: Iterable[str], supervised: bool) -> list[str]:
        """The command line of a task. A supervisor runs in the Python that submits, outside of
        Apptainer, and is given this environment's; pyxis's container is around all that srun
        starts."""
        if not supervised:
            return self.command(root, arguments)
        ours = self.interpreter if self.pyxis is not None else sys.executable
        return [ours, *arguments, *self.command(root, ())]

    def container_variables(self) -> dict[str, str]:
        """What gives a container's ranks the variables of ``env``: else PATH, LD_LIBRARY_PATH and
        those that the image sets would be the image's. Apptainer has a shell read them."""
        if self.apptainer is None:
            return {}
        prefix = f"{self.apptainer.program.upper()}ENV_"
        special = str.maketrans({each: f"\\{each}" for each in "\\$`"})
        return {prefix + name: value.translate(special) for name, value in self.env.items()}

    def local_variables(self) -> dict[str, str]:
        """This environment's variables where no shell runs. Python takes an empty one for unset."""
        cleared = dict.fromkeys(("PYTHONHOME", "PYTHONPATH"), "") if self.own_python else {}
        return {**cleared, **self.env, **self.container_variables()}

    def local_refusal(self) -> str:
        """Why mpiexec alone cannot start this environment; '' if it can."""
        if self.pyxis is not None:
            return "pyxis is a part of Slurm's srun"
        if self.conda and not self.conda.startswith("/"):
            return f"conda environment {self.conda!r} is found by a batch script only"
        return ""


# What a run's identity, or the sweep itself, decides, and by what a submission is known.
_DECIDED = (
    *("array", "clusters", "comment", "error", "job-name", "nodes", "ntasks", "ntasks-per-node"),
    *("open-mode", "output", "parsable", "quiet", "signal", "test-only", "time", "wait", "wckey"),
    "wrap",
)
# What the profile has a key of its own for.
_NAMED_ALIKE = (
    *("account", "constraint", "cpus_per_task", "exclude", "exclusive", "export", "mem"),
    *("mem_per_cpu", "partition", "qos", "requeue", "reservation"),
)
_OWN_KEYS = {
    **{name.replace("_", "-"): name for name in _NAMED_ALIKE},
    **{"export-file": "export", "gpus-per-node": "gpus", "no-requeue": "requeue"},
}
_SRUN_DECIDED = (
    *("error", "input", "kill-on-bad-exit", "label", "multi-prog", "nodes", "ntasks"),
    *("ntasks-per-node", "output"),
)
_SRUN_OWN_KEYS = {
    **{"cpus-per-task": "cpus_per_task", "exclude": "exclude", "export": "export"},
    **{"mpi": "mpi of an environment", "wait": "srun_wait_s"},
}
_SRUN_SHORT = {
    **{"-K": "kill-on-bad-exit", "-N": "nodes", "-W": "wait", "-c": "cpus-per-task"},
    **{"-e": "error", "-i": "input", "-l": "label", "-n": "ntasks", "-o": "output"},
    "-x": "exclude",
}
_COMPLETE = ("gpus",)  # an option of its own, although others begin with it


def _meant(option: str, taken: Iterable[str]) -> str | None:
    """Which of these options Slurm takes ``option`` for: it understands abbreviations."""
    if option in _COMPLETE:
        return None
    return next((name for name in sorted(taken) if name.startswith(option)), None)


def _refuse_taken(
    name: str, option: str, decided: Iterable[str], own: Mapping[str, str], info: ValidationInfo
) -> None:
    """ValueError for an option that the sweep decides, or that the profile has a key for."""
    if info.data.get("gpu_bind"):
        own = {**own, "gpu-bind": "gpu_bind", "tres-bind": "gpu_bind"}
    if _meant(option, decided):
        raise ValueError(f"{name} is decided by the sweep")
    if meant := _meant(option, own):
        raise ValueError(f"{name} belongs to the profile's own key {own[meant]}")


def _sbatch_options(options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    # Two requests for GPUs, memory, or whole nodes would let one replace the other in silence.
    own = dict(_OWN_KEYS)
    if not info.data.get("exclusive"):
        del own["exclusive"]
    if info.data.get("gpus") == "gres":
        own["gres"] = "gpus"
    if any(map(info.data.get, ("mem", "mem_per_cpu"))):
        own["mem-per-gpu"] = "mem or mem_per_cpu"
    for name, value in options.items():
        _refuse_taken(name, name.replace("_", "-"), _DECIDED, own, info)
        if not (value is True or isinstance(value, str) or type(value) is int):
            raise ValueError(f"{name} needs a text, a whole number, or true for a bare option")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError(f"{name} must be one line without control characters")
    return options


def _srun_option(flag: str, info: ValidationInfo) -> str:
    option = flag.removeprefix("--").partition("=")[0]
    if not flag.startswith("--"):
        option = _SRUN_SHORT.get(flag[:2], "(short)")
    _refuse_taken(option, option, _SRUN_DECIDED, _SRUN_OWN_KEYS, info)
    return flag


def _one_memory(value: str | None, info: ValidationInfo) -> str | None:
    if value is not None and info.data.get("mem") is not None:
        raise ValueError("mem is there already, and Slurm takes one of the two")
    return value


def _spreadable(value: bool, info: ValidationInfo) -> bool:
    # Which nodes are left is then not to be known, and a repeat might wait for none for ever.
    key = next((key for key in ("constraint", "reservation") if info.data.get(key)), None)
    if value and key:
        raise ValueError(f"spread cannot be had with {key}: nobody knows which nodes are left")
    return value


class NodeHour(_ProfileTable):
    """The ``price`` of one allocated node for an hour, in a currency by its code of ISO 4217."""

    price: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
    currency: Annotated[str, matching("[A-Z]{3}", "write the currency's three letters: EUR")]


class Site(_ProfileTable):
    """How this cluster wants to be asked. What is not given is not asked for."""

    description: str = ""
    partition: _Word | None = None
    account: _Word | None = None
    qos: _Word | None = None
    constraint: _Word | None = None
    reservation: _Word | None = None
    gpus: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    gpu_type: _Word | None = None
    exclusive: bool = True
    cpus_per_task: _Count | None = None
    gpu_memory_mib: _Count | None = None
    gpu_bind: Literal["none", "tres-none"] | None = None
    mem: _Memory | None = None
    mem_per_cpu: Annotated[_Memory | None, AfterValidator(_one_memory)] = None
    ntasks: bool = False
    exclude: _Nodes | None = None
    spread: Annotated[bool, AfterValidator(_spreadable)] = False
    export: _Export = "ALL"
    requeue: Annotated[int, Field(ge=0, le=100)] | None = None
    array_parallelism: _Count | None = None
    max_array_size: _Count | None = None
    max_submit: _Count | None = None
    srun_wait_s: _Count = 60
    poll_s: Annotated[float, Field(gt=0, le=86400)] = 30.0
    group: _Group | None = None
    node_hour: NodeHour | None = None
    sbatch: Annotated[dict[Name, Any], AfterValidator(_sbatch_options)] = {}
    srun: list[Annotated[_Flag, AfterValidator(_srun_option)]] = []
    environment: dict[Name, Environment] = {}

    def environment_named(self, name: str) -> Environment:
        """The environment a case names; ``default`` is always there. SpecError for others."""
        if name in self.environment:
            return self.environment[name]
        if name == "default":
            return Environment()
        known = ["default", *self.environment]
        there = nearest(name, known) or f"there are: {', '.join(known)}"
        hint = f"{there}; to add one, write [environment.{name}] in the profile that --site names"
        message = f"a case names {name!r}, which the profile does not have"
        raise SpecError("site profile", [Issue("environment", message, hint)])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for the manifest."""
        return self.model_dump()


def load_site(name: str | None) -> Site:
    """The profile of that name (see ``bundled.profile_folders``) or path; without a name that of
    DLPERF_SITE, else plain. SpecError with every issue of the file."""
    name = name or os.environ.get("DLPERF_SITE")
    if not name:
        return Site()
    is_path = name.endswith(".toml") or "/" in name
    path = Path(name).expanduser() if is_path else profile_file(name)
    _text, tables = read_toml(path)
    try:
        return Site.model_validate(tables)
    except ValidationError as error:
        raise SpecError(str(path), issues_of(error, Site)) from error


def sharing_group(name: str | None) -> str | None:
    """The ``group`` of the user's own profile: the one named, else that of DLPERF_SITE. SpecError
    for the former only: a profile that nobody asked for now says nothing."""
    try:
        return load_site(name).group
    except SpecError:
        if name:
            raise
        return None
