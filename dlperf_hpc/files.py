"""Files that may be somebody else's: opened so that nothing bites, and written whole or not at all.

A path in a shared file system may be a named pipe, a socket, a device, a link into another's home,
or endless. What is read here is a regular file of a bounded size, or an OSError whose ``strerror``
says what it is instead; what is appended to is a regular file of one's own, never what a link
points to. Of ACLs only what shows in the group's bits is seen (POSIX ACLs do, NFSv4's need not).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import grp
import json
import os
import pwd
import re
import shlex
import stat
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 1 << 30
"""The largest file that is read whole where the caller names no other bound: a manifest of 10^6
runs has a third of it."""

_PIECE = 1 << 24  # bytes read at once, for a file that tells no size

_KINDS = {
    stat.S_IFIFO: "is a named pipe, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
    **dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "is a device, not a file"),
    stat.S_IFLNK: "is a link, which is not followed when something is to be written",
}
_TAR = r"(?i)\.(tar(\.[a-z0-9]+)?|tgz|tbz2?|txz|tzst)$"


def is_tar(name: str, head: bytes = b"") -> bool:
    """Whether a file is a tar archive, by its name or by its first bytes, decompressed."""
    return re.search(_TAR, name) is not None or head[257:262] == b"ustar"


def unpack_tar(name: str) -> str:
    """What is said of a tar archive, which nobody here reads, and what to do."""
    return (
        "is a tar archive, and of archives only zip is read; unpack it, and give the directory"
        f" that comes out: tar xf {shlex.quote(name)}"
    )


class NotAFile(OSError):
    """What was to be read or appended to is no regular file; ``strerror`` says what it is."""


def _regular(mode: int, path: object) -> None:
    """IsADirectoryError or NotAFile, unless it is the mode of a regular file."""
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    words = _KINDS.get(stat.S_IFMT(mode), "is not a regular file")
    raise NotAFile(errno.EINVAL, words, str(path))


def _descriptor(path: str | Path, flags: int, mode: int = 0o644, folder: int | None = None) -> int:
    """A descriptor of a regular file; ``path`` is relative to the open directory ``folder``, if
    there is one. What is no file is not opened if that can be known before: to open a device may
    already do something, and O_NONBLOCK keeps a pipe from waiting."""
    try:
        follow = not flags & os.O_NOFOLLOW
        _regular(os.stat(path, dir_fd=folder, follow_symlinks=follow).st_mode, path)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode, dir_fd=folder)
    try:
        _regular(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading; bytes, unbuffered. OSError as
    :func:`open` raises it; NotAFile for pipes, sockets and devices, without waiting."""
    return os.fdopen(_descriptor(path, os.O_RDONLY), "rb", buffering=0)


def open_in(folder: int, name: str) -> BinaryIO:
    """Open a regular file of an open directory for reading, and no link; bytes, unbuffered. OSError
    as :func:`open` raises it (ELOOP if a link has taken the file's place), NotAFile."""
    return os.fdopen(_descriptor(name, os.O_RDONLY | os.O_NOFOLLOW, folder=folder), "rb", 0)


