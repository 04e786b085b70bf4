"""Batch scripts for the tests of site profiles, and a shell in which running them does nothing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import strategies as st
from spec_samples import load, write

from dlperf_hpc.engines.plan import make_manifest
from dlperf_hpc.engines.site import Site, load_site
from dlperf_hpc.engines.slurm.script import batch_script
from dlperf_hpc.errors import SpecError
from dlperf_hpc.records.manifest import Array

TASK = {"SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "0"}
MARK = (
    'echo "dlperf_hpc: launch'
    ' ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}.${SLURM_RESTART_COUNT:-0}"'
)

# Texts that a shell, or sbatch's reader of option lines, would not leave as they are.
FRAGMENTS = [
    *("$(touch pwned)", "`touch pwned`", "$(echo x>pwned)", "; touch pwned;", "& touch pwned &"),
    *("| touch pwned", "> pwned", "< no", "&& exit 3", "|| exit 3", "exit 3", "\nexit 3\n", "\n"),
    *("'", '"', "\\", "\\'", "'\"'", "$IFS", "${PATH}", "$((1/0))", "!!", "!x", "~", "~root", "*"),
    *("{a,b}", "?", "#", " #", "[", "]", "-", "--", " ", "  ", "\t", "\r", "\0", "\x1b[31m", "%j"),
    *(
        "%",
        "=",
        ",",
        ":",
        "@",
        "é",
        "日本",
        "\u202e",
        "\u2028",
        "\x85",
        "\xa0",
        "\U0001f600",
        "EOF",
    ),
    *("#SBATCH --uid=0", "\n#SBATCH --uid=0", "<<EOF", "()", "(", ")", "{", "}", "function x"),
]
HOSTILE = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=5).map("".join)
# What an enclosing job, or a user's shell, may have set.
ENCLOSING_JOB = {
    "SBATCH_PARTITION": "evil",
    "SBATCH_EXPORT": "NONE",
    "SBATCH_ARRAY_INX": "0-9",
    "SBATCH_NO_REQUEUE": "1",
    "SBATCH_MEM_PER_CPU": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_CPU_BIND": "cores",
    "SLURM_CPUS_PER_TASK": "3",
    "SLURM_TRES_PER_TASK": "cpu=3",
    "SLURM_MEM_PER_NODE": "1",
    "SLURM_EXPORT_ENV": "NONE",
    "SRUN_CPUS_PER_TASK": "3",
    "SQUEUE_FORMAT": "%j",
    "SACCT_FORMAT": "x",
    "SINFO_FORMAT": "x",
    "PMI_RANK": "0",
    "PMIX_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "0",
}


def profile(directory: Path, text: str) -> Path:
    path = directory / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


def site_of(directory: Path, text: str) -> Site:
    return load_site(str(profile(directory, text)))


def site_issues(directory: Path, text: str) -> list[str]:
    """The issues a profile is refused with, as a user reads them."""
    path = profile(directory, text)
    with pytest.raises(SpecError) as caught:
        load_site(str(path))
    assert str(caught.value).startswith(str(path))
    return [str(issue) for issue in caught.value.issues]


def array_of(directory: Path, site: Site, **parts: str) -> Array:
    """An array of five runs on 2n4g; in the environment ``e`` if the site has one."""
    case = 'batch_size = 8\nenvironment = "e"' if "e" in site.environment else "batch_size = 8"
    top = 'topologies = ["2n4g"]\nrepeats = 5\ntime_limit = "12:30"'
    path = write(directory, **{"top": top, "case": case, **parts})
    (array,) = make_manifest(load(path), site, "slurm").arrays
    return array


def script_of(directory: Path, site: Site, **parts: str) -> str:
    array = array_of(directory, site, **parts)
    return batch_script(directory / "logs", array, site)


def options_of(script: str) -> set[str]:
    lines = [line for line in script.split("\n") if line.startswith("#SBATCH")]
    return {line.removeprefix("#SBATCH ") for line in lines}


def srun_of(script: str) -> str:
    (line,) = [line for line in script.split("\n") if line.startswith("srun ")]
    return line


def srun_words(script: str) -> list[str]:
    return shlex.split(srun_of(script))


def setup_of(script: str) -> list[str]:
    """What the ranks' own shell runs before srun, behind the look for what holds the run back."""
    between = script[script.index("\n(\n") + 3 : script.index("\n# command")]
    gate, *lines = [line for line in between.split("\n") if line]
    assert gate.startswith("if [ -f ") and " dlperf_hpc.engines.holding " in gate
    return lines


def steps_of(script: str) -> list[str]:
    """The steps of the setup, of which each must go well."""
    lines = [line for line in setup_of(script) if line.startswith("dlperf_line=")]
    steps = [shlex.split(line)[0].removeprefix("dlperf_line=") for line in lines]
    return [step for step in steps if step]


def bash(
    code: str, directory: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run shell code where there is no command at all: everything that runs is seen."""
    empty = directory / "bin"
    empty.mkdir(exist_ok=True)
    return subprocess.run(
        [shutil.which("bash") or "/bin/bash", "--noprofile", "--norc", "-c", code],
        cwd=directory,
        env={"PATH": str(empty), "LC_ALL": "C.UTF-8", **TASK, **(env or {})},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


SLURM_CONF = """\
ClusterName=none
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
AuthType=auth/none
CredType=cred/none
MessageTimeout=1
PlugStackConfig=/dev/null
NodeName=n1 CPUs=4
PartitionName=main Nodes=n1 Default=YES
"""


def as_sbatch_reads(
    script: str, directory: Path, env: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The options that the real sbatch finds in a script. No Slurm is needed but its client: it
    tells them before it sees that nobody listens."""
    (directory / "slurm.conf").write_text(SLURM_CONF)
    path = directory / "script.sh"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run(
        ["sbatch", "-vv", "--test-only", str(path)],
        env={**env, "SLURM_CONF": str(directory / "slurm.conf")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    told = done.stderr.partition("sbatch: defined options\n")[2]
    told = told.partition("\nsbatch: end of defined options")[0]
    assert told, done.stderr
    return dict(re.findall(r"^sbatch: ([a-z-]+) *: (.*)$", told, re.MULTILINE))


def as_sbatch_unquotes(text: str) -> str:
    """The first word of an option line, by the rules of sbatch's own reader."""
    word, quote, escaped = "", "", False
    for char in text:
        if escaped:
            word, escaped = word + char, False
        elif char == "\\":
            escaped = True
        elif quote or char in "'\"":
            if char == quote or not quote:
                quote = "" if quote else char
            else:
                word += char
        elif char == "#" or char in " \t\n\v\f\r":
            break
        else:
            word += char
    return word
