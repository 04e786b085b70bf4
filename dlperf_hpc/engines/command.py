"""The one way a command is run from the login node: an argument list, a clean environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dlperf_hpc.errors import SiteError

# Left over from an allocation or a user's profile, these change what the commands mean or print.
_SLURM = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SALLOC_")
_POISON = (*_SLURM, "PMI_", "PMIX_", "OMPI_", "HYDRA_", "MPI_LOCAL")
# Where the cluster is, and who is asking (sites with auth/jwt).
_KEEP = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")


@dataclass(frozen=True)
class Output:
    """What a command that ran said."""

    code: int
    stdout: str
    stderr: str


def clean_environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what an enclosing job or launcher left in it."""
    return {
        name: value for name, value in env.items() if name in _KEEP or not name.startswith(_POISON)
    }


@contextmanager
def cleaned_environment() -> Iterator[None]:
    """Let this process have a clean environment for a while: submitit calls sbatch with its own."""
    saved = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(clean_environment(saved))
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


def find(program: str, what_to_do: str) -> str:
    """Full path of a program; SiteError with ``what_to_do`` if it is not on the PATH."""
    path = shutil.which(program)
    if path is None:
        raise SiteError(f"{program}: not on the PATH of this machine; {what_to_do}")
    return path


def run(argv: Sequence[str], timeout_s: float = 60.0) -> Output:
    """Run a command to its end, in English. SiteError if it is absent or takes too long.

    What it prints may hold other people's words, in any encoding: a byte that is not UTF-8 stands
    there as ``\\xfc``.
    """
    env = {**clean_environment(), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            list(argv), capture_output=True, timeout=timeout_s, env=env, check=False,
            encoding="utf-8", errors="backslashreplace",
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SiteError(f"{argv[0]}: not on the PATH of this machine") from error
    except OSError as error:
        raise SiteError(f"{argv[0]}: cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SiteError(f"{' '.join(argv)}: no answer within {timeout_s:g} s") from error
    return Output(done.returncode, done.stdout, done.stderr)
