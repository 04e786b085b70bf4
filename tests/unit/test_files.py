"""Reading and appending touch regular files only, and never wait."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest

from dlperf_hpc.files import (
    NotAFile,
    append_line,
    is_member,
    lock,
    lock_holder,
    make_directories,
    make_output_directory,
    open_locked,
    read_regular,
    user_name,
    writable_by_strangers,
    write_once,
)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_pipe_is_neither_read_nor_appended_to(pipe: Path) -> None:
    for use in (read_regular, lambda path: append_line(path, "x")):
        with pytest.raises(NotAFile, match="named pipe"):
            use(pipe)


def test_a_socket_and_a_device_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        with pytest.raises(NotAFile, match="socket"):
            read_regular("socket")
    with pytest.raises(NotAFile, match="device"):
        read_regular("/dev/zero")


def test_a_directory_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


def test_a_file_over_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, most=5) == b"12345"
    with pytest.raises(OSError, match="more than the 4 bytes"):
        read_regular(path, most=4)


def test_what_cannot_be_encoded_leaves_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_once(tmp_path / "file", "\udc80")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_replaced_after_it_was_opened_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file server says it (ESTALE), which no local disk does."""
    path, read, stale = tmp_path / "file", os.read, [errno.ESTALE]

    def reads(descriptor: int, size: int) -> bytes:
        if stale:
            raise OSError(stale.pop(), "Stale file handle")
        return read(descriptor, size)

    path.write_bytes(b"new")
    monkeypatch.setattr(os, "read", reads)
    assert read_regular(path) == b"new"
    stale += [errno.ESTALE] * 2
    with pytest.raises(OSError, match="Stale file handle"):
        read_regular(path)


def test_what_tells_no_size_is_read_to_its_end() -> None:
    assert read_regular("/proc/self/status").startswith(b"Name:")  # st_size is 0


def test_appending_does_not_follow_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("mine\n")
    link.symlink_to(target)
    with pytest.raises(NotAFile, match="link"):
        append_line(link, "planted")
    link.unlink()
    link.symlink_to(tmp_path / "absent")  # O_CREAT would make it
    with pytest.raises(NotAFile, match="link"):
        append_line(link, "planted")
    assert target.read_text() == "mine\n" and not (tmp_path / "absent").exists()
    assert read_regular(target) == b"mine\n"


def test_lines_are_added_behind_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_line(path, "a")
    with path.open("a") as file:
        file.write("torn")
    append_line(path, "b\nc")
    assert path.read_text() == "a\ntorn\nb\nc\n"


# --- whose a file is -----------------------------------------------------------------------------

NOBODY = 65534
two_users = pytest.mark.skipif(os.geteuid() != 0, reason="to be two users takes root")


@two_users
def test_nothing_is_added_to_anothers_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("theirs\n")
    path.chmod(0o666)
    os.chown(path, NOBODY, -1)
    with pytest.raises(PermissionError, match="belongs to nobody: nothing is written into"):
        append_line(path, "x")
    assert path.read_text() == "theirs\n"


