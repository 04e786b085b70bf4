"""Whose a sweep's directory is: whether anything may be written into it, or run out of it.

Batch scripts are made of a sweep's directory: shell lines, the Python, nodes. So it is as trusted
as a site profile, and before anything is submitted out of it, owner and mode are looked at, as ssh
does with its keys (``StrictModes``): of the directory, of ``jobs/`` and ``arrays/``, of the
manifest and the files beside it. Of the directories above, only that none lets everybody rename
what is in it (world-writable without the sticky bit): a project's directory belongs to whoever
leads the project.

Not seen: what somebody swaps between the look and the use; NFSv4's access lists, which mode bits
need not show (POSIX's show as the group's bits); a server's view of root (a squashed root's files
are nobody's).
"""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlperf_hpc.errors import ABSENT, LedgerError
from dlperf_hpc.files import is_mine, user_name, writable_by_strangers
from dlperf_hpc.records import layout

_FOLDERS = (layout.JOBS, layout.ARRAYS)
_FILES = (layout.MANIFEST, layout.SUBMISSIONS, layout.FINAL_STATES, layout.LOCK, layout.SPEC_COPY)
_group: int | None = None


def sharing_group() -> int | None:
    """The gid of the group whose members count as this user, within :func:`sharing`."""
    return _group


@contextmanager
def sharing(name: str | None) -> Iterator[None]:
    """Within the context what a member of this group owns, and what the group can write, counts as
    one's own. ``name`` must come from the user's own site profile, never from a sweep's directory.
    LedgerError if this machine has no such group."""
    global _group
    before = _group
    try:
        _group = None if name is None else grp.getgrnam(name).gr_gid
    except KeyError:
        raise LedgerError(
            f"site profile: group: this machine has no group {name!r}; `id` lists yours"
        ) from None
    try:
        yield
    finally:
        _group = before


def make_directory(path: Path) -> None:
    """Make one directory of a sweep, if it is not there: only the group of :func:`sharing` can
    write it too. OSError as :func:`os.mkdir` raises it, or if this user is not in the group."""
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if _group is not None:
        os.chown(path, -1, _group)
        path.chmod(0o2775)  # setgid: what is made in it belongs to the group too


def whose_else(root: Path) -> str | None:
    """Why nothing is to be written into a sweep's directory: what of it is somebody else's, in
    words; None if it is this user's own."""
    paths = (root, *(root / name for name in _FOLDERS))
    return next(filter(None, map(not_mine, paths)), None)


def ownership_warning(root: Path) -> str | None:
    """Why nothing is to be run out of a sweep's directory: the first path there that is not this
    user's own, or that others can write, in words; None if there is none."""
    arrays = sorted((root / layout.ARRAYS).glob("*.json"))
    for path in (root, *(root / name for name in (*_FOLDERS, *_FILES)), *arrays):
        words = not_mine(path) or _writable(path)
        if words:
            return words
    return _replaceable(root)


def refuse_unsafe(root: Path) -> None:
    """LedgerError for a directory that was made or changed by somebody else, or could be."""
    words = ownership_warning(root)
    if words:
        raise LedgerError(
            f"{words}; whoever can write a sweep's directory decides what its jobs run. {_REMEDY}"
        )


def refuse_foreign(root: Path) -> None:
    """LedgerError for a directory that is not this user's: nothing is written into it."""
    words = whose_else(root)
    if words:
        raise LedgerError(f"{words}; nothing is written into another user's sweep. {_REMEDY}")


_REMEDY = (
    "If it is yours, take these rights away (chmod go-w); what is another's is there to be read, or"
    " to be copied; a group that shares its sweeps is named as `group` in your site profile"
    " (--site)"
)


def not_mine(path: Path) -> str | None:
    """What belongs to somebody else, or is a link that somebody else made, in words; None if it is
    this user's own, or not there."""
    try:
        link, found = os.lstat(path), os.stat(path)
    except ABSENT:
        # A link to nothing would be made something by whoever writes through it.
        return f"{path}: is a link to nothing" if os.path.islink(path) else None
    except OSError as error:
        return f"{path}: cannot be looked at: {error.strerror}"
    for what in (link, found):
        if not is_mine(what, _group):
            return f"{path}: belongs to {user_name(what.st_uid)}, {_mode(what)}"
    return None


def _writable(path: Path) -> str | None:
    try:
        found = os.stat(path)
    except OSError:
        return None  # not there: see not_mine
    by_strangers = writable_by_strangers(found, _group)
    return f"{path}: others can write it, {_mode(found)}" if by_strangers else None


def _mode(found: os.stat_result) -> str:
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = f"gid {found.st_gid}"
    return f"mode {stat.S_IMODE(found.st_mode):04o}, group {group}"


def _replaceable(root: Path) -> str | None:
    """The first directory above in which everybody can replace this one: on the path as it was
    given, and as it is without links."""
    above = dict.fromkeys((*root.absolute().parents, *Path(os.path.realpath(root)).parents))
    for path in above:
        mode = os.stat(path).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            named = f"mode {stat.S_IMODE(mode):04o}, without the sticky bit (chmod +t)"
            return f"{path}: everybody can rename what is in it, {named}"
    return None
