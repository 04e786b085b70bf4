"""What comes with the package: ready sweeps and programs, site profiles, recipes of environments,
onebox.

In a checkout these are the folders ``sweeps``, ``programs``, ``slurm`` and ``requirements`` at its
top, and a checkout that is installed as editable uses them there. A wheel has copies of them in
this folder (setup.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dlperf_hpc.errors import Issue, SpecError, nearest

_HERE = Path(__file__).parent
_MOST_NAMED = 10  # files of a directory that a message names


def folder(name: str) -> Path:
    """The folder ``sweeps``, ``programs``, ``slurm`` or ``requirements``, wherever this package has
    it."""
    own = _HERE / name
    return own if own.is_dir() else _HERE.parent.parent / name


def is_checkout() -> bool:
    """Whether the package is imported from a checkout, not from an installed wheel."""
    # Not by a pyproject.toml: other packages' wheels leave theirs in site-packages.
    return not (_HERE / "requirements").is_dir()


def sweep_file(given: Path) -> Path:
    """The sweep file of that path or, where a bare name is no file, the sweep of that name.

    A name is sought in ``sweeps/`` below the current directory, then among the ready sweeps.
    SpecError, which lists the ready sweeps, for a name that none has.
    """
    bare = given.name == str(given) and given.suffix != ".toml"
    ready, known = _ready(given.name) if bare else None, ready_sweeps()
    if given.is_dir() and ready is None:
        inside = sorted(path.name for path in given.glob("*.toml"))[:_MOST_NAMED]
        hint = f"it holds {', '.join(inside)}" if inside else "give a file that ends in .toml"
        issue = Issue("file", "is a directory, and a sweep file is wanted", hint)
    elif given.is_file() or (not bare and (given.exists() or given.stem not in known)):
        return given
    elif not bare:
        hint = f"to use the ready sweep, write its name alone: {given.stem}"
        issue = Issue("file", "there is no such file", hint)
    elif ready is not None:
        return ready
    else:
        hint = nearest(given.name, known) or f"there are: {', '.join(known)}"
        issue = Issue("sweep", "there is no file and no sweep of this name", hint)
    raise SpecError(str(given), [issue])


def _ready(name: str) -> Path | None:
    folders = (Path("sweeps"), folder("sweeps"))
    return next((path for path in _files_called(name, folders) if path.is_file()), None)


def ready_sweeps() -> list[str]:
    """The names of the sweeps that come with the package."""
    return sorted(path.stem for path in folder("sweeps").glob("*.toml"))


def program_folders(sweep: Path) -> list[Path]:
    """The folders in which a sweep's program is sought by its name, first to last: ``programs/``
    below the current directory and beside the sweep file, the user's own in ``$XDG_CONFIG_HOME`` or
    ``~/.config``, and what comes with the package."""
    return [Path("programs"), sweep.parent / "programs", _config() / "programs", folder("programs")]


def profile_folders() -> list[Path]:
    """The folders in which a site profile is sought by its name, first to last.

    ``slurm/`` below the current directory, the folders of ``$DLPERF_SITES`` (separated by ``:``),
    the user's own in ``$XDG_CONFIG_HOME`` or ``~/.config``, and what comes with the package.
    """
    sites = os.environ.get("DLPERF_SITES", "").split(os.pathsep)
    places = [Path(each).expanduser() for each in sites if each]
    return [Path("slurm"), *places, _config(), folder("slurm")]


def _config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser(), "dlperf_hpc")


def profile_file(name: str) -> Path:
    """The site profile of that name. SpecError that says where it was sought, and what to do."""
    folders = profile_folders()
    found = next((path for path in _files_called(name, folders) if path.exists()), None)
    if found is not None:
        return found
    known = sorted({path.stem for place in folders for path in place.glob("*.toml")})
    sought = ", ".join(f"{place}/" for place in folders)
    near = nearest(name, known) or (f"there are: {', '.join(known)}" if known else "")
    make = f"to make one, type `dlperf init . --site {name}` and answer the questions in the file"
    hint = "; ".join(filter(None, (near, make)))
    raise SpecError(f"{name}.toml", [Issue("site", f"no site profile {name!r} in {sought}", hint)])


def _files_called(name: str, folders: list[Path] | tuple[Path, ...]) -> Iterator[Path]:
    return (place / f"{name}.toml" for place in folders)