@two_users
def test_a_file_of_the_groups_takes_lines_for_who_names_the_group(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ours\n")
    os.chown(path, 1, 1)  # uid 1 is in group 1 by its entry in /etc/passwd
    assert is_member(1, 1) and not is_member(NOBODY, 1) and not is_member(4_000_000_000, 1)
    with pytest.raises(PermissionError, match="belongs to daemon"):
        append_line(path, "x", group=2)
    append_line(path, "x", group=1)
    assert path.read_text() == "ours\nx\n"
    os.chown(path, NOBODY, 1)  # of the group, but its owner is not in it
    with pytest.raises(PermissionError, match="belongs to nobody"):
        append_line(path, "x", group=1)


def test_a_second_name_of_ones_own_file_is_refused_where_another_could_have_made_it(
    tmp_path: Path,
) -> None:
    mine, planted = tmp_path / "mine", tmp_path / "shared" / "planted"
    mine.write_text("mine\n")
    planted.parent.mkdir()
    os.link(mine, planted)
    append_line(planted, "a kill left our own temporary name behind")
    planted.parent.chmod(0o777)
    with pytest.raises(PermissionError, match=r"has other names \(hard links\)"):
        append_line(planted, "x")
    mine.unlink()
    append_line(planted, "one name")
    assert planted.read_text().splitlines()[1:] == [
        "a kill left our own temporary name behind",
        "one name",
    ]


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_who_may_not_write_a_directory_may_not_write_what_is_made_in_it(
    tmp_path: Path, mode: int
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    top.chmod(mode)
    before = os.umask(0o002)
    try:
        make_directories(top / "a" / "b")
        make_directories(top / "a" / "b")
        write_once(top / "a" / "b" / "once", "x")
        append_line(top / "a" / "b" / "lines", "x")
    finally:
        os.umask(before)
    for path in top.rglob("*"):
        found = os.stat(path).st_mode
        assert found & 0o002 == 0 and found & 0o020 == mode & 0o020, path
    with pytest.raises(FileExistsError):
        make_directories(top / "a" / "b" / "once")


def test_only_who_can_write_a_lock_can_hold_it(tmp_path: Path) -> None:
    path, before = tmp_path / "lock", os.umask(0)
    try:
        held = open_locked(path)
    finally:
        os.umask(before)
    assert held is not None and os.stat(path).st_mode & 0o777 == 0o600
    assert open_locked(path) is None
    assert lock_holder(path).startswith(f"pid {os.getpid()} of ")
    os.close(held)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o775)
    os.close(open_locked(tmp_path / "shared" / "lock") or -1)
    assert os.stat(tmp_path / "shared" / "lock").st_mode & 0o007 == 0


def test_a_lock_that_everybody_can_read_is_replaced_once_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("")
    path.chmod(0o644)
    with open(path) as stranger:
        fcntl.flock(stranger, fcntl.LOCK_SH)
        assert open_locked(path) is None
        assert (
            lock_holder(path) == f"pid {os.getpid()} of {user_name(os.geteuid())} on this machine"
        )
        fcntl.flock(stranger, fcntl.LOCK_UN)
        held = open_locked(path)
        assert held is not None and os.stat(path).st_mode & 0o777 == 0o600
        assert lock(stranger.fileno()) and open_locked(path) is None
    os.close(held)


def test_a_link_of_ones_own_is_followed_to_ones_own_directory(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "logs").symlink_to("scratch/../scratch")
    make_output_directory(tmp_path / "logs" / "a" / "b")
    assert (tmp_path / "scratch" / "a" / "b").is_dir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        make_output_directory(tmp_path / "loop" / "a")


@two_users
def test_other_peoples_links_and_links_to_their_directories_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs, victim = tmp_path / "mine", tmp_path / "theirs", 60102
    for path, uid in ((mine, victim), (theirs, 1)):
        path.mkdir()
        os.chown(path, uid, uid)
    links = {
        "own": (victim, mine),
        "out": (victim, theirs),
        "planted": (1, mine),
        "root": (0, theirs),
    }
    for name, (uid, target) in links.items():
        (tmp_path / name).symlink_to(target)
        os.chown(tmp_path / name, uid, uid, follow_symlinks=False)
    (tmp_path / "nested").symlink_to("planted")
    os.chown(tmp_path / "nested", victim, victim, follow_symlinks=False)
    monkeypatch.setattr(os, "geteuid", lambda: victim)
    for name in ("own", "root"):
        make_output_directory(tmp_path / name / "made")
    for name, words in (("out", "into a directory of daemon"), ("planted", "of daemon"),
                        ("nested", f"{tmp_path}/planted is a link of daemon")):  # fmt: skip
        with pytest.raises(PermissionError, match=f"{words}'s, and nothing is written through it"):
            make_output_directory(tmp_path / name / "not")
    assert [path.name for path in (*mine.iterdir(), *theirs.iterdir())] == ["made", "made"]


@two_users
def test_a_private_group_is_no_other(tmp_path: Path) -> None:
    for uid, gid, mode, others in (
        (1, 1, 0o775, False),  # daemon's group, named like daemon
        (1, 2, 0o775, True),
        (1, 2, 0o755, False),
        (1, 1, 0o757, True),
        (4_000_000_000, 4_000_000_000, 0o775, True),  # of neither is there a name
    ):
        os.chown(tmp_path, uid, gid)
        tmp_path.chmod(mode)
        assert writable_by_strangers(os.stat(tmp_path)) is others, (uid, gid, mode)
        assert writable_by_strangers(os.stat(tmp_path), group=gid) is bool(mode & 0o002)