def read_regular(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """All of a regular file, as long as it is when it is opened; OSError (EFBIG) if it has more
    than ``most`` bytes, NotAFile if it is none."""
    try:
        return _all_of(path, most)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return _all_of(path, most)  # on a file server another took its place after it was opened


def _all_of(path: str | Path, most: int) -> bytes:
    descriptor = _descriptor(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        data = _read(descriptor, size or most + 1) if size <= most else b""
    finally:
        os.close(descriptor)
    if max(size, len(data)) > most:
        words = f"has more than the {most} bytes that are read of such a file"
        raise OSError(errno.EFBIG, words, str(path))
    return data


def _read(descriptor: int, size: int) -> bytes:
    """That many bytes, or those until the end: what the kernel makes (/proc) tells no size."""
    data = os.read(descriptor, min(size, _PIECE))
    parts = [data]
    while data and (size := size - len(data)):
        data = os.read(descriptor, min(size, _PIECE))
        parts.append(data)
    return b"".join(parts)


def is_mine(found: os.stat_result, group: int | None = None) -> bool:
    """Whether a file belongs to this user; or to a member of ``group`` (its gid), if it has that
    group. (Root's files on an NFS server that squashes root belong to nobody there.)"""
    if found.st_uid == os.geteuid():
        return True
    return group is not None and found.st_gid == group and is_member(found.st_uid, group)


def group_of(folder: os.stat_result) -> int | None:
    """The gid of the group that can write a directory; None if its owner alone can."""
    return folder.st_gid if folder.st_mode & stat.S_IWGRP else None


def is_member(uid: int, group: int) -> bool:
    """Whether a user is in the group with that gid, by the primary group or as one of its members.
    Asked user by user: to list a group's members is what directory services seldom allow."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return group in os.getgrouplist(user.pw_name, user.pw_gid)


def writable_by_strangers(found: os.stat_result, group: int | None = None) -> bool:
    """Whether the mode lets others write than the owner, ``group`` (a gid), and the owner's private
    group: the one that is named like the owner and has no other member."""
    if found.st_mode & stat.S_IWOTH:
        return True
    by_group = found.st_mode & stat.S_IWGRP
    return bool(by_group) and found.st_gid != group and not _is_private(found)


def _is_private(found: os.stat_result) -> bool:
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    named_alike = group.gr_name == owner.pw_name and group.gr_gid == owner.pw_gid
    return named_alike and not set(group.gr_mem) - {owner.pw_name}


def open_own(path: Path, flags: int, group: int | None = None, readable: int = 0o044) -> int:
    """Open a file of this user's (or of ``group``: see :func:`is_mine`) for writing, or make it; a
    descriptor. ``readable`` are the bits of a new file for who may not write it. NotAFile if the
    path is a link, or anything else that is no regular file; PermissionError if the file is
    somebody else's, or has other names and somebody else could have given it this one."""
    flags |= os.O_CREAT | os.O_NOFOLLOW
    descriptor = _descriptor(path, flags, _mode_in(path.parent, readable))
    try:
        words = _why_not_written(os.fstat(descriptor), path, group)
        if words:
            raise PermissionError(errno.EPERM, words, str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _why_not_written(found: os.stat_result, path: Path, group: int | None) -> str:
    if not is_mine(found, group):
        return f"belongs to {user_name(found.st_uid)}: nothing is written into others' files"
    # A file of ours has two names for a moment, or for good where a kill came: see write_once.
    if found.st_nlink > 1 and not _only_mine(path.parent):
        return "has other names (hard links), and others can write its directory"
    return ""


def _only_mine(directory: Path) -> bool:
    found = os.stat(directory)
    return is_mine(found) and not writable_by_strangers(found)


# --- locks


def lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Hold an open file (flock) until the last process that has it open closes it or ends; False if
    another holds it. OSError where the file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def open_locked(path: Path, group: int | None = None) -> int | None:
    """A descriptor of a file that this process now holds (:func:`lock`), and in which it says who
    it is; None if another holds it. Who can open a file can hold it: it is made for those alone who
    can write its directory, and one of an earlier version, which everybody can read, is replaced.
    OSError as :func:`open_own` and :func:`lock` raise it."""
    replaced = False  # where modes are fixed (FAT), another file is no better
    while True:
        with contextlib.ExitStack() as stack:
            descriptor = open_own(path, os.O_RDWR, group, readable=0)
            stack.callback(os.close, descriptor)
            if not lock(descriptor):
                return None
            found = os.fstat(descriptor)
            if found.st_nlink and (replaced or not _open_to_strangers(found, path)):
                who = f"pid {os.getpid()} of {user_name(os.geteuid())} on {os.uname().nodename}"
                since = time.strftime("since %Y-%m-%dT%H:%M:%SZ", time.gmtime())
                with contextlib.suppress(OSError):  # on a full disk it holds without a name
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{who}, {since}\n".encode(), 0)
                stack.pop_all()
                return descriptor
            if found.st_nlink:  # else who held it before has replaced it
                os.unlink(path)
                replaced = True


def _open_to_strangers(found: os.stat_result, path: Path) -> bool:
    return bool(found.st_mode & 0o077 & ~_mode_in(path.parent, readable=0))


def lock_holder(path: Path) -> str:
    """Who holds a file against :func:`open_locked`, in words: by what the holder wrote into it; of
    one that everybody can hold, the process of this machine that the kernel names."""
    try:
        found = os.stat(path)
        if not _open_to_strangers(found, path):
            return read_regular(path, 1000).decode(errors="replace").strip() or "a process"
        place = f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} "
        lines = Path("/proc/locks").read_text().split("\n")
        pid = next(line.split()[4] for line in lines if place in line and "->" not in line)
        return f"pid {pid} of {user_name(os.stat(f'/proc/{pid}').st_uid)} on this machine"
    except (OSError, StopIteration):
        return "a process that this machine does not know"


def user_name(uid: int) -> str:
    """A user's name, for people; ``uid 1001`` where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _mode_in(directory: Path, readable: int = 0o044) -> int:
    """The mode of a new file: who may not write its directory may not write the file either,
    whatever the umask lets the group do; and who can write it can read it."""
    writable = os.stat(directory).st_mode & stat.S_IWGRP
    return 0o600 | readable | writable | writable << 1


def make_directories(path: Path) -> None:
    """Make a directory, and those above it that are missing; writable by the group only if the one
    above them is. OSError as :func:`os.mkdir` raises it, if there is no such directory then."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_directories(path.parent)
    try:
        os.mkdir(path, 0o755 | os.stat(path.parent).st_mode & stat.S_IWGRP)
    except FileExistsError:
        if not path.is_dir():
            raise


def make_output_directory(path: Path, group: int | None = None) -> None:
    """:func:`make_directories` for a path that a user names: PermissionError if it leads over
    another user's link, or over a link of this user's into a directory of another's; members of
    ``group`` count as this user, and root's links are the machine's."""
    here, left = Path("/"), [*reversed(path.absolute().parts)]
    while left and os.path.lexists(place := here / left.pop()):
        link = os.lstat(place)
        if not stat.S_ISLNK(link.st_mode):
            here = place
            continue
        for what, found in (("of", link), ("into a directory of", os.stat(place))):
            if link.st_uid and found.st_uid and not is_mine(found, group):
                words = f"{place} is a link {what} {user_name(found.st_uid)}'s, and nothing is"
                words += f" written through it: name {os.path.realpath(place)} itself"
                raise PermissionError(errno.EPERM, words, str(place))
        left += reversed(Path(os.readlink(place)).parts)
    make_directories(path)


def dump_json(value: Any) -> str:
    """JSON as every file of ours has it: no NaN or Infinity (ValueError), readable, one newline."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _write_temporary(path: Path, content: str | bytes, mode: int | None) -> Path:
    if isinstance(content, str):
        content = content.encode()
    temporary = path.with_name(f".{path.name}.{os.urandom(16).hex()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, mode or _mode_in(path.parent)), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # a full disk leaves a file, if an empty one
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def write_atomically(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Replace ``path`` in one step: a reader sees the old content or the new, never half of one.
    ``mode``: None is that of its directory."""
    temporary = _write_temporary(path, content, mode)
    try:
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_once(path: Path, content: str | bytes, mode: int | None = None) -> bool:
    """Write ``path`` unless it is there; True for the one writer that made it. A hard link is the
    exclusive creation that also holds on NFS, and unlike ``open(.., "x")`` it never shows an empty
    file. ``mode`` as of :func:`write_atomically`."""
    temporary = _write_temporary(path, content, mode)
    try:
        return move_once(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def move_once(source: Path, target: Path) -> bool:
    """Rename a file of ours, over nothing; False if something has that name already."""
    with contextlib.suppress(FileExistsError):
        try:
            os.link(source, target)
            source.unlink()
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            os.replace(source, target)
            _say_once(
                "note: this file system has no hard links: instead, an empty file takes a name, and"
                " the whole file replaces it; after a kill between the two, remove the empty file"
            )
        return True
    return False


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_say_once = functools.cache(functools.partial(print, file=sys.stderr))


def open_append(path: str | Path) -> BinaryIO:
    """Open a regular file of one's own to add to it; it is made if it is not there. Bytes,
    unbuffered. OSError as :func:`open_own` raises it."""
    descriptor = open_own(Path(path), os.O_WRONLY | os.O_APPEND)
    os.set_blocking(descriptor, True)  # programs inherit it
    return os.fdopen(descriptor, "ab", buffering=0)


def append_line(path: Path, text: str, group: int | None = None) -> None:
    """Add lines in a single write, so that those of several writers do not mix. After a line that
    was torn by a kill or a full disk, they begin on a line of their own. OSError as
    :func:`open_own` raises it, or if not all is taken."""
    data = (text.rstrip("\n") + "\n").encode(errors="backslashreplace")
    descriptor = open_own(path, os.O_RDWR | os.O_APPEND, group)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)
