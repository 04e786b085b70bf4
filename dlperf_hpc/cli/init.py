"""``dlperf init DIR``: ready sweeps and programs and the template of a site profile, to edit."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from dlperf_hpc.cli import messages, options
from dlperf_hpc.errors import SiteError, raising, visible

SUMMARY = "copy the ready sweeps and programs and the template of a site profile, to edit them"

_EPILOG = """\
examples:
  dlperf init .                      sweeps, programs and slurm/template.toml
  dlperf init . --site mycluster     the template as slurm/mycluster.toml
"""


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "init",
        "Copy the ready sweeps to DIR/sweeps, the ready programs to DIR/programs and the\n"
        "template of a site profile to DIR/slurm. A file that is there already stays as it is.",
        _EPILOG,
    )
    add = made.add_argument
    add("directory", type=Path, metavar="DIR", help="the directory; it is made if it is not there")
    site = "name of the site profile that the template becomes (default: template)"
    add("--site", default="template", metavar="NAME", help=site)
    options.add_json(made, "the files that were written, and those that were there")
    return made


def _init(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.bundled import folder

    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", arguments.site):
        hint = "write letters, digits, '_', '.' and '-'"
        raise messages.usage_error("--site", f"{arguments.site!r} is not a profile's name", hint)
    place: Path = arguments.directory
    profile = place / "slurm" / f"{arguments.site.removesuffix('.toml')}.toml"
    copies = {
        place / name / file.name: file
        for name in ("sweeps", "programs")
        for file in folder(name).glob("*.toml")
    }
    copies[profile] = folder("slurm") / "template.toml"
    written = [target for target, source in sorted(copies.items()) if _copy(source, target)]
    kept = sorted(copies.keys() - set(written))
    if arguments.json:
        messages.print_json({"written": [*map(str, written)], "kept": [*map(str, kept)]})
        return 0
    for words, files in (("written", written), ("was there, and stays", kept)):
        for file in files:
            print(f"{words}: {visible(str(file))}")
    print(f"next:\n  edit {visible(str(profile))}, whose comments are questions to answer")
    move = "" if place.resolve() == Path.cwd() else f"cd {shlex.quote(str(place))} && "
    print(f"  {visible(move)}dlperf sweep sweeps/bert_fp32.toml --site {profile.stem} --dry-run")
    return 0


def _copy(source: Path, target: Path) -> bool:
    from dlperf_hpc.files import make_output_directory, write_once

    with raising(SiteError, f"{target}: cannot be written"):
        make_output_directory(target.parent)
        return write_once(target, source.read_text(encoding="utf-8"))


main = messages.entry(_init, _parser)
