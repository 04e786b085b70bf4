"""Site profiles: a cluster's dialect as a TOML file (docs/site-profiles.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError, ValidationInfo

from dlperf_hpc.bundled import profile_file
from dlperf_hpc.engines.environments import Environment as Environment
from dlperf_hpc.engines.environments import Flag, Word
from dlperf_hpc.errors import Issue, SpecError, nearest
from dlperf_hpc.records.forms import NODE_LIST
from dlperf_hpc.sweepfile.tomlfile import read_toml
from dlperf_hpc.sweepfile.validation import STRICT, Name, issues_of, matching

Count = Annotated[int, Field(ge=1, le=10**6)]
Nodes = Annotated[str, matching(NODE_LIST, "write nodes as Slurm does, without blanks: n1,n[3-5]")]
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

# What a run's identity, or the sweep itself, decides, and by what a submission is known.
_DECIDED = (
    *("array", "clusters", "comment", "error", "job-name", "nodes", "ntasks", "ntasks-per-node"),
    *("open-mode", "output", "parsable", "quiet", "signal", "test-only", "time", "wait", "wckey"),
    "wrap",
)
# What the profile has a key of its own for.
_OWN_KEYS = {
    "account": "account",
    "constraint": "constraint",
    "cpus-per-task": "cpus_per_task",
    "exclude": "exclude",
    "exclusive": "exclusive",
    "export": "export",
    "export-file": "export",
    "gpus-per-node": "gpus",
    "mem": "mem",
    "mem-per-cpu": "mem_per_cpu",
    "no-requeue": "requeue",
    "partition": "partition",
    "qos": "qos",
    "requeue": "requeue",
    "reservation": "reservation",
}
_SRUN_DECIDED = (
    *("error", "input", "kill-on-bad-exit", "label", "multi-prog", "nodes", "ntasks"),
    *("ntasks-per-node", "output"),
)
_SRUN_OWN_KEYS = {
    "cpus-per-task": "cpus_per_task",
    "exclude": "exclude",
    "export": "export",
    "mpi": "mpi of an environment",
    "wait": "srun_wait_s",
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


def _sbatch_options(options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    # Two requests for GPUs, memory, or whole nodes would let one replace the other in silence.
    own = dict(_OWN_KEYS)
    if not info.data.get("exclusive"):
        del own["exclusive"]
    if info.data.get("gpus") == "gres":
        own["gres"] = "gpus"
    if info.data.get("gpu_bind"):
        own.update({"gpu-bind": "gpu_bind", "tres-bind": "gpu_bind"})
    if info.data.get("mem") or info.data.get("mem_per_cpu"):
        own["mem-per-gpu"] = "mem or mem_per_cpu"
    for name, value in options.items():
        option = name.replace("_", "-")
        if _meant(option, _DECIDED):
            raise ValueError(f"{name} is decided by the sweep")
        meant = _meant(option, own)
        if meant:
            raise ValueError(f"{name} belongs to the profile's own key {own[meant]}")
        if value is not True and (isinstance(value, bool) or not isinstance(value, (str, int))):
            raise ValueError(f"{name} needs a text, a whole number, or true for a bare option")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError(f"{name} must be one line without control characters")
    return options


def _srun_option(flag: str, info: ValidationInfo) -> str:
    own = dict(_SRUN_OWN_KEYS)
    if info.data.get("gpu_bind"):
        own.update({"gpu-bind": "gpu_bind", "tres-bind": "gpu_bind"})
    option = flag.removeprefix("--").partition("=")[0]
    if not flag.startswith("--"):
        option = _SRUN_SHORT.get(flag[:2], "(short)")
    if _meant(option, _SRUN_DECIDED):
        raise ValueError(f"{option} is decided by the sweep")
    meant = _meant(option, own)
    if meant:
        raise ValueError(f"{option} belongs to the profile's own key {own[meant]}")
    return flag


def _one_memory(value: str | None, info: ValidationInfo) -> str | None:
    if value is not None and info.data.get("mem") is not None:
        raise ValueError("mem is there already, and Slurm takes one of the two")
    return value


def _spreadable(value: bool, info: ValidationInfo) -> bool:
    # Which nodes are left is then not to be known, and a repeat might wait for none for ever.
    asked = next((key for key in ("constraint", "reservation") if info.data.get(key)), None)
    if value and asked:
        raise ValueError(f"spread cannot be had with {asked}: nobody knows which nodes are left")
    return value


class Site(BaseModel):
    """How this cluster wants to be asked. What is not given is not asked for."""

    model_config = STRICT

    description: str = ""
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    reservation: Word | None = None
    gpus: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    gpu_type: Word | None = None
    exclusive: bool = True
    cpus_per_task: Count | None = None
    gpu_bind: Literal["none", "tres-none"] | None = None
    mem: _Memory | None = None
    mem_per_cpu: Annotated[_Memory | None, AfterValidator(_one_memory)] = None
    ntasks: bool = False
    exclude: Nodes | None = None
    spread: Annotated[bool, AfterValidator(_spreadable)] = False
    export: _Export = "ALL"
    requeue: Annotated[int, Field(ge=0, le=100)] | None = None
    array_parallelism: Count | None = None
    max_array_size: Count | None = None
    max_submit: Count | None = None
    srun_wait_s: Count = 60
    poll_s: Annotated[float, Field(gt=0, le=86400)] = 30.0
    group: _Group | None = None
    sbatch: Annotated[dict[Name, Any], AfterValidator(_sbatch_options)] = {}
    srun: list[Annotated[Flag, AfterValidator(_srun_option)]] = []
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


def _profile_path(name: str) -> Path:
    if name.endswith(".toml") or "/" in name:
        return Path(name).expanduser()
    return profile_file(name)


def load_site(name: str | None) -> Site:
    """The profile of that name (see ``bundled.profile_folders``) or path; without a name that of
    DLPERF_SITE, else plain.

    Raises SpecError with every issue of the file.
    """
    name = name or os.environ.get("DLPERF_SITE")
    if not name:
        return Site()
    path = _profile_path(name)
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
