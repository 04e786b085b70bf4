"""Site profiles: a cluster's dialect as a TOML file in ``slurm/`` (docs/site-profiles.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.spec.keys import Name, nearest
from dlperf_hpc.spec.sweepfile import pydantic_issues, read_toml

Word = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f]+$")]
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f]*$")]
PROFILES = Path("slurm")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Environment(_Table):
    """The Python a framework lives in, and the MPI in it.

    ``python`` runs the wrapper (default: the Python that submits); ``mpi`` is srun's ``--mpi``;
    ``setup`` are shell lines before it (``module load ...``), ``env`` variables set for it.
    """

    python: Line = ""
    mpi: Word = "pmi2"
    setup: list[Line] = []
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], Line] = {}

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
    cpus_per_task: Annotated[int, Field(ge=1)] | None = None
    mem: Word | None = None
    array_parallelism: Annotated[int, Field(ge=1)] | None = None
    srun_wait_s: Annotated[int, Field(ge=1)] = 60
    poll_s: Annotated[float, Field(gt=0)] = 30.0
    sbatch: dict[Name, Line | int | bool] = {}
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
        raise SpecError("site profile", [Issue("environment", f"no environment {name!r}", hint)])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for the manifest."""
        return self.model_dump()


def _profile_path(name: str) -> Path:
    direct = Path(name)
    if name.endswith(".toml") or "/" in name:
        return direct
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
    if name is None:
        return Site()
    path = _profile_path(name)
    _text, tables = read_toml(path)
    try:
        return Site.model_validate(tables)
    except ValidationError as error:
        raise SpecError(str(path), pydantic_issues(error, Site)) from error
