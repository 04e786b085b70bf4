"""Site profiles: a cluster's dialect as a TOML file in ``slurm/`` (docs/site-profiles.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.spec.keys import Line, Name, matching, nearest
from dlperf_hpc.spec.tomlfile import pydantic_issues, read_toml

Word = Annotated[str, matching(r"[^\s\x00-\x1f\x7f]+", "write one word without blanks")]
Interpreter = Annotated[
    str,
    matching(
        r"([^\s\x00-\x1f\x7f$~][^\s\x00-\x1f\x7f$]*)?",
        "write one path, in full: no shell reads it, so ~, $VAR and arguments do not work"
        " (for a container give the path of an executable script)",
    ),
]
Variable = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "write a variable's name: letters, digits and '_'")
]
Count = Annotated[int, Field(ge=1, le=10**6)]
PROFILES = Path("slurm")

# What a run's identity, or the sweep itself, decides.
_DECIDED = (
    *("array", "comment", "error", "job-name", "nodes", "ntasks", "ntasks-per-node", "open-mode"),
    *("output", "signal", "time", "wckey", "wrap"),
)
# What the profile has a key of its own for.
_OWN_KEYS = (
    *("account", "constraint", "cpus-per-task", "exclusive", "gpus-per-node", "mem", "partition"),
    *("qos", "reservation"),
)


def _sbatch_options(options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    # Two requests for GPUs, or for whole nodes, would let one replace the other in silence.
    taken = {*_OWN_KEYS, *(["gres"] if info.data.get("gpus") == "gres" else [])}
    taken -= set() if info.data.get("exclusive") else {"exclusive"}
    for name, value in options.items():
        option = name.replace("_", "-")
        if option in _DECIDED:
            raise ValueError(f"{name} is decided by the sweep")
        if option in taken:
            own = "gpus" if option in ("gres", "gpus-per-node") else option.replace("-", "_")
            raise ValueError(f"{name} belongs to the profile's own key {own}")
        if value is not True and (isinstance(value, bool) or not isinstance(value, (str, int))):
            raise ValueError(f"{name} needs a text, a whole number, or true for a bare option")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError(f"{name} must be one line without control characters")
    return options


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Environment(_Table):
    """The Python a framework lives in, and the MPI in it.

    ``python`` runs the wrapper (default: the Python that submits); ``mpi`` is srun's ``--mpi``;
    ``setup`` are shell lines before it (``module load ...``), ``env`` variables set for it.
    """

    python: Interpreter = ""
    mpi: Word = "pmi2"
    setup: list[Line] = []
    env: dict[Variable, Line] = {}

    @property
    def interpreter(self) -> str:
        """Path of the Python that runs the wrapper."""
        return self.python or sys.executable


class Site(_Table):
    """How this cluster wants to be asked. What is not given is not asked for."""

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
    mem: Word | None = None
    array_parallelism: Count | None = None
    max_array_size: Count | None = None
    max_submit: Count | None = None
    srun_wait_s: Count = 60
    poll_s: Annotated[float, Field(gt=0, le=86400)] = 30.0
    sbatch: Annotated[dict[Name, Any], AfterValidator(_sbatch_options)] = {}
    srun: list[Line] = []
    environment: dict[Name, Environment] = {}

    def environment_named(self, name: str) -> Environment:
        """The environment a case names; ``default`` is always there. SpecError for others."""
        if name in self.environment:
            return self.environment[name]
        if name == "default":
            return Environment()
        known = ["default", *self.environment]
        hint = nearest(name, known) or f"there are: {', '.join(known)}"
        message = f"a case names {name!r}, which the profile does not have"
        raise SpecError("site profile", [Issue("environment", message, hint)])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for the manifest."""
        return self.model_dump()


def _profile_path(name: str) -> Path:
    direct = Path(name)
    if name.endswith(".toml") or "/" in name:
        return direct.expanduser()
    path = PROFILES / f"{name}.toml"
    if not path.exists():
        known = sorted(p.stem for p in PROFILES.glob("*.toml"))
        hint = nearest(name, known) or (f"there are: {', '.join(known)}" if known else None)
        raise SpecError(
            str(path), [Issue("site", f"no site profile {name!r} in {PROFILES}/", hint)]
        )
    return path


def load_site(name: str | None) -> Site:
    """The profile ``slurm/<name>.toml``, or of that path; without a name DLPERF_SITE, else plain.

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
        raise SpecError(str(path), pydantic_issues(error, Site)) from error
