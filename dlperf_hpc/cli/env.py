"""``dlperf env``: makes the environment of a framework by the project's recipe (requirements/)."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from dlperf_hpc.bundled import folder, is_checkout
from dlperf_hpc.cli import messages, options
from dlperf_hpc.cli.messages import usage_error
from dlperf_hpc.errors import SiteError, nearest

SUMMARY = "make the Python environment of a framework by a recipe that was tried"

_EPILOG = """\
examples:
  dlperf env list
  dlperf env make tensorflow --dry-run
  dlperf env make tensorflow --dir /shared/envs/tensorflow
  dlperf env make deepspeed --python /usr/bin/python3.11 --constraints mine.txt
"""

# What pip, not the wheel, puts beside the metadata.
_OF_THE_INSTALLER = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "env",
        "Make a virtual environment for a framework: the framework, MPI and dlperf_hpc, in the\n"
        "versions that were tried together. `list` shows the recipes.",
        _EPILOG,
    )
    add = made.add_argument
    add("action", choices=("list", "make"))
    add("name", nargs="?", help="the recipe, as `dlperf env list` names it")
    add("--dir", type=Path, metavar="DIR", help="the environment's directory (default: .envs/NAME)")
    python = "the Python that the environment is made of (default: the Python of this command)"
    add("--python", metavar="PYTHON", default=sys.executable, help=python)
    versions = "pip's constraints (default: the versions that were tried together)"
    add("--constraints", type=Path, metavar="FILE", help=versions)
    requirements = "pip's requirements, for builds of the site's own (default: the recipe's)"
    add("--requirements", type=Path, metavar="FILE", help=requirements)
    add("--dry-run", action="store_true", help="print the commands, and run none of them")
    options.add_json(made, "the recipes, or the environment that was made")
    return made


def _recipes() -> dict[str, str]:
    heads = {
        file.stem: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for file in sorted(folder("requirements").glob("*.txt"))
        if file.stem != "constraints"
    }
    return {name: head.partition(": make")[0] for name, head in heads.items()}


def _env(arguments: argparse.Namespace) -> int:
    known = _recipes()
    if arguments.action == "list":
        if arguments.json:
            messages.print_json(known)
        else:
            print("\n".join(f"{name:12} {what}" for name, what in known.items()))
        return 0
    if arguments.name not in known:
        name = arguments.name or ""
        hint = nearest(name, known) or f"there are: {', '.join(known)}"
        if name in ("torch", "pytorch", "ddp", "fsdp"):
            hint = f"PyTorch needs none; type {arguments.python} -m pip install torch numpy"
        raise usage_error("env make", f"there is no recipe {name!r}", hint)
    return _make(arguments)


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    settings = {"PYTHON": arguments.python}
    for option in ("constraints", "requirements"):
        if given := getattr(arguments, option):
            if not given.is_file():
                raise usage_error(f"--{option}", f"there is no file {given}")
            settings[option.upper()] = str(given.absolute())
    return settings


def _make(arguments: argparse.Namespace) -> int:
    place = Path(os.path.abspath(arguments.dir or Path(".envs", arguments.name)))
    settings = _settings(arguments)
    script = ["sh", str(folder("requirements") / "environment.sh"), arguments.name, str(place)]
    with tempfile.TemporaryDirectory(prefix="dlperf-") as scratch:
        if not is_checkout():
            wheel = repack(Path(scratch))
            settings["WRAPPER"] = str(wheel)
            if arguments.dry_run:
                settings["WRAPPER"] = wheel.name
            if arguments.dry_run and not arguments.json:
                print(f"# {wheel.name} is made of this installation, for as long as it is needed")
        if arguments.dry_run:
            settings["DRY_RUN"] = "1"
        output = None
        if arguments.json:  # what the recipe prints is no part of a JSON document
            output = subprocess.PIPE if arguments.dry_run else sys.stderr
        sys.stdout.flush()
        env = {**os.environ, **settings}
        done = subprocess.run(script, env=env, stdout=output, text=True, check=False)
    if done.returncode < 0:
        return 1
    if arguments.json:
        found = {"name": arguments.name, "venv": str(place), "made": done.returncode == 0}
        if arguments.dry_run:
            found.update(made=False, commands=done.stdout.splitlines())
        messages.print_json(found)
    if done.returncode or arguments.dry_run or arguments.json:
        return min(done.returncode, 2)
    profile = f"[environment.{arguments.name}]\nvenv = {json.dumps(str(place))}"
    print(f"made: {shlex.quote(str(place))}\nin a site profile this environment is\n{profile}")
    return 0


def repack(directory: Path) -> Path:
    """Write the wheel into ``directory``; its path. SiteError if this package is not installed.
    Another environment gets exactly this version so, also where no package index can be reached."""
    try:
        installed = distribution("dlperf_hpc")
    except PackageNotFoundError:
        raise SiteError(
            "dlperf_hpc is not installed in this Python, and no checkout: install it with pip"
        ) from None
    target = directory / f"dlperf_hpc-{installed.version}-py3-none-any.whl"
    lines = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _files(installed):
            content = path.read_bytes()
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            lines.append(f"{name},sha256={digest.decode()},{len(content)}\n")
        record = f"{_info(installed)}/RECORD"
        archive.writestr(record, "".join([*lines, f"{record},,\n"]))
    return target


def _info(installed: Distribution) -> str:
    return f"dlperf_hpc-{installed.version}.dist-info"


def _files(installed: Distribution) -> list[tuple[str, Path]]:
    """Name in the wheel and place on the disk of every file that the wheel had."""
    top = {"dlperf_hpc", _info(installed)}
    return [
        (file.as_posix(), Path(str(installed.locate_file(file))))
        for file in installed.files or ()
        if file.parts[0] in top and file.suffix != ".pyc" and file.name not in _OF_THE_INSTALLER
    ]


main = messages.entry(_env, _parser)
